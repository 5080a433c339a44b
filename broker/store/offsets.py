"""Consumer offsets: for every topic and group, the next queue offset to consume of each queue.

Commits never rewind by coming late: a consumer that lost a queue in a rebalance, or whose commit was
held up, must not pull back the consumer that owns the queue now (RocketMQ overwrites: rule I1,
ZZ11; docs/divergence.md). A lower value counts only when its record is forced (a reset), or when the
stored value lies above the queue's end, which only a topic that was deleted and created again explains.
After a reset, only clients that follow it commit (resets.py).

Nothing here knows whether a queue is locked, or which clients there are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from broker.store.emptying import emptied
from broker.store.packing import STEP_ROWS, array_head, pack, packed_rows
from broker.store.resets import Reset, Resets, SavedResets
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset

_SET = struct.Struct(">iq")
_RESET = struct.Struct(">iqqq")

STEP_GROUPS: Final = STEP_ROWS // 4
"""Groups of a topic, each with a few queues, that are written or read in one step."""

_SavedRow = tuple[str, str, list[tuple[QueueId, QueueOffset]], int | None]
"""Topic, group, offsets by queue id, how far they moved forward."""


class _Saved(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The table in a snapshot; its last field is not there without resets, as older versions wrote it."""

    rows: list[msgspec.Raw]
    change_count: int
    ignored_count: int
    digest: int
    resets: SavedResets | None = None


_decode_table: Final = msgspec.msgpack.Decoder(_Saved).decode
_decode_row: Final = msgspec.msgpack.Decoder(_SavedRow).decode


class ConsumerOffsets:
    """The table. Changes are for the fold; everybody else reads.

    Attributes:
        change_count: of commits that changed something; a version number for tools.
        ignored_count: of commits that would have rewound an offset, or come from before a reset.
        moved_count: of resets and other changes that may set a group back, since this node began; no snapshot keeps it.
        row_count: of the offsets, one for each group and queue. Invariant: so many are in `_table`.
        digest: CRC32C chained over every change.
        resets: those that the groups' clients have yet to follow. Invariant: what is reset has an offset.
    """

    def __init__(self, max_offset: Callable[[str, QueueId], QueueOffset]) -> None:
        self.change_count = 0
        self.ignored_count = 0
        self.moved_count = 0
        self.row_count = 0
        self.digest: int = 0
        self.resets = Resets()
        self._max_offset = max_offset
        self._table: dict[tuple[str, str], dict[QueueId, QueueOffset]] = {}
        self._consumed: dict[tuple[str, str], int] = {}

    def get(self, group: str, topic: str, queue_id: QueueId) -> QueueOffset | None:
        """Return the committed offset of one queue, or None."""
        queues = self._table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, group: str, topic: str) -> Mapping[QueueId, QueueOffset]:
        """Return the committed offsets of a group in a topic, by queue id."""
        return self._table.get((topic, group), {})

    def items(self) -> Iterator[tuple[str, str, Mapping[QueueId, QueueOffset]]]:
        """Yield topic, group and offsets by queue id, in the order of the first commit."""
        return ((topic, group, queues) for (topic, group), queues in self._table.items())

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed an offset."""
        return [topic for topic, owner in self._table if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed an offset in the topic."""
        return [group for place, group in self._table if place == topic]

    def consumed_count(self, group: str, topic: str) -> int:
        """Return how many messages the group's commits have moved over, all queues together."""
        return self._consumed.get((topic, group), 0)

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: QueueId,
        offset: QueueOffset,
        *,
        is_forced: bool = False,
        client_id: str = "",
    ) -> bool:
        """Store an offset, unless that would rewind it by accident; return whether it is stored now.

        `client_id` is whose commit it is, "" if that is not known; after a reset it counts.
        """
        if not self.resets:
            return self._commit(group, topic, queue_id, offset, is_forced=is_forced)
        if not is_forced and self.resets.keeps_out(group, topic, queue_id, client_id):
            self.ignored_count += 1
            return False
        is_stored = self._commit(group, topic, queue_id, offset, is_forced=is_forced)
        self.resets.passed(group, topic, queue_id, self._table[topic, group][queue_id])
        return is_stored

    def take(self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        """Move a group on by a pop, which begins where the group stands: so no reset keeps it out."""
        self._commit(group, topic, queue_id, offset, is_forced=False)
        if self.resets:
            self.resets.passed(group, topic, queue_id, self._table[topic, group][queue_id])

    def reset(
        self,
        group: str,
        topic: str,
        queue_id: QueueId,
        offset: QueueOffset,
        *,
        since: PhysicalOffset,
    ) -> None:
        """Store an offset, wherever the group stands; its clients count again once they are admitted.

        `since` is the place of the record.
        """
        self._commit(group, topic, queue_id, offset, is_forced=True)
        end = max(offset, self._max_offset(topic, queue_id))
        self.resets.put(group, topic, queue_id, Reset(since, end))
        self._changed(topic, group, _RESET.pack(queue_id, offset, end, since))

    def admit(
        self,
        group: str,
        topic: str,
        queue_id: QueueId,
        *,
        client_id: str,
        since: PhysicalOffset,
    ) -> None:
        """Let the commits of a client count again that follows the reset of that record."""
        if self.resets.admit(group, topic, queue_id, client_id=client_id, since=since):
            self._changed(topic, group, client_id.encode() + _SET.pack(queue_id, since))
            self.resets.passed(group, topic, queue_id, self._table[topic, group][queue_id])

    def _commit(
        self,
        group: str,
        topic: str,
        queue_id: QueueId,
        offset: QueueOffset,
        *,
        is_forced: bool,
    ) -> bool:
        """Store an offset that no reset keeps out, unless that would rewind it by accident."""
        queues = self._table.get((topic, group))
        assert offset >= 0, f"{group} in {topic}, queue {queue_id}: offset {offset}"
        stored = None if queues is None else queues.get(queue_id)
        self.moved_count += is_forced
        if stored is not None:
            if stored == offset:
                return True
            is_rewind = offset < stored and not is_forced
            if is_rewind and stored <= self._max_offset(topic, queue_id):
                self.ignored_count += 1
                return False
            if offset > stored:
                key = (topic, group)
                self._consumed[key] = self._consumed.get(key, 0) + offset - stored
        else:
            self.row_count += 1
        if queues is None:
            queues = self._table[topic, group] = {}
        queues[queue_id] = offset
        self._changed(topic, group, _SET.pack(queue_id, offset))
        return True

    def remove(self, group: str, topic: str | None) -> None:
        """Forget a group's offsets in one topic, or in all."""
        for key in [k for k in self._table if k[1] == group and topic in {None, k[0]}]:
            self._forget(key)

    def remove_topic(self, topic: str) -> None:
        """Forget all groups' offsets in a topic (rule B13)."""
        for key in [k for k in self._table if k[0] == topic]:
            self._forget(key)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        return b"".join(self.dump_parts())

    def dump_parts(self) -> Iterator[bytes]:
        """Yield the same, part by part."""
        resets = self.resets.saved()
        yield array_head(4 if resets is None else 5) + array_head(len(self._table))
        yield from packed_rows(
            (
                (topic, group, list(queues.items()), self._consumed.get((topic, group)))
                for (topic, group), queues in self._table.items()
            ),
            STEP_GROUPS,
        )
        yield pack(self.change_count, self.ignored_count, self.digest)
        if resets is not None:
            yield pack(resets)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; a part of it may be there.
        """
        for _ in self.load_steps(data):
            pass

    def load_steps(self, data: bytes) -> Iterator[None]:
        """Do the same, some groups at a time."""
        saved = _decode_table(data)
        rows, self.digest = saved.rows, saved.digest
        self.change_count, self.ignored_count = saved.change_count, saved.ignored_count
        self.resets.take(saved.resets)
        self._table.clear()
        self._consumed.clear()
        self.row_count = 0
        for first in range(0, len(rows), STEP_GROUPS):
            yield
            for raw in rows[first : first + STEP_GROUPS]:
                topic, group, queues, consumed = _decode_row(raw)
                self._table[topic, group] = dict(queues)
                self.row_count += len(queues)
                if consumed is not None:
                    self._consumed[topic, group] = consumed

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps; this table is not used any more."""
        yield from emptied(self._table)
        yield from emptied(self._consumed)

    def _forget(self, key: tuple[str, str]) -> None:
        assert key in self._table, f"there are no offsets of {key}"
        self.row_count -= len(self._table.pop(key))
        self.moved_count += 1
        self.resets.forget(key[1], key[0])
        self._consumed.pop(key, None)
        self._changed(key[0], key[1], b"-")

    def _changed(self, topic: str, group: str, what: bytes) -> None:
        self.change_count += 1
        self.digest = crc32c(f"{topic}@{group}".encode() + what, self.digest)
