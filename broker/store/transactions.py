"""Transactions as they stand in the log: which half messages are open, and how the others ended (rules O).

A half message is a record in queue 0 of the half topic; from then on its transaction is open. An op
record in queue 0 of the op topic ends it, in the same entry as the real message if it is a commit, so
that neither is ever seen without the other. What a check-back needs, the number of checks so far and the
time of the last one, comes from control records; RocketMQ stores the half message anew for each (O22,
O23). Times are store times, or were written into the record by the leader.

How a transaction ended is remembered for the last `VERDICTS_KEPT` half messages, one byte each.

Nothing here knows producers, or reads a clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from sortedcontainers import SortedDict

from broker.store.refusals import RefusalKind
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs
from dledger_mq.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_ID,
    encode_property,
    find_property,
)
from dledger_mq.message.record import StoredMessage

HALF_KEY: Final = names.HALF_TOPIC.encode()
OP_KEY: Final = names.OP_HALF_TOPIC.encode()
TRANSACTION_KEYS: Final = frozenset({HALF_KEY, OP_KEY})

VERDICTS_KEPT: Final = 1 << 20
"""Half messages whose verdict is remembered, the newest ones: 1 MiB."""

IMMUNITY_MAX_MS: Final = 72 * 3_600_000
"""A message may ask for no more time before its first check: RocketMQ gives it up at that age (O17c)."""

OP_TAG: Final = b"d"
OFFSETS_PER_OP_MAX: Final = 4096

_VERDICT: Final = b"TRAN_VERDICT"
_CHANGE: Final = struct.Struct(">Bqq")
_CHECK: Final = 255
_RESUME: Final = 254
_DIGITS_MAX: Final = 18


class TransactionVerdict(IntEnum):
    """The stand of a transaction. Numbers enter digests and snapshots: never renumber."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3
    """Nobody answered any check; the message lies in TRANS_CHECK_MAX_TIME_TOPIC (O21)."""


_NAMES: Final = {
    TransactionVerdict.COMMITTED: b"COMMIT",
    TransactionVerdict.ROLLED_BACK: b"ROLLBACK",
    TransactionVerdict.GIVEN_UP: b"GIVE_UP",
}
_BY_NAME: Final = {name: verdict for verdict, name in _NAMES.items()}

TransactionKey = tuple[bytes, bytes]
"""Real topic, and transaction id (the UNIQ_KEY that the producer gave)."""


class OpenHalf(NamedTuple):
    """One half message whose transaction is open.

    Attributes:
        queue_offset: in the half topic.
        key: None when the record does not say.
        immunity_ms: how long its producer asked not to be checked; None for the broker's usual time.
        check_count: checks so far.
        checked_ms: time of the last one; before the first, when the wait for it began.
    """

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size_bytes: int
    store_ms: StoreTimeMs
    key: TransactionKey | None
    immunity_ms: int | None
    check_count: int
    checked_ms: int

    @property
    def topic(self) -> bytes:
        """The topic that the message is for; empty where the record does not say."""
        return b"" if self.key is None else self.key[0]


def immunity_of(properties: bytes) -> int | None:
    """Read CHECK_IMMUNITY_TIME_IN_SECONDS in ms; None for the usual time (O17e: -1, or no number)."""
    text = find_property(properties, CHECK_IMMUNITY_TIME_IN_SECONDS)
    if text is None or not text.isdigit():
        return None
    return min(int(text[:_DIGITS_MAX]) * 1000, IMMUNITY_MAX_MS)


def encode_op(
    queue_offsets: Sequence[QueueOffset], verdict: TransactionVerdict
) -> tuple[bytes, bytes]:
    """Return body and properties of the op record that ends transactions (O13: `7,` with the tag d)."""
    body = b"".join(b"%d," % offset for offset in queue_offsets)
    return body, encode_property(TAGS, OP_TAG) + encode_property(_VERDICT, _NAMES[verdict])


def decode_op(
    body: bytes, properties: bytes
) -> tuple[list[QueueOffset], TransactionVerdict] | None:
    """Read an op record; None if it is none."""
    verdict = _BY_NAME.get(find_property(properties, _VERDICT) or b"")
    texts = body.removesuffix(b",").split(b",")
    if verdict is None or len(texts) > OFFSETS_PER_OP_MAX:
        return None
    if not all(text.isdigit() and len(text) <= _DIGITS_MAX for text in texts):
        return None
    return [QueueOffset(int(text)) for text in texts], verdict


class Transactions:
    """All open transactions, and the verdicts. Changes are for the fold; everybody else reads.

    Invariants: each open one waits for its next check in one place, and in one only; the open ones are held in the
    order of the log.

    Attributes:
        open_counts: how many are open, by the topic that their messages are for; empty where the record does not say.
        digest: CRC32C chained over every change.
    """

    def __init__(self) -> None:
        self.open_counts: dict[bytes, int] = {}
        self.digest: int = 0
        self._open: dict[QueueOffset, OpenHalf] = {}
        self._by_key: dict[TransactionKey, QueueOffset] = {}
        # Where one was begun more than once: the open ones but the newest, oldest first.
        self._older: dict[TransactionKey, dict[QueueOffset, None]] = {}
        # Who is checked next. Store times and times of checks never decrease here, so the first two
        # are in order of time by themselves.
        self._unchecked: dict[QueueOffset, None] = {}
        self._checked: dict[QueueOffset, None] = {}
        self._immune: SortedDict[tuple[int, QueueOffset], None] = SortedDict()
        self._verdicts = bytearray()
        self._end = QueueOffset(0)
        self._last_check_ms = 0

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def __iter__(self) -> Iterator[OpenHalf]:
        """Go through the open ones, oldest first."""
        return iter([self._open[offset] for offset in sorted(self._open)])

    def get(self, queue_offset: QueueOffset) -> OpenHalf | None:
        """Return the open transaction with this half queue offset, or None."""
        return self._open.get(queue_offset)

    def oldest_open(self) -> PhysicalOffset | None:
        """Return where the oldest half message stands whose transaction is open; None when none is."""
        return next((half.physical_offset for half in self._open.values()), None)

    def newest(self, key: TransactionKey, limit: int) -> list[OpenHalf]:
        """Return the open ones under a transaction's key, the newest first, at most `limit`.

        A producer may have several: the same transaction id says nothing of what is sent.
        """
        offset = self._by_key.get(key)
        if offset is None:
            return []
        older = islice(reversed(self._older.get(key, {})), limit - 1)
        return [self._open[each] for each in (offset, *older)]

    def verdict(self, queue_offset: QueueOffset) -> TransactionVerdict | None:
        """Return how the transaction of a half message stands; None if there is none, or long ago."""
        if queue_offset in self._open:
            return TransactionVerdict.OPEN
        if not max(0, self._end - VERDICTS_KEPT) <= queue_offset < self._end:
            return None
        return TransactionVerdict(self._verdicts[queue_offset % VERDICTS_KEPT])

    def due(self, now_ms: int, *, timeout_ms: int, interval_ms: int, limit: int) -> list[OpenHalf]:
        """Return open transactions whose check is due.

        The first check comes when the half message is older than its immunity time, or `timeout_ms`
        if it has none; the others when the last one is `interval_ms` ago.
        """
        found: list[OpenHalf] = []
        for queue, wait_ms in ((self._unchecked, timeout_ms), (self._checked, interval_ms)):
            for offset in islice(queue, limit - len(found)):
                half = self._open[offset]
                if half.checked_ms + wait_ms > now_ms:
                    break
                found.append(half)
        for due_ms, offset in islice(self._immune, limit - len(found)):
            if due_ms > now_ms:
                break
            found.append(self._open[offset])
        return found

    def begin(self, message: StoredMessage) -> None:
        """Take in a half message, whose queue offset is the next one."""
        offset = QueueOffset(message.queue_offset)
        assert offset >= self._end, f"half message {offset} comes after {self._end} of them"
        if len(self._verdicts) < VERDICTS_KEPT:
            self._verdicts.append(TransactionVerdict.OPEN)
        else:
            self._verdicts[offset % VERDICTS_KEPT] = TransactionVerdict.OPEN
        self._end = QueueOffset(offset + 1)
        topic, name = message.find(REAL_TOPIC), message.find(TRANSACTION_ID)
        store_ms = StoreTimeMs(message.store_timestamp_ms)
        half = OpenHalf(
            queue_offset=offset,
            physical_offset=PhysicalOffset(message.physical_offset),
            size_bytes=message.size_bytes,
            store_ms=store_ms,
            key=(topic, name) if topic is not None and name is not None else None,
            immunity_ms=immunity_of(message.properties),
            check_count=0,
            checked_ms=store_ms,
        )
        self._open[offset] = half
        self._count(half)
        self._name(half)
        self._enter_queue(half)
        self._changed(TransactionVerdict.OPEN, offset, message.physical_offset)

    def end(self, message: StoredMessage) -> RefusalKind | None:
        """Carry out an op record; return the reason if it was refused, with nothing changed."""
        op = decode_op(message.body, message.properties)
        if op is None:
            return RefusalKind.MALFORMED
        offsets, verdict = op
        if len(set(offsets)) < len(offsets) or not all(o in self._open for o in offsets):
            return RefusalKind.STALE_RESOLUTION
        for offset in offsets:
            half = self._open.pop(offset)
            assert offset < self._end, f"half message {offset} ends, there are {self._end} of them"
            self._leave_queue(half)
            self._forget_name(half)
            self._discount(half)
            if offset >= self._end - VERDICTS_KEPT:
                self._verdicts[offset % VERDICTS_KEPT] = verdict
            self._changed(verdict, offset, half.physical_offset)
        self._check_places()
        return None

    def check(self, queue_offsets: Sequence[QueueOffset], at_ms: int) -> None:
        """Count a check of each; what has ended meanwhile does not matter."""
        for offset in queue_offsets:
            half = self._open.get(offset)
            if half is None:
                continue
            self._replace(half, half.check_count + 1, at_ms)
            self._changed(_CHECK, offset, at_ms)

    def resume(self, queue_offset: QueueOffset, at_ms: int) -> None:
        """Begin to count the checks of a half message anew, as if it had come now; ended ones stay so."""
        half = self._open.get(queue_offset)
        if half is not None:
            self._replace(half, 0, at_ms)
            self._changed(_RESUME, queue_offset, at_ms)

    def _replace(self, half: OpenHalf, check_count: int, at_ms: int) -> None:
        """Note a half message's count and time of checks; times of checks never decrease."""
        self._last_check_ms = max(self._last_check_ms, at_ms, half.checked_ms)
        self._leave_queue(half)
        fresh = half._replace(check_count=check_count, checked_ms=self._last_check_ms)
        self._open[half.queue_offset] = fresh
        self._enter_queue(fresh)
        self._check_places()

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved = (
            self.digest,
            self._end,
            self._last_check_ms,
            bytes(self._verdicts),
            list(self._open.values()),
            list(self._unchecked),
            list(self._checked),
        )
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        digest, end, last_check_ms, verdicts, halves, unchecked, checked = msgspec.msgpack.decode(
            data,
            type=tuple[
                int, QueueOffset, int, bytes, list[OpenHalf], list[QueueOffset], list[QueueOffset]
            ],
        )
        self.digest, self._end, self._last_check_ms = digest, end, last_check_ms
        self._verdicts = bytearray(verdicts)
        self._open = {half.queue_offset: half for half in halves}
        self._by_key, self._older, self.open_counts = {}, {}, {}
        for half in halves:
            self._count(half)
            self._name(half)
        self._unchecked = dict.fromkeys(unchecked)
        self._checked = dict.fromkeys(checked)
        self._immune = SortedDict()
        for half in halves:
            if half.immunity_ms is not None and not half.check_count:
                self._enter_queue(half)

    def _count(self, half: OpenHalf) -> None:
        """Count a half message that is open."""
        self.open_counts[half.topic] = self.open_counts.get(half.topic, 0) + 1

    def _discount(self, half: OpenHalf) -> None:
        """Count a half message no more, since it has ended; topics without any are forgotten."""
        left = self.open_counts[half.topic] - 1
        if left:
            self.open_counts[half.topic] = left
        else:
            del self.open_counts[half.topic]

    def _name(self, half: OpenHalf) -> None:
        """Register a half message under its key."""
        if half.key is None:
            return
        newest = self._by_key.get(half.key)
        if newest is not None:
            assert newest != half.queue_offset, f"half message {newest} is found twice by its key"
            self._older.setdefault(half.key, {})[newest] = None
        self._by_key[half.key] = half.queue_offset

    def _forget_name(self, half: OpenHalf) -> None:
        """Let the newest that is still open be found under the key of this one, which has ended."""
        if half.key is None:
            return
        older = self._older.get(half.key)
        if older is None:
            del self._by_key[half.key]
            return
        if self._by_key[half.key] == half.queue_offset:
            self._by_key[half.key], _ = older.popitem()
        else:
            del older[half.queue_offset]
        if not older:
            del self._older[half.key]

    def _enter_queue(self, half: OpenHalf) -> None:
        """Let a half message wait for its next check."""
        offset = half.queue_offset
        if half.check_count:
            self._checked[offset] = None
        elif half.immunity_ms is None:
            self._unchecked[offset] = None
        else:
            self._immune[half.checked_ms + half.immunity_ms, offset] = None

    def _leave_queue(self, half: OpenHalf) -> None:
        """Take a half message out of those that wait for their next check."""
        offset = half.queue_offset
        if half.check_count:
            del self._checked[offset]
        elif half.immunity_ms is None:
            del self._unchecked[offset]
        else:
            del self._immune[half.checked_ms + half.immunity_ms, offset]

    def _check_places(self) -> None:
        waiting = len(self._unchecked) + len(self._checked) + len(self._immune)
        assert waiting == len(self._open), (
            f"{waiting} half messages wait for a check, {len(self._open)} are open"
        )

    def _changed(self, what: int, offset: QueueOffset, number: int) -> None:
        """Count a change in the digest."""
        self.digest = crc32c(_CHANGE.pack(what, offset, number), self.digest)
