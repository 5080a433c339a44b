"""Messages with a due time of their own (rules N): which are pending, in the order they fall due.

Such a message waits on `rmq_sys_wheel_timer` with TIMER_OUT_MS, REAL_TOPIC and REAL_QID. The fold keeps
one 16-byte unit per pending message, ordered by due time, and among equals by place in the log:

     0  uint64  due time, ms since 1970
     8  uint64  physical offset of the waiting record

Big-endian, so that the order of the bytes is the order of delivery. The units that fall due first (the
*near* ones) are in memory in a sorted list; all that comes after them is *far*, in a `FarTimers` store
that keeps them sorted on disk (`far_timers.py`, `timer_files.py`). A unit is near if and only if it lies before
`_boundary`. Where the boundary lies depends on a replica's limits and shows in no answer and in no digest.

A unit leaves when `DeliverTimers` names it, which stands after the real messages in their entry, or
when `RecallTimer` does. So a message is delivered once or recalled, and the log's order says which. A recall
finds its message in the key index, like any query by unique key.

Nothing here reads a clock or a message of the log: the times are given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from sortedcontainers import SortedList

from broker.store.far_timers import FAR_WRITE_UNITS, FarTimers, FarUnits, MemoryFarTimers
from broker.store.oldest_place import OldestPlace
from broker.store.refusals import RefusalKind
from broker.store.saved import ByteSource, Count
from dledger.state_machine import SnapshotRefusedError
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.properties import TIMER_OUT_MS
from dledger_mq.message.record import StoredMessage

TIMER_KEY: Final = names.TIMER_TOPIC.encode()

TIMER_UNIT: Final = struct.Struct(">QQ")
_DUE: Final = struct.Struct(">Q")
_OFFSET_MAX: Final = b"\xff" * 8

DUE_DIGITS_MAX: Final = 18
"""A due time has so many digits at most, so that it fits the unit."""

NEAR_MAX: Final = 32_768
"""Units in memory: about 3 MB, some seconds of deliveries at full speed."""

RECALLED_MAX: Final = 65_536
"""Recalls that are remembered, so that asking again after a lost answer gives the same one."""

OUTCOMES_MAX: Final = 32_768
"""Recent outcomes of recalls by place; more than can be in flight."""


class PendingTimer(NamedTuple):
    """A message that waits for its time."""

    due_ms: int
    physical_offset: PhysicalOffset


def recall_key(topic: bytes, unique_key: bytes) -> bytes:
    """Return the key under which a recall is remembered."""
    return blake2b(topic + b"\x01" + unique_key, digest_size=8).digest()


def timer_of(message: StoredMessage) -> PendingTimer | None:
    """Return what a record on the timer topic waits for; None if it does not say."""
    due = message.find(TIMER_OUT_MS)
    if due is None or not due.isdigit() or len(due) > DUE_DIGITS_MAX:
        return None
    return PendingTimer(int(due), PhysicalOffset(message.physical_offset))


class Timers:
    """The pending messages. Changes are for the fold; everybody else reads.

    Invariants: every near unit is less than the boundary, every far one is not; there is a boundary if and
    only if there are far units; `count` is that of both together.

    Attributes:
        count: how many are pending.
        digest: CRC32C chained over every change.
    """

    def __init__(self, far: FarTimers | None = None, near_max: int = NEAR_MAX) -> None:
        assert near_max >= 4, f"near_max {near_max} leaves nothing to keep"
        self.count = 0
        self.digest: int = 0
        self._near: SortedList[bytes] = SortedList()
        self._near_max = near_max
        self._far = FarUnits(far if far is not None else MemoryFarTimers())
        self._boundary: bytes | None = None
        self._places = OldestPlace()
        self._recalled: dict[bytes, None] = {}
        self._outcomes: dict[PhysicalOffset, bool] = {}

    @property
    def near_count(self) -> int:
        """The count of pending ones that are in memory."""
        return len(self._near)

    def due(self, now_ms: int, limit: int) -> list[PendingTimer]:
        """Return the first messages whose time has come, at most `limit`, in the order they fall due.

        There may be more than are given, even if fewer than `limit` are: far ones come near when the
        near ones are delivered.
        """
        last = _DUE.pack(now_ms) + _OFFSET_MAX
        found = []
        for unit in self._near.islice(0, limit):
            if unit > last:
                break
            found.append(PendingTimer(*TIMER_UNIT.unpack(unit)))
        return found

    def next_due_ms(self) -> int | None:
        """Return the time at which the next message falls due; None when none is pending."""
        if not self._near:
            return None
        due_ms: int = _DUE.unpack_from(self._near[0])[0]
        return due_ms

    def oldest_pending(self) -> PhysicalOffset | None:
        """Return a place at or shortly before the oldest record that is pending; None when none is."""
        return self._places.first()

    def was_recalled(self, physical_offset: PhysicalOffset) -> bool | None:
        """Return whether the command in the record there found its message recalled, by itself or before.

        None if that record is long ago.
        """
        return self._outcomes.get(physical_offset)

    def units(self) -> Iterator[bytes]:
        """Return all pending units in order, as they are now."""
        return chain(list(self._near), self._far.frozen())

    def add(self, timer: PendingTimer) -> None:
        """Add a message that was stored in the timer topic."""
        unit = TIMER_UNIT.pack(*timer)
        self.count += 1
        self._places.add(timer.physical_offset)
        self.digest = crc32c(b"+" + unit, self.digest)
        if self._boundary is None or unit < self._boundary:
            self._near.add(unit)
            if len(self._near) > self._near_max:
                self._evict()
        else:
            self._far.add(unit)

    def deliver(self, places: Iterable[tuple[int, PhysicalOffset]]) -> RefusalKind | None:
        """Take out messages that were delivered, by due time and physical offset; return the reason if it was refused.

        One that is not pending was delivered or recalled before: the others count nevertheless.
        """
        refusal = None
        for place in places:
            if not self._remove(TIMER_UNIT.pack(*place), b"-"):
                refusal = RefusalKind.STALE_PROGRESS
        self._refill()
        return refusal

    def recall(
        self,
        due_ms: int,
        key: bytes,
        offsets: Sequence[PhysicalOffset],
        *,
        physical_offset: PhysicalOffset,
    ) -> None:
        """Take back the messages at these offsets, where they are pending; note the outcome."""
        name = _DUE.pack(due_ms) + key
        removed = [self._remove(TIMER_UNIT.pack(due_ms, offset), b"*") for offset in offsets]
        if any(removed):
            self._recalled.pop(name, None)
            self._recalled[name] = None
            if len(self._recalled) > RECALLED_MAX:
                del self._recalled[next(iter(self._recalled))]
        self._outcomes[physical_offset] = name in self._recalled
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        self._refill()

    def dump(self) -> bytes:
        """Return what a snapshot keeps in its head: count, recalls and digest. The units come after it."""
        return msgspec.msgpack.encode((self.count, list(self._recalled), self.digest))

    def saved_units(self) -> Iterator[bytes]:
        """Return what belongs to `dump`, taken at the same moment: all units in order, in larger pieces."""
        return _joined(self.units())

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one, whose units `load_unit_steps` brings.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        kind = tuple[Count, list[bytes], int]
        self.count, recalled, self.digest = msgspec.msgpack.decode(data, type=kind)
        self._recalled = dict.fromkeys(recalled)
        self._outcomes = {}
        self._near.clear()
        self._far.clear()
        self._boundary = None
        self._places.clear()

    def load_unit_steps(self, source: ByteSource) -> Iterator[None]:
        """Read the units that the loaded head counts, in short steps.

        Raises:
            SnapshotRefusedError: they are too few, or not in order.
        """
        last, left, size = b"", self.count, TIMER_UNIT.size
        while left:
            yield
            count = min(left, FAR_WRITE_UNITS)
            data = source.read(count * size)
            units = [data[start : start + size] for start in range(0, len(data), size)]
            if any(one >= other for one, other in pairwise([last, *units])):
                raise SnapshotRefusedError("the pending timers are not in order")
            for _, physical_offset in TIMER_UNIT.iter_unpack(data):
                self._places.add(PhysicalOffset(physical_offset))
            if self._boundary is None and len(self._near) + count <= self._near_max:
                self._near.update(units)
            else:
                self._boundary = self._boundary or units[0]
                self._far.add_all(units)
            last, left = units[-1], left - count
        self._refill()

    def _remove(self, unit: bytes, mark: bytes) -> bool:
        """Take out a unit, if it is pending; return whether it was."""
        if unit in self._near:
            self._near.remove(unit)
        elif self._boundary is not None and unit >= self._boundary and self._far.discard(unit):
            self._boundary = self._boundary if self._far.count else None
        else:
            return False
        self.count -= 1
        self._places.remove(PendingTimer(*TIMER_UNIT.unpack(unit)).physical_offset)
        self.digest = crc32c(mark + unit, self.digest)
        return True

    def _evict(self) -> None:
        """Move the later half of the near units to the far ones: there are too many."""
        half = self._near_max // 2
        leaving = list(self._near[half:])
        del self._near[half:]
        assert self._boundary is None or leaving[-1] < self._boundary, (
            f"{leaving[-1].hex()} was near, the far ones begin at {self._boundary!r}"
        )
        self._far.add_all(leaving)
        self._boundary = leaving[0]

    def _refill(self) -> None:
        """Bring the first of the far units near when few are left there."""
        quarter = self._near_max // 4
        while self._far.count and len(self._near) < quarter:
            self._near.update(self._far.take_first(quarter))
            self._boundary = self._far.first()
        assert self._boundary is None or not self._near or self._near[-1] < self._boundary, (
            f"{self._near[-1].hex()} is near, the far ones begin at {self._boundary!r}"
        )
        assert self.count == len(self._near) + self._far.count, (
            f"{self.count} messages are pending, {len(self._near)} near and {self._far.count} far"
        )


def _joined(units: Iterator[bytes]) -> Iterator[bytes]:
    """Yield units in larger pieces."""
    while piece := b"".join(islice(units, FAR_WRITE_UNITS)):
        yield piece
