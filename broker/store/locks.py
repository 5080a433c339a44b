"""Locks on message queues for orderly consumption (rules P1, P2), replicated like everything else.

A lock is held by one client of a group until it unlocks or has not renewed for `LOCK_LIVE_MS`. Time is
the store time of the records, so every replica agrees on who holds what, and a new leader knows it
(RocketMQ forgets: P5, ZZ10). The time from the last record of one term to the first of the next does
not count: nobody could renew meanwhile, and the new leader's clock may be another.

While a lock is live, only its holder commits offsets of the queue (unlike RocketMQ: P6).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

LOCK_LIVE_MS: Final = 60_000
RESULTS_KEPT_MAX: Final = 4096
PRUNE_EVERY: Final = 1024

LockKey = tuple[str, str, int]
"""Group, topic, queue id."""

_CHANGE = struct.Struct(">iq")


class Lock(NamedTuple):
    """Who holds a queue, and when it was last asked for, in the time of the locks."""

    client_id: str
    renewed_ms: int

    def is_live(self, now_ms: int) -> bool:
        """Whether others are still kept out."""
        return now_ms - self.renewed_ms <= LOCK_LIVE_MS


class QueueLocks:
    """The lock table. `lock` and `unlock` are for the fold; everybody else reads.

    Attributes:
        digest: CRC32C chained over every grant and release.
        fenced_count: offset commits that were refused because another client held the queue.
        awaits_time: a term has begun, and no record of it has told the time yet.
    """

    def __init__(self) -> None:
        self.digest: int = 0
        self.fenced_count = 0
        self.awaits_time = False
        self._skipped_ms = 0
        self._fenced_at: dict[int, list[tuple[LockKey, str]]] = {}
        self._table: dict[LockKey, Lock] = {}
        self._granted_at: dict[int, tuple[tuple[str, int], ...]] = {}
        self._commands_since_prune = 0

    def __len__(self) -> int:
        return len(self._table)

    def holder(self, group: str, topic: str, queue_id: int, now_ms: int) -> str | None:
        """The client that holds a queue, or None."""
        lock = self._table.get((group, topic, queue_id))
        is_held = lock is not None and lock.is_live(now_ms - self._skipped_ms)
        return lock.client_id if lock is not None and is_held else None

    def owner(self, group: str, topic: str, queue_id: int) -> str | None:
        """The client that locked a queue last, expired or not; None after an unlock."""
        lock = self._table.get((group, topic, queue_id))
        return lock.client_id if lock is not None else None

    def has_live_lock(self, group: str, now_ms: int) -> bool:
        """Whether any client of the group holds any queue (rule L16)."""
        lock_ms = now_ms - self._skipped_ms
        return any(key[0] == group and lock.is_live(lock_ms) for key, lock in self._table.items())

    def begin_term(self) -> None:
        """Another leader: time stands still for the locks until its first record."""
        self.awaits_time = True

    def resume(self, now_ms: int, last_ms: int) -> None:
        """The first record of a term tells the time; the last one before it was of `last_ms`."""
        self.awaits_time = False
        if last_ms:
            self._skipped_ms += max(0, now_ms - last_ms)

    def keeps_out(
        self,
        group: str,
        topic: str,
        queue_id: int,
        client_id: str,
        now_ms: int,
        physical_offset: int,
    ) -> bool:
        """Whether an offset commit by this client is to be refused: another one holds the queue.

        The refusal is remembered under the physical offset of the commit's record.
        """
        holder = self.holder(group, topic, queue_id, now_ms)
        if holder is None or holder == client_id:
            return False
        self.fenced_count += 1
        row = ((group, topic, queue_id), client_id)
        self._fenced_at.setdefault(physical_offset, []).append(row)
        if len(self._fenced_at) > RESULTS_KEPT_MAX:
            del self._fenced_at[next(iter(self._fenced_at))]
        return True

    def fenced_at(self, physical_offset: int) -> list[tuple[LockKey, str]]:
        """Queue and client of the commits that were refused in the record there, as long as it is recent.

        Only for the answers of the leader that folded it: no snapshot keeps it.
        """
        return self._fenced_at.get(physical_offset, [])

    def granted_at(self, physical_offset: int) -> tuple[tuple[str, int], ...] | None:
        """What the lock command in the record there was granted; None if it is long ago."""
        return self._granted_at.get(physical_offset)

    def lock(
        self,
        group: str,
        client_id: str,
        queues: list[tuple[str, int]],
        *,
        now_ms: int,
        physical_offset: int,
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
        if len(self._granted_at) > RESULTS_KEPT_MAX:
            del self._granted_at[next(iter(self._granted_at))]
        self._prune(lock_ms)

    def unlock(self, group: str, client_id: str, queues: list[tuple[str, int]]) -> None:
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
        """The table as a snapshot keeps it."""
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
                list[tuple[str, str, int, str, int]],
                list[tuple[int, tuple[tuple[str, int], ...]]],
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
        self._fenced_at = {}

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
