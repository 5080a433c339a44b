"""Term and vote as bytes (docs/formats/hard_state.md).

Which state may follow which, and what a lost one means, is not known here (`storage/hard_state.py`).
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from dledger.codec.format_error import FormatError
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NodeId, Term

_HEAD = struct.Struct(
    ">"
    "4s"  # 0   magic
    "H"  # 4   format version
    "q"  # 6   term
    "h"  # 14  bytes of the vote; -1: no vote
)
_CRC = struct.Struct(">I")
_MAGIC = b"DLHS"
_VERSION = 1
_VERSION_NON_VOTER = 2
_NO_VOTE = -1
VOTE_BYTES_MAX = 1024
"""A node id is a short name; a longer one is a sign of damage."""


class HardStateFormatError(FormatError):
    """The bytes of a hard state are malformed."""


def encode_hard_state(state: HardState) -> bytes:
    """Encode term and vote.

    Layout, big-endian, 20 bytes and the vote (docs/formats/hard_state.md):
         0  4 bytes  magic    `DLHS`
         4  uint16   version  1; 2 of a member that may not vote (docs/adr/0061)
         6  int64    term
        14  int16    bytes of the vote; -1 when there is none
        16  bytes    vote     UTF-8
         …  uint32   CRC32C of everything before

    Source: bytes in tests/unit/codec/test_hard_state.py. DLedger keeps both as a text file without
    a checksum (docs/divergence.md).
    """
    assert state.term >= 0, f"a hard state of term {state.term}"
    vote = b"" if state.vote is None else state.vote.encode()
    assert len(vote) <= VOTE_BYTES_MAX, f"a node id of {len(vote)} bytes"
    vote_bytes = _NO_VOTE if state.vote is None else len(vote)
    version = _VERSION if state.is_voter else _VERSION_NON_VOTER
    data = _HEAD.pack(_MAGIC, version, state.term, vote_bytes) + vote
    return data + _CRC.pack(crc32c(data))


def decode_hard_state(data: bytes) -> HardState:
    """Decode term and vote; nothing may stand after them.

    Raises:
        HardStateFormatError: names the place.
    """
    if len(data) < _HEAD.size + _CRC.size:
        raise HardStateFormatError(0, f"{len(data)} bytes, a hard state has at least 20")
    magic, version, term, vote_bytes = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise HardStateFormatError(0, f"magic {magic!r} is not {_MAGIC!r}")
    crc_at = len(data) - _CRC.size
    (found,) = _CRC.unpack_from(data, crc_at)
    own = crc32c(data[:crc_at])
    if own != found:
        raise HardStateFormatError(crc_at, f"crc {own:#010x}, the file says {found:#010x}")
    if version not in {_VERSION, _VERSION_NON_VOTER}:
        raise HardStateFormatError(4, f"version {version} is unknown; this program knows 1 and 2")
    is_voter = version == _VERSION
    if term < 0:
        raise HardStateFormatError(6, f"term {term} is negative")
    vote = data[_HEAD.size : crc_at]
    if vote_bytes == _NO_VOTE and not vote:
        return HardState(Term(term), None, is_voter)
    if vote_bytes != len(vote):
        raise HardStateFormatError(14, f"a vote of {vote_bytes} bytes, {len(vote)} are there")
    try:
        return HardState(Term(term), NodeId(vote.decode()), is_voter)
    except UnicodeDecodeError as error:
        raise HardStateFormatError(16 + error.start, "the vote is not UTF-8") from error
