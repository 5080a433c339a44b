"""Several workloads side by side on one system, under the same faults, in one history.

The model: that of each part, for itself. A part has workers of its own and writes under their processes, so that its
operations can be distinguished from those of others; its checkers see these, and what nemesis and observer noted.

What is done: what the parts do, all at once. Their checkers' results are named "part/checker".
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec

from jepsen.checkers.results import Checker, CheckResult
from jepsen.generators import Generator, Reserve, Share
from jepsen.history.ops import Notes, Op, OpType
from jepsen.systems.api import System
from jepsen.workloads.api import Workload, WorkloadClient


@dataclass(frozen=True, slots=True)
class _PartNotes:
    """Writes what a part says into the history of all, under the processes that it has there."""

    log: Notes
    share: Share

    def now_ns(self) -> int:
        return self.log.now_ns()

    def add(
        self,
        process: int | str,
        type_: OpType,
        f: str,
        value: object = None,
        *,
        error: str = "",
        node: str = "",
    ) -> Op:
        who = self.share.outer(process) if isinstance(process, int) else process
        return self.log.add(who, type_, f, value, error=error, node=node)


class SideBySide(Workload):
    """The workload that runs several others side by side, each with its share of the workers.

    Attributes:
        shares: which workers each part has, by its name.
    """

    name = "together"

    def __init__(self, makers: Mapping[str, Callable[[int], Workload]], workers: int) -> None:
        """Share out the workers evenly.

        Args:
            makers: make the parts for a number of workers, by their names.
            workers: of all together.
        """
        self.shares = shares(list(makers), workers)
        self._parts = {name: make(self.shares[name].workers) for name, make in makers.items()}

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make what each part needs."""
        async with AsyncExitStack() as stack:
            for name, part in self._parts.items():
                part.log = _PartNotes(self.log, self.shares[name])
                await stack.enter_async_context(part.setup(system))
            yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a client of the part that the process belongs to."""
        name = next(name for name, share in self.shares.items() if share.owns(process))
        inner = self.shares[name].inner(process)
        async with self._parts[name].client(system, inner) as client:
            yield client

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate what the parts do."""
        return self._reserve(lambda part, own: part.generator(chance, own))

    def final(self, workers: int) -> Generator:
        """Generate everything that each part reads."""
        return self._reserve(lambda part, own: part.final(own))

    def _reserve(self, make: Callable[[Workload, int], Generator]) -> Generator:
        return Reserve(
            [
                (self.shares[name], make(part, self.shares[name].workers))
                for name, part in self._parts.items()
            ]
        )

    def checkers(self) -> Sequence[Checker]:
        """Return those of the parts, each for its own operations."""
        return [
            of_part(name, self.shares[name], checker)
            for name, part in self._parts.items()
            for checker in part.checkers()
        ]


def shares(names: Sequence[str], workers: int) -> dict[str, Share]:
    """Share out workers evenly; the first parts have one more when that does not come out. Pure."""
    found: dict[str, Share] = {}
    first = 0
    for place, name in enumerate(names):
        own = workers // len(names) + (place < workers % len(names))
        found[name] = Share(first, own, workers)
        first += own
    return found


def ops_of(share: Share, ops: Sequence[Op]) -> list[Op]:
    """Return the operations of a part, and those that are nobody's. Pure."""
    return [op for op in ops if isinstance(op.process, str) or share.owns(op.process)]


def of_part(name: str, share: Share, checker: Checker) -> Checker:
    """Return a checker that judges the operations of a part alone."""

    def check(ops: Sequence[Op]) -> CheckResult:
        result = checker(ops_of(share, ops))
        return msgspec.structs.replace(result, name=f"{name}/{result.name}")

    check.__name__ = f"{name}/{getattr(checker, '__name__', repr(checker)).removeprefix('check_')}"
    return check
