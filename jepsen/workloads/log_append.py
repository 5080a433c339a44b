"""Lists in the log: append to a key, read a key; linearizable.

The model. Each key is a list. An append puts an element at its end, a read returns all of it, and each takes effect at
one moment between question and answer (`checkers/linearizable.py`): a read sees every append that was acknowledged
before it was asked, in one order for all readers.

What is done. A few keys are in use at a time; each is given up after some operations and a new one begins, so that the
history of each stays short. In the end every key is read once more.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Final, NamedTuple

from jepsen.checkers.linearizable import check_linearizable
from jepsen.checkers.models import LIST_APPEND
from jepsen.checkers.results import Checker
from jepsen.generators import Endless, Generator, Invocation, each_slot, sequence
from jepsen.history.outcomes import Outcome
from jepsen.history.values import shaped
from jepsen.systems.api import System
from jepsen.systems.log_access import Log, Record, logs
from jepsen.workloads.api import Workload, WorkloadClient

KEYS: Final = 4
OPERATIONS: Final = 120


class Asked(NamedTuple):
    """An operation on a list; `element` is what is appended, None for a read."""

    key: str
    element: int | None


class LogAppendWorkload(Workload):
    """The workload of lists in the log, one per key."""

    name = "log-append"

    def __init__(self, _workers: int = 1) -> None:
        self._names = (f"k{number}" for number in itertools.count())
        self._elements = itertools.count(1)
        self._left: dict[str, int] = {}
        self._used: list[str] = []

    def setup(self, _system: System) -> AbstractAsyncContextManager[None]:
        """Do nothing: a log needs no topics."""
        return nullcontext()

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open the log."""
        async with logs(system).open_log(process) as log:
            yield LogAppendClient(log)

    def generator(self, chance: random.Random, _workers: int) -> Generator:
        """Generate appends and reads of the keys in use, as many of the one as of the other."""
        return Endless(lambda: self._next(chance))

    def _next(self, chance: random.Random) -> Invocation:
        while len(self._left) < KEYS:
            name = next(self._names)
            self._left[name] = OPERATIONS
            self._used.append(name)
        key = chance.choice(sorted(self._left))
        self._left[key] -= 1
        if not self._left[key]:
            del self._left[key]
        if chance.random() < 0.5:
            return Invocation("read", [key, None])
        return Invocation("append", [key, next(self._elements)])

    def final(self, workers: int) -> Generator:
        """Read every key."""
        return each_slot(
            workers,
            lambda slot: sequence(
                [Invocation("read", [key, None]) for key in self._used[slot::workers]]
            ),
        )

    def checkers(self) -> Sequence[Checker]:
        """Return linearizability, key by key."""
        return (partial(check_linearizable, model=LIST_APPEND),)


class LogAppendClient:
    """Appends and reads as one process."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        asked = shaped(value, Asked)
        key = asked.key
        if f == "append":
            assert asked.element is not None, f"nothing is to be appended to {key}"
            outcome = await self._log.append(Record(key, asked.element))
            return Outcome(outcome.type, [key, None], outcome.error, outcome.node)
        outcome = await self._log.read(key)
        if outcome.type != "ok":
            return outcome
        return Outcome("ok", [key, outcome.value], node=outcome.node)
