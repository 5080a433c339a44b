"""A member's record as bytes: as its store holds it (docs/formats/member.md), and as a handshake sends it.

Whether what another member says may be true is not known here (`raft/membership.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from crc32c import crc32c

from dledger.codec.format_error import FormatError
from dledger.codec.wire_types import UNDECODABLE, Name, Number, OptionalName
from dledger.errors import PeerProtocolError
from dledger.raft.ids import Index, NodeId
from dledger.raft.member_record import MemberRecord, Start
from dledger.raft.membership import MembershipFormatError, decode_membership, encode_membership

MEMBER_ATTRIBUTE: Final = "dledger.member"
"""Among the attributes of a handshake: older versions ignore it."""

RESTORATION_LENGTH_MAX: Final = 64

_ATTRIBUTE_LENGTH_MAX: Final = 1024
_HEAD = struct.Struct(
    ">"
    "4s"  # 0  magic
    "H"  # 4  format version
)
_CRC = struct.Struct(">I")
_MAGIC = b"DLMB"
_VERSION = 1

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of starts, as it is sent; what is saved may be one more."""

_Restoration = Annotated[str, msgspec.Meta(max_length=RESTORATION_LENGTH_MAX)] | None
_Pair = tuple[Number, Number]
"""A `Start`: count and process."""

_Starts = dict[Name, _Pair]


class MemberRecordFormatError(FormatError):
    """The bytes of a member's record are malformed."""


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """The record in a store; fields that a later version adds at the end are passed over."""

    group: OptionalName
    node_id: OptionalName
    restoration: _Restoration
    count: Number
    process: Number
    seen: _Starts
    members: list[Name] = []
    missed: _Pair = (0, 0)
    changed: tuple[bool, Number, bytes] = (False, 0, b"")


class _HandshakeRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record in a handshake; fields that a later version adds at the end are passed over."""

    restoration: _Restoration
    count: _Count
    process: Number
    seen: dict[Name, tuple[_Count, Number]]


_SAVED = msgspec.msgpack.Decoder(_Saved)
_HANDSHAKE_DECODER = msgspec.json.Decoder(_HandshakeRecord)


def encode_member_record(record: MemberRecord) -> bytes:
    """Encode a record for its store.

    Layout, big-endian (docs/formats/member.md):
        0  4 bytes  magic    `DLMB`
        4  uint16   version  1
        6  bytes    msgpack  [group, node id, restoration, count, process, {node id: [count, process]},
                              [node id, ...], [missed count, missed process],
                              [has joined, index of the configuration, its entry's body]]
                             (the last stands there only in a store that has joined a group, or knows of a change of
                              the members; the one before only there, and in a store that has missed a start)
        …  uint32   CRC32C of everything before

    Source: bytes in tests/unit/codec/test_member_record.py.
    """
    assert record.start.count >= 0, f"{record.node_id} counts {record.start.count} starts"
    assert all(start.count >= 0 for start in record.seen.values()), f"{record.seen} seen"
    saved = _Saved(
        group=record.group,
        node_id=record.node_id,
        restoration=record.restoration,
        count=record.start.count,
        process=record.start.process,
        seen=_pairs(record.seen),
        members=sorted(record.members),
        missed=(record.missed.count, record.missed.process),
        changed=_changed(record),
    )
    fields = msgspec.structs.astuple(saved)
    if not record.has_joined and record.configuration is None:
        fields = fields[:-1] if record.missed.count else fields[:-2]
    data = _HEAD.pack(_MAGIC, _VERSION) + msgspec.msgpack.encode(fields)
    return data + _CRC.pack(crc32c(data))


def decode_member_record(data: bytes) -> MemberRecord:
    """Decode a record; nothing may stand after it.

    Raises:
        MemberRecordFormatError: names the place.
    """
    crc_at = len(data) - _CRC.size
    if crc_at < _HEAD.size:
        raise MemberRecordFormatError(0, f"{len(data)} bytes are no member's record")
    magic, version = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise MemberRecordFormatError(0, f"magic {magic!r} is not {_MAGIC!r}")
    (found,) = _CRC.unpack_from(data, crc_at)
    own = crc32c(data[:crc_at])
    if own != found:
        raise MemberRecordFormatError(crc_at, f"crc {own:#010x}, the file says {found:#010x}")
    if version != _VERSION:
        raise MemberRecordFormatError(4, f"version {version} is unknown; this program knows 1")
    try:
        saved = _SAVED.decode(data[_HEAD.size : crc_at])
    except UNDECODABLE as error:
        raise MemberRecordFormatError(_HEAD.size, str(error)) from error
    has_joined, index, body = saved.changed
    try:
        configuration = decode_membership(body) if body else None
    except MembershipFormatError as error:
        raise MemberRecordFormatError(_HEAD.size, f"the configuration: {error}") from error
    return MemberRecord(
        group=saved.group,
        node_id=NodeId(saved.node_id),
        restoration=saved.restoration,
        start=Start(saved.count, saved.process),
        seen=_starts(saved.seen),
        members=frozenset(map(NodeId, saved.members)),
        missed=Start(*saved.missed),
        has_joined=has_joined,
        configuration=configuration,
        configuration_index=Index(index if configuration is not None else 0),
    )


def encode_handshake_record(record: MemberRecord, target: str) -> str:
    """Encode the record for `target`: what is remembered of that member first, then of others, up to the size bound."""
    order = sorted(record.seen, key=lambda node_id: (node_id != target, node_id))
    seen: dict[NodeId, Start] = {}
    text = _encoded(record, seen)
    for node_id in order:
        seen[node_id] = record.seen[node_id]
        longer = _encoded(record, seen)
        if len(longer) > _ATTRIBUTE_LENGTH_MAX:
            break
        text = longer
    return text


def decode_handshake_record(node_id: NodeId, text: str) -> MemberRecord:
    """Decode the record that a member has sent of itself.

    Raises:
        PeerProtocolError: it is something else.
    """
    try:
        record = _HANDSHAKE_DECODER.decode(text)
    except UNDECODABLE as error:
        raise PeerProtocolError(f"{MEMBER_ATTRIBUTE}: {error}") from error
    start = Start(record.count, record.process)
    return MemberRecord("", node_id, record.restoration, start, _starts(record.seen))


def _encoded(record: MemberRecord, seen: Mapping[NodeId, Start]) -> str:
    start = record.start
    sent = _HandshakeRecord(record.restoration, start.count, start.process, _pairs(seen))
    return msgspec.json.encode(sent).decode()


def _changed(record: MemberRecord) -> tuple[bool, int, bytes]:
    configuration = record.configuration
    body = b"" if configuration is None else encode_membership(configuration)
    return record.has_joined, int(record.configuration_index), body


def _pairs(seen: Mapping[NodeId, Start]) -> dict[str, _Pair]:
    return {str(node_id): (start.count, start.process) for node_id, start in seen.items()}


def _starts(pairs: Mapping[str, _Pair]) -> dict[NodeId, Start]:
    return {NodeId(name): Start(*pair) for name, pair in pairs.items()}
