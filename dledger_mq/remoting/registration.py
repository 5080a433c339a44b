"""What brokers send to name servers: registration (103), unregistration (104), data version (322).

The body of a registration comes in three forms, all read here: plain JSON, the bare topic table of very
old brokers, and a zlib stream of length-prefixed pieces. Layout of the last, big-endian, once inflated:
int32 length and DataVersion JSON; int32 topic count; per topic int32 length and the text `name readQueueNums
writeQueueNums perm topicFilterType`; int32 length and filter server JSON; from 5.x brokers a section of
queue mappings, which is ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from struct import Struct as Layout
from typing import Final

import msgspec

from dledger_mq.remoting import fields
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.topic_config import WireDataVersion, WireTopicConfig

TOPICS_MAX: Final = 1_000_000
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A registration inflates to about 60 bytes per topic."""

_INFLATION_MAX: Final = 100
_INFLATION_FREE_BYTES: Final = 64 * 1024
"""And to some ten times its size, names being alike: what is far beyond is made to keep its reader busy."""

OLDEST_FULL_BODY_VERSION: Final = 37
"""Older brokers (before 3.0.11) send the bare topic table."""

TERM_FIELD: Final = "term"
"""Ext field of our own brokers: the Raft term in which the sender leads or follows."""

_INT32: Final = Layout(">i")
_TOPIC_PARTS_MIN: Final = 5


class BrokerIdentity(msgspec.Struct, frozen=True):
    """The identity of a broker that registers.

    Attributes:
        broker_id: 0 for the leader.
        broker_addr: `ip:port` that clients dial.
        ha_server_addr: passed on to replicas of plain brokers.
        term: of the group's Raft log; None from brokers that have none.
        timeout_ms: after which the broker counts as gone; None for the name server's own.
    """

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str = ""
    term: int | None = None
    timeout_ms: int | None = None


class Registration(msgspec.Struct, frozen=True):
    """The registration of a broker: its identity and the topics that it serves.

    Attributes:
        topics: None when the body had no topic table at all.
    """

    data_version: WireDataVersion
    topics: Mapping[str, WireTopicConfig] | None
    filter_servers: tuple[str, ...] = ()


class _Wrapper(msgspec.Struct, rename="camel"):
    data_version: WireDataVersion | None = None
    topic_config_table: dict[str, WireTopicConfig] | None = None


class _Body(msgspec.Struct, rename="camel"):
    filter_server_list: list[str] | None = None
    topic_config_serialize_wrapper: _Wrapper | None = None


_decode_body: Final = msgspec.json.Decoder(_Body, strict=False).decode
_decode_wrapper: Final = msgspec.json.Decoder(_Wrapper, strict=False).decode
_decode_version: Final = msgspec.json.Decoder(WireDataVersion, strict=False).decode
_JSON_ERRORS: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def identity_of(ext: Mapping[str, str]) -> BrokerIdentity:
    """Read who registers, unregisters or asks, from the ext fields of 103, 104, 322 and 904.

    Raises:
        FieldError: a field is missing or impossible.
    """
    return BrokerIdentity(
        cluster_name=fields.text(ext, "clusterName"),
        broker_name=fields.text(ext, "brokerName"),
        broker_addr=fields.text(ext, "brokerAddr"),
        broker_id=fields.int64(ext, "brokerId", 0),
        ha_server_addr=ext.get("haServerAddr", ""),
        term=fields.int64(ext, TERM_FIELD, None),
        timeout_ms=fields.int64(ext, "heartbeatTimeoutMillis", None),
    )


def identity_ext(identity: BrokerIdentity) -> dict[str, str]:
    """Return the ext fields that `identity_of` reads."""
    ext = {
        "clusterName": identity.cluster_name,
        "brokerName": identity.broker_name,
        "brokerAddr": identity.broker_addr,
        "brokerId": str(identity.broker_id),
        "haServerAddr": identity.ha_server_addr,
    }
    if identity.term is not None:
        ext[TERM_FIELD] = str(identity.term)
    if identity.timeout_ms is not None:
        ext["heartbeatTimeoutMillis"] = str(identity.timeout_ms)
    return ext


def decode_registration(body: bytes, *, ext: Mapping[str, str], version: int) -> Registration:
    """Read the body of a registration in whichever form it came.

    Args:
        body: of the request.
        ext: of the request; `compressed` and `bodyCrc32` count.
        version: of the sender.

    Raises:
        BodyError: wrong checksum, or not a registration.
        FieldError: `compressed` or `bodyCrc32` cannot be read.
    """
    crc = fields.int32(ext, "bodyCrc32", 0)
    if crc and zlib.crc32(body) & 0x7FFF_FFFF != crc:
        raise BodyError("crc32 not match")
    if fields.boolean(ext, "compressed", default=False):
        return _decode_compressed(body)
    try:
        if version < OLDEST_FULL_BODY_VERSION and b'"topicConfigSerializeWrapper"' not in body:
            return _registration(_decode_wrapper(body), ())
        data = _decode_body(body)
    except _JSON_ERRORS as error:
        raise BodyError(f"not a registration: {error}") from error
    return _registration(
        data.topic_config_serialize_wrapper or _Wrapper(), tuple(data.filter_server_list or ())
    )


def _registration(wrapper: _Wrapper, filter_servers: tuple[str, ...]) -> Registration:
    table = wrapper.topic_config_table
    if table is not None:
        if len(table) > TOPICS_MAX:
            raise BodyError(f"registration of {len(table)} topics, at most {TOPICS_MAX}")
        table = {name: _named(config, name) for name, config in table.items()}
    return Registration(wrapper.data_version or WireDataVersion(), table, filter_servers)


def _named(config: WireTopicConfig, name: str) -> WireTopicConfig:
    """Name the topic as the key of the table does, whatever the entry says."""
    return config if config.topic_name == name else msgspec.structs.replace(config, topic_name=name)


def encode_registration(data_version: WireDataVersion, topics: Iterable[WireTopicConfig]) -> bytes:
    """Write the plain body of a registration."""
    return msgspec.json.encode(
        _Body([], _Wrapper(data_version, {config.topic_name: config for config in topics}))
    )


def decode_data_version(body: bytes) -> WireDataVersion:
    """Read a DataVersion.

    Raises:
        BodyError: it is not one.
    """
    try:
        return _decode_version(body)
    except _JSON_ERRORS as error:
        raise BodyError(f"not a data version: {error}") from error


class _Pieces:
    """Takes int32 numbers and length-prefixed pieces off inflated bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if self._at + _INT32.size > len(self._data):
            raise BodyError(f"compressed registration ends at byte {self._at}")
        value: int = _INT32.unpack_from(self._data, self._at)[0]
        self._at += _INT32.size
        return value

    def piece(self) -> bytes:
        length = self.number()
        if not 0 <= length <= len(self._data) - self._at:
            raise BodyError(f"compressed registration, byte {self._at}: a piece of {length} bytes")
        self._at += length
        return self._data[self._at - length : self._at]


def _decode_compressed(body: bytes) -> Registration:
    """Decode the zlib form, inflating only so far: a small body could unpack to anything."""
    inflater = zlib.decompressobj()
    bytes_max = min(INFLATED_BYTES_MAX, _INFLATION_FREE_BYTES + _INFLATION_MAX * len(body))
    try:
        data = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise BodyError(f"compressed registration cannot be inflated: {error}") from error
    if not inflater.eof:
        raise BodyError(
            f"compressed registration is cut off or, inflated, longer than {bytes_max} bytes"
        )
    pieces = _Pieces(data)
    version = decode_data_version(pieces.piece())
    count = pieces.number()
    if not 0 <= count <= TOPICS_MAX:
        raise BodyError(f"registration of {count} topics, at most {TOPICS_MAX}")
    topics: dict[str, WireTopicConfig] = {}
    for _ in range(count):
        topic = _topic_line(pieces.piece())
        if topics.setdefault(topic.topic_name, topic) is not topic:
            raise BodyError(
                f"compressed registration: topic {topic.topic_name[:64]!r} stands twice"
            )
    try:
        filter_servers: tuple[str, ...] = msgspec.json.decode(pieces.piece(), type=tuple[str, ...])
    except _JSON_ERRORS as error:
        raise BodyError(f"not a list of filter servers: {error}") from error
    return Registration(version, topics, filter_servers)


def _topic_line(line: bytes) -> WireTopicConfig:
    """Read `name readQueueNums writeQueueNums perm topicFilterType [attributes]`."""
    parts = line.decode(errors="replace").split(" ")
    numbers = dict(zip(("read", "write", "perm"), parts[1:4], strict=False))
    if len(parts) < _TOPIC_PARTS_MIN or not parts[0]:
        raise BodyError(f"{line[:60]!r} is not a topic of a compressed registration")
    try:
        return WireTopicConfig(
            topic_name=parts[0],
            read_queue_nums=fields.int32(numbers, "read"),
            write_queue_nums=fields.int32(numbers, "write"),
            perm=fields.int32(numbers, "perm"),
            topic_filter_type=parts[4],
        )
    except ValueError as error:
        raise BodyError(f"topic {parts[0]!r} of a compressed registration: {error}") from error


def encode_compressed_registration(
    data_version: WireDataVersion, topics: Iterable[WireTopicConfig]
) -> bytes:
    """Write the compressed body of a registration, as brokers of release 4.x do."""
    lines = [
        f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} "
        f"{config.perm} {config.topic_filter_type}".encode()
        for config in topics
    ]
    version = msgspec.json.encode(data_version)
    pieces = [_INT32.pack(len(version)), version, _INT32.pack(len(lines))]
    for line in [*lines, b"[]"]:
        pieces += (_INT32.pack(len(line)), line)
    return zlib.compress(b"".join(pieces), 9)
