"""A snapshot of derived state as bytes: a head, frames of the state's own bytes, an end (docs/formats/snapshot.md).

Big-endian. Each checksum goes on from the one before, so frames cannot be lost, exchanged or taken
from another snapshot without being noticed; the end distinguishes a whole file from one that was cut.

    head, 48 bytes
         0  4 bytes  magic    `DLSS`
         4  uint16   version  1
         6  uint16   0
         8  int64    index     last entry that the state contains
        16  int64    term      of that entry
        24  int64    position  end of that entry, where the next one starts
        32  uint32   chain crc of that entry: it identifies the log up to it
        36  uint32   digest    of the state, as the state machine computes it
        40  uint32   0
        44  uint32   crc32c    of the 44 bytes before
    frame: uint32 length from 1, uint32 crc32c of the data started with the crc before, data
    end:   uint32 0, uint32 crc32c of the frame count (uint64) started with the crc before

Version 2 also has frames in which a part is named, a file of its own that several snapshots name. What the part holds
stands at that place of the state's bytes.

    named part: uint32 28 with the highest bit set, uint32 crc32c of `DLSP` and the data, started with the crc before
         0  uint64   number    of the part, by which its file is called
         8  uint64   size of the file in bytes
        16  uint64   bytes of the state in it
        24  uint32   crc32c    with which the file ends
    part, in its file: head of 8 bytes (magic `DLSP`, uint16 version 1, uint16 0), frames and an end as above
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from dledger.codec.format_error import FormatError
from dledger.raft.ids import Index, Position, Term
from dledger.state_machine import StoredPart

MAGIC = b"DLSS"
VERSION = 1
VERSION_WITH_PARTS = 2
PART_MAGIC = b"DLSP"
PART_VERSION = 1
FRAME_BYTES_MAX = 1024 * 1024
"""Most bytes of one frame: what a reader holds at once."""

_HEAD = struct.Struct(">4sHHqqqIII")
_CRC = struct.Struct(">I")
_FRAME = struct.Struct(">II")
_COUNT = struct.Struct(">Q")
_PART = struct.Struct(">QQQI")
_PART_HEAD = struct.Struct(">4sHH")
_PART_BIT = 1 << 31
PART_HEAD_BYTES = _PART_HEAD.size
NAMED_PART_BYTES = _PART.size
HEAD_BYTES = _HEAD.size + _CRC.size
FRAME_HEAD_BYTES = _FRAME.size


class SnapshotFormatError(FormatError):
    """The bytes of a snapshot are malformed."""


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The state that a snapshot holds.

    Attributes:
        index, term: last entry that the state contains.
        position: end of that entry.
        chain_crc: of that entry.
        digest: the state machine's own.
    """

    index: Index
    term: Term
    position: Position
    chain_crc: int
    digest: int


def encode_part_head() -> bytes:
    """Encode the first bytes of a part's file."""
    return _PART_HEAD.pack(PART_MAGIC, PART_VERSION, 0)


def check_part_head(data: bytes) -> None:
    """Verify the first bytes of a part's file.

    Raises:
        SnapshotFormatError: they are none of a version that this program knows.
    """
    if data != encode_part_head():
        raise SnapshotFormatError(0, f"{data!r} does not begin a part of version {PART_VERSION}")


def encode_head(meta: SnapshotMeta, version: int = VERSION) -> bytes:
    """Encode the first bytes of a snapshot."""
    assert meta.index >= 1, f"a snapshot of entry {meta.index}"
    assert meta.term >= 1, f"a snapshot of entry {meta.index}, of term {meta.term}"
    assert meta.position >= 1, f"a snapshot that ends at position {meta.position}"
    head = _HEAD.pack(
        MAGIC,
        version,
        0,
        meta.index,
        meta.term,
        meta.position,
        meta.chain_crc,
        meta.digest,
        0,
    )
    return head + _CRC.pack(crc32c(head))


def decode_head(data: bytes) -> SnapshotMeta:
    """Read the head.

    Raises:
        SnapshotFormatError: names the place.
    """
    if len(data) < HEAD_BYTES:
        raise SnapshotFormatError(
            len(data), f"a head has {HEAD_BYTES} bytes, {len(data)} are there"
        )
    magic, version, _, index, term, position, chain_crc, digest, _ = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotFormatError(0, f"magic {magic!r} is not {MAGIC!r}")
    (found,) = _CRC.unpack_from(data, _HEAD.size)
    own = crc32c(data[: _HEAD.size])
    if own != found:
        raise SnapshotFormatError(_HEAD.size, f"crc {own:#010x}, the file says {found:#010x}")
    if version not in (VERSION, VERSION_WITH_PARTS):
        raise SnapshotFormatError(
            4,
            f"version {version} is unknown; this program knows {VERSION} and {VERSION_WITH_PARTS}",
        )
    if index < 1 or term < 1 or position < 1:
        raise SnapshotFormatError(8, f"entry {index}@{term} that ends at {position} cannot be")
    return SnapshotMeta(Index(index), Term(term), Position(position), chain_crc, digest)


class FrameChain:
    """Writes or verifies frames one after the other; holds only a checksum and a count."""

    __slots__ = ("_count", "_crc")

    def __init__(self, head: bytes) -> None:
        self._crc: int = crc32c(head[:HEAD_BYTES])
        self._count = 0

    @classmethod
    def begun_after(cls, crc: int) -> FrameChain:
        """Return a chain that goes on behind a frame whose CRC is known; it knows no end."""
        chain = cls(b"")
        chain._crc = crc
        return chain

    def encode(self, data: bytes) -> bytes:
        """Encode the head of the frame that carries `data`."""
        assert 0 < len(data) <= FRAME_BYTES_MAX, f"a frame of {len(data)} bytes"
        self._crc = crc32c(data, self._crc)
        self._count += 1
        return _FRAME.pack(len(data), self._crc)

    def name(self, part: StoredPart) -> bytes:
        """Encode the frame that names a part."""
        data = _PART.pack(part.number, part.size_bytes, part.state_bytes, part.crc)
        self._crc = crc32c(PART_MAGIC + data, self._crc)
        self._count += 1
        return _FRAME.pack(len(data) | _PART_BIT, self._crc) + data

    @property
    def crc(self) -> int:
        """The CRC of everything so far; after the end that was read or written, it is that of the end."""
        return self._crc

    def end(self) -> bytes:
        """Encode the end mark after the last frame."""
        self._crc = crc32c(_COUNT.pack(self._count), self._crc)
        return _FRAME.pack(0, self._crc)

    def length(self, head: bytes, byte_offset: int) -> int:
        """Return the bytes of data that follow the head of a frame; 0: it is the end.

        Raises:
            SnapshotFormatError: the file is cut, or the length is absurd.
        """
        if len(head) < FRAME_HEAD_BYTES:
            raise SnapshotFormatError(byte_offset, "the snapshot ends without its end mark")
        length: int = _FRAME.unpack_from(head)[0]
        if length == _PART.size | _PART_BIT:
            return _PART.size
        if length > FRAME_BYTES_MAX:
            raise SnapshotFormatError(byte_offset, f"a frame of {length} bytes")
        return length

    def check(self, head: bytes, data: bytes, byte_offset: int) -> None:
        """Verify a frame, or with empty `data` the end.

        Raises:
            SnapshotFormatError: it is not what was written there.
        """
        length, found = _FRAME.unpack_from(head)
        is_part, length = length & _PART_BIT, length & ~_PART_BIT
        if len(data) < length:
            raise SnapshotFormatError(byte_offset, f"{len(data)} of {length} bytes are there")
        if length:
            self._crc = crc32c(PART_MAGIC + data if is_part else data, self._crc)
            self._count += 1
        else:
            self._crc = crc32c(_COUNT.pack(self._count), self._crc)
        if self._crc != found:
            raise SnapshotFormatError(
                byte_offset, f"crc {self._crc:#010x}, the file says {found:#010x}"
            )


def named_part(head: bytes, data: bytes) -> StoredPart | None:
    """Return the part that a verified frame names; None: it carries bytes of the state."""
    if not _FRAME.unpack_from(head)[0] & _PART_BIT:
        return None
    return StoredPart(*_PART.unpack(data))
