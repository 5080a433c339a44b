"""Rows that sinks have sent: which of a sink's current batch stand in the log already.

A sink (a streaming job, a replay) sends rows in numbered batches, one after the other, and repeats a whole
batch after a crash. Every row has a key of 64 bits. The leader stores a row with the record that its key was
taken in one entry, and the fold keeps the keys here: so any later leader can part a row that was stored from one
that was not, whatever became of the answers, and whoever sends it again. The keys of a batch are dropped when
a higher batch comes: the sink went on, so everything below is done.

Bounds on what may be taken are kept by the leader (broker/service/rows.py) before anything is stored; sinks
that were idle for `IDLE_MS` of log time are forgotten by the fold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

import msgspec
from crc32c import crc32c

from broker.store.refusals import RefusalKind
from dledger_mq.message.numbers import StoreTimeMs
from dledger_mq.message.row_keys import KEY_BYTES

SINKS_MAX: Final = 4096
BATCH_KEYS_MAX: Final = 4_000_000
"""Rows of one batch; about 9 bytes each once there are many, 150 while there are few."""
KEYS_MAX: Final = 8_000_000
"""Rows of the current batches of all sinks together."""
IDLE_MS: Final = 7 * 24 * 3_600_000
"""A sink that took nothing for so long, in log time, is forgotten; a batch repeated later is stored again."""

_BUCKET_BYTES: Final = 2
_REST_BYTES: Final = KEY_BYTES - _BUCKET_BYTES
_CHANGE: Final = struct.Struct(">qI")


class RowKeys:
    """A set of keys of `KEY_BYTES` each, in 65 536 buckets: a few bytes a key, no pause to grow."""

    __slots__ = ("_buckets", "_count")

    def __init__(self) -> None:
        self._buckets: dict[bytes, bytes] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        bucket = self._buckets.get(key[:_BUCKET_BYTES])
        if bucket is None:
            return False
        rest = key[_BUCKET_BYTES:]
        found = bucket.find(rest)
        while found > 0 and found % _REST_BYTES:  # across two keys: not there
            found = bucket.find(rest, found + 1)
        return found >= 0

    def __iter__(self) -> Iterator[bytes]:
        """Go through the keys in an order that depends on that of their coming alone."""
        for prefix, bucket in self._buckets.items():
            for start in range(0, len(bucket), _REST_BYTES):
                yield prefix + bucket[start : start + _REST_BYTES]

    def add(self, key: bytes) -> None:
        """Add a key that is not there."""
        assert len(key) == KEY_BYTES, f"a key of {len(key)} bytes"
        prefix = key[:_BUCKET_BYTES]
        self._buckets[prefix] = self._buckets.get(prefix, b"") + key[_BUCKET_BYTES:]
        self._count += 1


class SinkBatch:
    """The current batch of one sink.

    Attributes:
        batch_id: its current batch; lower ones are done.
        keys: of the rows of that batch that stand in the log.
        used_ms: store time of the last record about it.
    """

    __slots__ = ("batch_id", "keys", "used_ms")

    def __init__(self, batch_id: int, used_ms: StoreTimeMs) -> None:
        self.batch_id = batch_id
        self.keys = RowKeys()
        self.used_ms = used_ms


class Sinks:
    """All sinks. `take` is for the fold; everybody else reads.

    Invariants: the sinks stand in order of their last use; `key_count` is the sum over their keys.

    Attributes:
        key_count: keys of all sinks together.
        digest: CRC32C chained over everything that was taken.
    """

    def __init__(self) -> None:
        self.key_count = 0
        self.digest: int = 0
        self._sinks: dict[str, SinkBatch] = {}

    def __len__(self) -> int:
        return len(self._sinks)

    def __iter__(self) -> Iterator[tuple[str, SinkBatch]]:
        """Go through the sinks, longest idle first."""
        return iter(self._sinks.items())

    def get(self, sink_id: str) -> SinkBatch | None:
        """Return where a sink stands; None for one that nothing is known of."""
        return self._sinks.get(sink_id)

    def take(
        self, sink_id: str, batch_id: int, keys: bytes, now_ms: StoreTimeMs
    ) -> RefusalKind | None:
        """Note that rows of a batch stand in the log; return the reason if it was refused, with nothing changed.

        Args:
            sink_id: the sink.
            batch_id: a higher one than the current ends the current one.
            keys: `KEY_BYTES` each; none at all only moves on to the batch.
            now_ms: the record's store time.
        """
        newest = next(reversed(self._sinks.values()), None)
        newest_ms = now_ms if newest is None else newest.used_ms
        assert newest_ms <= now_ms, f"a sink is used at {now_ms}, after one at {newest_ms}"
        sink = self._sinks.get(sink_id)
        if len(keys) % KEY_BYTES:
            return RefusalKind.OUT_OF_RANGE
        rows = [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]
        is_same_batch = sink is not None and sink.batch_id == batch_id
        if (sink is not None and batch_id < sink.batch_id) or len(set(rows)) < len(rows):
            return RefusalKind.STALE_PROGRESS
        if sink is not None and is_same_batch and any(row in sink.keys for row in rows):
            return RefusalKind.STALE_PROGRESS
        if sink is None or not is_same_batch:
            self.key_count -= len(sink.keys) if sink is not None else 0
            sink = SinkBatch(batch_id, now_ms)
        sink.used_ms = now_ms
        for row in rows:
            sink.keys.add(row)
        self.key_count += len(rows)
        self._sinks.pop(sink_id, None)
        self._sinks[sink_id] = sink
        self.digest = crc32c(keys, crc32c(_CHANGE.pack(batch_id, len(rows)), self.digest))
        self.digest = crc32c(sink_id.encode(), self.digest)
        self._forget_idle(now_ms)
        return None

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        sinks = [
            (sink_id, sink.batch_id, sink.used_ms, b"".join(sink.keys))
            for sink_id, sink in self._sinks.items()
        ]
        return msgspec.msgpack.encode((sinks, self.digest))

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        sinks, self.digest = msgspec.msgpack.decode(
            data, type=tuple[list[tuple[str, int, StoreTimeMs, bytes]], int]
        )
        self._sinks = {}
        self.key_count = 0
        for sink_id, batch_id, used_ms, keys in sinks:
            sink = self._sinks[sink_id] = SinkBatch(batch_id, used_ms)
            for start in range(0, len(keys), KEY_BYTES):
                sink.keys.add(keys[start : start + KEY_BYTES])
            self.key_count += len(sink.keys)

    def _forget_idle(self, now_ms: StoreTimeMs) -> None:
        """Forget the sinks that took nothing for long."""
        oldest_ms = now_ms - IDLE_MS
        idle = list(takewhile(lambda one: one[1].used_ms < oldest_ms, self._sinks.items()))
        for sink_id, sink in idle:
            self.key_count -= len(sink.keys)
            del self._sinks[sink_id]
            self.digest = crc32c(sink_id.encode(), self.digest)
        assert self.key_count >= 0, f"{self.key_count} keys are left of {len(self._sinks)} sinks"
