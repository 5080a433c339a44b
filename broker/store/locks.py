"""Locks on message queues for orderly consumption (rules P1, P2), replicated like everything else.

A lock is held by one client of a group until it unlocks or has not renewed for `LOCK_LIVE_MS`. Time is
the store time of the records, so every replica agrees on who holds what, and a new leader knows it
(RocketMQ forgets: P5, ZZ10). The time from the last record of one term to the first of the next does
not count: nobody could renew meanwhile, and the new leader's clock may be another.

While a lock is live, only its holder commits offsets of the queue (unlike RocketMQ: P6).

Nothing here knows which clients are connected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from dledger_mq.message.numbers import PhysicalOffset, QueueId, StoreTimeMs

LOCK_LIVE_MS: Final = 60_000
RESULTS_KEPT_MAX: Final = 4096
GRANTED_KEPT_MAX: Final = 262_144
"""Queues in the results of locks that are kept, all together, unless the newest alone has more: one may name 65 536."""
PRUNE_EVERY: Final = 1024

LockKey = tuple[str, str, QueueId]
"""Group, topic, queue id."""

TopicQueue = tuple[str, QueueId]
"""Topic, queue id."""

_Kept = TypeVar("_Kept")

_CHANGE = struct.Struct(">iq")


class Lock(NamedTuple):
    """The client that holds a queue, and when it last asked for it, in the time of the locks."""

    client_id: str
    renewed_ms: int

    def is_live(self, now_ms: int) -> bool:
        """Return whether others are still kept out."""
        return now_ms - self.renewed_ms <= LOCK_LIVE_MS


class QueueLockTable:
    """The lock table. `lock` and `unlock` are for the fold; everybody else reads.

    Attributes:
        digest: CRC32C chained over every grant and release.
        fenced_count: offset commits that were refused because another client held the queue.
        awaits_time: a term has begun, and no record of it has been folded yet, so the time is unknown.
    """

    def __init__(self) -> None:
        self.digest: int = 0
        self.fenced_count = 0
        self.awaits_time = False
        self._skipped_ms = 0
        self._fenced_at: dict[PhysicalOffset, list[tuple[LockKey, str]]] = {}
        self._table: dict[LockKey, Lock] = {}
        self._granted_at: dict[PhysicalOffset, tuple[TopicQueue, ...]] = {}
        self._granted_count = 0
        """Invariant: the queues in `_granted_at`."""
        self._commands_since_prune = 0

    def __len__(self) -> int:
        return len(self._table)

    def holder(self, group: str, topic: str, queue_id: QueueId, now_ms: int) -> str | None:
        """Return the client that holds a queue, or None."""
        lock = self._table.get((group, topic, queue_id))
        is_held = lock is not None and lock.is_live(now_ms - self._skipped_ms)
        return lock.client_id if lock is not None and is_held else None

    def items(self) -> Iterator[tuple[LockKey, Lock]]:
        """Yield the locks that were taken and not given back, expired or not."""
        return iter(self._table.items())

    @property
    def skipped_ms(self) -> int:
        """The time that did not count between terms, in all."""
        return self._skipped_ms

    def owner(self, group: str, topic: str, queue_id: QueueId) -> str | None:
        """Return the client that locked a queue last, expired or not; None after an unlock."""
        lock = self._table.get((group, topic, queue_id))
        return lock.client_id if lock is not None else None

    def has_live_lock(self, group: str, now_ms: int) -> bool:
        """Return whether any client of the group holds any queue (rule L16)."""
        lock_ms = now_ms - self._skipped_ms
        return any(key[0] == group and lock.is_live(lock_ms) for key, lock in self._table.items())

    def begin_term(self) -> None:
        """Let time stand still for the locks until another leader's first record."""
        self.awaits_time = True

    def resume(self, now_ms: StoreTimeMs, last_ms: StoreTimeMs) -> None:
        """Let time go on with a term's first record; the last one before it was stored at `last_ms`."""
        assert self.awaits_time, f"time has not stood still since {last_ms}"
        self.awaits_time = False
        if last_ms:
            self._skipped_ms += max(0, now_ms - last_ms)

    def keeps_out(self, key: LockKey, client_id: str, now_ms: StoreTimeMs) -> bool:
        """Return whether an offset commit by this client is to be refused: another holds the queue."""
        holder = self.holder(*key, now_ms)
        return holder is not None and holder != client_id

    def note_fenced(self, key: LockKey, client_id: str, physical_offset: PhysicalOffset) -> None:
        """Remember that the commit of one offset, in the record there, was refused."""
        self.fenced_count += 1
        self._fenced_at.setdefault(physical_offset, []).append((key, client_id))
        _forget_oldest(self._fenced_at)

    def fenced_at(self, physical_offset: PhysicalOffset) -> list[tuple[LockKey, str]]:
        """Return queue and client of the commits that were refused in the record there, if it is recent.

        Only for the answers of the leader that folded it: no snapshot keeps it.
        """
        return self._fenced_at.get(physical_offset, [])

    def granted_at(self, physical_offset: PhysicalOffset) -> tuple[TopicQueue, ...] | None:
        """Return what the lock command in the record there was granted; None if it is long ago."""
        return self._granted_at.get(physical_offset)

    def lock(
        self,
        group: str,
        client_id: str,
        queues: list[TopicQueue],
        *,
        now_ms: StoreTimeMs,
        physical_offset: PhysicalOffset,
    ) -> None:
        """Grant each queue that is free, expired or the client's own, and remember which were."""
        granted = []
        lock_ms = now_ms - self._skipped_ms
        for topic, queue_id in queues:
            key = (group, topic, queue_id)
            held = self._table.get(key)
            if held is None or held.client_id == client_id or not held.is_live(lock_ms):
                self._table[key] = Lock(client_id, lock_ms)
                self._changed(key, client_id, now_ms)
                granted.append((topic, queue_id))
        self._granted_at[physical_offset] = tuple(granted)
        self._granted_count += len(granted)
        self._forget_granted()
        self._prune(lock_ms)

    def unlock(self, group: str, client_id: str, queues: list[TopicQueue]) -> None:
        """Release the queues that the client holds."""
        for topic, queue_id in queues:
            key = (group, topic, queue_id)
            held = self._table.get(key)
            if held is not None and held.client_id == client_id:
                del self._table[key]
                self._changed(key, client_id, -1)

    def remove_topic(self, topic: str) -> None:
        """Forget the locks on a deleted topic."""
        for key in [key for key in self._table if key[1] == topic]:
            del self._table[key]
            self._changed(key, "", -1)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved = (
            [(*key, *lock) for key, lock in self._table.items()],
            list(self._granted_at.items()),
            self._commands_since_prune,
            self.digest,
            self.fenced_count,
            self._skipped_ms,
            self.awaits_time,
        )
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        (
            locks,
            granted,
            self._commands_since_prune,
            self.digest,
            self.fenced_count,
            self._skipped_ms,
            self.awaits_time,
        ) = msgspec.msgpack.decode(
            data,
            type=tuple[
                list[tuple[str, str, QueueId, str, int]],
                list[tuple[PhysicalOffset, tuple[TopicQueue, ...]]],
                int,
                int,
                int,
                int,
                bool,
            ],
        )
        self._table = {
            (group, topic, queue_id): Lock(client_id, renewed_ms)
            for group, topic, queue_id, client_id, renewed_ms in locks
        }
        self._granted_at = dict(granted)
        self._granted_count = sum(map(len, self._granted_at.values()))
        self._forget_granted()
        self._fenced_at = {}

    def _forget_granted(self) -> None:
        """Keep the newest results of locks, as many as may be."""
        kept = self._granted_at
        while len(kept) > RESULTS_KEPT_MAX or (
            self._granted_count > GRANTED_KEPT_MAX and len(kept) > 1
        ):
            self._granted_count -= len(kept.pop(next(iter(kept))))
        assert self._granted_count >= 0, f"{self._granted_count} queues are in {len(kept)} results"

    def _prune(self, lock_ms: int) -> None:
        """Forget what expired, now and then: clients that died never unlock."""
        self._commands_since_prune += 1
        if self._commands_since_prune < PRUNE_EVERY:
            return
        self._commands_since_prune = 0
        for key in [key for key, lock in self._table.items() if not lock.is_live(lock_ms)]:
            del self._table[key]

    def _changed(self, key: LockKey, client_id: str, now_ms: int) -> None:
        group, topic, queue_id = key
        what = f"{group}\x01{topic}\x01{client_id}".encode() + _CHANGE.pack(queue_id, now_ms)
        self.digest = crc32c(what, self.digest)


def _forget_oldest(results: dict[PhysicalOffset, _Kept]) -> None:
    """Keep no more than the newest `RESULTS_KEPT_MAX` results."""
    if len(results) > RESULTS_KEPT_MAX:
        del results[next(iter(results))]
    assert len(results) <= RESULTS_KEPT_MAX, f"{len(results)} results are kept"
