"""Frames: finding them in a stream of bytes.

Layout, big-endian (docs/formats/remoting.md, "Frame"):
    0  int32   length: bytes that follow this word = 4 + header length + body length
    4  uint8   serialize type of the header: 0 JSON, 1 ROCKETMQ
    5  uint24  header length
    8  header, then the body
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct as Layout
from typing import Final

import msgspec

from dledger_mq.message import compiled
from dledger_mq.remoting.errors import FrameError

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""RocketMQ's com.rocketmq.remoting.frameMaxLength; counts the length word too."""

FRAME_HEAD_BYTES: Final = 8
"""Length, serialize type and header length."""

HEADER_BYTES_MAX: Final = 1024 * 1024
"""Properties (32 767 bytes) escaped as JSON stay below 200 KB; a header needs no more."""

TLS_BYTE: Final = 0x16
"""The first byte of TLS. That of a frame is the highest of a length of at most 16 MiB, 0 or 1."""

_WORDS: Final = Layout(">II")
_LENGTH_BYTES: Final = 4


class SerializeType(IntEnum):
    """The encodings of a header."""

    JSON = 0
    ROCKETMQ = 1


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One whole frame; header and body are not interpreted yet."""

    serialize_type: int
    header: bytes
    body: bytes


class FrameDecoder:
    """Cuts a stream of bytes into frames, whatever the pieces in which it arrives.

    Frames are cut where a piece has them; what it leaves unfinished is put before the piece with which the frame
    ends, and until then collected in a buffer. Each byte is moved twice at most beside that, so the work is linear in
    the bytes fed. Memory is bounded by one frame and two pieces: a length is checked before its frame is waited for.
    """

    __slots__ = ("_data", "_frame_bytes_max", "_need", "_position", "_tail")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._data = b""
        self._position = 0
        self._tail = bytearray()
        self._need = FRAME_HEAD_BYTES

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes, of which a copy is kept unless they are `bytes`.

        Take the frames out before feeding more, or they gather in memory.
        """
        held = self._tail or memoryview(self._data)[self._position :]
        if not held:
            self._data = bytes(data)
        elif len(held) + len(data) >= self._need:
            self._data = b"".join((held, data))
            self._tail = bytearray()
        else:
            if not self._tail:
                self._tail = bytearray(held)
            self._tail += data
            self._data = b""
        self._position = 0

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, None when more bytes are needed.

        Raises:
            FrameError: a length, header length or serialize type is impossible. The stream cannot be
                read on: the connection has to be closed.
        """
        frames: list[Frame] = []
        self._cut(frames, 1)
        return frames[0] if frames else None

    def frames(self) -> list[Frame]:
        """Return all whole frames that were fed.

        Raises:
            FrameError: as `next_frame`; frames before the faulty one are lost with the connection.
        """
        found = self._cut_compiled()
        if found is None:
            found = []
            self._cut(found, -1)
        return found

    def _cut_compiled(self) -> list[Frame] | None:
        """Cut all frames by compiled code; None: one is impossible, or there is no such code."""
        if self._tail:
            return []
        cut = compiled.cut_frames(
            self._data, self._position, self._frame_bytes_max, HEADER_BYTES_MAX, Frame
        )
        if cut is None:
            return None
        frames, self._position, self._need = cut
        if self._position == len(self._data):
            self._data, self._position = b"", 0
        return frames

    def forget(self) -> None:
        """Drop what was fed and not taken out: the stream has ended, and its rest is no frame."""
        self._data, self._position = b"", 0
        self._tail = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes fed that are not part of a frame taken out yet."""
        return len(self._tail) + len(self._data) - self._position

    @property
    def need_bytes(self) -> int:
        """Size of the frame that was begun, once its length is here; before that a few bytes."""
        return self._need

    def _cut(self, frames: list[Frame], count_max: int) -> None:
        """Cut up to `count_max` frames (-1: all); afterwards `_need` is the count of bytes that the next one takes."""
        if self._tail:
            return  # what is collected is no whole frame yet
        data, position, end = self._data, self._position, len(self._data)
        append, unpack = frames.append, _WORDS.unpack_from
        while count_max and end - position >= FRAME_HEAD_BYTES:
            length, header_word = unpack(data, position)
            header_bytes = header_word & 0xFF_FFFF
            if (
                length + _LENGTH_BYTES > self._frame_bytes_max
                or header_bytes > length - _LENGTH_BYTES
                or header_bytes > HEADER_BYTES_MAX
                or header_word >> 24 > SerializeType.ROCKETMQ
            ):
                raise self._impossible(length, header_word)
            body_start = position + FRAME_HEAD_BYTES + header_bytes
            frame_end = position + _LENGTH_BYTES + length
            if frame_end > end:
                self._need = frame_end - position
                break
            append(
                Frame(
                    header_word >> 24,
                    data[position + FRAME_HEAD_BYTES : body_start],
                    data[body_start:frame_end],
                )
            )
            position = frame_end
            count_max -= 1
        else:
            self._need = FRAME_HEAD_BYTES
        self._position = position
        if position == end:
            self._data, self._position = b"", 0

    def _impossible(self, length: int, header_word: int) -> FrameError:
        """Return why no frame begins with these two words."""
        header_bytes = header_word & 0xFF_FFFF
        if length >> 24 == TLS_BYTE:
            return FrameError("it begins as TLS does, which is off here")
        if length + _LENGTH_BYTES > self._frame_bytes_max:
            return FrameError(
                f"frame of {length + _LENGTH_BYTES} bytes, at most {self._frame_bytes_max}"
            )
        if header_bytes > length - _LENGTH_BYTES:
            return FrameError(f"header of {header_bytes} bytes in a frame of length {length}")
        if header_bytes > HEADER_BYTES_MAX:
            return FrameError(f"header of {header_bytes} bytes, at most {HEADER_BYTES_MAX}")
        return FrameError(f"serialize type {header_word >> 24} is neither JSON nor ROCKETMQ")


def encode_frame(header: bytes, body: bytes, serialize_type: int = SerializeType.JSON) -> bytes:
    """Put a header and a body into a frame.

    Raises:
        FrameError: the frame would be larger than every receiver's limit.
    """
    length = _LENGTH_BYTES + len(header) + len(body)
    if length + _LENGTH_BYTES > FRAME_BYTES_MAX or len(header) > HEADER_BYTES_MAX:
        raise FrameError(
            f"header of {len(header)} and body of {len(body)} bytes do not fit a frame of "
            f"{FRAME_BYTES_MAX} bytes"
        )
    return b"".join((_WORDS.pack(length, serialize_type << 24 | len(header)), header, body))
