"""Term, vote and the notes of changed members as bytes (docs/formats/hard_state.md).

Which state may follow which, and what a lost one means, is not known here (`storage/hard_state.py`).
"""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c

from dledger.codec.format_error import FormatError
from dledger.codec.wire_types import UNDECODABLE, Number
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.membership import MembershipFormatError, decode_membership, encode_membership

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
_NOTED = 2
"""Added to the version where notes follow the vote."""
_NO_VOTE = -1
VOTE_BYTES_MAX = 1024
"""A node id is a short name; a longer one is a sign of damage."""


class HardStateFormatError(FormatError):
    """The bytes of a hard state are malformed."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """One note; fields that a later version adds at the end are passed over."""

    index: Number
    term: Number
    is_settled: bool
    body: bytes


_NOTES = msgspec.msgpack.Decoder(list[_Note])


def encode_hard_state(state: HardState) -> bytes:
    """Encode term, vote and notes.

    Layout, big-endian, 20 bytes, the vote and the notes (docs/formats/hard_state.md):
         0  4 bytes  magic    `DLHS`
         4  uint16   version  1; 2 of a member that may not vote (docs/adr/0061); 3 and 4 the same with notes
         6  int64    term
        14  int16    bytes of the vote; -1 when there is none
        16  bytes    vote     UTF-8
         …  bytes    notes    of versions 3 and 4: msgpack [[index, term, settled, body of the entry], ...]
         …  uint32   CRC32C of everything before

    Source: bytes in tests/unit/codec/test_hard_state.py. DLedger keeps both as a text file without
    a checksum (docs/divergence.md).
    """
    assert state.term >= 0, f"a hard state of term {state.term}"
    vote = b"" if state.vote is None else state.vote.encode()
    assert len(vote) <= VOTE_BYTES_MAX, f"a node id of {len(vote)} bytes"
    vote_bytes = _NO_VOTE if state.vote is None else len(vote)
    version = _VERSION if state.is_voter else _VERSION_NON_VOTER
    data = _HEAD.pack(_MAGIC, version + (_NOTED if state.notes else 0), state.term, vote_bytes)
    data += vote + (_encode_notes(state.notes) if state.notes else b"")
    return data + _CRC.pack(crc32c(data))


def decode_hard_state(data: bytes) -> HardState:
    """Decode term, vote and notes; nothing may stand after them.

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
    if not _VERSION <= version <= _VERSION_NON_VOTER + _NOTED:
        raise HardStateFormatError(
            4,
            f"version {version} is unknown; this program knows 1 to {_VERSION_NON_VOTER + _NOTED}",
        )
    has_notes = version > _VERSION_NON_VOTER
    is_voter = version - (_NOTED if has_notes else 0) == _VERSION
    if term < 0:
        raise HardStateFormatError(6, f"term {term} is negative")
    vote_end = _HEAD.size + max(vote_bytes, 0) if has_notes else crc_at
    vote = data[_HEAD.size : min(vote_end, crc_at)]
    notes = _decode_notes(data[vote_end:crc_at], vote_end) if has_notes else ()
    if vote_bytes == _NO_VOTE and not vote:
        return HardState(Term(term), None, is_voter, notes)
    if vote_bytes != len(vote):
        raise HardStateFormatError(14, f"a vote of {vote_bytes} bytes, {len(vote)} are there")
    try:
        return HardState(Term(term), NodeId(vote.decode()), is_voter, notes)
    except UnicodeDecodeError as error:
        raise HardStateFormatError(16 + error.start, "the vote is not UTF-8") from error


def _encode_notes(notes: tuple[ConfigurationNote, ...]) -> bytes:
    return msgspec.msgpack.encode(
        [
            _Note(
                note.entry_id.index,
                note.entry_id.term,
                note.is_settled,
                encode_membership(note.configuration),
            )
            for note in notes
        ]
    )


def _decode_notes(data: bytes, byte_offset: int) -> tuple[ConfigurationNote, ...]:
    """Decode the notes, which stand at `byte_offset`.

    Raises:
        HardStateFormatError: they are something else.
    """
    try:
        return tuple(
            ConfigurationNote(
                EntryId(Term(note.term), Index(note.index)),
                decode_membership(note.body),
                note.is_settled,
            )
            for note in _NOTES.decode(data)
        )
    except (*UNDECODABLE, MembershipFormatError) as error:
        raise HardStateFormatError(byte_offset, f"the notes: {error}") from error
