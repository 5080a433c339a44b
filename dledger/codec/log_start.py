"""Where a log begins that has lost its beginning, as bytes (docs/formats/log_start.md).

What is done with it, and when it is written, is not known here (`storage/log_start.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.codec.format_error import FormatError
from dledger.raft.ids import Index, Position, Term

VERSION: Final = 1
_LAYOUT = struct.Struct(
    ">"
    "4s"  # 0   magic
    "H"  # 4   format version
    "H"  # 6   1: what stands in the log's folders is void
    "q"  # 8   index
    "q"  # 16  term
    "q"  # 24  position
    "I"  # 32  chain CRC
)
_CRC = struct.Struct(">I")
_MAGIC = b"DLLS"
LOG_START_BYTES: Final = _LAYOUT.size + _CRC.size


class LogStartFormatError(FormatError):
    """The bytes of a log's start are malformed."""


@dataclass(frozen=True, slots=True)
class LogStart:
    """The entry before the first one that is kept.

    Attributes:
        index, term: of that entry.
        position: where it ends, and the first kept one begins.
        chain_crc: of that entry: it identifies everything before the first kept one.
        is_anew: segments that are there belong to an earlier log, and are to be removed, whatever their names.
    """

    index: Index
    term: Term
    position: Position
    chain_crc: int
    is_anew: bool = False


def encode_log_start(start: LogStart) -> bytes:
    """Encode a log's start.

    Layout, big-endian, 40 bytes (docs/formats/log_start.md):
         0  4 bytes  magic      `DLLS`
         4  uint16   version    1
         6  uint16   anew       1: the segments that are there are void; else 0
         8  int64    index      of the entry before the first kept one
        16  int64    term       of that entry
        24  int64    position   where that entry ends
        32  uint32   chain CRC  of that entry
        36  uint32   CRC32C of everything before

    Source: bytes in tests/unit/codec/test_log_start.py. DLedger keeps no such file: it reads the first header of
    the first file that is left (docs/divergence.md).
    """
    assert start.index > 0, f"a log without its beginning starts after entry {start.index}"
    data = _LAYOUT.pack(
        _MAGIC,
        VERSION,
        start.is_anew,
        start.index,
        start.term,
        start.position,
        start.chain_crc,
    )
    return data + _CRC.pack(crc32c(data))


def decode_log_start(data: bytes) -> LogStart:
    """Decode a log's start; nothing may stand after it.

    Raises:
        LogStartFormatError: names the place.
    """
    if len(data) != LOG_START_BYTES:
        raise LogStartFormatError(0, f"{len(data)} bytes, a log's start has {LOG_START_BYTES}")
    magic, version, anew, index, term, position, chain_crc = _LAYOUT.unpack_from(data)
    if magic != _MAGIC:
        raise LogStartFormatError(0, f"magic {magic!r} is not {_MAGIC!r}")
    (found,) = _CRC.unpack_from(data, _LAYOUT.size)
    own = crc32c(data[: _LAYOUT.size])
    if own != found:
        raise LogStartFormatError(_LAYOUT.size, f"crc {own:#010x}, the file says {found:#010x}")
    if version != VERSION:
        raise LogStartFormatError(4, f"version {version} is unknown; this program knows {VERSION}")
    if anew > 1:
        raise LogStartFormatError(6, f"{anew} is neither 0 nor 1")
    if index < 1 or term < 0 or position < 0:
        raise LogStartFormatError(8, f"entry {index} of term {term} ends at {position}")
    return LogStart(Index(index), Term(term), Position(position), chain_crc, bool(anew))
