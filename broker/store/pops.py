"""What is popped and not acknowledged: which messages of which queue, since when, until when, how often (rules R).

A pop hands out messages that lie where the group stands and moves the group on, or hands out again what was not
acknowledged in its time. Until then nobody else gets a message. It stays where it lies: nothing is copied when its
time is over, and no record says so; whoever pops next names it again. Time is the store time of the records, so every
replica agrees on what is in flight, and a failover neither forgets an acknowledgement nor hands out early: between two
terms time stands still, as for locks (locks.py), since the next leader's clock may be another.

What was handed out is known by queue offset and *pop time*, the store time of the pop or up to some milliseconds more:
the two that a client's handle brings back (broker/service/pop_handle.py). Messages of one pop that lie in the same 64
offsets of a queue are one block, a bit each:

    key     pop time << 57 | offset >> 6
    value   due time << 64 | bits, the lowest for the lowest offset

An offset is in one block at most. A message on its own costs about 230 bytes, and so do 64 beside each other.

In order, a queue has the messages of one pop in flight, and nothing new is handed out before they are acknowledged; the
group moves on only then.

Nothing here knows messages, clients or limits of deliveries; nothing here moves the group (broker/store/commands.py).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from sortedcontainers import SortedList

from broker.store.due_queues import DueQueues
from broker.store.emptying import STEP_ITEMS, emptied
from broker.store.packing import STEP_ROWS, array_head, pack
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset

PopKey = tuple[str, str, QueueId]
"""Group, topic, queue id."""

IN_FLIGHT_MAX: Final = 1 << 20
"""Messages in flight, of all groups together: 240 MB if each lies on its own, some MB if they lie beside each other.

A quarter is kept for groups that have no more than FEW_MAX. Of the rest a group may have as many as are left of it.
"""

FEW_MAX: Final = 128
"""Messages that a group may have in flight as long as there is any room: thousands of groups would have to fill it."""

OUTCOMES_MAX: Final = 32_768
"""Recent outcomes by place; more than can be in flight."""

MODES_MAX: Final = 65_536
"""Groups in topics whose mode was set; the one that was set first is forgotten, and pulls again."""

_BLOCK_BITS: Final = 6
_BLOCK_MASK: Final = (1 << _BLOCK_BITS) - 1
_TIME_SHIFT: Final = 57
_BLOCK_OF_KEY: Final = (1 << _TIME_SHIFT) - 1
_DUE_SHIFT: Final = 64
_BITS: Final = (1 << _DUE_SHIFT) - 1
_KEY_SHIFT: Final = 120
_KEY_OF_DUE: Final = (1 << _KEY_SHIFT) - 1

_CHANGE: Final = struct.Struct(">iqqq")


class InFlight(NamedTuple):
    """One message in flight.

    Attributes:
        offset: where it lies in its queue.
        popped_ms: when it was handed out last, or its time was changed.
        due_ms: from when on it may be handed out again, in the time that counts (`QueueLockTable.skipped_ms` is out).
        times: how often it was handed out.
    """

    offset: QueueOffset
    popped_ms: int
    due_ms: int
    times: int


class PopOutcome(NamedTuple):
    """The outcome of a pop.

    Attributes:
        popped_ms: the pop time of what was handed out.
        is_taken: whether the new messages were; all of them, or none.
        again: offsets of what was handed out again.
    """

    popped_ms: int
    is_taken: bool
    again: frozenset[QueueOffset]


NOTHING: Final = PopOutcome(popped_ms=0, is_taken=False, again=frozenset())


class PoppedQueue:
    """The messages of one queue that one group has in flight.

    Attributes:
        count: of the messages.
        end: where the group goes once all is acknowledged; None: it was moved when they were handed out (not in order).
        attempt_id: of the pop in order that handed them out; "" for none.
        last_ms: the latest pop time; no two pops of a queue have the same.
    """

    __slots__ = ("_blocks", "_due", "_times", "attempt_id", "count", "end", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0
        self.end: QueueOffset | None = None
        self.attempt_id = ""
        self._blocks: dict[int, int] = {}
        self._due: SortedList[int] = SortedList()
        self._times: dict[int, int] = {}  # of those that were handed out more than once

    @property
    def next_due_ms(self) -> int | None:
        """The time at which the first message may be handed out again; None when none is in flight."""
        if not self._due:
            return None
        first: int = self._due[0]
        return first >> _KEY_SHIFT

    @property
    def last_due_ms(self) -> int | None:
        """The time at which the last one may be; None when none is in flight."""
        if not self._due:
            return None
        last: int = self._due[-1]
        return last >> _KEY_SHIFT

    def find(self, offset: QueueOffset, popped_ms: int) -> InFlight | None:
        """Return the message that was handed out then, if it is in flight."""
        value = self._blocks.get(popped_ms << _TIME_SHIFT | offset >> _BLOCK_BITS, 0)
        if not value >> (offset & _BLOCK_MASK) & 1:
            return None
        return InFlight(offset, popped_ms, value >> _DUE_SHIFT, self._times.get(offset, 1))

    def due(self, now_ms: int, limit: int) -> list[InFlight]:
        """Return messages that may be handed out again, at most `limit`: those due first first."""
        return list(islice(self._until(now_ms), limit))

    def in_order(self) -> list[InFlight]:
        """Return all messages, by their offsets; for a queue that is consumed in order, where they are few."""
        return sorted(self.items())

    def due_last(self, limit: int) -> list[InFlight]:
        """Return messages, at most `limit`, by their offsets: those due last."""
        return sorted(islice(self._each(reversed(self._due)), limit))

    def items(self) -> Iterator[InFlight]:
        """Yield all messages, those due first first."""
        return self._until(None)

    def next_ms(self, now_ms: int) -> int:
        """Return the pop time of a pop of now."""
        self.last_ms = max(now_ms, self.last_ms + 1)
        return self.last_ms

    def put(self, offsets: Iterable[QueueOffset], popped_ms: int, due_ms: int) -> None:
        """Note messages that are handed out; none of them is in flight."""
        blocks: dict[int, int] = {}
        for offset in offsets:
            key = popped_ms << _TIME_SHIFT | offset >> _BLOCK_BITS
            bit = 1 << (offset & _BLOCK_MASK)
            blocks[key] = blocks.get(key, 0) | bit
            self.count += 1
        for key, bits in blocks.items():
            assert key not in self._blocks, f"two pops of a queue have the pop time {popped_ms}"
            self._due.add(due_ms << _KEY_SHIFT | key)
            self._blocks[key] = due_ms << _DUE_SHIFT | bits

    def remove(self, offset: QueueOffset, popped_ms: int, *, for_good: bool = True) -> bool:
        """Take out the message that was handed out then; return whether it was in flight.

        Unless it is for good, it is still known how often it was handed out.
        """
        key = popped_ms << _TIME_SHIFT | offset >> _BLOCK_BITS
        value = self._blocks.get(key, 0)
        bit = 1 << (offset & _BLOCK_MASK)
        if not value & bit:
            return False
        self.count -= 1
        value ^= bit
        if value & _BITS:
            self._blocks[key] = value
        else:
            del self._blocks[key]
            self._due.remove(value >> _DUE_SHIFT << _KEY_SHIFT | key)
        if for_good:
            self._times.pop(offset, None)
        return True

    def count_again(self, offset: QueueOffset) -> None:
        """Count that a message is handed out once more."""
        self._times[offset] = self._times.get(offset, 1) + 1

    def parts(self) -> Iterator[bytes]:
        """Yield the blocks as a snapshot keeps them, in short steps: (pop time, block, due time, bits) each."""
        blocks = iter(self._blocks.items())
        yield array_head(len(self._blocks))
        while some := list(islice(blocks, STEP_ROWS)):
            yield b"".join(
                pack((key >> _TIME_SHIFT, key & _BLOCK_OF_KEY, value >> _DUE_SHIFT, value & _BITS))
                for key, value in some
            )
        times = iter(self._times.items())
        yield array_head(len(self._times))
        while more := list(islice(times, STEP_ROWS)):
            yield b"".join(map(pack, more))

    def load_steps(
        self, blocks: list[tuple[int, int, int, int]], times: list[tuple[int, int]]
    ) -> Iterator[None]:
        """Fill an empty queue with what a snapshot kept."""
        for first in range(0, len(blocks), STEP_ROWS):
            for popped_ms, block, due_ms, bits in blocks[first : first + STEP_ROWS]:
                key = popped_ms << _TIME_SHIFT | block
                self._blocks[key] = due_ms << _DUE_SHIFT | bits
                self._due.add(due_ms << _KEY_SHIFT | key)
                self.count += bits.bit_count()
            yield
        self._times = dict(times)

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps."""
        yield from emptied(self._due)
        yield from emptied(self._blocks)
        yield from emptied(self._times)

    def _until(self, now_ms: int | None) -> Iterator[InFlight]:
        """Yield messages that are due by then, or all of them."""
        for found in self._each(self._due):
            if now_ms is not None and found.due_ms > now_ms:
                return
            yield found

    def _each(self, blocks: Iterable[int]) -> Iterator[InFlight]:
        """Yield the messages of blocks, each with its due time."""
        for each in blocks:
            due_ms = each >> _KEY_SHIFT
            key = each & _KEY_OF_DUE
            popped_ms, start = key >> _TIME_SHIFT, (key & _BLOCK_OF_KEY) << _BLOCK_BITS
            bits = self._blocks[key] & _BITS
            while bits:
                lowest = bits & -bits
                bits ^= lowest
                offset = QueueOffset(start + lowest.bit_length() - 1)
                yield InFlight(offset, popped_ms, due_ms, self._times.get(offset, 1))


class RequestMode(NamedTuple):
    """The way in which clients that let the broker share out queues consume: pulling, or popping (401).

    Attributes:
        is_pop: popping.
        share_count: queues are shared by so many clients; 0 for all.
    """

    is_pop: bool
    share_count: int


class Pops:
    """The table. Changes are for the fold; everybody else reads.

    Attributes:
        count: of the messages in flight, of all groups.
        discarded: what was forgotten and still takes memory; `let_go` frees it step by step.
        digest: CRC32C chained over every change; 0 as long as there was none.
        due_queues: the queues that are not consumed in order, by the time at which their first message is due.
    """

    def __init__(self) -> None:
        self.count = 0
        self.digest: int = 0
        self.due_queues = DueQueues()
        self.discarded: deque[PoppedQueue] = deque()
        self._queues: dict[PopKey, PoppedQueue] = {}
        self._of_groups: dict[str, int] = {}
        """Messages in flight by group. Invariant: they are `count` together; none without any."""
        self._by_group: dict[tuple[str, str], dict[QueueId, PoppedQueue]] = {}
        """Invariant: the same queues, by group and topic; none without one."""
        self._modes: dict[tuple[str, str], RequestMode] = {}
        self._popped: dict[PhysicalOffset, PopOutcome] = {}
        self._counts: dict[PhysicalOffset, tuple[int, ...]] = {}

    def queue(self, key: PopKey) -> PoppedQueue | None:
        """Return what a group has in flight of a queue; None for nothing."""
        return self._queues.get(key)

    def in_flight(self, group: str, topic: str) -> int:
        """Return how many messages of a topic a group has in flight."""
        return sum(queue.count for queue in self._by_group.get((group, topic), {}).values())

    def of_group(self, group: str) -> int:
        """Return how many messages a group has in flight."""
        return self._of_groups.get(group, 0)

    def groups(self) -> Iterator[tuple[str, str, int]]:
        """Yield group, topic and how many messages are in flight, for each that has any."""
        for (group, topic), queues in self._by_group.items():
            yield group, topic, sum(queue.count for queue in queues.values())

    def queues(self) -> Iterator[tuple[PopKey, int]]:
        """Yield the queues of which a group has messages in flight, and how many."""
        return ((key, queue.count) for key, queue in self._queues.items())

    def room(self, group: str) -> int:
        """Return how many messages more a group may have in flight; `has_room` is true up to so many."""
        held, left = self._of_groups.get(group, 0), IN_FLIGHT_MAX - self.count
        return max(0, min(FEW_MAX - held, left), (left - held - IN_FLIGHT_MAX // 4) // 2)

    def has_room(self, group: str, count: int) -> bool:
        """Return whether a group may have so many more in flight: few, or no more than are left beside what is kept."""
        held, left = self._of_groups.get(group, 0) + count, IN_FLIGHT_MAX - self.count - count
        return left >= 0 if held <= FEW_MAX else held <= left - IN_FLIGHT_MAX // 4

    def is_due(self, group: str, topic: str, now_ms: int) -> bool:
        """Return whether something of a topic may be handed out to a group again."""
        for queue in self._by_group.get((group, topic), {}).values():
            due_ms = queue.next_due_ms
            if due_ms is not None and due_ms <= now_ms:
                return True
        return False

    def queue_of_attempt(self, group: str, topic: str, attempt_id: str) -> QueueId | None:
        """Return the queue of which a pop in order has messages in flight; None for none, the lowest of several."""
        queues = self._by_group.get((group, topic), {})
        had = (queue_id for queue_id, queue in queues.items() if queue.attempt_id == attempt_id)
        return min(had, default=None)

    def mode(self, group: str, topic: str) -> RequestMode | None:
        """Return how a group consumes a topic, if that was set."""
        return self._modes.get((group, topic))

    def outcome(self, physical_offset: PhysicalOffset) -> PopOutcome | None:
        """Return what became of the pop in the record there; None if that is long ago, or it was refused.

        Only for the answers of the leader that folded it, as `changed_at`: no snapshot keeps it.
        """
        return self._popped.get(physical_offset)

    def changed_at(self, physical_offset: PhysicalOffset) -> tuple[int, ...]:
        """Return what became of the messages of the record there, in its order; none if that is long ago.

        Of acknowledgements 1 for what was in flight under its handle, of changed times the new pop time; else 0.
        """
        return self._counts.get(physical_offset, ())

    # For the fold.

    def may_take(self, key: PopKey, count: int) -> bool:
        """Return whether new messages of a queue may be handed out: none are in flight in order, and there is room."""
        queue = self._queues.get(key)
        return (queue is None or queue.end is None) and self.has_room(key[0], count)

    def is_idle(self, key: PopKey) -> bool:
        """Return whether a group has nothing of a queue in flight."""
        return key not in self._queues

    def hand_out(
        self,
        key: PopKey,
        offsets: Sequence[QueueOffset],
        again: Iterable[tuple[QueueOffset, int]],
        *,
        now_ms: int,
        skipped_ms: int,
        invisible_ms: int,
        is_repeat: bool = False,
    ) -> PopOutcome:
        """Hand out new messages, and again some that were handed out before: (offset, pop time) each.

        Of those only what is in flight under that pop time and due; a pop that repeats the one which handed them out
        need not wait for that, and is the same delivery.
        """
        queue = self._queues.get(key)
        if queue is None:
            if not offsets:
                return NOTHING
            queue = self._add(key, PoppedQueue())
        taken = []
        for offset, popped_ms in again:
            found = queue.find(offset, popped_ms)
            if found is None or not (is_repeat or found.due_ms <= now_ms - skipped_ms):
                continue
            queue.remove(offset, popped_ms, for_good=False)
            if not is_repeat:
                queue.count_again(offset)
            taken.append(offset)
        self._count(key[0], len(offsets))
        if not (taken or offsets):
            return NOTHING
        popped_ms = queue.next_ms(now_ms)
        handed = [*taken, *offsets]
        queue.put(handed, popped_ms, popped_ms - skipped_ms + invisible_ms)
        self._note_due(key, queue)
        for offset in handed:
            self._changed(key, offset, popped_ms, invisible_ms)
        return PopOutcome(popped_ms, is_taken=bool(offsets), again=frozenset(taken))

    def begin_attempt(self, key: PopKey, end: QueueOffset, attempt_id: str) -> None:
        """Note that what is in flight of a queue was handed out in order: where the group goes then, and by whom."""
        queue = self._queues[key]
        queue.end = end
        self._note_due(key, queue)
        self._changed(key, end, 0, -5)
        self.follow_attempt(key, attempt_id)

    def follow_attempt(self, key: PopKey, attempt_id: str) -> None:
        """Note by whom what is in flight was handed out in order, for the first time or again."""
        self._queues[key].attempt_id = attempt_id
        self.digest = crc32c(attempt_id.encode(), self.digest)

    def acknowledge(self, key: PopKey, offset: QueueOffset, popped_ms: int) -> bool:
        """Take out what was handed out then, for good; return whether it was in flight under that pop time."""
        queue = self._queues.get(key)
        if queue is None or not queue.remove(offset, popped_ms):
            return False
        self._count(key[0], -1)
        self._changed(key, offset, popped_ms, -1)
        if not queue.count:
            self._remove(key)
        self._note_due(key, queue)
        return True

    def change(
        self,
        key: PopKey,
        offset: QueueOffset,
        popped_ms: int,
        *,
        now_ms: int,
        skipped_ms: int,
        invisible_ms: int,
    ) -> int:
        """Give a message in flight another time, and so another handle; return its pop time, 0 if it is not there."""
        queue = self._queues.get(key)
        if queue is None or not queue.remove(offset, popped_ms, for_good=False):
            return 0
        new_ms = queue.next_ms(now_ms)
        queue.put([offset], new_ms, new_ms - skipped_ms + invisible_ms)
        self._note_due(key, queue)
        self._changed(key, offset, new_ms, invisible_ms)
        return new_ms

    def forget(self, group: str | None, topic: str | None, queue_id: QueueId | None = None) -> None:
        """Forget what is in flight of a group, a topic, or both; None for all. A queue has both with it."""
        if group is not None and topic is not None and queue_id is not None:
            keys = [key] if (key := (group, topic, queue_id)) in self._queues else []
        else:
            keys = [k for k in self._queues if group in {None, k[0]} and topic in {None, k[1]}]
        for key in keys:
            queue = self._remove(key)
            self._count(key[0], -queue.count)
            if queue.count > STEP_ITEMS:
                self.discarded.append(queue)
            self.due_queues.put(key, None)
            self._changed(key, QueueOffset(0), 0, -2)

    def let_go(self) -> None:
        """Free a little of what was forgotten: a million messages at once would hold up the fold."""
        for _ in self.discarded[0].giving_up():
            return
        self.discarded.popleft()

    def forget_modes(self, group: str | None, topic: str | None) -> None:
        """Forget how a group consumes, or how a topic is consumed; None for all."""
        keys = [k for k in self._modes if group in {None, k[0]} and topic in {None, k[1]}]
        for key in keys:
            del self._modes[key]
            self._changed((*key, QueueId(0)), QueueOffset(0), 0, -3)

    def set_mode(self, group: str, topic: str, mode: RequestMode) -> None:
        """Set how a group consumes a topic."""
        self._modes.pop((group, topic), None)
        self._modes[group, topic] = mode
        if len(self._modes) > MODES_MAX:
            del self._modes[next(iter(self._modes))]
        key = (group, topic, QueueId(int(mode.is_pop)))
        self._changed(key, QueueOffset(0), mode.share_count, -4)

    def note_pop(self, physical_offset: PhysicalOffset, outcome: PopOutcome) -> None:
        """Keep what became of the pop in the record there, for its answer."""
        self._popped[physical_offset] = outcome
        if len(self._popped) > OUTCOMES_MAX:
            del self._popped[next(iter(self._popped))]

    def note_changes(self, physical_offset: PhysicalOffset, changes: Iterable[int]) -> None:
        """Keep what became of the messages in the record there, for its answer."""
        self._counts[physical_offset] = tuple(changes)
        if len(self._counts) > OUTCOMES_MAX:
            del self._counts[next(iter(self._counts))]

    # Snapshots.

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        return b"".join(self.dump_parts())

    def dump_parts(self) -> Iterator[bytes]:
        """Yield the same, part by part."""
        yield array_head(3) + array_head(len(self._queues))
        for key, queue in self._queues.items():
            yield array_head(6) + pack(key, queue.end, queue.attempt_id, queue.last_ms)
            yield from queue.parts()
        yield pack([(*key, *mode) for key, mode in self._modes.items()], self.digest)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; a part of it may be there.
        """
        for _ in self.load_steps(data):
            pass

    def load_steps(self, data: bytes) -> Iterator[None]:
        """Do the same, in short steps."""
        rows, modes, self.digest = _decode_table(data)
        yield
        self._modes = {
            (group, topic): RequestMode(is_pop, share) for group, topic, is_pop, share in modes
        }
        self._popped, self._counts = {}, {}
        self._queues, self._by_group, self._of_groups = {}, {}, {}
        self.discarded.clear()
        self.due_queues = DueQueues()
        self.count = 0
        for raw in rows:
            key, end, attempt_id, last_ms, blocks, times = _decode_row(raw)
            yield
            queue = PoppedQueue()
            queue.end, queue.attempt_id, queue.last_ms = end, attempt_id, last_ms
            yield from queue.load_steps(blocks, times)
            self._add(key, queue)
            self._count(key[0], queue.count)
            self._note_due(key, queue)

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps; this table is not used any more."""
        yield from self.due_queues.giving_up()
        while self.discarded:
            self.let_go()
            yield
        for queue in self._queues.values():
            yield from queue.giving_up()
        for held in (self._queues, self._popped, self._counts):
            yield from emptied(held)

    def _count(self, group: str, more: int) -> None:
        """Count messages that are in flight from now on, or are not any more."""
        left = self._of_groups.get(group, 0) + more
        assert left >= 0, f"{left} messages of {group} are in flight"
        if left:
            self._of_groups[group] = left
        else:
            self._of_groups.pop(group, None)
        self.count += more

    def _note_due(self, key: PopKey, queue: PoppedQueue) -> None:
        """Let a queue stand where it is due; what is in order is not returned, so nobody looks for it."""
        self.due_queues.put(key, queue.next_due_ms if queue.end is None else None)

    def _add(self, key: PopKey, queue: PoppedQueue) -> PoppedQueue:
        self._queues[key] = queue
        self._by_group.setdefault(key[:2], {})[key[2]] = queue
        return queue

    def _remove(self, key: PopKey) -> PoppedQueue:
        group = self._by_group[key[:2]]
        del group[key[2]]
        if not group:
            del self._by_group[key[:2]]
        return self._queues.pop(key)

    def _changed(self, key: PopKey, offset: QueueOffset, popped_ms: int, what: int) -> None:
        group, topic, queue_id = key
        change = f"{group}\x01{topic}".encode() + _CHANGE.pack(queue_id, offset, popped_ms, what)
        self.digest = crc32c(change, self.digest)


_Row = tuple[
    PopKey,
    QueueOffset | None,
    str,
    int,
    list[tuple[int, int, int, int]],
    list[tuple[int, int]],
]

_decode_table: Final = msgspec.msgpack.Decoder(
    tuple[list[msgspec.Raw], list[tuple[str, str, bool, int]], int]
).decode
_decode_row: Final = msgspec.msgpack.Decoder(_Row).decode
