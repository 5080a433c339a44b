"""What ends a run by what clients have done, and not by a clock: a busy machine needs longer, and shows the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pytest
import trio

from jepsen import run
from jepsen.checkers.judging import judge
from jepsen.checkers.results import CheckResult
from jepsen.generators import SECOND_NS
from jepsen.history.ops import Op, OpLog
from jepsen.nemeses import damaged, process, schedule, transfer, votes
from jepsen.nemeses.api import Fault
from jepsen.nemeses.schedule import FaultSchedule
from jepsen.run import Breaker, BreakerMaker, RunSettings, by_schedule, run_checkers
from jepsen.systems import log as log_system
from jepsen.systems import machines
from jepsen.systems.api import Subject
from jepsen.workloads import delay, log_set, ordered, queue, reading, transactions

TIME_LIMIT_S: Final = 480.0
"""For runs that end by themselves: it is met when something hangs."""

PATIENCE_S: Final = 240.0
"""Nothing takes that long on whatever machine."""

CALL_S: Final = 30.0
"""For a call of a client, which a machine that stands still for seconds answers late."""

POLL_S: Final = 0.02
LOOK_S: Final = 0.5


Finding = tuple[str, frozenset[str]]
"""The name of a checker, and the kinds of anomalies of which it is to find one."""


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Let runs in this process wait longer for what comes: no run is longer for it where it comes at once."""
    settle_ns = round(PATIENCE_S * SECOND_NS)
    for module, names, value in (
        (run, ("READY_S", "SETUP_S", "WHOLE_S"), PATIENCE_S),
        (schedule, ("WHOLE_S", "CURE_S"), PATIENCE_S),
        (machines, ("FREEZE_S", "GONE_S"), PATIENCE_S),
        (damaged, ("VERDICT_WAIT_S",), PATIENCE_S),
        (process, ("REFUSAL_WAIT_S",), PATIENCE_S),
        (transfer, ("WAIT_S",), CALL_S),
        (votes, ("GRANT_S",), CALL_S),
        (delay, ("TIMEOUT_S",), CALL_S),
        (transactions, ("TIMEOUT_S",), CALL_S),
        (ordered, ("TIMEOUT_S",), CALL_S),
        (queue, ("SEND_TIMEOUT_S", "READ_TIMEOUT_S"), CALL_S),
        (log_system, ("TIMEOUT_S",), CALL_S),
        (delay, ("SETTLE_NS",), settle_ns),
        (transactions, ("SETTLE_NS",), settle_ns),
        (reading, ("FINAL_TIMEOUT_NS",), settle_ns),
        (ordered, ("FINAL_TIMEOUT_NS",), settle_ns),
        (log_set, ("FINAL_TIMEOUT_NS",), settle_ns),
    ):
        for name in names:
            patch.setattr(module, name, value)


class AfterWork:
    """A `Breaker`: lets clients work until they have done enough, then does one thing to the system, or nothing."""

    def __init__(
        self,
        done: Mapping[str, int],
        then: Callable[[Subject], Awaitable[None]] | None,
        name_of: Callable[[Op], str],
        system: Subject,
        log: OpLog,
    ) -> None:
        self.injected = {"destroy": 1} if then else {}
        self.crashes: list[str] = []
        self.may_end_nodes = False
        self._done = done
        self._then = then
        self._name_of = name_of
        self._system = system
        self._log = log

    async def run(self) -> None:
        read, ended = 0, Counter[str]()
        while any(ended[f] < wanted for f, wanted in self._done.items()):
            await trio.sleep(POLL_S)
            new = self._log.ops[read:]
            read += len(new)
            ended.update(self._name_of(op) for op in new if op.is_client and op.type == "ok")
        if self._then:
            await self._then(self._system)

    async def cure_all(self) -> None:
        """There is no cure."""


def after_work(
    done: Mapping[str, int],
    then: Callable[[Subject], Awaitable[None]] | None = None,
    name_of: Callable[[Op], str] = lambda op: op.f,
) -> BreakerMaker:
    """Return what ends a run once so many operations of these kinds have succeeded."""

    def make(
        _settings: RunSettings, _faults: Sequence[Fault], system: Subject, log: OpLog
    ) -> Breaker:
        return AfterWork(done, then, name_of, system, log)

    return make


class RoundsOfWork(FaultSchedule):
    """A `Breaker`: the fault comes so many times, and clients go on until they have done enough."""

    def __init__(
        self,
        settings: RunSettings,
        faults: Sequence[Fault],
        system: Subject,
        log: OpLog,
        *,
        rounds: int,
        done: Mapping[str, int],
    ) -> None:
        super().__init__(faults, system, log, seed=settings.seed, pace=settings.pace, rounds=rounds)
        self._work = AfterWork(done, None, lambda op: op.f, system, log)

    async def run(self) -> None:
        await super().run()
        await self._work.run()


def rounds_of_work(done: Mapping[str, int]) -> Callable[[int], BreakerMaker]:
    """Return what stands for `in_rounds` where a run has to do so many operations of these kinds, too."""

    def in_rounds(rounds: int) -> BreakerMaker:
        return partial(RoundsOfWork, rounds=rounds, done=done)

    return in_rounds


class OneAfterAnother:
    """A `Breaker`: each fault strikes a group that is whole, so many times, and then the next one does.

    Most of what a run costs is the start of its group, which several faults share so.
    """

    def __init__(
        self,
        settings: RunSettings,
        faults: Sequence[Fault],
        system: Subject,
        log: OpLog,
        *,
        rounds: int,
        done: Mapping[str, int],
    ) -> None:
        self._schedules = [
            FaultSchedule(
                [fault], system, log, seed=settings.seed, pace=settings.pace, rounds=rounds
            )
            for fault in faults
        ]
        self._work = AfterWork(done, None, lambda op: op.f, system, log)
        self.injected = {fault.name: 0 for fault in faults}
        self.crashes: list[str] = []
        self.may_end_nodes = any(each.may_end_nodes for each in self._schedules)

    async def run(self) -> None:
        for each in self._schedules:
            try:
                await each.run()
            finally:
                self._count()
        await self._work.run()

    async def cure_all(self) -> None:
        for each in self._schedules:
            await each.cure_all()
        self._count()

    def _count(self) -> None:
        for each in self._schedules:
            self.injected.update(each.injected)
        self.crashes[:] = [crash for each in self._schedules for crash in each.crashes]


def one_after_another(rounds: int, done: Mapping[str, int] | None = None) -> BreakerMaker:
    """Return what ends a run after so many rounds of each fault, and so many operations of these kinds."""
    return partial(OneAfterAnother, rounds=rounds, done=done or {})


class UntilFound:
    """A `Breaker`: faults come and go, if there are any, until checkers have found what they are there to find."""

    def __init__(
        self,
        settings: RunSettings,
        faults: Sequence[Fault],
        system: Subject,
        log: OpLog,
        found: Sequence[Finding],
    ) -> None:
        self._settings = settings
        self._schedule = by_schedule(settings, faults, system, log)
        self._log = log
        self._found = found
        self.injected = self._schedule.injected
        self.crashes = self._schedule.crashes
        self.may_end_nodes = self._schedule.may_end_nodes

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._schedule.run)
            while not self._is_found():  # noqa: ASYNC110 - a history has no event
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()

    def _is_found(self) -> bool:
        return is_found(judge(self._log.ops, run_checkers(self._settings)), self._found)

    async def cure_all(self) -> None:
        await self._schedule.cure_all()


def is_found(checks: Sequence[CheckResult], found: Sequence[Finding]) -> bool:
    """Whether each of these is found."""
    kinds = {check.name: {one.kind for one in check.anomalies} for check in checks}
    return all(kinds[name] & wanted for name, wanted in found)


def until_found(*found: Finding) -> BreakerMaker:
    """Return what ends a run once all of these are found."""

    def make(
        settings: RunSettings, faults: Sequence[Fault], system: Subject, log: OpLog
    ) -> Breaker:
        return UntilFound(settings, faults, system, log, found)

    return make
