"""One run: start a system, let clients work, break it, heal it, read everything, and judge.

    starting    all processes listen, one node leads, the workload has made its topics
    breaking    clients work at the given rate while faults come and go, for the time limit
    healing     every fault is cured; the system has a bounded time to come together
    reading     new clients read everything that there is
    comparing   the replicas are asked for their digests

The history is written while all this happens; the judgement is made from it alone (`run_checkers`), so that it
can be repeated later from the file.
"""

from __future__ import annotations

import errno
import os
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from jepsen.catalogue import (
    UnknownNameError,
    WorkloadEntry,
    check_guards,
    check_machines,
    check_nodes,
    make_faults,
    system_maker,
    workload_entry,
)
from jepsen.checkers.answers import check_answers
from jepsen.checkers.availability import check_availability
from jepsen.checkers.ends import ENDED, check_ends
from jepsen.checkers.judging import judge
from jepsen.checkers.leaders import check_leaders
from jepsen.checkers.recovery import HEALED, check_recovery
from jepsen.checkers.replicas import check_replicas
from jepsen.checkers.results import Checker, CheckResult, merged
from jepsen.checkers.work import check_work
from jepsen.generators import SECOND_NS, Stagger, TimeLimit, Until
from jepsen.guards import Guard
from jepsen.history.ops import OBSERVER, Op, OpLog
from jepsen.history.phases import PHASE, Phase, phase_at_end
from jepsen.interpreter import Interpreter
from jepsen.nemeses.api import Fault
from jepsen.nemeses.namespaces import NamespaceError, lacking_namespaces
from jepsen.nemeses.proxy import ProxyError
from jepsen.nemeses.schedule import FaultSchedule, Pace
from jepsen.processes import NotReadyError, ProcessDiedError, left_undisturbed
from jepsen.systems.api import Network, Subject, SystemOptions
from jepsen.workloads.api import Workload

READY_S: Final = 60.0
SETUP_S: Final = 60.0
WHOLE_S: Final = 90.0
DIGESTS_S: Final = 12.0  # marks come every 10 s
SHOW_INTERVAL_S: Final = 0.2
ENDS_INTERVAL_S: Final = 0.1
PORT_TAKEN: Final = os.strerror(errno.EADDRINUSE)
HISTORY: Final = "history.jsonl"
NODES: Final = "nodes"


class FolderError(Exception):
    """A run's folder must be new, and there must be a right to write there."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run; the same settings give the same plan.

    Attributes:
        workload: its name.
        nemesis: names of faults joined with commas, or "none".
        time_limit_s: how long things are broken; start, healing and reading come on top.
        nodes: members of the group.
        seed: of everything that is drawn.
        rate: operations per second over all workers.
        workers: how many operations may be in flight.
        network: what stands between the nodes.
        system: name of the system under test; "" is the workload's own.
        groups: broker groups that the nodes share, which are machines then.
        pace: of the faults.
        command: that makes such a run, where `dledger-jepsen run` does not.
        guards: what keeps strangers out.
    """

    workload: str
    nemesis: str
    time_limit_s: float
    nodes: int = 3
    seed: int = 0
    rate: float = 150.0
    workers: int = 8
    network: Network = "none"
    pace: Pace = field(default_factory=Pace)
    system: str = ""
    command: str = ""
    groups: int = 1
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        settings: what it was.
        ops: the history.
        checks: judgements.
        problems: why it proves nothing, whatever the checkers say: it did not start, a client crashed.
        faults: how often each fault was injected.
        folder: of history, logs and stores.
        skipped: why it was not made: what the machine lacks.
        is_interrupted: whether somebody has ended it; what was seen until then is judged.
    """

    settings: RunSettings
    ops: Sequence[Op]
    checks: Sequence[CheckResult]
    problems: Sequence[str]
    faults: Mapping[str, int]
    folder: Path
    skipped: str = ""
    is_interrupted: bool = False

    @property
    def valid(self) -> bool | None:
        """The verdict: broken promises count whatever else went wrong."""
        verdict = merged(self.checks)
        if verdict is False:
            return False
        return None if self.problems or self.skipped else verdict


class Breaker(Protocol):
    """Breaks a system while clients work: a schedule of faults, or a script.

    Attributes:
        injected: how often each fault was injected.
        crashes: what went wrong with the breaker itself; the run then proves nothing.
        may_end_nodes: whether a node is right to end by itself for what it does.
    """

    injected: dict[str, int]
    crashes: list[str]
    may_end_nodes: bool

    async def run(self) -> None:
        """Break things until cancelled, or to the end; when it returns the clients stop, too."""

    async def cure_all(self) -> None:
        """Cure every fault that is still in force."""


BreakerMaker = Callable[[RunSettings, Sequence[Fault], Subject, OpLog], Breaker]


def by_schedule(
    settings: RunSettings, faults: Sequence[Fault], system: Subject, log: OpLog
) -> Breaker:
    """Let the faults come and go by a schedule that is drawn from the seed."""
    return FaultSchedule(faults, system, log, seed=settings.seed, pace=settings.pace)


class Conductor:
    """The owner of one run, which takes it through its phases.

    Attributes:
        phase: where it is.
        problems: why it proves nothing.
        faults: how often each was injected.
    """

    def __init__(
        self,
        settings: RunSettings,
        workload: Workload,
        system: Subject,
        *,
        breaker: Breaker,
        log: OpLog,
    ) -> None:
        self.phase: Phase = "starting"
        self.problems: list[str] = []
        self.settings = settings
        self.log = log
        self._workload = workload
        workload.log = log
        self._system = system
        self._breaker = breaker
        self._is_broken = False
        self._interpreter = Interpreter(
            log, lambda process: workload.client(system, process), workers=settings.workers
        )

    @property
    def faults(self) -> Mapping[str, int]:
        """The number of times that each fault was injected."""
        return self._breaker.injected

    async def run(self, show: Show) -> None:
        """Run all phases: start, break, heal, read, compare.

        Raises:
            NotReadyError, ProcessDiedError, trio.TooSlowError: the system did not start.
        """
        try:
            await self._run(show)
        finally:
            self.problems += [*self._breaker.crashes, *self._interpreter.crashes]
        idle = [name for name, times in self.faults.items() if not times]
        if idle and not self._breaker.crashes:
            self.problems.append(
                f"{', '.join(idle)} never struck: there was no time, or nothing to strike"
            )

    async def _run(self, show: Show) -> None:
        """Go through the phases: set up, break, heal, read, compare; watchers run beside them until the end."""
        system = self._system
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, show)
            await system.wait_ready(READY_S)
            nursery.start_soon(system.watch, self.log)
            nursery.start_soon(self._watch_ends)
            if not await system.wait_whole(READY_S):
                raise NotReadyError(f"no leader that all nodes follow within {READY_S} s")
            is_set_up = trio.Event()
            nursery.start_soon(_limit_setup, is_set_up)
            async with self._workload.setup(system):
                is_set_up.set()
                await self._break()
                await self._heal()
                self._enter("reading")
                await self._interpreter.run(self._workload.final(self.settings.workers))
            await self._compare()
            self._note_ends()
            nursery.cancel_scope.cancel()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.log.add(OBSERVER, "info", PHASE, phase)

    async def _break(self) -> None:
        self._enter("breaking")
        settings = self.settings
        chance = random.Random(f"{settings.seed}/workload")
        work = self._workload.generator(chance, settings.workers)
        spread = Stagger(round(SECOND_NS / settings.rate), work, chance)
        limited = TimeLimit(round(settings.time_limit_s * SECOND_NS), spread)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_breaker)
            await self._interpreter.run(Until(lambda: self._is_broken, limited))
            nursery.cancel_scope.cancel()

    async def _run_breaker(self) -> None:
        await self._breaker.run()
        self._is_broken = True

    async def _heal(self) -> None:
        self._enter("healing")
        await self._breaker.cure_all()
        begun_ns = self.log.now_ns()
        is_whole = await self._system.wait_whole(WHOLE_S)
        waited_ms = round((self.log.now_ns() - begun_ns) / 1e6)
        self.log.add(OBSERVER, "info", HEALED, {"whole": is_whole, "waited_ms": waited_ms})

    async def _compare(self) -> None:
        self._enter("comparing")
        digests = await self._system.replica_digests(DIGESTS_S)
        for node, value in digests.items():
            self.log.add(OBSERVER, "info", "digest", value, node=node)

    async def _watch_ends(self) -> None:
        while True:
            self._note_ends()
            await trio.sleep(ENDS_INTERVAL_S)

    def _note_ends(self) -> None:
        for process in self._system.processes:
            for end in process.take_unexpected_exits():
                # Another program of this machine has its port: no doing of ours or its own.
                is_taken = PORT_TAKEN in end.words
                is_excused = self._breaker.may_end_nodes or is_taken
                value = {"status": end.status, "words": end.words, "excused": is_excused}
                self.log.add(OBSERVER, "info", ENDED, value, node=process.name)

    async def _show(self, show: Show) -> None:
        while True:
            show(self)
            await trio.sleep(SHOW_INTERVAL_S)


async def _limit_setup(is_set_up: trio.Event) -> None:
    with trio.move_on_after(SETUP_S):
        await is_set_up.wait()
    if not is_set_up.is_set():
        raise NotReadyError(f"the workload did not get what it needs within {SETUP_S} s")


Show = Callable[[Conductor], None]
"""Called several times a second while a run goes on."""


def show_nothing(_conductor: Conductor) -> None:
    """Show nothing: a `Show` for nobody."""


NOT_MADE: Final = (
    NotReadyError,
    ProcessDiedError,
    trio.TooSlowError,
    ProxyError,
    NamespaceError,
)
"""The system did not start, or not whole: nothing is proved."""


def execute(
    settings: RunSettings,
    folder: Path,
    show: Show = show_nothing,
    *,
    break_it: BreakerMaker = by_schedule,
    more_checkers: Sequence[Checker] = (),
) -> RunResult:
    """Make a run and judge it; every process has ended when this returns, or raises.

    Args:
        settings: what to run.
        folder: for history, logs and stores.
        show: called while it runs.
        break_it: makes what breaks the system.
        more_checkers: who judges beside those of the workload.

    Raises:
        UnknownNameError: the settings name something that there is not, or have too few workers.
        FolderError: the folder cannot be written, or holds a run already, whose stores would be taken for ours.
    """
    entry, faults = workload_entry(settings.workload), make_faults(settings.nemesis)
    make_system = system_maker(entry, settings.system, settings.network)
    _check_workers(settings, entry)
    check_guards(settings.workload, settings.system, settings.network, settings.guards)
    if settings.groups == 1:
        check_nodes(faults)
    else:
        check_machines(settings.workload, faults, nodes=settings.nodes, network=settings.network)
    _make_folder(folder)
    if skipped := "; ".join(_lacking(settings, entry, faults)):
        return RunResult(settings, (), (), (), {}, folder, skipped)
    options = SystemOptions(settings.nodes, settings.network, settings.groups, settings.guards)
    workload = entry.make(settings.workers)
    problems: list[str] = []
    counts: Mapping[str, int] = {}
    is_interrupted = False
    with OpLog(folder / HISTORY) as log:
        try:
            with left_undisturbed(make_system(folder / NODES, options)) as system:
                _prepare(faults, system, settings.seed)
                breaker = break_it(settings, faults, system, log)
                counts = breaker.injected
                conductor = Conductor(settings, workload, system, breaker=breaker, log=log)
                problems = conductor.problems
                system.start()
                trio.run(conductor.run, show, restrict_keyboard_interrupt_to_checkpoints=True)
        except (Exception, BaseExceptionGroup, KeyboardInterrupt) as error:  # noqa: BLE001 - see why_ended
            is_interrupted = isinstance(first_of(error), KeyboardInterrupt)
            problems.insert(0, f"while {phase_at_end(log.ops)}: {why_ended(error)}")
        finally:
            for fault in faults:
                fault.clean_up()
    checks = judge(log.ops, [*run_checkers(settings), *more_checkers])
    return RunResult(
        settings, log.ops, checks, tuple(problems), dict(counts), folder,
        is_interrupted=is_interrupted,
    )  # fmt: skip


def _check_workers(settings: RunSettings, entry: WorkloadEntry) -> None:
    """Refuse a run with fewer workers than its workload needs. Raises UnknownNameError."""
    if settings.workers < entry.workers_min:
        needed = f"{settings.workload} needs {entry.workers_min} clients at work or more"
        raise UnknownNameError(f"{needed}, not {settings.workers}")


def _prepare(faults: Sequence[Fault], system: Subject, seed: int) -> None:
    """Let each fault set up what it needs before the nodes start."""
    chance = random.Random(f"{seed}/prepare")
    for fault in faults:
        fault.prepare(system, chance)


def _lacking(settings: RunSettings, entry: WorkloadEntry, faults: Sequence[Fault]) -> list[str]:
    """Return what this machine lacks for the run; an empty list when it can be made."""
    lacking = [f"{fault.name}: {why}" for fault in faults if (why := fault.lacking())]
    if why := entry.lacking():
        lacking.append(f"{settings.workload}: {why}")
    if settings.network == "namespaces" and (why := lacking_namespaces()) and not lacking:
        lacking = [why]
    return lacking


def _make_folder(folder: Path) -> None:
    """Make the folder of a run.

    Raises:
        FolderError: it cannot be made or written, or it holds a run.
    """
    if (folder / NODES).exists():
        raise FolderError(f"{folder} holds a run already; name another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise FolderError(f"there is no right to write in {folder}")


def run_checkers(settings: RunSettings) -> list[Checker]:
    """Return the checkers for a run with these settings.

    Raises:
        UnknownNameError: there is no such workload.
    """
    entry = workload_entry(settings.workload)
    checkers: list[Checker] = [
        *entry.make(settings.workers).checkers(),
        partial(check_work, rate=settings.rate),
        check_availability,
        check_recovery,
        partial(check_leaders, groups=settings.groups),
        check_answers,
        check_ends,
    ]
    if settings.groups > 1:
        checkers.append(partial(entry.check_groups, groups=settings.groups))
    if entry.compares_replicas and settings.nodes > 1:
        checkers.append(partial(check_replicas, replicas=settings.nodes, groups=settings.groups))
    return checkers


def why_ended(error: BaseException) -> str:
    """Say why a run ended early; the root of a run, where a crash of the harness is reported and proves nothing."""
    cause = first_of(error)
    if isinstance(cause, KeyboardInterrupt):
        return "interrupted"
    what = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, NOT_MADE):
        return what
    return f"the harness crashed: {what}\n{''.join(traceback.format_tb(cause.__traceback__))}"


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group without the group around it; an interrupt before others.

    Whoever interrupts ends tasks in the middle of something, and they may print_error about that.
    """
    first = error
    if isinstance(error, BaseExceptionGroup):
        first = error.subgroup(KeyboardInterrupt) or error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
