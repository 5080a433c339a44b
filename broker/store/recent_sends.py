"""The window of recent sends: which unique keys the log took in lately, and where they stand.

A producer that got no answer sends again, with the same UNIQ_KEY, and a new leader must be able to
know that the first try was stored. So every replica remembers the keys of the last minute (in store
time). The newest of them are kept as they are; if there are more, as hashes (sealed_sends.py), up to a
number that is reached at 100 000 messages a second. Bounds are constants, which are part of the fold.

Only physical offsets are kept. What else there is to know of an earlier send (topic, queue, body) is in
the log, and is read when a key is really seen again (broker/service/repeats.py).

Nothing here knows what an acknowledgement is, or decides what is a repeat.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, Self

import msgspec
from crc32c import crc32c

from broker.store.emptying import emptied
from broker.store.packing import array_head, pack, packed_rows
from broker.store.sealed_sends import SealedSends
from broker.store.send_marks import SendMarks
from dledger.raft.ids import NO_TERM, Position, Term
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

STEP_ENTRIES: Final = 64
"""Entries that are written to a snapshot in one step; some have a few thousand keys."""

KEYS_MAX: Final = 200_000
"""Keys kept as they are, about 160 bytes each: a minute of 3 300 messages/s. Older ones are sealed, 16 bytes each."""

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


@dataclass(frozen=True, slots=True)
class RememberedEntry:
    """The keys of one entry and where their records begin, in the order of the log."""

    store_ms: StoreTimeMs
    keys: Sequence[bytes]
    offsets: Sequence[PhysicalOffset]


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

    Invariants: at most KEYS_MAX keys in `by_key`, or one entry with more; no entry older than AGE_MAX_MS when the
    newest came; every offset that is found there lies in a remembered entry.

    Attributes:
        term: of the last folded entry.
        term_start: where that term's first entry stands; what lies before was appended under an older term.
        by_key: where the newest records of a key begin: one physical offset, or several, oldest first.
        sealed: records that are older than these. No snapshot has them.
        digest: CRC32C chained over everything ever remembered.
    """

    def __init__(self, age_max_ms: int = AGE_MAX_MS) -> None:
        """Remember nothing yet; another age than the usual one is for groups whose clients are known, as in tests."""
        self._age_max_ms = age_max_ms
        self.term: Term = NO_TERM
        self.term_start = Position(0)
        self.digest: int = 0
        self.by_key: dict[bytes, PhysicalOffset | tuple[PhysicalOffset, ...]] = {}
        self.sealed = SealedSends()
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
        """Return the number of keys; sealed ones may be older than AGE_MAX_MS."""
        return self._count + len(self.sealed)

    def __contains__(self, key: object) -> bool:
        if key in self.by_key:
            return True
        return isinstance(key, bytes) and bool(self.sealed.find(key, 1))

    def has_any(self, keys: list[bytes]) -> bool:
        """Return whether one of these keys is in the window."""
        return not self.by_key.keys().isdisjoint(keys) or self.sealed.has_any(keys)

    def offsets(self, key: bytes) -> tuple[PhysicalOffset, ...]:
        """Return where records with this key begin, oldest first; empty when none is remembered.

        Some may have another key with the same hash.
        """
        newest, older = self._newest(key), self.sealed.find(key, COPIES_MAX)
        return (*older, *newest)[-COPIES_MAX:] if older else newest

    def _newest(self, key: bytes) -> tuple[PhysicalOffset, ...]:
        found = self.by_key.get(key, ())
        return (found,) if isinstance(found, int) else found

    def entries(self) -> tuple[RememberedEntry, ...]:
        """Return the entries whose keys are kept as they are, oldest first."""
        return tuple(self._entries)

    def oldest(self, now_ms: StoreTimeMs, end: PhysicalOffset) -> PhysicalOffset | None:
        """Return a place from which on the records stand that may be repeated; None when there are none.

        Args:
            now_ms: what is older than AGE_MAX_MS at this time nobody repeats.
            end: where the log ends; what stands more than NEEDED_BYTES_MAX before it is not worth a full disk.
        """
        oldest_ms = StoreTimeMs(now_ms - self._age_max_ms)
        least = PhysicalOffset(end - NEEDED_BYTES_MAX)
        if not self._entries or self._entries[-1].offsets[-1] < least:
            return None
        found = self._marks.oldest(oldest_ms)
        if found is None:
            recent = (entry.offsets[0] for entry in self._entries if entry.store_ms >= oldest_ms)
            found = next(recent, None)
        return None if found is None else max(found, least)

    def forget_before(self, beginning: Position) -> None:
        """Forget the sends that stand before a position, where nobody can read them any more."""
        entries = self._entries
        while entries and entries[0].offsets[0] < beginning:
            entry = entries.popleft()
            self._count -= len(entry.keys)
            self._forget_keys(entry)
        if entries:
            self.sealed.forget_before(beginning)
        else:  # what is sealed stands before these
            self.sealed.clear()
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
        self._add_all(keys, offsets)
        self._entries.append(RememberedEntry(store_ms, keys, offsets))
        self._count += len(keys)
        self.digest = crc32c(
            b"".join(keys), crc32c(_OFFSETS.pack(offsets[0], len(keys)), self.digest)
        )
        self._forget(store_ms)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        return b"".join(self.dump_parts())

    def dump_parts(self) -> Iterator[bytes]:
        """Yield the same, part by part."""
        marks = (self._marks,) if self._marks.marks else ()  # none: as before there were any
        yield array_head(4 + len(marks)) + pack(self.term, self.term_start, self.digest)
        yield array_head(len(self._entries))
        yield from packed_rows(
            ((entry.store_ms, entry.keys, entry.offsets) for entry in self._entries),
            STEP_ENTRIES,
        )
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
        self.sealed = SealedSends()
        self._marks = saved.marks
        self.term, self.term_start, self.digest = saved.term, saved.term_start, saved.digest
        self.by_key = {}
        self._entries.clear()
        self._count = 0
        for first in range(0, len(saved.entries), STEP_ENTRIES):
            yield
            for raw in saved.entries[first : first + STEP_ENTRIES]:
                entry = RememberedEntry(*_decode_entry(raw))
                self._add_all(entry.keys, entry.offsets)
                self._entries.append(entry)
                self._count += len(entry.keys)

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps; this window is not used any more."""
        self.sealed.clear()
        yield
        yield from emptied(self._entries)
        yield from emptied(self.by_key)

    def _add_all(self, keys: Sequence[bytes], offsets: Sequence[PhysicalOffset]) -> None:
        """Add where the records of an entry stand."""
        found = self.by_key
        # In C what is usual, keys never seen before: one look at the table for each, which keeps what it has.
        held = list(map(found.setdefault, keys, offsets))
        if held == offsets:
            return
        for key, offset, earlier in zip(keys, offsets, held, strict=True):
            if earlier != offset:
                found[key] = (*self._newest(key), offset)[-COPIES_MAX:]

    def _forget(self, now_ms: StoreTimeMs) -> None:
        """Forget the oldest entries that are too old; seal those that are not, as long as there are too many keys."""
        entries = self._entries
        oldest_ms = StoreTimeMs(now_ms - self._age_max_ms)
        while len(entries) > 1 and (self._count > KEYS_MAX or entries[0].store_ms < oldest_ms):
            entry = entries.popleft()
            self._count -= len(entry.keys)
            self._forget_keys(entry)
            if entry.store_ms >= oldest_ms:
                self.sealed.add(entry.keys, entry.offsets, entry.store_ms, oldest_ms=oldest_ms)
                self._marks.add(entry.offsets[0], entry.store_ms)
        if self._marks.marks:
            self.sealed.forget(oldest_ms)
            self._marks.forget(oldest_ms)
        assert len(self.by_key) <= self._count, f"{len(self.by_key)} keys of {self._count} records"

    def _forget_keys(self, entry: RememberedEntry) -> None:
        """Forget where the keys of an entry stand there; newer copies stay."""
        # In C what is usual, keys that came once: one look at the table for each, which gives up all that it has.
        gone = list(map(self.by_key.pop, entry.keys, repeat(())))
        if gone != entry.offsets:
            self._keep_newer(entry, gone)

    def _keep_newer(
        self,
        entry: RememberedEntry,
        gone: Sequence[PhysicalOffset | tuple[PhysicalOffset, ...]],
    ) -> None:
        """Put back where newer records with the keys of an entry stand, `gone` being what was given up for each."""
        found, last = self.by_key, entry.offsets[-1]
        for key, held in zip(entry.keys, gone, strict=True):
            newer = [at for at in ((held,) if isinstance(held, int) else held) if at > last]
            if newer:
                found[key] = tuple(newer) if len(newer) > 1 else newer[0]
