"""The window of recent sends: which unique keys the log took in lately, and where they stand.

A producer that got no answer sends again, with the same UNIQ_KEY, and a new leader must be able to
know that the first try was stored. So every replica remembers the keys of the last minute (in store
time): as hashes (chained_sends.py), up to a number that is reached at 100 000 messages a second, and
the newest of them as snapshots have them. Bounds are constants, which are part of the fold.

Only physical offsets are found. What else there is to know of an earlier send (topic, queue, body) is in
the log, and is read when a key is really seen again (broker/service/repeats.py).

Nothing here knows what an acknowledgement is, or decides what is a repeat.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, Self

import msgspec
from crc32c import crc32c

from broker.store.chained_sends import ChainedSends, HashedKeys
from broker.store.emptying import emptied
from broker.store.packing import array_head, pack
from broker.store.send_marks import SendMarks
from dledger.raft.ids import NO_TERM, Position, Term
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

STEP_ENTRIES: Final = 64
"""Entries that are written to a snapshot in one step; some have a few thousand keys."""

KEYS_MAX: Final = 200_000
"""Keys that snapshots have, some 45 bytes each: a minute of 3 300 messages/s. Older ones are known by their hashes."""

AGE_MAX_MS: Final = 60_000
"""Longer than any client tries to send."""

NEEDED_BYTES_MAX: Final = 1 << 30
"""Sends that stand further before the log's end do not keep it: while log time stands still, since a clock was ahead,
none ever gets older, and the disk would fill up."""

KEY_BYTES_MAX: Final = 128
"""Longer keys are not remembered, so that memory is bounded; RocketMQ's have 32 bytes."""

COPIES_MAX: Final = 8
"""One key may stand in the log several times: sent on purpose, given back, delivered late. The newest count."""

_OFFSETS: Final = struct.Struct(">qI")


class SendColumns(NamedTuple):
    """The unique keys of one entry, one at least, in the order of the log, and where their records begin.

    Attributes:
        texts: the keys, one behind the other.
        row: keys and places as a snapshot has them; see `RememberedEntry`.
        hashed: keys and places as they are found.
        key_count: how many.
        last: where the last record begins.
    """

    texts: bytes
    row: bytes
    hashed: HashedKeys
    key_count: int
    last: PhysicalOffset

    @classmethod
    def of(
        cls, keys: Sequence[bytes], offsets: Sequence[PhysicalOffset], store_ms: StoreTimeMs
    ) -> SendColumns:
        """Return the columns of some keys, one at least, of an entry that was stored then."""
        row = pack((store_ms, keys, offsets))
        return cls(b"".join(keys), row, HashedKeys.of(keys, offsets), len(keys), offsets[-1])


class RememberedEntry(NamedTuple):
    """An entry whose keys are kept as they are.

    Attributes:
        store_ms: its latest store time.
        key_count: how many.
        first, last: where their first and last record begin.
        row: msgpack of the store time, the keys, and where their records begin, in the order of the log.
    """

    store_ms: StoreTimeMs
    key_count: int
    first: PhysicalOffset
    last: PhysicalOffset
    row: bytes


class _SavedSends(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The window in a snapshot; the marks came later, and are left out while there are none."""

    term: Term
    term_start: Position
    digest: int
    entries: list[msgspec.Raw]
    marks: SendMarks = msgspec.field(default_factory=SendMarks)


_decode_entry: Final = msgspec.msgpack.Decoder(
    tuple[StoreTimeMs, list[bytes], list[PhysicalOffset]]
).decode


class RecentSends:
    """The window. `begin_term` and `add` are for the fold; everybody else reads.

    Invariants: at most KEYS_MAX keys are kept as they are, or one entry with more; no entry of these is older than
    AGE_MAX_MS when the newest came.

    Attributes:
        term: of the last folded entry.
        term_start: where that term's first entry stands; what lies before was appended under an older term.
        chained: where records begin, by the hashes of their keys. Snapshots have those of the newest entries only.
        digest: CRC32C chained over everything ever remembered.
    """

    def __init__(self, age_max_ms: int = AGE_MAX_MS) -> None:
        """Remember nothing yet; another age than the usual one is for groups whose clients are known, as in tests."""
        self._age_max_ms = age_max_ms
        self.term: Term = NO_TERM
        self.term_start = Position(0)
        self.digest: int = 0
        self.chained = ChainedSends()
        self._marks = SendMarks()
        self._entries: deque[RememberedEntry] = deque()
        self._count = 0

    @property
    def age_max_ms(self) -> int:
        """The age up to which sends are remembered in any case; older ones may be, as long as no newer one comes."""
        return self._age_max_ms

    def beside(self) -> Self:
        """Return an empty window of the same age."""
        return type(self)(self._age_max_ms)

    def __len__(self) -> int:
        """Return the number of keys; some may be older than AGE_MAX_MS."""
        return len(self.chained)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and bool(self.chained.find(key, 1))

    def has_any(self, keys: list[bytes]) -> bool:
        """Return whether one of these keys is in the window."""
        return self.chained.has_any(keys)

    def offsets(self, key: bytes) -> tuple[PhysicalOffset, ...]:
        """Return where records with this key begin, oldest first; empty when none is remembered.

        Some may have another key with the same hash.
        """
        return tuple(self.chained.find(key, COPIES_MAX))

    def entries(self) -> Iterator[tuple[StoreTimeMs, list[bytes], list[PhysicalOffset]]]:
        """Yield the entries whose keys are kept as they are, oldest first: store time, keys, places."""
        for entry in self._entries:
            yield _decode_entry(entry.row)

    def oldest(self, now_ms: StoreTimeMs, end: PhysicalOffset) -> PhysicalOffset | None:
        """Return a place from which on the records stand that may be repeated; None when there are none.

        Args:
            now_ms: what is older than AGE_MAX_MS at this time nobody repeats.
            end: where the log ends; what stands more than NEEDED_BYTES_MAX before it is not worth a full disk.
        """
        oldest_ms = StoreTimeMs(now_ms - self._age_max_ms)
        least = PhysicalOffset(end - NEEDED_BYTES_MAX)
        if not self._entries or self._entries[-1].last < least:
            return None
        found = self._marks.oldest(oldest_ms)
        if found is None:
            recent = (entry.first for entry in self._entries if entry.store_ms >= oldest_ms)
            found = next(recent, None)
        return None if found is None else max(found, least)

    def forget_before(self, beginning: Position) -> None:
        """Forget the sends that stand before a position, where nobody can read them any more."""
        entries = self._entries
        while entries and entries[0].first < beginning:
            self._count -= entries.popleft().key_count
        if entries:
            self.chained.forget_before(beginning)
        else:  # what is older stands before these
            self.chained.clear()
            self._marks = SendMarks()

    def begin_term(self, term: Term, position: Position) -> None:
        """Note that the entry at `position` is the first of a newer term."""
        assert term > self.term, f"term {term} begins after term {self.term}"
        assert position >= self.term_start, (
            f"term {term} begins at {position}, before {self.term_start}"
        )
        self.term, self.term_start = term, position

    def add(
        self, keys: Sequence[bytes], offsets: Sequence[PhysicalOffset], store_ms: StoreTimeMs
    ) -> None:
        """Remember the records of one entry, and forget what is too old or too much.

        Args:
            keys: unique keys, in the order of the log; may repeat each other and older ones.
            offsets: where their records begin, rising.
            store_ms: the entry's latest store time.
        """
        if not keys:
            return
        if max(map(len, keys)) > KEY_BYTES_MAX:
            short = [(k, o) for k, o in zip(keys, offsets, strict=True) if len(k) <= KEY_BYTES_MAX]
            keys, offsets = [k for k, _ in short], [o for _, o in short]
            if not keys:
                return
        self.add_columns(SendColumns.of(keys, offsets, store_ms), store_ms)

    def add_columns(self, sends: SendColumns, store_ms: StoreTimeMs) -> None:
        """Do the same with keys in columns, none of which is longer than KEY_BYTES_MAX."""
        oldest_ms = StoreTimeMs(store_ms - self._age_max_ms)
        self._keep(sends, store_ms, oldest_ms)
        head = _OFFSETS.pack(sends.hashed.first, sends.key_count)
        self.digest = crc32c(sends.texts, crc32c(head, self.digest))
        self._forget(oldest_ms)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        return b"".join(self.dump_parts())

    def dump_parts(self) -> Iterator[bytes]:
        """Yield the same, part by part."""
        marks = (self._marks,) if self._marks.marks else ()  # none: as before there were any
        yield array_head(4 + len(marks)) + pack(self.term, self.term_start, self.digest)
        yield array_head(len(self._entries))
        rows = (entry.row for entry in self._entries)
        while part := b"".join(islice(rows, STEP_ENTRIES)):
            yield part
        yield pack(*marks)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; a part of it may be there.
        """
        for _ in self.load_steps(data):
            pass

    def load_steps(self, data: bytes) -> Iterator[None]:
        """Do the same, some entries at a time."""
        saved = msgspec.msgpack.decode(data, type=_SavedSends)
        self.chained = ChainedSends()
        self._marks = saved.marks
        self.term, self.term_start, self.digest = saved.term, saved.term_start, saved.digest
        self._entries.clear()
        self._count = 0
        for first in range(0, len(saved.entries), STEP_ENTRIES):
            yield
            for raw in saved.entries[first : first + STEP_ENTRIES]:
                row = bytes(raw)  # a copy: the whole snapshot would stay with it
                store_ms, keys, offsets = _decode_entry(row)
                columns = SendColumns(
                    b"", row, HashedKeys.of(keys, offsets), len(keys), offsets[-1]
                )
                self._keep(columns, store_ms, StoreTimeMs(0))

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps; this window is not used any more."""
        self.chained.clear()
        yield
        yield from emptied(self._entries)

    def _keep(self, sends: SendColumns, store_ms: StoreTimeMs, oldest_ms: StoreTimeMs) -> None:
        """Keep the keys of an entry; what is older than `oldest_ms` need not be found any more."""
        first = sends.hashed.first
        self.chained.add(sends.hashed, store_ms, oldest_ms=oldest_ms)
        self._entries.append(
            RememberedEntry(store_ms, sends.key_count, first, sends.last, sends.row)
        )
        self._count += sends.key_count

    def _forget(self, oldest_ms: StoreTimeMs) -> None:
        """Forget what is too old; keep no longer as they are the oldest of too many keys."""
        entries = self._entries
        while len(entries) > 1 and (self._count > KEYS_MAX or entries[0].store_ms < oldest_ms):
            entry = entries.popleft()
            self._count -= entry.key_count
            if entry.store_ms >= oldest_ms:
                self._marks.add(entry.first, entry.store_ms)
        self.chained.forget(oldest_ms)
        if self._marks.marks:
            self._marks.forget(oldest_ms)
