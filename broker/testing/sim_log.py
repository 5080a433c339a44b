"""A member of a simulated group as its broker sees it: the real `LogServer` and `Driver` without trio.

The driver's passes are the cluster's: it steps the engine, and `_settle` is called after each step. What the
real ones do with tasks (a barrier) is a coroutine that is resumed by hand.

Nothing here knows brokers: it gives them the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, cast

from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.errors import DLedgerError
from dledger.raft.effects import Failed, Outcome, ReadAt
from dledger.raft.entry import Entry
from dledger.raft.events import Event
from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.runtime.cold_reads import ColdReads, Threads
from dledger.runtime.driver import Driver
from dledger.runtime.log_appender import LogAppender
from dledger.runtime.log_reader import LogReader
from dledger.runtime.member_status import MemberStatus
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.roster import Roster
from dledger.runtime.server import LogServer
from dledger.runtime.standing import Standing
from dledger.state_machine import StateMachine
from dledger.storage.part_cache import PartCache


class WatchedMachine:
    """A state machine that is fed entry by entry, and a watcher that sees each."""

    def __init__(self, machine: StateMachine, watch: Callable[[Entry], None]) -> None:
        self._machine = machine
        self._watch = watch

    @property
    def applied_index(self) -> Index:
        """See `StateMachine`."""
        return self._machine.applied_index

    def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`."""
        for entry in entries:
            self._machine.apply([entry])
            self._watch(entry)


class SimDriver(Driver):
    """A driver whose passes come from outside."""

    def __init__(
        self,
        config: LogConfig,
        engine: Engine,
        machine: StateMachine,
        *,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """Set up a simulated log; `now_ms` is the member's clock; `wake` asks for a pass at this moment."""
        self.obstacles = Obstacles(  # the other members announce nothing here
            config.raft.node_id, config.raft.voters, has_vote=lambda: True, has_begun=lambda: True
        )
        super().__init__(
            config.raft,
            engine,
            machine,
            links=None,  # type: ignore[arg-type]  # posts nothing
            obstacles=self.obstacles,
        )
        self.machine = machine
        self._now_ms = now_ms
        self._wake_pass = wake
        self._waiting: list[tuple[Index, Callable[[], None]]] = []

    def when_applied(self, index: Index, resume: Callable[[], None]) -> None:
        """Call back once the state machine contains an entry."""
        self._waiting.append((index, resume))

    def settle(self) -> None:
        """Do what the end of a pass does: answers, roles, the fold."""
        self._settle()
        while self._can_fold:
            self._settle()
        waiting, self._waiting = self._waiting, []
        for index, resume in waiting:
            if index <= self.applied_index:
                resume()
            else:
                self._waiting.append((index, resume))

    def read(self, first: Index, end: Index, bytes_max: int) -> list[Entry]:
        """See `Driver`."""
        try:
            return self.engine.read(first, end, bytes_max, self._now_ms())
        finally:
            if self.engine.live_repair.missing_count:
                self.wake()

    def wake(self) -> None:
        """Ask for a pass at this moment."""
        self._wake_pass()

    def _step(self, event: Event) -> None:
        self.engine.step(event, self._now_ms())

    def _send(self) -> None:
        """Send nothing: the cluster takes the outbox at the end of its step."""

    def _log(self, level: int, event: str, **fields: object) -> None:
        """Log nothing: the trace says it."""


class SimLog(LogServer):
    """One life of a member."""

    def __init__(
        self,
        config: LogConfig,
        driver: SimDriver,
        now_ms: Callable[[], int],
        *,
        attributes: Callable[[NodeId], Mapping[str, str]],
        threads: Threads,
    ) -> None:
        """Open the log over a member that exists already, unlike `LogServer`, which opens store and port in `run`."""
        self.config = config
        self._standing = standing = Standing(config.raft, clock_ms=now_ms)
        standing.driver = driver
        standing.obstacles = driver.obstacles
        self.full_disks = driver.obstacles.full_disks
        self.lost_votes = driver.obstacles.lost_votes
        self.appender = LogAppender(standing)
        self.roster = Roster(config.raft.node_id, config.peers, joins=config.raft.joins)
        self.reader = SimReader(standing, driver, config.part_cache_bytes_max, threads)
        self.status = cast("MemberStatus", SimStatus(attributes))
        self._role_watchers = driver.announcer.role_watchers
        self._followed = (NO_INDEX, True)

    def follow_members(self) -> None:
        """Know the members as the log has them now.

        In production the driver's announcer says when they are news; here the cluster takes the news, for the trace.
        """
        engine = self._standing.running.engine
        node = engine.node
        here = (node.configuration_index, node.is_configuration_committed)
        if here != self._followed:
            self._followed = here
            self._follow_members(engine)

    def stopped(self) -> None:
        """End with the member."""
        self._standing.has_stopped = True


class SimReader(LogReader):
    """Reads as in production, but a barrier waits without trio."""

    def __init__(
        self, standing: Standing, driver: SimDriver, part_cache_bytes_max: int, threads: Threads
    ) -> None:
        super().__init__(standing, driver.machine)
        self.cold = ColdReads(
            driver.engine.log,
            PartCache(part_cache_bytes_max),
            threads,
            commit_index=lambda: self.commit_index,
        )
        self.applied_watchers = driver.applied_watchers
        self._driver = driver

    async def barrier(self, *, timeout_s: float) -> Index:
        """See `LogReader`; here it waits for the answer however long that takes."""
        outcome = await _Answer(self._standing.check_serving().request_read)
        if isinstance(outcome, Failed):
            raise outcome.error
        assert isinstance(outcome, ReadAt), f"a read ended as {outcome}"
        await _Applied(self._driver, outcome.index)
        return outcome.index


class SimStatus:
    """The part of a `MemberStatus` that brokers use of each other."""

    restoration = ""

    def __init__(self, attributes: Callable[[NodeId], Mapping[str, str]]) -> None:
        self.attributes = attributes

    def show(self, name: str, value: str) -> None:
        """Show nothing: nobody asks for it."""


class _Answer(Awaitable[Outcome]):
    """Waits for a callback; the loop is `SimNursery`."""

    def __init__(self, ask: Callable[[Callable[[Outcome], None]], None]) -> None:
        self._ask = ask

    def __await__(self) -> Generator[Callable[[Callable[[Any], None]], None], Any, Outcome]:
        outcome: Outcome = yield self._ask
        return outcome


class _Applied(Awaitable[None]):
    """Waits until the state machine contains an entry."""

    def __init__(self, driver: SimDriver, index: Index) -> None:
        self._driver = driver
        self._index = index

    def __await__(self) -> Generator[Callable[[Callable[[], None]], None], Any, None]:
        if self._driver.applied_index < self._index:
            yield lambda resume: self._driver.when_applied(self._index, resume)


class Trampoline:
    """A nursery for coroutines that wait for callbacks only, as `LinearReads` does on a `SimLog`."""

    def start_soon(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """See trio.Nursery."""
        self._resume(act(), None)

    def _resume(self, task: Coroutine[Any, Any, None], value: object) -> None:
        try:
            wait = task.send(value)
        except StopIteration:
            return
        try:
            wait(lambda outcome=None: self._resume(task, outcome))
        except DLedgerError as error:
            self._resume(task, Failed(error))


class IdleNursery:
    """A nursery that runs nothing: what tasks do beside the parts' callbacks is not simulated.

    These are answers to heartbeats that have to wait, and the exchange of the nodes' lists of clients.
    """

    def start_soon(self, act: object, *args: object, name: object = None) -> None:
        """See trio.Nursery."""
