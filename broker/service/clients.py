"""Who is connected: the live producers and consumers of this node, and of the whole group of nodes.

Every member of a consumer group must see the same list of members, or queues are consumed twice or by
nobody (remoting.md 3.6). A client may be connected to any node, so each node keeps its own clients
(`LocalClients`) and tells the leader of them; the leader joins what all nodes told it (`ClientUnion`)
and gives the union back. Pure: connections are numbers here, the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from broker.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
)

CLIENT_EXPIRY_MS = 120_000
"""A client without a heartbeat for this long is gone (semantics Q2)."""

NODE_EXPIRY_MS = 15_000
"""Clients of a node that told nothing for this long are taken out of the union. Long enough that the
clients of a dead node can come back through another one before their queues are given away twice;
short enough that the queues of a client that died with its node are not idle for long."""


class ConsumerClient(msgspec.Struct, frozen=True):
    """One member of a consumer group, as its last heartbeat said.

    Attributes:
        address: host:port of its connection.
    """

    group: str
    client_id: str
    language: str = "JAVA"
    version: int = 0
    address: str = ""
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()

    def subscription(self, topic: str) -> Subscription | None:
        """What it wants of a topic."""
        return next((item for item in self.subscriptions if item.topic == topic), None)


class ProducerClient(msgspec.Struct, frozen=True):
    """One member of a producer group."""

    group: str
    client_id: str
    language: str = "JAVA"
    version: int = 0
    address: str = ""


def consumers_of(
    heartbeat: Heartbeat, *, language: str, version: int, address: str
) -> list[ConsumerClient]:
    """The consumers that a heartbeat tells of; language and version stand in its header."""
    return [
        ConsumerClient(
            entry.group,
            heartbeat.client_id,
            language,
            version,
            address,
            entry.consume_type,
            entry.message_model,
            entry.consume_from_where,
            entry.subscriptions,
        )
        for entry in heartbeat.consumers
    ]


def producers_of(
    heartbeat: Heartbeat, *, language: str, version: int, address: str
) -> list[ProducerClient]:
    """The producers that a heartbeat tells of."""
    return [
        ProducerClient(group, heartbeat.client_id, language, version, address)
        for group in heartbeat.producer_groups
    ]


@dataclass(slots=True)
class _Live:
    """A registration, the connection that it came on, and when it was last heard of."""

    client: ConsumerClient | ProducerClient
    connection: int
    seen_ms: int


_Key = tuple[str, str]  # group, client id


def newest_subscription(members: Iterable[ConsumerClient], topic: str) -> Subscription | None:
    """What a group wants of a topic: the newest that a member told (Q4, G8)."""
    told = [item for item in (client.subscription(topic) for client in members) if item]
    return max(told, key=lambda item: item.version, default=None)


class LocalClients:
    """The clients that are connected to this node.

    `changes` counts what others must hear of: it grows when a consumer comes, goes or changes its
    subscriptions, not with every heartbeat.
    """

    def __init__(self) -> None:
        self._consumers: dict[_Key, _Live] = {}
        self._producers: dict[_Key, _Live] = {}
        self._keys_of: dict[int, set[_Key]] = {}
        self.changes = 0

    def heartbeat(
        self,
        connection: int,
        consumers: Iterable[ConsumerClient],
        producers: Iterable[ProducerClient],
        now_ms: int,
    ) -> list[str]:
        """Take in a heartbeat; a topic that is no longer named is no longer subscribed (Q4).

        Returns:
            The consumer groups whose members or subscriptions changed.
        """
        changed: list[str] = []
        for producer in producers:
            self._put(self._producers, producer, connection, now_ms)
        for consumer in consumers:
            known = self._consumers.get((consumer.group, consumer.client_id))
            if known is None or known.connection != connection or known.client != consumer:
                changed.append(consumer.group)
            self._put(self._consumers, consumer, connection, now_ms)
        self.changes += bool(changed)
        return changed

    def _put(
        self,
        table: dict[_Key, _Live],
        client: ConsumerClient | ProducerClient,
        connection: int,
        now_ms: int,
    ) -> None:
        key = (client.group, client.client_id)
        table[key] = _Live(client, connection, now_ms)
        self._keys_of.setdefault(connection, set()).add(key)

    def unregister(self, client_id: str, *, consumer_group: str, producer_group: str) -> list[str]:
        """Take a client out of its groups; an empty name means none (C++ sends one)."""
        if producer_group:
            self._producers.pop((producer_group, client_id), None)
        if not consumer_group or self._consumers.pop((consumer_group, client_id), None) is None:
            return []
        self.changes += 1
        return [consumer_group]

    def connection_closed(self, connection: int) -> list[str]:
        """Take out everything that came on a connection; gives the consumer groups that changed."""
        gone: list[str] = []
        for key in sorted(self._keys_of.pop(connection, ())):
            consumer = self._consumers.get(key)
            if consumer is not None and consumer.connection == connection:
                del self._consumers[key]
                gone.append(key[0])
            producer = self._producers.get(key)
            if producer is not None and producer.connection == connection:
                del self._producers[key]
        self.changes += bool(gone)
        return gone

    def expire(self, now_ms: int) -> list[str]:
        """Take out clients without a heartbeat for 120 s; gives the consumer groups that changed."""
        limit = now_ms - CLIENT_EXPIRY_MS
        for key in [key for key, live in self._producers.items() if live.seen_ms < limit]:
            del self._producers[key]
        gone = [key for key, live in self._consumers.items() if live.seen_ms < limit]
        for key in gone:
            del self._consumers[key]
        self.changes += bool(gone)
        return [group for group, _ in gone]

    def consumers(self) -> list[ConsumerClient]:
        """All live consumers, for the leader's union."""
        return [
            live.client
            for live in self._consumers.values()
            if isinstance(live.client, ConsumerClient)
        ]

    def producers(self, group: str) -> list[ProducerClient]:
        """The live producers of a group."""
        return [
            live.client
            for live in self._producers.values()
            if isinstance(live.client, ProducerClient) and live.client.group == group
        ]

    def connections_of(self, group: str) -> list[int]:
        """Connections with a consumer of the group, to tell them of a change."""
        return sorted({live.connection for key, live in self._consumers.items() if key[0] == group})


class ClientUnion:
    """The consumers of all nodes, by group.

    `version` changes with the content, so that two nodes can compare what they have.
    """

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[ConsumerClient, ...]] = {}
        self._seen_ms: dict[str, int] = {}
        self._groups: dict[str, dict[str, ConsumerClient]] = {}
        self.version = 0

    def put(self, node: str, clients: Iterable[ConsumerClient], now_ms: int) -> list[str]:
        """Replace what a node told; gives the groups that changed."""
        fresh = tuple(clients)
        self._seen_ms[node] = now_ms
        if self._by_node.get(node, ()) == fresh:
            self._by_node[node] = fresh
            return []
        self._by_node[node] = fresh
        return self._rebuild()

    def touch(self, node: str, now_ms: int) -> None:
        """The node is alive and its clients are as they were."""
        self._seen_ms[node] = now_ms

    def expire(self, now_ms: int) -> list[str]:
        """Take out nodes that told nothing for `NODE_EXPIRY_MS`; gives the groups that changed."""
        silent = [node for node, seen in self._seen_ms.items() if seen < now_ms - NODE_EXPIRY_MS]
        for node in silent:
            del self._seen_ms[node]
            del self._by_node[node]
        return self._rebuild() if silent else []

    def replace(self, by_node: Mapping[str, Iterable[ConsumerClient]], now_ms: int) -> list[str]:
        """Take over the leader's union; gives the groups that changed.

        Every node counts as heard of now: should this node become the leader, it starts from here
        and the nodes that are gone expire.
        """
        self._by_node = {node: tuple(clients) for node, clients in by_node.items()}
        self._seen_ms = dict.fromkeys(self._by_node, now_ms)
        return self._rebuild()

    def start_reign(self, now_ms: int) -> None:
        """This node leads from now on: the nodes have their time to tell it of their clients."""
        self._seen_ms = dict.fromkeys(self._by_node, now_ms)

    def by_node(self) -> dict[str, tuple[ConsumerClient, ...]]:
        """Everything, for the other nodes."""
        return dict(self._by_node)

    def members(self, group: str) -> dict[str, ConsumerClient]:
        """The members of a group by client id."""
        return self._groups.get(group, {})

    def groups(self) -> list[str]:
        """Names of the groups with members."""
        return sorted(self._groups)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the group wants of a topic: the newest that a member told (Q4, G8)."""
        return newest_subscription(self.members(group).values(), topic)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Groups with a live member that subscribes the topic."""
        return sorted(group for group in self._groups if self.subscription(group, topic))

    def _rebuild(self) -> list[str]:
        before = self._groups
        self._groups = {}
        for node in sorted(self._by_node):
            for client in self._by_node[node]:
                self._groups.setdefault(client.group, {})[client.client_id] = client
        names = sorted({*before, *self._groups})
        changed = [name for name in names if before.get(name) != self._groups.get(name)]
        self.version += bool(changed)
        return changed
