"""Group commit: what was staged while the last entry was on its way becomes the next entry.

Everything that changes the broker goes through here: messages and control records, in the order in
which they were staged. One entry is proposed per flush, or several where one would pass ENTRY_BYTES_MAX;
while two are in flight, more gathers, until it makes a full one, which would gain nothing by waiting. Each
waiter is notified once: the record is committed (and applied here), it was refused (surely not done), or its
outcome is unknown.

What belongs together stands in one entry: all that was staged between two calls of `wait` is a *unit*, and
never divided. Whoever stages several records therefore waits for them once, after the last one. Records that have
nothing to do with one another may have one waiter all the same: a `RecordRun`, which is divided where an entry ends.

A refused entry takes with it the topics and groups that it would have created (the log refuses entries while
leadership is handed over, and goes on if nobody takes it): what is staged later does not find them.

It knows nothing of requests, clients and answers: what a failure means for a request is the router's to say;
and nothing of tasks: when the next flush comes is for the owner of `wanted`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from broker.server.requests.origin import Outputs
from broker.service.catalog import Catalog, Creation
from broker.service.wait_room import FREE_BYTES, ROOM_BYTES
from broker.store.control import Command, DeleteGroup, DeleteTopic, PutGroup, PutTopic
from broker.store.staging import StagedEntry, Staging
from dledger import Committed, DLedgerError, Failed, LogServer, RefusedError

_log = logging.getLogger(__name__)

INFLIGHT_MAX = 2
"""Entries on their way: 1 costs 20 % of throughput, more than 2 gains nothing (docs/adr/0005)."""

KEPT_BYTES_MAX = ROOM_BYTES
"""Bytes that large requests keep while they wait here, beside what was staged for them."""

ENTRY_BYTES_MAX = 1024 * 1024
"""Bytes of an entry with more than one unit: what is sent, verified and read back in one piece (docs/adr/0183)."""


def _ignore() -> None:
    """Do nothing: nobody flushes by himself yet, or has gathered anything."""


class Waiter(Protocol):
    """Something that is notified once of what became of a staged record.

    `place` is the place of the record in its entry, from 0; -1: the waiter asked for the whole entry.
    """

    def committed(self, staged: StagedEntry, place: int) -> None:
        """Continue: the record is committed, and applied on this node."""
        ...

    def failed(self, error: DLedgerError) -> None:
        """Continue: the record was refused (RefusedError: surely not done), or its outcome is unknown."""
        ...


class RecordRun(ABC):
    """A waiter for records that stand one after another, each of which is a unit of its own.

    It is notified once for those that one entry takes, with the place of the first.

    Attributes:
        ends: the bytes of these records up to the end of each, as they are staged; one or more, rising.
    """

    __slots__ = ("ends",)

    ends: list[int]

    @abstractmethod
    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""

    @abstractmethod
    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`."""

    @abstractmethod
    def divide(self, count: int) -> RecordRun:
        """Keep the first `count` records, one at least; return a waiter for the others, one at least."""


class OnCommit(NamedTuple):
    """A waiter made of two functions; for requests `Router.when_committed` builds it."""

    committed: Callable[[StagedEntry, int], None]
    failed: Callable[[DLedgerError], None]


class _DeletionNote(NamedTuple):
    """The waiter by which the catalog hears that a deletion is decided, before anybody else hears of its entry."""

    decided: Callable[[str], None]
    name: str

    def committed(self, _staged: StagedEntry, _place: int) -> None:
        """See `Waiter`."""
        self.decided(self.name)

    def failed(self, _error: DLedgerError) -> None:
        """See `Waiter`."""
        self.decided(self.name)


_Waiting = tuple[int, Waiter, int, int, int]
"""Place, waiter, the end of the waiter's unit (count and bytes of all that was staged up to there), and the bytes that
its request keeps if these are many. The first ones are counted from `Commits._taken_count` and `_taken_bytes` 0 on. A
plain tuple, since one is made for each send."""


@dataclass(slots=True, eq=False)
class _Flight:
    """An entry that was proposed and is not decided yet.

    Attributes:
        count: records in it, at least one.
        first: where they begin, as the waiters count places.
        begun_ms: when it was proposed, in this node's time.
    """

    staged: StagedEntry
    waiters: list[_Waiting]
    count: int
    first: int
    begun_ms: int


class Commits:
    """Stages records, proposes entries of them, and notifies the waiters.

    Invariants: the units in `_waiters` end in ascending order, none after what is staged. The entries in `_flights`
    stand in the order of the log and are committed in that order, at most INFLIGHT_MAX of them and, beyond these, only
    full ones; `_flying_count` and `_flying_bytes` are their sums. `_taken_count` and `_taken_bytes` are what entries
    took since all was taken at once: what is left need not be counted anew. What is staged while this node does not
    serve is refused at the next flush. `_creations` holds what is staged and was noted in the catalog, with the place
    of its last record, in order.

    Attributes:
        wanted: called whenever there is something to flush, many times between two flushes; it must not flush
            itself, since what belongs to one unit may still come. Whoever flushes sets it: a broker flushes before
            the log's next pass, and after the connections that were ready together.
        stage_gathered: stages the offsets that were gathered. It is called before the deletion of a topic or group is
            staged: after it they would count for the one that is made anew.
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
        self._waiters: list[_Waiting] = []
        self._creations: list[tuple[int, Creation]] = []
        self._flights: list[_Flight] = []
        self._flying_count = 0
        self._flying_bytes = 0
        self._taken_count = 0
        self._taken_bytes = 0
        self._kept_bytes = 0
        """Invariant: the sum of what those keep who wait."""
        self._has_late = False
        self._entry_bytes_max = entry_bytes_max
        self.staging = staging
        self.wanted: Callable[[], None] = _ignore
        self.stage_gathered: Callable[[], None] = _ignore

    @property
    def is_full(self) -> bool:
        """True while more must be turned away, whatever it would stage."""
        count_room, bytes_room = self.room
        return count_room <= 0 or bytes_room <= 0

    @property
    def room(self) -> tuple[int, int]:
        """The count and the bytes that may be staged until `is_full`; the last one may pass the bytes."""
        if self._kept_bytes >= KEPT_BYTES_MAX:
            return 0, 0
        staging = self.staging
        return (
            self._count_max - staging.staged_count - self._flying_count,
            self._bytes_max - staging.staged_bytes - self._flying_bytes,
        )

    @property
    def head_begun_ms(self) -> int | None:
        """The time at which the entry was proposed that has been waiting for longest; None: none waits."""
        return self._flights[0].begun_ms if self._flights else None

    @property
    def staged_end(self) -> int:
        """The place behind the last record that is staged; see `drop_unfinished`."""
        return self._taken_count + self.staging.staged_count

    @property
    def is_idle(self) -> bool:
        """True while nothing is staged or in flight."""
        return not self.staging.staged_count and not self._flights

    def stage_control(self, command: Command) -> int:
        """Stage a control record; return its place. The deletion of a topic or group is a unit of its own."""
        self.wanted()
        if isinstance(command, (DeleteTopic, DeleteGroup)):
            self.stage_gathered()
        place = self.staging.stage_control(command, self._now_ms())
        if isinstance(command, DeleteTopic):
            self._catalog.note_deletion(command.name)
            self.wait(place, _DeletionNote(self._catalog.deletion_decided, command.name))
        elif isinstance(command, DeleteGroup):
            self._catalog.note_group_deletion(command.name)
            self.wait(place, _DeletionNote(self._catalog.group_deletion_decided, command.name))
        return place

    def deletes(self, topic: str) -> bool:
        """Return whether the topic of now is gone for what is staged from here on: its deletion is not decided yet."""
        return self._catalog.is_being_deleted(topic)

    def deletes_group(self, group: str) -> bool:
        """Return whether the group of now is gone for what is staged from here on."""
        return self._catalog.is_group_being_deleted(group)

    def create(self, creation: Creation) -> int:
        """Stage topics and groups that have to exist first; return the place of the last record, -1 for none."""
        place = -1
        for group in creation.groups:
            self._catalog.note_group(group)
            place = self.stage_control(PutGroup(group, only_if_missing=True))
        for topic in creation.topics:
            self._catalog.note_topic(topic)
            place = self.stage_control(PutTopic(topic, only_if_missing=True))
        if place >= 0:
            self._creations.append((self._taken_count + place, creation))
        return place

    def wait(self, place: int, waiter: Waiter, kept_bytes: int = 0) -> None:
        """Notify `waiter` of the outcome of the record at `place`, and end the unit that it belongs to.

        Args:
            place: of the record, among those that are staged.
            waiter: is notified once.
            kept_bytes: what its request keeps until then; usual ones keep at most FREE_BYTES, which count as nothing.
        """
        kept_bytes = kept_bytes if kept_bytes > FREE_BYTES else 0
        self._kept_bytes += kept_bytes
        staging = self.staging
        count = staging.staged_count
        assert 0 <= place < count, f"nothing is staged at place {place}, only {count} records are"
        place += self._taken_count
        if self._waiters and place < self._waiters[-1][2]:
            self._has_late = True
        self._waiters.append(
            (
                place,
                waiter,
                self._taken_count + count,
                self._taken_bytes + staging.staged_bytes,
                kept_bytes,
            )
        )
        self.wanted()

    def wait_for_staged(self, waiter: Waiter) -> None:
        """Notify `waiter` once all is decided that is staged or in flight now; there must be something."""
        staged_count = self.staging.staged_count
        if staged_count:
            self.wait(staged_count - 1, waiter)
        else:
            assert self._flights, (
                "nothing is staged or in flight, so nobody would notify the waiter"
            )
            self._flights[-1].waiters.append((self._flights[-1].first - 1, waiter, 0, 0, 0))

    def flush(self) -> None:
        """Propose what is staged, as one entry if it fits one, unless enough is in flight."""
        staging = self.staging
        while staging.staged_count and (
            len(self._flights) < INFLIGHT_MAX or staging.staged_bytes >= self._entry_bytes_max
        ):
            self._propose()

    def _propose(self) -> None:
        """Propose what the next entry takes."""
        staging = self.staging
        first = self._taken_count
        count, waiters = self._take()
        creations = self._take_creations(first + count)
        if not staging.staged_count - count:
            self._taken_count = self._taken_bytes = 0
        now_ms = self._now_ms()
        staged = staging.build_entry(self._log.appender.end_position, now_ms, count)
        flight = _Flight(staged, waiters, count, first, now_ms)
        try:
            entry_id = self._log.appender.propose(staged.body, partial(self._decided, flight))
        except RefusedError as error:
            staging.withdraw(staged)
            if creations:
                waiters += self._withdraw(creations)
            self._fail(waiters, error)
            self._outputs.flush()
            return
        staging.proposed(staged, entry_id)
        self._flights.append(flight)
        self._flying_count += count
        self._flying_bytes += len(staged.body)

    def _take(self) -> tuple[int, list[_Waiting]]:
        """Take the units of the next entry: as many as fit its bytes, one at least.

        Returns:
            The count of their records, the first ones that are staged, and who waits for these.
        """
        staging = self.staging
        waiters = self._waiters
        if staging.staged_bytes <= self._entry_bytes_max or not waiters:
            self._waiters, self._has_late = [], False
            return staging.staged_count, waiters
        limit = self._taken_bytes + self._entry_bytes_max
        fitting = bisect_right(waiters, limit, key=lambda each: each[3])
        fitting += self._divide(fitting, limit)
        _, _, end, end_bytes, _ = waiters[max(fitting - 1, 0)]
        count = end - self._taken_count
        assert 0 < count <= staging.staged_count, f"{count} of {staging.staged_count} are taken"
        if count == staging.staged_count:  # one unit, or nobody waits for the rest
            self._waiters, self._has_late = [], False
            return count, waiters
        split = bisect_right(waiters, end, key=lambda each: each[2])
        taken, self._waiters = waiters[:split], waiters[split:]
        if self._has_late:
            taken += [each for each in self._waiters if each[0] < end]
            self._waiters = [each for each in self._waiters if each[0] >= end]
        self._taken_count, self._taken_bytes = end, end_bytes
        return count, taken

    def _divide(self, at: int, limit_bytes: int) -> int:
        """Divide the waiter at `at`, which ends beyond a limit, if it is a run of which a part ends before.

        An entry takes one unit at least. Returns 1 if there is one waiter more that fits, 0 if not.
        """
        if at == len(self._waiters) or not isinstance(run := self._waiters[at][1], RecordRun):
            return 0
        place, _, end, end_bytes, kept_bytes = self._waiters[at]
        size_bytes = run.ends[-1]
        fitting = bisect_right(run.ends, limit_bytes - (end_bytes - size_bytes))
        count = fitting or int(at == 0)
        if not 0 < count < len(run.ends):
            return 0
        middle, middle_bytes = place + count, end_bytes - size_bytes + run.ends[count - 1]
        rest = run.divide(count)
        assert rest.ends[-1] == end_bytes - middle_bytes, f"a run lost bytes: {rest.ends[-1]}"
        self._waiters[at : at + 1] = [
            (place, run, middle, middle_bytes, 0),
            (middle, rest, end, end_bytes, kept_bytes),
        ]
        return 1

    def _take_creations(self, end: int) -> list[Creation]:
        """Take what the records before a place create."""
        staged, self._creations = self._creations, []
        taken: list[Creation] = []
        for place, creation in staged:
            if place < end:
                taken.append(creation)
            else:
                self._creations.append((place, creation))
        return taken

    def _withdraw(self, creations: list[Creation]) -> list[_Waiting]:
        """Forget what a refused entry would have created, and what is still staged, which may rely on it.

        Returns:
            Who waits for what was still staged.
        """
        waiters, self._waiters = self._waiters, []
        creations += self._take_creations(self._taken_count + self.staging.staged_count)
        self._taken_count = self._taken_bytes = 0
        self.staging.drop()
        for creation in creations:
            self._catalog.withdraw(creation)
        return waiters

    def drop_unfinished(self, begun: int) -> None:
        """Forget what an act has staged without having waited for it, since it has failed half-way.

        Else a part of what belongs together would stand in the log by itself.

        Args:
            begun: `staged_end` when the act began, and nothing was flushed since; what others staged before stays.
        """
        end = max(begun, self._waiters[-1][2]) if self._waiters else begun
        if end >= self.staged_end:
            return
        _log.error("%d records of an act that failed are not written", self.staged_end - end)
        self.staging.cut(end - self._taken_count)
        for creation in self._take_creations_from(end):
            self._catalog.withdraw(creation)

    def _take_creations_from(self, place: int) -> list[Creation]:
        """Take what the records from a place on create."""
        kept = [each for each in self._creations if each[0] < place]
        taken = [creation for _, creation in self._creations[len(kept) :]]
        self._creations = kept
        return taken

    def lost(self, error: RefusedError) -> None:
        """Refuse what was only staged, since leadership is lost: it is surely not done."""
        waiters, self._waiters, self._creations = self._waiters, [], []
        self._taken_count = self._taken_bytes = 0
        self.staging.discard()
        self._catalog.settle()
        self._fail(waiters, error)
        self._outputs.flush()

    def _decided(self, flight: _Flight, outcome: Committed | Failed) -> None:
        """Notify who waits for an entry that was proposed, and let the next one go."""
        if isinstance(outcome, Committed):
            assert self._flights[0] is flight, (
                "an entry is committed before one that is ahead of it"
            )
            del self._flights[0]
        else:
            self._flights.remove(flight)
        self._flying_count -= flight.count
        self._flying_bytes -= len(flight.staged.body)
        assert (self._flying_count > 0) == (self._flying_bytes > 0) == bool(self._flights), (
            f"{self._flying_count} records of {self._flying_bytes} bytes are in flight"
        )
        if isinstance(outcome, Committed):
            self._forget_kept(flight.waiters)
            for place, waiter, *_ in self._deletions_first(flight.waiters):
                waiter.committed(flight.staged, place - flight.first)
        else:
            self._fail(flight.waiters, outcome.error)
        if self.is_idle:
            self._catalog.settle()
        elif self.staging.staged_count:
            self.wanted()
        self._outputs.flush()

    def _fail(self, waiters: list[_Waiting], error: DLedgerError) -> None:
        """Notify these waiters that what they wait for is not confirmed."""
        if waiters:
            count = sum(
                len(each[1].ends) if isinstance(each[1], RecordRun) else 1 for each in waiters
            )
            _log.info("%d requests were not confirmed: %s", count, error)
        self._forget_kept(waiters)
        for _, waiter, *_ in self._deletions_first(waiters):
            waiter.failed(error)

    def _forget_kept(self, waiters: list[_Waiting]) -> None:
        """Count what requests kept no more, since they wait no longer."""
        if self._kept_bytes:
            self._kept_bytes -= sum(each[4] for each in waiters)
            assert self._kept_bytes >= 0, f"requests that wait keep {self._kept_bytes} bytes"

    def _deletions_first(self, waiters: list[_Waiting]) -> list[_Waiting]:
        """Return these in their order, but that of deletions first: whoever goes on finds the tables as they are."""
        if not self._catalog.has_deletions:
            return waiters
        return sorted(waiters, key=lambda each: not isinstance(each[1], _DeletionNote))
