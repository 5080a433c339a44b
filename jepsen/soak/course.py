"""The course of a soak: start, load and turns for hours, drain, compare, judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TextIO

import msgspec
import trio

from jepsen.checkers.ends import ENDED, check_ends
from jepsen.checkers.judging import judge
from jepsen.checkers.leaders import check_leaders
from jepsen.checkers.replicas import check_replicas
from jepsen.checkers.results import CheckResult, judged, merged
from jepsen.clients.topics import open_topics
from jepsen.history.ops import OBSERVER, OpLog
from jepsen.history.phases import PHASE, Phase
from jepsen.processes import Group, NotReadyError, left_undisturbed
from jepsen.run import NOT_MADE, first_of, why_ended
from jepsen.soak.flatness import Sample, check_flatness
from jepsen.soak.ledger import Ledger
from jepsen.soak.load import QUEUES, TOPIC, SteadyLoad
from jepsen.soak.samples import sample
from jepsen.soak.turns import Onlooker, TurnFailedError, Turns
from jepsen.systems.brokers import BrokerSystem, digests_of

NODES: Final = 3
SAMPLE_S: Final = 5.0
SHOW_S: Final = 0.5
READY_S: Final = 240.0
DRAIN_S: Final = 180.0
DIGESTS_S: Final = 30.0
WARM_UP_SHARE: Final = 1.5
"""After so many times the retention messages come and go."""

RATE_SHARE_MIN: Final = 0.5
"""Below that share of the rate that was asked for, a soak proves nothing."""

SAMPLES: Final = "samples.jsonl"
HISTORY: Final = "history.jsonl"

BROKER_CONF: Final = """retentionSeconds={kept_s:.0f}
mappedFileSizeCommitLog=8388608
cleanResourceInterval=1000
snapshotLogBytes=33554432
stopForwardSec=2
"""
"""Segments and snapshots are small, so that they come and go many times."""


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """The settings of a soak.

    Attributes:
        seconds: of load.
        rate: messages a second.
        kept_s: retention of the group, in seconds.
        pause_s: from the end of a turn to the next one.
        seed: draws who is struck.
    """

    seconds: float
    rate: float
    kept_s: float
    pause_s: float
    seed: int


class SoakResult(msgspec.Struct, frozen=True):
    """The result of a soak; `results.json` of its folder, and what `--json` prints.

    Attributes:
        verdict: valid, invalid or unknown.
        checks: judgements.
        problems: why it proves nothing, whatever these say.
        seconds: of load.
        turns: how many of each were made.
        errors: answers to clients other than success, by class.
        is_interrupted: whether somebody has ended it.
    """

    verdict: str
    checks: Sequence[CheckResult]
    problems: Sequence[str]
    seconds: float
    turns: Mapping[str, int]
    errors: Mapping[str, int]
    is_interrupted: bool


@dataclass
class Soak:
    """A soak that goes on.

    Attributes:
        settings: what it was asked to be.
        ledger: the account of messages.
        samples: figures of the processes.
        problems: why it proves nothing.
        phase: where it is.
        load, turns, onlooker: from the start of the load on.
        seconds: of load.
        is_read_out: whether the readers have come to the end of every queue.
        is_interrupted: whether somebody has ended it; what was seen until then is judged.
    """

    settings: SoakSettings
    ledger: Ledger = field(default_factory=Ledger)
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    phase: Phase = "starting"
    load: SteadyLoad | None = None
    turns: Turns | None = None
    onlooker: Onlooker | None = None
    seconds: float = 0.0
    is_read_out: bool = False
    is_interrupted: bool = False


Show = Callable[[Soak], None]
"""Called twice a second while a soak goes on."""


def run_soak(settings: SoakSettings, folder: Path, show: Show) -> SoakResult:
    """Run a soak and judge it; every process has ended when this returns, or raises.

    Args:
        settings: of the soak.
        folder: for history, samples, results, logs and stores; empty.
        show: called while it runs.

    Raises:
        OSError: the folder cannot be written.
    """
    soak = Soak(settings)
    conf = BROKER_CONF.format(kept_s=settings.kept_s)
    with OpLog(folder / HISTORY) as log, (folder / SAMPLES).open("w") as samples:
        with left_undisturbed(Group(folder / "nodes", nodes=NODES, settings=conf)) as group:
            try:
                group.start()
                trio.run(
                    _Course(soak, group, log, samples).run,
                    show,
                    restrict_keyboard_interrupt_to_checkpoints=True,
                )
            except (*NOT_MADE, BaseExceptionGroup, KeyboardInterrupt) as error:
                soak.is_interrupted = isinstance(first_of(error), KeyboardInterrupt)
                soak.problems.append(f"while {soak.phase}: {why_ended(error)}")
        checks = [
            soak.ledger.judge(is_read_out=soak.is_read_out),
            check_flatness(soak.samples, warm_up_s=WARM_UP_SHARE * settings.kept_s),
            _check_rate(soak),
            *judge(log.ops, [check_leaders, check_ends, partial(check_replicas, replicas=NODES)]),
        ]
    result = _result(soak, checks)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def _check_rate(soak: Soak) -> CheckResult:
    """Judge whether enough was done to prove something."""
    asked = soak.settings.rate * soak.seconds
    done = soak.ledger.counts["acknowledged"]
    percent = round(100 * done / asked) if asked else 0
    counts: dict[str, object] = {"acknowledged": done, "percent_of_asked": percent}
    is_little = done < RATE_SHARE_MIN * asked or not asked
    why = f"{done} messages are {percent} % of what was asked for" if is_little else ""
    return judged("rate", (), counts, why)


def _result(soak: Soak, checks: Sequence[CheckResult]) -> SoakResult:
    valid = merged(checks)
    is_unknown = valid is None or (valid and bool(soak.problems))
    verdict = "unknown" if is_unknown else "valid" if valid else "invalid"
    turns = Counter(soak.turns.done if soak.turns else ())
    errors = soak.load.errors if soak.load else {}
    return SoakResult(
        verdict, checks, soak.problems, round(soak.seconds, 1), turns, errors, soak.is_interrupted
    )


class _Course:
    """One soak on its way through the phases."""

    def __init__(self, soak: Soak, group: Group, log: OpLog, samples: TextIO) -> None:
        self._soak = soak
        self._group = group
        self._log = log
        self._samples = samples

    async def run(self, show: Show) -> None:
        """Start, load, drain and compare.

        Raises:
            NotReadyError, ProcessDiedError: the group did not start.
            trio.TooSlowError: the readers did not come to the end.
        """
        soak, system = self._soak, BrokerSystem(self._group)
        soak.onlooker = Onlooker(self._group, self._log)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, show)
            await system.wait_ready(READY_S)
            nursery.start_soon(soak.onlooker.run)
            if not await soak.onlooker.wait_whole(READY_S):
                raise NotReadyError(f"no leader that all nodes follow within {READY_S:.0f} s")
            queues = await open_topics(system, (TOPIC,), queues=QUEUES)
            settings = soak.settings
            soak.load = load = SteadyLoad(
                soak.ledger,
                self._group.namesrv,
                queues,
                rate=settings.rate,
                kept_s=settings.kept_s,
            )
            soak.turns = Turns(soak.onlooker, self._log, settings.seed)
            nursery.start_soon(load.read)
            nursery.start_soon(load.look)
            nursery.start_soon(self._sample, load)
            await self._break(load, soak.turns)
            self._enter("reading")
            with trio.fail_after(DRAIN_S):
                await load.wait_read()
            soak.is_read_out = True
            await self._compare()
            nursery.cancel_scope.cancel()

    async def _break(self, load: SteadyLoad, turns: Turns) -> None:
        """Let clients work, and strike the group turn by turn, until the time is over or a turn fails."""
        self._enter("breaking")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.send)
            try:
                while not self._is_over(load):
                    await trio.sleep(self._soak.settings.pause_s)
                    self._note_ends()
                    await turns.take()
            except TurnFailedError as error:
                self._soak.problems.append(str(error))
            self._soak.seconds = load.now_s()
            load.end_sending.set()

    def _is_over(self, load: SteadyLoad) -> bool:
        """Return whether clients have worked long enough."""
        return load.now_s() >= self._soak.settings.seconds

    async def _compare(self) -> None:
        """Note the digests of all members. Marks come while records come, so a few more are sent."""
        self._enter("comparing")
        digests = await digests_of([node.address for node in self._group.nodes], DIGESTS_S)
        for node, value in digests.items():
            self._log.add(OBSERVER, "info", "digest", value, node=node)
        self._note_ends()

    def _enter(self, phase: Phase) -> None:
        self._soak.phase = phase
        self._log.add(OBSERVER, "info", PHASE, phase)

    def _note_ends(self) -> None:
        for process in self._group.processes():
            for end in process.take_unexpected_exits():
                value = {"status": end.status, "words": end.words, "excused": False}
                self._log.add(OBSERVER, "info", ENDED, value, node=process.name)

    async def _sample(self, load: SteadyLoad) -> None:
        """Take samples of all processes again and again, until cancelled."""
        while True:
            at_s = round(load.now_s(), 1)
            for process in self._group.processes():
                store = self._group.folder / process.name
                if process.pid is not None:
                    taken = sample(
                        process.name, process.pid, store if store.is_dir() else None, at_s
                    )
                    if taken is not None:
                        self._soak.samples.append(taken)
                        self._samples.write(msgspec.json.encode(taken).decode() + "\n")
            self._samples.flush()
            await trio.sleep(SAMPLE_S)

    async def _show(self, show: Show) -> None:
        while True:
            show(self._soak)
            await trio.sleep(SHOW_S)
