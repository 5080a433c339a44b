"""What a pop would be handed out of one queue, as the state is now: read, and not yet claimed.

It must not know who else is about to pop, nor when a pop is tried.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.service.pop import PopFields, PopGrant
from broker.store.control import PopMessages
from broker.store.pops import InFlight, PopKey
from broker.store.reading import GetLimits, GetStatus, get_messages
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.state import BrokerState
from dledger import LogServer
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.record import SYS_FLAG_AT, StoredMessage, decode_record
from dledger_mq.message.sys_flags import BORN_HOST_V6, STORE_HOST_V6

READS_MAX: Final = 8
"""Reads of one look at a queue in which nothing is wanted: 800 messages each. Then the group is moved on first.

A condition on properties needs each message, and has one read.
"""

BYTES_MAX: Final = 262_144
"""Of the messages of one pop; one message is always handed out."""

SPENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the dead letters of one pop, one at least: their copies are one entry, which has a bound of its own."""

SORTED_MAX: Final = 4096
"""Messages in flight of which a pop in order is given the first ones, some 10 ms.

Only what was popped in any order before can be more; that comes as it is due.
"""

_SIZE: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20
_RECONSUMED_AT: Final = 72


@dataclass(slots=True)
class PopPlan:
    """The messages that are to be handed out, and the command for it.

    Attributes:
        command: claims it; None: nothing is to be claimed.
        records: of the messages, by their queue offset.
        counts: how often each was handed out before, without attempts that are repeated.
        spent: messages that were handed out as often as their group wants, and are not any more.
        gone: messages that the log no longer has.
        is_cut: more lies behind what was looked at, and the group has to move on before it is.
    """

    key: PopKey
    command: PopMessages | None = None
    records: dict[QueueOffset, memoryview | bytes] = field(default_factory=dict)
    counts: dict[QueueOffset, int] = field(default_factory=dict)
    spent: list[tuple[InFlight, StoredMessage]] = field(default_factory=list)
    gone: list[InFlight] = field(default_factory=list)
    is_cut: bool = False


class PopReading:
    """Looks into queues for pops."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        limits: Callable[[], GetLimits],
        log_ms: Callable[[], int],
    ) -> None:
        """Set up the reading; `log_ms` returns the time that the next record would have."""
        self._log = log
        self._state = state
        self._limits = limits
        self._log_ms = log_ms

    def time_ms(self) -> int:
        """Return the time by which messages in flight are due.

        Before the first record of its term a leader does not know how much of the time will not count.
        """
        locks = self._state.locks
        now_ms = self._state.last_store_ms if locks.awaits_time else self._log_ms()
        return now_ms - locks.skipped_ms

    def plan(
        self, pop: PopFields, grant: PopGrant, queue_id: QueueId, *, may_wait: bool
    ) -> PopPlan | None:
        """Return what a pop would get of a queue; None for nothing.

        Raises:
            NotInMemoryError: it may wait for the disk, and has to.
            EntryDamagedError: a message cannot be read now.
        """
        key = (pop.group, pop.topic, queue_id)
        queue = self._state.pops.queue(key)
        if queue is not None:
            if pop.is_ordered:
                last_ms = queue.last_due_ms
                is_repeat = pop.attempt_id != "" and queue.attempt_id == pop.attempt_id
                if last_ms is not None and last_ms > self.time_ms() and not is_repeat:
                    return None
                if queue.count <= SORTED_MAX:
                    wanted = queue.in_order()
                elif is_repeat:  # everything else was due when these were handed out
                    wanted = queue.due_last(pop.count_max)
                else:
                    wanted = sorted(queue.due(self.time_ms(), pop.count_max))
                return self._again(pop, grant, key, wanted, may_wait=may_wait, is_repeat=is_repeat)
            if queue.end is not None:
                return None
            due = queue.due(self.time_ms(), pop.count_max)
            if due:
                return self._again(pop, grant, key, due, may_wait=may_wait)
        if not self._state.pops.has_room(pop.group, pop.count_max):
            return None
        return self._new(pop, grant, key, may_wait=may_wait)

    def message(self, key: PopKey, offset: QueueOffset, *, may_wait: bool) -> memoryview | None:
        """Return the record of a message in flight; None if the log no longer has it.

        Raises:
            NotInMemoryError, EntryDamagedError: as `plan`.
        """
        queue = self._state.queues.get(key[1], key[2], without_waiting=may_wait)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        unit = queue.unit(offset, without_waiting=may_wait)
        reader = RecordReader(self._log.reader)
        try:
            return reader.read(unit.physical_offset, unit.size_bytes, only_memory=may_wait)
        except MessageGoneError:
            return None

    def _again(
        self,
        pop: PopFields,
        grant: PopGrant,
        key: PopKey,
        due: list[InFlight],
        *,
        may_wait: bool,
        is_repeat: bool = False,
    ) -> PopPlan | None:
        """Plan to hand out again what is due, but what was handed out often enough.

        A pop in order that repeats an attempt gets what that got, due or not: it is the same delivery.
        """
        plan, time_ms = PopPlan(key), self.time_ms()
        again: list[tuple[QueueOffset, int]] = []
        total = spent_bytes = 0
        for each in due[: pop.count_max]:
            record = self.message(key, each.offset, may_wait=may_wait)
            is_due = each.due_ms <= time_ms
            if record is None:
                if is_due:
                    plan.gone.append(each)
                continue
            if plan.records and total + len(record) > BYTES_MAX:
                break
            before = reconsumed(record)
            if is_due and is_spent(before, each.times, grant.group.retry_times_max):
                spent_bytes += len(record)
                if plan.spent and spent_bytes > SPENT_BYTES_MAX:
                    break
                plan.spent.append((each, decode_record(bytes(record))))
                continue
            total += len(record)
            again.append((each.offset, each.popped_ms))
            times = each.times - is_repeat
            plan.records[each.offset] = with_reconsumed(record, before + times)
            plan.counts[each.offset] = times
        if again:
            at = self._state.offsets.get(*key)
            where = at or QueueOffset(0)
            plan.command = self._command(pop, key, at, where, end=where, again=again)
        return plan if again or plan.spent or plan.gone else None

    def _new(
        self, pop: PopFields, grant: PopGrant, key: PopKey, *, may_wait: bool
    ) -> PopPlan | None:
        """Plan to hand out what lies where the group stands."""
        low, high = self._state.queues.min_max(key[1], key[2])
        at = self._state.offsets.get(*key)
        if at is not None:
            first = min(max(at, low), high)
        elif pop.begins_at_end:
            first = self._begin(key, low, high)
        else:
            first = low
        begin = first
        reads_max = READS_MAX if grant.property_filter is None else 1
        for _ in range(reads_max if first < high else 0):
            result = get_messages(
                self._state,
                self._log.reader,
                key[1],
                key[2],
                offset=first,
                count_max=pop.count_max,
                log_end=self._log.reader.committed_position,
                bytes_max=BYTES_MAX,
                tag_hashes=grant.tags,
                property_filter=grant.property_filter,
                limits=self._limits(),
                may_wait=may_wait,
                may_wait_for_units=may_wait,
            )
            if result.status is GetStatus.FOUND:
                plan = PopPlan(key)
                _cut(result.records, plan.records)
                taken = list(plan.records)
                assert taken == sorted(taken), f"{key}: offsets {taken} were read"
                plan.counts = dict.fromkeys(taken, 0)
                plan.command = self._command(
                    pop, key, at, begin, end=result.next_offset, taken=taken
                )
                return plan
            is_passed = result.status in (
                GetStatus.NO_MATCHED_MESSAGE,
                GetStatus.MESSAGE_WAS_REMOVING,
            )
            if not is_passed or result.next_offset <= first:
                break
            first = result.next_offset
        if first == at or (at is None and high == 0):
            return None
        return PopPlan(key, self._command(pop, key, at, begin, end=first), is_cut=first < high)

    def _begin(self, key: PopKey, low: QueueOffset, high: QueueOffset) -> QueueOffset:
        """Return where a group begins that wants what comes from now on (R7): at 0 in a queue that is young."""
        if low == 0 and high:
            queue = self._state.queues.get(key[1], key[2])
            assert queue is not None, f"{key} ends at {high} and is not there"
            behind = self._log.reader.committed_position - queue.unit(low).physical_offset
            if behind <= self._limits().memory_span_bytes:
                return low
        return max(low, QueueOffset(high - 1), QueueOffset(0))

    @staticmethod
    def _command(
        pop: PopFields,
        key: PopKey,
        at: QueueOffset | None,
        first: QueueOffset,
        *,
        end: QueueOffset,
        taken: list[QueueOffset] | None = None,
        again: list[tuple[QueueOffset, int]] | None = None,
    ) -> PopMessages:
        """Return the command that claims messages; `taken` stands in it as distances from `first`."""
        return PopMessages(
            *key,
            at=at,
            first=first,
            end=end,
            taken=[QueueOffset(offset - first) for offset in taken or ()],
            again=again or [],
            invisible_ms=pop.invisible_ms,
            is_ordered=pop.is_ordered,
            attempt_id=pop.attempt_id,
        )


def is_spent(before: int, times: int, limit: int) -> bool:
    """Return whether a message goes to the dead letters: it was delivered as often as its group wants, once at least.

    RocketMQ's own client drops what it is given with the full count (R19), so nobody is given that.

    Args:
        before: its reconsume count as it is stored.
        times: how often it was handed out since.
        limit: the group's `retryMaxTimes`.
    """
    return before + times >= max(1, limit)


def reconsumed(record: memoryview | bytes) -> int:
    """Return the reconsume count of a record."""
    count: int = _SIZE.unpack_from(record, _reconsumed_at(record))[0]
    return count


def with_reconsumed(record: memoryview | bytes, count: int) -> bytes:
    """Return a record with another reconsume count; no checksum covers it."""
    changed = bytearray(record)
    _SIZE.pack_into(changed, _reconsumed_at(record), count)
    return bytes(changed)


def _reconsumed_at(record: memoryview | bytes) -> int:
    flags = record[SYS_FLAG_AT + 3]
    more = 12 * (bool(flags & BORN_HOST_V6) + bool(flags & STORE_HOST_V6))
    return _RECONSUMED_AT + more


def _cut(pieces: Sequence[memoryview], records: dict[QueueOffset, memoryview | bytes]) -> None:
    """Cut records apart that stand back to back; one may begin in a piece and end in the next."""
    data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
    start = 0
    while start < len(data):
        size: int = _SIZE.unpack_from(data, start)[0]
        offset: QueueOffset = _LONG.unpack_from(data, start + _QUEUE_OFFSET_AT)[0]
        records[offset] = data[start : start + size]
        start += size
