"""Entries as bytes: the 48-byte header, its two checksums, and many entries back to back.

The same bytes stand on disk and go over the wire (docs/formats/entry.md). The leader seals an entry
once, and every member keeps those bytes. Nothing here does I/O; whoever calls knows the file or the
peer and turns `EntryFormatError` into `CorruptionError` or `PeerProtocolError`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec
from crc32c import crc32c

from dledger.codec.chain import BODY_CRC_AT, CHAIN_CRC_AT, expected_chain_crc
from dledger.codec.format_error import FormatError
from dledger.codec.index_unit import EntryColumns, IndexUnit
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term

Bytes = bytes | bytearray | memoryview
"""The bytes that entries are decoded from."""

_HEADER = struct.Struct(
    ">"
    "i"  # 0   magic
    "i"  # 4   size
    "q"  # 8   index
    "q"  # 16  term
    "q"  # 24  pos
    "i"  # 32  channel
    "I"  # 36  chainCrc
    "I"  # 40  bodyCrc
    "i"  # 44  bodyLength
)
_TO_CHAIN_CRC = struct.Struct(">iiqqqi")
_BODY_FIELDS = struct.Struct(">Ii")
_U32 = struct.Struct(">I")
_SIZE_AND_CRCS = struct.Struct(">4xi28xII")
_KINDS = {int(kind): kind for kind in EntryKind}
_MAGIC_PATTERN = re.compile(rb"\x00\x00\x00[\x01-\x03]")
"""A header's first four bytes. Matches cannot overlap: the last byte is not 0, the first three are."""

ENTRY_BODY_BYTES_MAX = 2**31 - 1 - ENTRY_HEADER_BYTES
"""The header's size is a signed 32-bit number. The configured maximum is far smaller."""


class EntryFormatError(FormatError):
    """The bytes of an entry are malformed, or a checksum does not match."""


class EntryHeader(msgspec.Struct, frozen=True, gc=False):
    """A decoded header; its fields fit each other, its checksums are not yet verified."""

    kind: EntryKind
    size_bytes: int
    index: Index
    term: Term
    position: Position
    chain_crc: int
    body_crc: int
    body_bytes: int

    def index_unit(self) -> IndexUnit:
        """Return the entry's index unit."""
        return IndexUnit(self.index, self.term, self.position, self.size_bytes, self.chain_crc)


def seal(entry: Entry, prev_chain_crc: int) -> Entry:
    """Give an entry its header.

    Layout, big-endian, 48 bytes (docs/formats/entry.md):
         0  int32   magic       EntryKind: 1 normal, 2 no-op, 3 configuration
         4  int32   size        48 + body
         8  int64   index       the first entry has 1
        16  int64   term
        24  int64   pos         byte place of this header in the log
        32  int32   channel     0
        36  uint32  chainCrc    CRC32C of bytes 0..36 and 40..48, started with the chainCrc of the
                                entry before (0 before the first): identifies the whole log so far
        40  uint32  bodyCrc     CRC32C of the body
        44  int32   bodyLength

    Args:
        entry: an entry with its final index, term and position.
        prev_chain_crc: chain CRC of the entry before; 0 before the first.

    Source: DLedger DLedgerEntryCoder, which leaves both CRCs 0 (docs/divergence.md).
    """
    body = entry.body
    body_bytes = len(body)
    assert body_bytes <= ENTRY_BODY_BYTES_MAX, f"body of {body_bytes} bytes"
    assert entry.index >= 0 <= entry.term, f"an entry {entry.id}"
    assert entry.position >= 0, f"entry {entry.id} at position {entry.position}"
    head = _TO_CHAIN_CRC.pack(
        entry.kind, ENTRY_HEADER_BYTES + body_bytes, entry.index, entry.term, entry.position, 0
    )
    tail = _BODY_FIELDS.pack(crc32c(body), body_bytes)
    chain = crc32c(tail, crc32c(head, prev_chain_crc))
    return Entry(
        entry.index,
        entry.term,
        entry.position,
        entry.kind,
        body,
        b"".join((head, _U32.pack(chain), tail)),
    )


def chain_crc(entry: Entry) -> int:
    """Return the chain CRC in a sealed entry's header."""
    assert len(entry.header) == ENTRY_HEADER_BYTES, f"entry {entry.index} is not sealed"
    crc: int = _U32.unpack_from(entry.header, CHAIN_CRC_AT)[0]
    return crc


def index_unit_of(header: bytes) -> bytes:
    """Cut the index unit out of an entry's header (docs/formats/index_unit.md).

    Fewer than 48 bytes, as a file that ends within the header gives them, make no whole unit.
    """
    # index, term and pos stand together in both; then size, then chainCrc.
    return header[8:32] + header[4:8] + header[36:40]


def decode_header(data: Bytes, offset: int = 0) -> EntryHeader:
    """Decode the header at `offset`. Fields are checked against each other, checksums are not.

    Raises:
        EntryFormatError: the bytes are no header.
    """
    if len(data) - offset < ENTRY_HEADER_BYTES:
        raise EntryFormatError(offset, f"{len(data) - offset} bytes left, a header has 48")
    magic, size, index, term, position, channel, chain, body_crc, body_bytes = _HEADER.unpack_from(
        data, offset
    )
    kind = _KINDS.get(magic)
    if kind is None:
        raise EntryFormatError(offset, f"magic {magic} is none of 1, 2, 3")
    if body_bytes < 0 or size != ENTRY_HEADER_BYTES + body_bytes:
        raise EntryFormatError(offset + 4, f"size {size} with a body of {body_bytes} bytes")
    for at, name, value in ((8, "index", index), (16, "term", term), (24, "pos", position)):
        if value < 0:
            raise EntryFormatError(offset + at, f"{name} {value} is negative")
    if channel != 0:
        raise EntryFormatError(offset + 32, f"channel {channel} is not 0")
    return EntryHeader(
        kind, size, Index(index), Term(term), Position(position), chain, body_crc, body_bytes
    )


def check_entry(entry: Entry, prev_chain_crc: int | None = None) -> None:
    """Verify that a sealed entry's header matches its fields and its body.

    Args:
        entry: a sealed entry.
        prev_chain_crc: chain CRC of the entry before; None: the chain is not verified.

    Raises:
        EntryFormatError: names the first difference.
    """
    header = decode_header(entry.header)
    if (header.index, header.term, header.position, header.kind, header.body_bytes) != (
        entry.index,
        entry.term,
        entry.position,
        entry.kind,
        len(entry.body),
    ):
        raise EntryFormatError(0, f"the header of entry {entry.index} belongs to another entry")
    _check_crcs(entry.header, entry.body, header, prev_chain_crc=prev_chain_crc, offset=0)


def _check_crcs(
    header_bytes: bytes,
    body: bytes,
    header: EntryHeader,
    *,
    prev_chain_crc: int | None,
    offset: int,
) -> None:
    """Raise for the first wrong checksum; the chain comes first, because a broken header makes the body meaningless."""
    if prev_chain_crc is not None:
        chain = expected_chain_crc(header_bytes, prev_chain_crc)
        if chain != header.chain_crc:
            raise EntryFormatError(
                offset + CHAIN_CRC_AT,
                f"chain crc {chain:#010x}, the header of entry {header.index} says "
                f"{header.chain_crc:#010x}",
            )
    found = crc32c(body)
    if found != header.body_crc:
        raise EntryFormatError(
            offset + BODY_CRC_AT,
            f"body crc {found:#010x}, the header of entry {header.index} says "
            f"{header.body_crc:#010x}",
        )


def decode_lone(data: Bytes) -> Entry | None:
    """Decode the one entry that `data` is; None if it is none, or not exactly one that is whole.

    As `decode_entries` would without a chain CRC; which of the many things is wrong is for that to say.
    """
    if len(data) < ENTRY_HEADER_BYTES:
        return None
    magic, size, index, term, position, channel, _, body_crc, body_bytes = _HEADER.unpack_from(data)
    kind = _KINDS.get(magic)
    if (
        kind is None
        or size != len(data)
        or body_bytes != size - ENTRY_HEADER_BYTES
        or channel
        or index < 0
        or term < 0
        or position < 0
    ):
        return None
    body = bytes(data[ENTRY_HEADER_BYTES:])
    if crc32c(body) != body_crc:
        return None
    return Entry(
        Index(index), Term(term), Position(position), kind, body, bytes(data[:ENTRY_HEADER_BYTES])
    )


def is_right_after(entry: Entry, prev_chain_crc: int) -> bool:
    """Return whether `check_entry` finds nothing wrong with a sealed entry, after the one with this chain CRC."""
    header, body = entry.header, entry.body
    if len(header) != ENTRY_HEADER_BYTES:
        return False
    magic, size, index, term, position, channel, chain, body_crc, body_bytes = _HEADER.unpack(
        header
    )
    return (
        index == entry.index
        and term == entry.term
        and position == entry.position
        and magic == entry.kind
        and not channel
        and index >= 0 <= term
        and position >= 0
        and body_bytes == len(body)
        and size == ENTRY_HEADER_BYTES + body_bytes
        and expected_chain_crc(header, prev_chain_crc) == chain
        and crc32c(body) == body_crc
    )


def decode_entry(data: Bytes, offset: int = 0, prev_chain_crc: int | None = None) -> Entry:
    """Decode the entry at `offset`, verifying its body CRC, and its chain CRC when asked.

    Bytes after the entry are not touched; its end is `offset + entry.size_bytes`.

    Raises:
        EntryFormatError: names the place.
    """
    header = decode_header(data, offset)
    body_at = offset + ENTRY_HEADER_BYTES
    end = body_at + header.body_bytes
    if end > len(data):
        raise EntryFormatError(
            offset + 44, f"a body of {header.body_bytes} bytes, {len(data) - body_at} are there"
        )
    header_bytes = bytes(data[offset:body_at])
    body = bytes(data[body_at:end])
    _check_crcs(header_bytes, body, header, prev_chain_crc=prev_chain_crc, offset=offset)
    return Entry(header.index, header.term, header.position, header.kind, body, header_bytes)


def decode_entries(
    data: Bytes, offset: int = 0, prev_chain_crc: int | None = None
) -> tuple[Entry, ...]:
    """Decode entries back to back up to the end of `data`, each following the one before.

    Args:
        data: sealed entries without gaps.
        offset: where the first starts.
        prev_chain_crc: chain CRC of the entry before the first; None: the first entry's own chain
            CRC is taken as given and the chain is verified from the second on.

    Raises:
        EntryFormatError: names the place.
    """
    entries: list[Entry] = []
    at = offset
    while at < len(data):
        entry = decode_entry(data, at, prev_chain_crc)
        if entries:
            previous = entries[-1]
            if entry.index != previous.index + 1 or entry.position != previous.end_position:
                raise EntryFormatError(
                    at, f"entry {entry.index} does not follow entry {previous.index}"
                )
            if entry.term < previous.term:
                raise EntryFormatError(at + 16, f"term {entry.term} after term {previous.term}")
        entries.append(entry)
        prev_chain_crc = chain_crc(entry)
        at += entry.size_bytes
    return tuple(entries)


def decode_pieces(pieces: Sequence[Bytes]) -> tuple[Entry, ...]:
    """Decode what `decode_entries` would of the pieces as one; a single entry, of its size, is copied once only.

    Raises:
        EntryFormatError: names the place.
    """
    if len(pieces) == 1:
        return decode_entries(pieces[0])
    if not pieces or len(pieces[0]) < ENTRY_HEADER_BYTES:
        return decode_entries(b"".join(pieces))
    first = pieces[0]
    header = decode_header(first)
    if header.size_bytes != sum(map(len, pieces)):
        return decode_entries(b"".join(pieces))
    header_bytes = bytes(first[:ENTRY_HEADER_BYTES])
    body = b"".join((memoryview(first)[ENTRY_HEADER_BYTES:], *pieces[1:]))
    _check_crcs(header_bytes, body, header, prev_chain_crc=None, offset=0)
    return (Entry(header.index, header.term, header.position, header.kind, body, header_bytes),)


def decode_known(data: bytes, chain_crcs: Iterable[int], prev_chain_crc: int) -> list[Entry]:
    """Decode entries back to back that must be exactly the ones with these chain CRCs.

    A chain CRC covers every byte of a header but itself, so with it the header is known to be right,
    and with the header's body CRC the body.

    Args:
        data: the entries.
        chain_crcs: what is remembered of each.
        prev_chain_crc: of the entry before the first.

    Raises:
        EntryFormatError: names the place of the first difference.
    """
    view = memoryview(data)
    found: list[Entry] = []
    at, chain = 0, prev_chain_crc
    for own in chain_crcs:
        body_at = at + ENTRY_HEADER_BYTES
        header = data[at:body_at]
        if len(header) < ENTRY_HEADER_BYTES or expected_chain_crc(header, chain) != own:
            raise _difference(data, at, chain)
        magic, size, index, term, position, _, stored, body_crc, _ = _HEADER.unpack(header)
        end = at + size
        body = bytes(view[body_at:end])
        if stored != own or crc32c(body) != body_crc:
            raise _difference(data, at, chain)
        found.append(Entry(index, term, position, _KINDS[magic], body, header))
        at, chain = end, own
    return found


def verified_bytes(data: bytes, chain_crcs: Iterable[int], prev_chain_crc: int) -> int:
    """Return how many of these bytes are entries that `decode_known` would decode: all up to the first difference.

    Args:
        data: the entries, back to back.
        chain_crcs: what is remembered of each.
        prev_chain_crc: of the entry before the first.
    """
    view = memoryview(data)
    sizes_and_crcs = _SIZE_AND_CRCS.unpack_from
    at, chain, length = 0, prev_chain_crc, len(data)
    for own in chain_crcs:
        body_at = at + ENTRY_HEADER_BYTES
        if body_at > length:
            break
        size, stored, body_crc = sizes_and_crcs(data, at)
        # The chain CRC covers the size, which is not believed before.
        found = crc32c(
            view[at + BODY_CRC_AT : body_at], crc32c(view[at : at + CHAIN_CRC_AT], chain)
        )
        if found != own or stored != own or crc32c(view[body_at : at + size]) != body_crc:
            break
        at, chain = at + size, own
    return at


def _difference(data: bytes, at: int, prev_chain_crc: int) -> EntryFormatError:
    """Describe how the entry at `at` differs from the one that was asked for."""
    try:
        entry = decode_entry(data, at, prev_chain_crc)
    except EntryFormatError as error:
        return error
    return EntryFormatError(at, f"entry {entry.id} is whole, but another one was written here")


class ScanEnd(Enum):
    """The reason why a scan stopped."""

    NEEDS_MORE = "the bytes end within an entry that may be whole"
    BROKEN = "what stands there is not the next entry"


@dataclass(slots=True)
class EntryScan:
    """A walk over entries back to back without building them; used to verify a segment on opening.

    Attributes:
        columns: the entries found so far.
        chain_crc: of the last whole entry.
        last_term: of the last whole entry.
        wanted_bytes: after NEEDS_MORE: bytes from the last whole entry's end that would do.
        problem: after BROKEN: what is wrong.
    """

    columns: EntryColumns
    chain_crc: int
    last_term: Term
    wanted_bytes: int = ENTRY_HEADER_BYTES
    problem: str = ""

    def feed(self, data: bytes) -> tuple[int, ScanEnd]:
        """Consume the whole entries at the start of `data`; return how many bytes they took, and why the scan stopped.

        The chain CRC covers the header, so a header is trusted (its size above all) before its body
        is looked at.
        """
        columns = self.columns
        view = memoryview(data)
        at, end = 0, len(data)
        index, position = columns.first_index + len(columns), columns.end_position
        term, chain = self.last_term, self.chain_crc
        add_term, add_position = columns.terms.append, columns.positions.append
        add_size, add_chain = columns.sizes.append, columns.chain_crcs.append
        stop = ScanEnd.NEEDS_MORE
        self.wanted_bytes = ENTRY_HEADER_BYTES
        while (body_at := at + ENTRY_HEADER_BYTES) <= end:
            magic, size, found_index, found_term, found_position, channel, found, crc, length = (
                _HEADER.unpack_from(data, at)
            )
            own = crc32c(
                view[at + BODY_CRC_AT : body_at], crc32c(view[at : at + CHAIN_CRC_AT], chain)
            )
            if not (
                own == found
                and found_index == index
                and found_position == position
                and found_term >= term
                and magic in _KINDS
                and size == ENTRY_HEADER_BYTES + length
                and length >= 0
                and channel == 0
            ):
                self.problem = f"no whole header of entry {index} at position {position}"
                stop = ScanEnd.BROKEN
                break
            if (next_at := at + size) > end:
                self.wanted_bytes = size
                break
            if crc32c(view[body_at:next_at]) != crc:
                self.problem = f"the body of entry {index} does not match its crc {crc:#010x}"
                stop = ScanEnd.BROKEN
                break
            add_term(found_term)
            add_position(position)
            add_size(size)
            add_chain(found)
            index, position, term, chain, at = (
                index + 1,
                position + size,
                found_term,
                found,
                next_at,
            )
        self.last_term, self.chain_crc = term, chain
        return at, stop


def find_headers(
    data: bytes, *, base_position: int, index_min: int
) -> Iterator[tuple[int, EntryHeader]]:
    """Yield the headers at any byte of `data` that name the very position at which they stand.

    Used after a broken place to ask whether anything whole follows; the caller verifies the bodies
    (`header.body_crc`). The chain cannot be verified there, for what stands before is broken.

    Args:
        data: bytes of the log.
        base_position: position of `data[0]`.
        index_min: smallest index that is of interest.

    Yields:
        Offset in `data` and header.
    """
    for match in _MAGIC_PATTERN.finditer(data):
        at = match.start()
        try:
            header = decode_header(data, at)
        except EntryFormatError:
            continue
        if header.position == base_position + at and header.index >= index_min:
            yield at, header
