"""Group commit: what was staged while the last entry was on its way becomes the next entry.

Everything that changes the broker goes through here: messages and control records, in the order in
which they were staged. One entry is proposed per flush, or several where one would pass the log's bound;
while two are in flight, more gathers. Who waits for an outcome is told once: committed (and applied
here), refused (surely not done), or unknown.

What belongs together stands in one entry: all that was staged between two calls of `wait`. Whoever stages
several records therefore waits for them once, after the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import trio

from broker.server.origin import Outputs
from broker.service.catalog import Catalog, Creation
from broker.store.control import Command, DeleteTopic, PutGroup, PutTopic
from broker.store.staging import StagedEntry, Staging
from dledger import Committed, DLedgerError, Failed, LogServer, RefusedError

_log = logging.getLogger(__name__)

INFLIGHT_MAX = 2
"""Entries on their way: 1 costs 20 % of throughput, more than 2 gains nothing (docs/adr/0005)."""

ENTRY_BYTES_MAX = 64 * 1024 * 1024
"""What the log takes in one entry, by default."""


class Waiter(Protocol):
    """Somebody who wants to know what became of what was staged; `place` is where it stands in the entry."""

    def committed(self, staged: StagedEntry, place: int) -> None:
        """It is committed and applied on this node."""
        ...

    def failed(self, error: DLedgerError) -> None:
        """It was refused (RefusedError: surely not done), or nobody knows."""
        ...


class OnCommit(NamedTuple):
    """A waiter of two functions; for requests `Router.when_committed` makes it."""

    committed: Callable[[StagedEntry, int], None]
    failed: Callable[[DLedgerError], None]


@dataclass(slots=True, eq=False)
class _Flight:
    """An entry that was proposed and is not decided yet."""

    staged: StagedEntry
    waiters: list[tuple[int, Waiter]]
    count: int


class Commits:
    """Stages, proposes, and tells the outcome.

    Invariant: nothing is staged while this node does not serve; `lost` empties everything.
    """

    def __init__(
        self,
        log: LogServer,
        staging: Staging,
        catalog: Catalog,
        outputs: Outputs,
        *,
        count_max: int,
        bytes_max: int,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._outputs = outputs
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._now_ms = now_ms
        self._waiters: list[tuple[int, Waiter]] = []
        self._flights: list[_Flight] = []
        self._flying_count = 0
        self._flying_bytes = 0
        self._wanted = trio.Event()
        self._entry_bytes_max = entry_bytes_max
        self._cuts: list[int] = []
        self._cut_bytes = self._unit_bytes = self._unit_count = 0
        self.staging = staging

    @property
    def is_full(self) -> bool:
        """Whether more must be turned away for now, whatever it would stage."""
        return (
            self.staging.staged_count + self._flying_count >= self._count_max
            or self.staging.staged_bytes + self._flying_bytes >= self._bytes_max
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing is staged or on its way."""
        return not self.staging.staged_count and not self._flights

    def stage_control(self, command: Command) -> int:
        """Stage a control record; gives its place."""
        self._wanted.set()
        place = self.staging.stage_control(command, self._now_ms())
        if isinstance(command, DeleteTopic):
            self._catalog.note_deletion(command.name)
            # Notify the catalog before the requester.
            decided = partial(self._catalog.deletion_decided, command.name)
            self._waiters.append(
                (place, OnCommit(lambda _staged, _place: decided(), lambda _error: decided()))
            )
        return place

    def create(self, creation: Creation) -> int:
        """Stage what has to exist before; gives the place of the last record, -1 for none."""
        place = -1
        for group in creation.groups:
            self._catalog.note_group(group)
            place = self.stage_control(PutGroup(group, only_if_missing=True))
        for topic in creation.topics:
            self._catalog.note_topic(topic)
            place = self.stage_control(PutTopic(topic, only_if_missing=True))
        return place

    def wait(self, place: int, waiter: Waiter) -> None:
        """Tell `waiter` what becomes of the record at `place`. What is staged after this may be in another entry."""
        self._waiters.append((place, waiter))
        self._wanted.set()
        staging = self.staging
        size = staging.staged_bytes
        if size - self._cut_bytes > self._entry_bytes_max:
            self._cut()
        self._unit_count, self._unit_bytes = staging.staged_count, size

    def _cut(self) -> None:
        """What was staged last, and belongs together, begins the next entry."""
        if self._unit_count > (self._cuts[-1] if self._cuts else 0):
            self._cuts.append(self._unit_count)
            self._cut_bytes = self._unit_bytes

    def wait_for_staged(self, waiter: Waiter) -> None:
        """Tell `waiter` when everything that is staged now is applied; something is staged or on its way."""
        if self.staging.staged_count:
            self.wait(self.staging.staged_count - 1, waiter)
        else:
            self._flights[-1].waiters.append((-1, waiter))

    async def run(self) -> None:
        """Flush whenever something is staged; runs after the connections that were ready together."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            self.flush()

    def flush(self) -> None:
        """Propose what is staged, as one entry if it fits one, unless enough is on its way."""
        while self.staging.staged_count and len(self._flights) < INFLIGHT_MAX:
            self._propose()

    def _propose(self) -> None:
        """Propose what the next entry takes."""
        staging = self.staging
        count, waiters = self._take()
        staged = staging.build_entry(self._log.appender.end_position, self._now_ms(), count)
        flight = _Flight(staged, waiters, count)
        try:
            entry_id = self._log.appender.propose(staged.body, partial(self._decided, flight))
        except RefusedError as error:
            staging.withdraw(staged)
            self._tell_failure(waiters, error)
            self._outputs.flush()
            return
        staging.proposed(staged, entry_id)
        self._flights.append(flight)
        self._flying_count += count
        self._flying_bytes += len(staged.body)

    def _take(self) -> tuple[int, list[tuple[int, Waiter]]]:
        """How many of the staged records the next entry takes, and who waits for these."""
        if not self._cuts:
            waiters, self._waiters = self._waiters, []
            self._cut_bytes = self._unit_bytes = self._unit_count = 0
            return self.staging.staged_count, waiters
        count, *later = self._cuts
        waiters = [(place, waiter) for place, waiter in self._waiters if place < count]
        self._waiters = [
            (place - count, waiter) for place, waiter in self._waiters if place >= count
        ]
        self._cuts = [cut - count for cut in later]
        self._unit_count -= count
        return count, waiters

    def lost(self, error: RefusedError) -> None:
        """Leadership is lost: what was only staged is surely not done."""
        waiters, self._waiters = self._waiters, []
        self._cuts = []
        self._cut_bytes = self._unit_bytes = self._unit_count = 0
        self.staging.discard()
        self._catalog.settle()
        self._tell_failure(waiters, error)
        self._outputs.flush()

    def _decided(self, flight: _Flight, outcome: Committed | Failed) -> None:
        self._flights.remove(flight)
        self._flying_count -= flight.count
        self._flying_bytes -= len(flight.staged.body)
        if isinstance(outcome, Committed):
            for place, waiter in flight.waiters:
                waiter.committed(flight.staged, place)
        else:
            self._tell_failure(flight.waiters, outcome.error)
        if self.is_idle:
            self._catalog.settle()
        elif self.staging.staged_count:
            self._wanted.set()
        self._outputs.flush()

    def _tell_failure(self, waiters: list[tuple[int, Waiter]], error: DLedgerError) -> None:
        if waiters:
            _log.info("%d requests were not confirmed: %s", len(waiters), error)
        for _, waiter in waiters:
            waiter.failed(error)


class AwaitCommit:
    """A waiter for tasks: `wait` returns when the record is applied, or raises what failed."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._error: DLedgerError | None = None
        self.staged: StagedEntry | None = None
        self.place = -1

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""
        self.staged, self.place = staged, place
        self._done.set()

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`."""
        self._error = error
        self._done.set()

    async def wait(self) -> None:
        """Wait for the outcome.

        Raises:
            DLedgerError: it failed; the class says whether that is definite.
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error
