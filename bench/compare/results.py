"""What a comparison has found: values without I/O, which are also its JSON."""

from __future__ import annotations

import msgspec

from bench.floor import Floor
from bench.load.results import Measured, Spread
from bench.memory import Memory


class BenchRowResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one system: figures, or the reason why there are none.

    Attributes:
        row, label: its name, and what the table calls it.
        memory: of the leader, just after.
        skipped: the machine or the system lacks something for it.
        failed: it was tried, and did not come to its end.
    """

    row: str
    label: str
    measured: Measured | None = None
    memory: Memory | None = None
    skipped: str | None = None
    failed: str | None = None

    @property
    def problem(self) -> str | None:
        """The reason for which the row is not to be believed; None: there is none."""
        return self.failed or (self.measured.problem if self.measured else None)


class SystemResult(msgspec.Struct, kw_only=True):
    """All rows of one system.

    Attributes:
        name, description: the system, and what its acknowledgement is worth.
        skipped: what the machine lacks for it.
        failed: it did not start, or ended.
        started_s: until it led.
        floor: the machine's own times just before.
    """

    name: str
    description: str
    skipped: str | None = None
    failed: str | None = None
    started_s: float | None = None
    floor: Floor | None = None
    rows: list[BenchRowResult] = []

    def row(self, name: str) -> BenchRowResult | None:
        """Return a row; None: it was not reached."""
        return next((row for row in self.rows if row.row == name), None)

    @property
    def problems(self) -> list[str]:
        """Sentences about all that went wrong."""
        found = [f"{self.name}: {self.failed}"] if self.failed else []
        return found + [
            f"{self.name}, {row.row}: {row.problem}" for row in self.rows if row.problem is not None
        ]


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the first system, in parts of another's.

    Attributes:
        rate: above 1: more messages a second.
        p50: of the latency; below 1: sooner.
        leader: processor time of the leader for each message; below 1: less.
        memory: of the leader, without mapped files; below 1: less.
    """

    row: str
    system: str
    rate: float | None = None
    p50: float | None = None
    leader: float | None = None
    memory: float | None = None


class BenchMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a run, and what else went on there: processes that wanted to run, before and after."""

    cores: int
    memory_mib: int
    python: str
    load_before: float
    load_after: float


class SystemComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run."""

    version: str
    command: str
    machine: BenchMachine
    systems: list[SystemResult]
    ratios: list[Ratio]
    is_interrupted: bool = False

    @property
    def problems(self) -> list[str]:
        """Sentences about all that went wrong."""
        return [text for system in self.systems for text in system.problems]

    @property
    def is_empty(self) -> bool:
        """Nothing at all was measured."""
        return not any(row.measured or row.memory for system in self.systems for row in system.rows)


def ratios_of(systems: list[SystemResult]) -> list[Ratio]:
    """Return the ratios of the first system to each other one, row by row."""
    if not systems:
        return []
    first, *others = systems
    found = [
        _ratio(mine, theirs, other.name)
        for mine in first.rows
        for other in others
        if (theirs := other.row(mine.row)) is not None
    ]
    return [ratio for ratio in found if ratio is not None]


def _ratio(mine: BenchRowResult, theirs: BenchRowResult, system: str) -> Ratio | None:
    """Return a ratio where both were measured, and are to be believed."""
    if mine.problem or theirs.problem:
        return None  # what is not to be believed is not held against anything
    memory = mine.memory.own_mib / theirs.memory.own_mib if mine.memory and theirs.memory else None
    if mine.measured and theirs.measured:
        return Ratio(
            row=mine.row,
            system=system,
            memory=memory,
            rate=_divided(mine.measured.per_second, theirs.measured.per_second),
            leader=_divided(mine.measured.leader_us, theirs.measured.leader_us),
            p50=_divided(
                *(each.over(lambda one: one.p50_us) for each in (mine.measured, theirs.measured))
            ),
        )
    return Ratio(row=mine.row, system=system, memory=memory) if memory is not None else None


def _divided(mine: Spread | None, theirs: Spread | None) -> float | None:
    return mine.median / theirs.median if mine and theirs and theirs.median else None


def line_of(result: BenchRowResult) -> str:
    """Return one row in a line."""
    if result.measured is not None:
        figures = result.measured
        text = "" if figures.is_of_events else f"{figures.per_second.median:,.0f}/s, "
        text += f"p50 {figures.over(lambda each: each.p50_us).median:,.0f} us"
        if figures.leader_us is not None:
            text += f", leader {figures.leader_us.median:.1f} us/msg"
        return text if figures.problem is None else f"{text}; {figures.problem}"
    if result.memory is not None:
        return (
            f"{result.memory.own_mib:,.0f} MiB, and {result.memory.mapped_mib:,.0f} of mapped files"
        )
    return f"skipped: {result.skipped}" if result.skipped else f"failed: {result.failed}"
