"""Routes: which brokers serve a topic (105), and the tables of all brokers (106, 901) and topics (206 ...).

Keys of `brokerAddrs` are numbers. Old clients get them without quotes, as fastjson writes them; a client
of release 4.9.4 or later, or one that asks for standard JSON, gets legal JSON. There is never a blank
between tokens: Go takes a blank after `:` for a part of the address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import read_object, write_json
from dledger_mq.remoting.topic_config import Int32

LEADER_ID: Final = 0
"""The broker id under which clients look for the one that takes writes."""

STANDARD_JSON_VERSION: Final = 401
"""Ordinal of release 4.9.4."""


ROUTE_QUEUES_MAX: Final = 2**20
"""Queues of a topic at all its brokers together: whoever reads a route makes each of them in memory."""


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """The queues that a topic has at one broker name."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int
    write_queue_nums: int


class BrokerData(msgspec.Struct, frozen=True):
    """The addresses of one broker name by broker id; 0 is the leader."""

    broker_addrs: Mapping[int, str]
    broker_name: str
    cluster: str


class TopicRoute(msgspec.Struct, frozen=True):
    """The brokers and queues of a topic. Every queue data's broker name has a broker data."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_topic_conf: str | None = None


class ClusterInfo(msgspec.Struct, frozen=True):
    """All brokers by name, and the broker names of each cluster."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]


def wants_standard_json(version: int, ext: Mapping[str, str]) -> bool:
    """Return whether number keys are to be quoted for the asker."""
    return (
        version >= STANDARD_JSON_VERSION or ext.get("acceptStandardJsonOnly", "").lower() == "true"
    )


def _broker_members(broker: BrokerData) -> dict[str, object]:
    return {
        "brokerAddrs": dict(sorted(broker.broker_addrs.items())),
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
    }


def encode_route(route: TopicRoute, *, quote_numbers: bool) -> bytes:
    """Write the body of the answer to GET_ROUTEINFO_BY_TOPIC."""
    members: dict[str, object] = {
        "brokerDatas": [_broker_members(broker) for broker in route.brokers],
        "filterServerTable": {},
    }
    if route.order_topic_conf is not None:
        members["orderTopicConf"] = route.order_topic_conf
    members["queueDatas"] = route.queues
    return write_json(members, quote_numbers=quote_numbers)


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """Write the body of the answer to GET_BROKER_CLUSTER_INFO; number keys are never quoted."""
    return write_json(
        {
            "brokerAddrTable": {
                name: _broker_members(broker) for name, broker in info.brokers.items()
            },
            "clusterAddrTable": info.clusters,
        }
    )


def encode_member_group(broker: BrokerData) -> bytes:
    """Write the body of the answer to GET_BROKER_MEMBER_GROUP."""
    return write_json({"brokerMemberGroup": _broker_members(broker)})


def encode_topic_list(topics: Iterable[str], broker_addr: str | None = None) -> bytes:
    """Write a topic list; `broker_addr` only where the request asks for system topics."""
    members: dict[str, object] = {} if broker_addr is None else {"brokerAddr": broker_addr}
    members["topicList"] = list(topics)
    return write_json(members)


class _BrokerIn(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)], str] | None = None
    cluster: str | None = None

    def value(self) -> BrokerData:
        return BrokerData(self.broker_addrs or {}, self.broker_name, self.cluster or "")


class _QueueIn(msgspec.Struct, rename="camel"):
    broker_name: str
    perm: Int32 = 6
    read_queue_nums: Int32 = 0
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 0


class _RouteIn(msgspec.Struct, rename="camel"):
    broker_datas: list[_BrokerIn] | None = None
    queue_datas: list[_QueueIn] | None = None
    order_topic_conf: str | None = None


class _ClusterIn(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _BrokerIn] | None = None
    cluster_addr_table: dict[str, list[str]] | None = None


class _TopicListIn(msgspec.Struct, rename="camel"):
    topic_list: list[str] | None = None


class _MemberGroupIn(msgspec.Struct, rename="camel"):
    broker_member_group: _BrokerIn


_T = TypeVar("_T", bound=msgspec.Struct)


def _converted(body: bytes, kind: type[_T], name: str) -> _T:
    members = read_object(body)
    try:
        return msgspec.convert(members, kind, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BodyError(f"not {name}: {error}") from error


def decode_route(body: bytes) -> TopicRoute:
    """Read a route, with quoted or bare number keys.

    Raises:
        BodyError: it is not a route, or has more than ROUTE_QUEUES_MAX queues.
    """
    data = _converted(body, _RouteIn, "a route")
    counts = (max(0, one.read_queue_nums, one.write_queue_nums) for one in data.queue_datas or ())
    if (count := sum(counts)) > ROUTE_QUEUES_MAX:
        raise BodyError(f"a route of {count} queues, at most {ROUTE_QUEUES_MAX}")
    return TopicRoute(
        queues=tuple(
            QueueData(
                item.broker_name,
                item.perm,
                item.read_queue_nums,
                item.topic_sys_flag,
                item.write_queue_nums,
            )
            for item in data.queue_datas or ()
        ),
        brokers=tuple(item.value() for item in data.broker_datas or ()),
        order_topic_conf=data.order_topic_conf,
    )


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Read the table of all brokers.

    Raises:
        BodyError: it is not one.
    """
    data = _converted(body, _ClusterIn, "a cluster table")
    return ClusterInfo(
        brokers={name: item.value() for name, item in (data.broker_addr_table or {}).items()},
        clusters={name: tuple(names) for name, names in (data.cluster_addr_table or {}).items()},
    )


def decode_topic_list(body: bytes) -> list[str]:
    """Read a topic list.

    Raises:
        BodyError: it is not one.
    """
    return _converted(body, _TopicListIn, "a topic list").topic_list or []


def decode_member_group(body: bytes) -> BrokerData:
    """Read the answer to GET_BROKER_MEMBER_GROUP.

    Raises:
        BodyError: it is not one.
    """
    return _converted(body, _MemberGroupIn, "a broker member group").broker_member_group.value()
