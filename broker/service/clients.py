"""The live producers and consumers that are connected to this node, and to the whole group of nodes.

Every member of a consumer group must see the same list of members, or queues are consumed twice or by
nobody (rules Q5, Q6). A client may be connected to any node, so each node keeps its own clients
(`LocalClients`) and reports them to the leader; the leader joins the reports of all nodes (`ClientUnion`)
and sends the union back. Pure: connections are numbers here, the time is an argument.

What the clients of one connection keep is bounded, and so is what the connections keep together that have more than
usual ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from broker.service.wait_room import ROOM_BYTES
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
)

USUAL_BYTES: Final = 64 * 1024
"""A connection whose clients keep no more needs no room: some hundred subscriptions, where a usual client has few."""

CONNECTION_BYTES_MAX: Final = ROOM_BYTES // 4
"""The clients of one connection; those that keep more than usual ones have ROOM_BYTES together."""

_CLIENT_BYTES: Final = 800
_SUBSCRIPTION_BYTES: Final = 300
_TAG_BYTES: Final = 64
"""Of each, beside its texts, roughly."""

CLIENT_EXPIRY_MS = 120_000
"""A client without a heartbeat for this long is gone (rule Q2)."""

NODE_EXPIRY_MS = 15_000
"""Clients of a node that reported nothing for this long are taken out of the union. Long enough that the
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

    @property
    def kept_bytes(self) -> int:
        """Roughly what it keeps in memory."""
        size_bytes = _CLIENT_BYTES + len(self.group) + len(self.client_id)
        for each in self.subscriptions:
            size_bytes += _SUBSCRIPTION_BYTES + len(each.topic) + len(each.expression)
            size_bytes += len(each.expression_type)
            size_bytes += sum(map(len, each.tags), _TAG_BYTES * len(each.tags))
        return size_bytes

    def subscription(self, topic: str) -> Subscription | None:
        """Return its subscription of a topic, or None."""
        return next((item for item in self.subscriptions if item.topic == topic), None)

    @property
    def newest_version(self) -> int:
        """The newest version among its subscriptions; 0 without any."""
        return max((item.version for item in self.subscriptions), default=0)


class ProducerClient(msgspec.Struct, frozen=True):
    """One member of a producer group."""

    group: str
    client_id: str
    language: str = "JAVA"
    version: int = 0
    address: str = ""

    @property
    def kept_bytes(self) -> int:
        """Roughly what it keeps in memory."""
        return _CLIENT_BYTES + len(self.group) + len(self.client_id)


_C = TypeVar("_C", ConsumerClient, ProducerClient)


def consumers_of(
    heartbeat: Heartbeat, *, language: str, version: int, address: str
) -> list[ConsumerClient]:
    """Read the consumers from a heartbeat; language and version stand in its header."""
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
    """Read the producers from a heartbeat; language and version stand in its header."""
    return [
        ProducerClient(group, heartbeat.client_id, language, version, address)
        for group in heartbeat.producer_groups
    ]


def newest_subscription(members: Iterable[ConsumerClient], topic: str) -> Subscription | None:
    """Return the newest subscription of a topic among the members of a group (Q4, G8)."""
    found = [item for item in (client.subscription(topic) for client in members) if item]
    return max(found, key=lambda item: item.version, default=None)


def newest_of_each(clients: Iterable[ConsumerClient]) -> dict[str, ConsumerClient]:
    """Return the latest report of each client of one group, by client id.

    A client sends heartbeats to each node, one after the other, and may reach some of them late. Where
    versions are equal, the later of `clients` counts.
    """
    newest: dict[str, ConsumerClient] = {}
    for client in clients:
        known = newest.get(client.client_id)
        if known is None or client.newest_version >= known.newest_version:
            newest[client.client_id] = client
    return newest


@dataclass(slots=True)
class _Live(Generic[_C]):
    """A registration, the connection that it came on, when it was last heard of, and what it keeps."""

    client: _C
    connection: int
    seen_ms: int
    kept_bytes: int


class _Table(Generic[_C]):
    """Registrations by group and client id."""

    def __init__(self) -> None:
        self.kept_bytes: dict[int, int] = {}
        """What the registrations of each connection keep; connections without any are not here."""
        self._groups: dict[str, dict[str, _Live[_C]]] = {}
        self._keys_of: dict[int, set[tuple[str, str]]] = {}
        """Invariant: each registration is among the keys of its connection; a key may also stand at an earlier one."""

    def put(self, client: _C, connection: int, now_ms: int) -> bool:
        """Add or refresh a client; return True if anything but the time changed."""
        members = self._groups.setdefault(client.group, {})
        known = members.get(client.client_id)
        if known is not None and known.connection == connection and known.client == client:
            known.seen_ms = now_ms
            return False
        if known is not None:
            self._count(known.connection, -known.kept_bytes)
        members[client.client_id] = _Live(client, connection, now_ms, client.kept_bytes)
        self._count(connection, client.kept_bytes)
        self._keys_of.setdefault(connection, set()).add((client.group, client.client_id))
        return True

    def drop(self, group: str, client_id: str) -> bool:
        """Remove a client; return True if it was there."""
        members = self._groups.get(group, {})
        live = members.pop(client_id, None)
        if live is None:
            return False
        self._count(live.connection, -live.kept_bytes)
        if not members:
            del self._groups[group]
        keys = self._keys_of[live.connection]
        assert (group, client_id) in keys, (
            f"{client_id} of {group} is not among the keys of its connection {live.connection}"
        )
        keys.remove((group, client_id))
        return True

    def more_bytes(self, client: _C, connection: int) -> int:
        """Return what a client would keep on a connection beyond what it keeps there now; may be less than 0."""
        known = self._groups.get(client.group, {}).get(client.client_id)
        is_here = known is not None and known.connection == connection
        return client.kept_bytes - (known.kept_bytes if known is not None and is_here else 0)

    def _count(self, connection: int, more_bytes: int) -> None:
        kept_bytes = self.kept_bytes.pop(connection, 0) + more_bytes
        assert kept_bytes >= 0, f"the clients of connection {connection} keep {kept_bytes} bytes"
        if kept_bytes:
            self.kept_bytes[connection] = kept_bytes

    def drop_connection(self, connection: int) -> list[str]:
        """Remove what came on a connection and did not move to another; return the groups."""
        keys = sorted(self._keys_of.get(connection, ()))
        gone = [key[0] for key in keys if self._is_on(key, connection) and self.drop(*key)]
        self._keys_of.pop(connection, None)
        return gone

    def _is_on(self, key: tuple[str, str], connection: int) -> bool:
        live = self._groups.get(key[0], {}).get(key[1])
        return live is not None and live.connection == connection

    def drop_silent(self, limit_ms: int) -> list[str]:
        """Remove what was not heard of since `limit_ms`; return the groups."""
        silent = [
            (group, client_id)
            for group, members in self._groups.items()
            for client_id, live in members.items()
            if live.seen_ms < limit_ms
        ]
        return [key[0] for key in silent if self.drop(*key)]

    def clients(self, group: str | None = None) -> list[_C]:
        """Return the clients of a group, or all."""
        groups = self._groups.values() if group is None else [self._groups.get(group, {})]
        return [live.client for members in groups for live in members.values()]

    def seen(self) -> list[tuple[_C, int]]:
        """Return all clients, by group, and when each was last heard of."""
        return [
            (live.client, live.seen_ms)
            for _, members in sorted(self._groups.items())
            for live in members.values()
        ]

    def located(self, group: str) -> list[tuple[_C, int]]:
        """Return the clients of a group, each with its connection."""
        return [(live.client, live.connection) for live in self._groups.get(group, {}).values()]

    def connection(self, group: str, client_id: str) -> int | None:
        """Return the connection of a client; None: there is no such client."""
        live = self._groups.get(group, {}).get(client_id)
        return None if live is None else live.connection

    def connections(self, group: str) -> list[int]:
        """Return the connections of a group, in the order of their numbers."""
        return sorted({live.connection for live in self._groups.get(group, {}).values()})


class LocalClients:
    """The clients that are connected to this node.

    `changes` counts what has to be reported to the leader: it grows when a consumer comes, goes or changes its
    subscriptions, not with every heartbeat.
    """

    def __init__(self) -> None:
        self._consumers: _Table[ConsumerClient] = _Table()
        self._producers: _Table[ProducerClient] = _Table()
        self.changes = 0

    def has_room(
        self,
        connection: int,
        consumers: Iterable[ConsumerClient],
        producers: Iterable[ProducerClient],
    ) -> bool:
        """Return whether a heartbeat may be taken in; one that makes its connection keep no more than before may."""
        more_bytes = sum(self._consumers.more_bytes(each, connection) for each in consumers)
        more_bytes += sum(self._producers.more_bytes(each, connection) for each in producers)
        kept_bytes = self._kept_bytes(connection) + more_bytes
        if more_bytes <= 0 or kept_bytes <= USUAL_BYTES:
            return True
        if kept_bytes > CONNECTION_BYTES_MAX:
            return False
        connections = {*self._consumers.kept_bytes, *self._producers.kept_bytes} - {connection}
        others = (self._kept_bytes(each) for each in connections)
        return kept_bytes + sum(each for each in others if each > USUAL_BYTES) <= ROOM_BYTES

    def _kept_bytes(self, connection: int) -> int:
        tables = self._consumers, self._producers
        return sum(table.kept_bytes.get(connection, 0) for table in tables)

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
        for producer in producers:
            self._producers.put(producer, connection, now_ms)
        changed = [c.group for c in consumers if self._consumers.put(c, connection, now_ms)]
        return self._count(changed)

    def unregister(self, client_id: str, *, consumer_group: str, producer_group: str) -> list[str]:
        """Take a client out of its groups; an empty name means none (C++ sends one)."""
        self._producers.drop(producer_group, client_id)
        gone = self._consumers.drop(consumer_group, client_id)
        return self._count([consumer_group] if gone else [])

    def connection_closed(self, connection: int) -> list[str]:
        """Remove everything that came on a connection; return the consumer groups that changed."""
        self._producers.drop_connection(connection)
        return self._count(self._consumers.drop_connection(connection))

    def expire(self, now_ms: int) -> list[str]:
        """Remove clients without a heartbeat for `CLIENT_EXPIRY_MS`; return the consumer groups that changed."""
        self._producers.drop_silent(now_ms - CLIENT_EXPIRY_MS)
        return self._count(self._consumers.drop_silent(now_ms - CLIENT_EXPIRY_MS))

    def consumers(self, group: str | None = None) -> list[ConsumerClient]:
        """Return the live consumers, of a group or all."""
        return self._consumers.clients(group)

    def producers(self, group: str) -> list[ProducerClient]:
        """Return the live producers of a group."""
        return self._producers.clients(group)

    def producers_seen(self) -> list[tuple[ProducerClient, int]]:
        """Return all live producers, by group, and when each was last heard of, in ms of the clock of `heartbeat`."""
        return self._producers.seen()

    def producer_connections(self, group: str) -> list[int]:
        """Return the connections with a producer of the group, to ask about a transaction."""
        return self._producers.connections(group)

    def consumers_located(self, group: str) -> list[tuple[ConsumerClient, int]]:
        """Return the live consumers of a group, each with its connection."""
        return self._consumers.located(group)

    def consumer_connection(self, group: str, client_id: str) -> int | None:
        """Return the connection of a consumer; None: it is not connected to this node."""
        return self._consumers.connection(group, client_id)

    def connections_of(self, group: str) -> list[int]:
        """Return the connections with a consumer of the group, to notify them of a change."""
        return self._consumers.connections(group)

    def _count(self, changed: list[str]) -> list[str]:
        self.changes += bool(changed)
        return changed


class ClientUnion:
    """The consumers of all nodes, by group.

    `version` changes with the content, so that two nodes can compare what they have. The methods that
    change it return the groups whose *roll* changed: who is a member, and of which topics. Only that decides
    who gets which queues; a newer version of a subscription and another address do not.
    """

    def __init__(self) -> None:
        self._by_node: dict[str, tuple[ConsumerClient, ...]] = {}
        self._seen_ms: dict[str, int] = {}
        """Invariant: it has the same nodes as `_by_node`."""
        self._groups: dict[str, dict[str, ConsumerClient]] = {}
        self.version = 0

    def put(self, node: str, clients: Iterable[ConsumerClient], now_ms: int) -> list[str]:
        """Replace the report of a node; return the groups whose roll changed."""
        fresh = tuple(clients)
        self._seen_ms[node] = now_ms
        if self._by_node.get(node, ()) == fresh:
            self._by_node[node] = fresh
            return []
        self._by_node[node] = fresh
        return self._rebuild()

    def touch(self, node: str, now_ms: int) -> bool:
        """Note that a node is alive and its clients are as it reported them.

        Returns:
            False if its report expired: its clients are not in the union, and it has to report them again.
        """
        if node not in self._by_node:
            return False
        self._seen_ms[node] = now_ms
        return True

    def expire(self, now_ms: int) -> list[str]:
        """Remove nodes that reported nothing for `NODE_EXPIRY_MS`; return the groups whose roll changed."""
        assert self._seen_ms.keys() == self._by_node.keys(), (
            f"heard of {sorted(self._seen_ms)}, clients of {sorted(self._by_node)}"
        )
        silent = [node for node, seen in self._seen_ms.items() if seen < now_ms - NODE_EXPIRY_MS]
        for node in silent:
            del self._seen_ms[node]
            del self._by_node[node]
        return self._rebuild() if silent else []

    def replace(self, by_node: Mapping[str, Iterable[ConsumerClient]], now_ms: int) -> list[str]:
        """Take over the leader's union; return the groups whose roll changed.

        Every node counts as heard of now: should this node become the leader, it starts from here
        and the nodes that are gone expire.
        """
        self._by_node = {node: tuple(clients) for node, clients in by_node.items()}
        self._seen_ms = dict.fromkeys(self._by_node, now_ms)
        return self._rebuild()

    def leadership_began(self, now_ms: int) -> None:
        """Begin to lead: from now on all nodes have `NODE_EXPIRY_MS` to report their clients here."""
        self._seen_ms = dict.fromkeys(self._by_node, now_ms)

    def by_node(self) -> dict[str, tuple[ConsumerClient, ...]]:
        """Return the reports of all nodes, for the other nodes."""
        return dict(self._by_node)

    def members(self, group: str) -> dict[str, ConsumerClient]:
        """Return the members of a group by client id."""
        return self._groups.get(group, {})

    def at(self, group: str, address: str) -> str | None:
        """Return the id of the member that any node has at this address; None: no node has one there."""
        for clients in self._by_node.values():
            for client in clients:
                if client.group == group and client.address == address:
                    return client.client_id
        return None

    def nodes_of(self, group: str, client_id: str) -> list[str]:
        """Return the nodes to which a member is connected."""
        return [
            node
            for node, clients in self._by_node.items()
            if any(each.group == group and each.client_id == client_id for each in clients)
        ]

    def groups(self) -> list[str]:
        """Return the names of the groups with members, sorted."""
        return sorted(self._groups)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the newest subscription of a topic among the members of a group (Q4, G8)."""
        return newest_subscription(self.members(group).values(), topic)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups with a live member that subscribes to the topic, sorted."""
        return sorted(group for group in self._groups if self.subscription(group, topic))

    def _rebuild(self) -> list[str]:
        """Join the reports of all nodes; return the groups whose roll changed: their members must rebalance."""
        before = self._groups
        reported: dict[str, list[ConsumerClient]] = {}
        for node in sorted(self._by_node):
            for client in self._by_node[node]:
                reported.setdefault(client.group, []).append(client)
        self._groups = {name: newest_of_each(clients) for name, clients in reported.items()}
        changed = [
            name
            for name in sorted({*before, *reported})
            if before.get(name) != self._groups.get(name)
        ]
        self.version += bool(changed)
        return sorted(
            name
            for name in changed
            if _roll(before.get(name, {})) != _roll(self._groups.get(name, {}))
        )


def _roll(members: Mapping[str, ConsumerClient]) -> dict[str, frozenset[str]]:
    return {
        client_id: frozenset(item.topic for item in client.subscriptions)
        for client_id, client in members.items()
    }
