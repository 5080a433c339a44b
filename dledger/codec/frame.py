"""Frames: how a byte stream is cut into headers and blobs (docs/formats/rpc.md).

Layout of a frame, big-endian:
     0  uint32  length         bytes that follow this field
     4  uint32  crc            CRC32C of everything after this field
     8  uint32  header_length  low 31 bits: bytes of the header; top bit: the blob goes on
    12  bytes   header         one msgpack value (rpc.py)
        bytes   blob           raw bytes, the rest of the frame

A blob larger than `CHUNK_BYTES` is cut: its first frame has the header and the top bit, further
frames have an empty header, and the last one has the top bit clear. Frames that are whole in
themselves may stand between the chunks, so a heartbeat never waits for a large body. At most one
blob is open on a connection, which bounds the receiver's memory.

Knows neither sockets nor what a header means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

import crc32c

from dledger.errors import PeerProtocolError

Buffer = bytes | bytearray | memoryview

CHUNK_BYTES: Final = 256 * 1024
"""Largest piece of a blob in one frame: 2 ms at 1 Gbit/s, far below a heartbeat interval."""

HEADER_BYTES_MAX: Final = 64 * 1024
"""Largest header. The greatest real one is a status answer or a hello with its attributes."""

FRAME_BYTES_MAX: Final = 8 + HEADER_BYTES_MAX + CHUNK_BYTES
"""Largest value of the length field."""

BLOB_GOES_ON: Final = 0x8000_0000

_VIEWS_MAX: Final = 64
"""Chunks of one blob that are looked at where they were fed, before they are copied together."""

_LENGTH = Struct(">I")
_CRC_AND_HEADER_LENGTH = Struct(">II")
_HEADER_LENGTH = Struct(">I")
_HEAD = Struct(">III")
_HEAD_BYTES: Final = 12


class Frame(NamedTuple):
    """A header with its whole blob, in one or more pieces.

    Pieces may be views of the bytes that were fed: read them before they are overwritten.
    """

    header: bytes
    pieces: tuple[Buffer, ...]

    @property
    def blob(self) -> Buffer:
        """The pieces as one; they are copied if they are more."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


def encode_frame(header: bytes, blob: Buffer = b"", *, goes_on: bool = False) -> bytes:
    """Encode one frame. The blob must not exceed CHUNK_BYTES (`encode_frames` cuts it).

    An empty header makes it a further chunk of the open blob.
    """
    assert len(blob) <= CHUNK_BYTES, f"blob of {len(blob)} bytes"
    return b"".join((_beginning(header, (blob,), goes_on=goes_on), header, blob))


def _beginning(header: bytes, chunk: Sequence[Buffer], *, goes_on: bool) -> bytes:
    """Return what stands before header and chunk in their frame."""
    header_bytes, blob_bytes = len(header), 0
    assert header_bytes <= HEADER_BYTES_MAX, f"header of {header_bytes} bytes"
    header_length = header_bytes | (BLOB_GOES_ON if goes_on else 0)
    crc = crc32c.crc32c(header, crc32c.crc32c(_HEADER_LENGTH.pack(header_length)))
    for piece in chunk:
        crc = crc32c.crc32c(piece, crc)
        blob_bytes += len(piece)
    return _HEAD.pack(8 + header_bytes + blob_bytes, crc, header_length)


def encode_frames(header: bytes, blob: Buffer = b"") -> list[bytes]:
    """Encode the frames of a header and a blob of any size, in order."""
    return [b"".join(frame) for frame in frames_in_pieces(header, (blob,))]


def frames_in_pieces(header: bytes, blob: Sequence[Buffer]) -> list[list[Buffer]]:
    """Encode the frames of a header and a blob in pieces, in order; nothing of the blob is copied."""
    assert header, "only a further chunk has no header"
    chunks = [list(blob)] if sum(map(len, blob)) <= CHUNK_BYTES else list(_chunks(blob))
    frames: list[list[Buffer]] = []
    for number, chunk in enumerate(chunks, 1):
        beginning = _beginning(header, chunk, goes_on=number < len(chunks))
        frames.append([beginning + header, *chunk])
        header = b""
    return frames


def _chunks(blob: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Cut a blob into chunks of CHUNK_BYTES, and the last one of what is left."""
    chunk: list[Buffer] = []
    room = CHUNK_BYTES
    for piece in blob:
        view = memoryview(piece)
        while view:
            if not room:
                yield chunk
                chunk, room = [], CHUNK_BYTES
            part, view = view[:room], view[room:]
            chunk.append(part)
            room -= len(part)
    yield chunk


class FrameDecoder:
    """Cuts a byte stream into frames.

    Invariants: never holds more than one incomplete frame and one open blob, in no more memory than their bytes
    need, however small the pieces are; after an error it is not used again.

    Attributes:
        ended_count: how many blobs have ended, and frames that stood in no open blob.
    """

    __slots__ = (
        "_blob_bytes",
        "_blob_bytes_max",
        "_frame_bytes_max",
        "_need",
        "_open_header",
        "_pieces",
        "_rest",
        "_views",
        "ended_count",
    )

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX, blob_bytes_max: int) -> None:
        """Start between two frames; the bounds limit how much memory the sender can make this side hold.

        Args:
            frame_bytes_max: largest value of a length field.
            blob_bytes_max: largest blob, all its chunks together.
        """
        self._frame_bytes_max = frame_bytes_max
        self._blob_bytes_max = blob_bytes_max
        self._rest = bytearray()
        self._need = 4
        self._open_header: bytes | None = None
        self._pieces: list[bytearray] = []
        self._views: list[memoryview] = []
        self._blob_bytes = 0
        self.ended_count = 0

    def raise_bounds(self, *, frame_bytes_max: int, blob_bytes_max: int) -> None:
        """Allow larger frames: the other side has shown who it is."""
        self._frame_bytes_max = frame_bytes_max
        self._blob_bytes_max = blob_bytes_max

    def forget(self) -> None:
        """Drop what has begun: the stream has ended, and its rest will be no frame. Nothing is fed any more."""
        self._rest = bytearray()
        self._open_header = None
        self._pieces = []
        self._views = []
        self._blob_bytes = 0

    @property
    def is_between_frames(self) -> bool:
        """True where the stream may end without loss."""
        return not self._rest and self._open_header is None

    @property
    def need_bytes(self) -> int:
        """The bytes that may have to be held before what has begun is whole; 0 between frames.

        A blob does not say its size when it begins: it may become as large as it may be.
        """
        if self._open_header is not None:
            return self._blob_bytes_max + self._frame_bytes_max
        if len(self._rest) < _HEAD_BYTES:
            return len(self._rest) and _HEAD_BYTES
        (header_length,) = _HEADER_LENGTH.unpack_from(self._rest, 8)
        return (
            self._blob_bytes_max + self._frame_bytes_max
            if header_length >= BLOB_GOES_ON
            else self._need
        )

    def feed(self, data: Buffer) -> list[Frame]:
        """Take bytes and return every frame that is now complete, in order.

        Raises:
            PeerProtocolError: a bound, a checksum or the order of chunks is violated.
        """
        view = memoryview(data)
        lone = None if self._rest else self._lone(view)
        if lone is not None:
            return [lone]
        frames: list[Frame] = []
        while self._rest:
            lacking = self._need - len(self._rest)
            self._rest += view[:lacking]
            if len(self._rest) < self._need:
                return []
            whole, self._rest = self._rest, bytearray()
            view, frames = view[lacking:], self._cut(memoryview(whole))
        frames += self._cut(view)
        self._keep_views()
        return frames

    def _lone(self, view: memoryview) -> Frame | None:
        """Return the frame if that is all there is, whole, right and no chunk, as for one sender that waits; else None.

        `_cut` would return the same: this is all that it does for such a frame, in one function.
        """
        size_bytes = len(view)
        if size_bytes < _HEAD_BYTES or self._open_header is not None:
            return None
        length, crc, header_length = _HEAD.unpack_from(view)
        blob_at = _HEAD_BYTES + header_length  # far beyond the end where the blob goes on
        if (
            length != size_bytes - 4
            or length > self._frame_bytes_max
            or not header_length
            or blob_at > size_bytes
            or size_bytes - blob_at > self._blob_bytes_max
            or crc32c.crc32c(view[8:]) != crc
        ):
            return None
        self._need = 4
        self.ended_count += 1
        return Frame(bytes(view[_HEAD_BYTES:blob_at]), (view[blob_at:],))

    def _cut(self, view: memoryview) -> list[Frame]:
        """Remove the whole frames from the front of the buffer, and keep the bytes of an unfinished one."""
        frames: list[Frame] = []
        at, end = 0, len(view)
        self._need = 4
        while end - at >= 4:
            (length,) = _LENGTH.unpack_from(view, at)
            if not 8 <= length <= self._frame_bytes_max:
                raise PeerProtocolError(
                    f"frame of {length} bytes, allowed are 8 to {self._frame_bytes_max}"
                )
            if end - at < 4 + length:
                self._need = 4 + length
                break
            frame = self._open(view[at + 4 : at + 4 + length])
            if frame is not None:
                frames.append(frame)
            at += 4 + length
        if at < end:
            assert end - at < self._need, f"{end - at} bytes are kept of a frame of {self._need}"
            self._rest = bytearray(view[at:])
        return frames

    def _open(self, rest: memoryview) -> Frame | None:
        """Check one frame (given without its length field); return None if more chunks of its blob follow."""
        crc, header_length = _CRC_AND_HEADER_LENGTH.unpack_from(rest)
        found = crc32c.crc32c(rest[4:])
        if found != crc:
            raise PeerProtocolError(f"frame checksum {crc:#010x} does not match {found:#010x}")
        goes_on = header_length >= BLOB_GOES_ON
        header_length &= BLOB_GOES_ON - 1
        if header_length > len(rest) - 8:
            raise PeerProtocolError(
                f"header of {header_length} bytes in a frame of {len(rest)} bytes"
            )
        header, blob = bytes(rest[8 : 8 + header_length]), rest[8 + header_length :]
        if header and not goes_on:
            self._check_blob_size(len(blob))
            self.ended_count += self._open_header is None
            return Frame(header, (blob,))
        return self._add_chunk(header, blob, goes_on=goes_on)

    def _add_chunk(self, header: bytes, chunk: memoryview, *, goes_on: bool) -> Frame | None:
        """Add a chunk to the unfinished blob, or begin a new blob."""
        if header:
            if self._open_header is not None:
                raise PeerProtocolError("a second blob begins before the first has ended")
            self._open_header = header
        elif self._open_header is None:
            raise PeerProtocolError("a chunk belongs to no blob")
        self._blob_bytes += len(chunk)
        self._check_blob_size(self._blob_bytes)
        self._views.append(chunk)
        if goes_on:
            if not chunk:
                raise PeerProtocolError("an empty chunk: the blob would never end")
            if len(self._views) == _VIEWS_MAX:
                self._keep_views()
            return None
        whole = Frame(self._open_header, (*self._pieces, *self._views))
        assert sum(map(len, whole.pieces)) == self._blob_bytes, f"not {self._blob_bytes} bytes"
        self._open_header = None
        self._pieces = []
        self._views = []
        self._blob_bytes = 0
        self.ended_count += 1
        return whole

    def _keep_views(self) -> None:
        """Copy the chunks of a blob that goes on after the bytes that were fed."""
        for chunk in self._views:
            # No piece is small, and none is moved as the blob grows.
            if self._pieces and len(self._pieces[-1]) < CHUNK_BYTES:
                self._pieces[-1] += chunk
            else:
                self._pieces.append(bytearray(chunk))
        self._views = []

    def _check_blob_size(self, size_bytes: int) -> None:
        if size_bytes > self._blob_bytes_max:
            raise PeerProtocolError(
                f"blob of {size_bytes} bytes or more, allowed are {self._blob_bytes_max}"
            )


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Encode all frames of a message as one piece of bytes, for streams without anything in between."""
    return frames[0] if len(frames) == 1 else b"".join(frames)
