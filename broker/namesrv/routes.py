"""The routing table: which brokers live, which topics they serve. Pure: time and connections come in.

It is soft state. Brokers register with every name server every 30 s and at once when something changes;
an address that falls silent, or whose connection closes, is taken out. Nothing is written to disk and
name servers do not talk to each other: each hears the same brokers.

Two rules protect clients during a change of leader. An address has one broker id: registering under
another one takes the old entry out. And as long as a leader is heard, its id 0 goes to a higher Raft term only:
a deposed leader that has not noticed yet cannot take the route back. Brokers without a term (plain
RocketMQ) follow the older rule: the last one wins.

Between two leaders clients still need an id 0: without one they fail at once. So a listed *proven* broker stands in,
since a follower of ours holds requests until there is a leader and passes them on: the one that led last, or else
the one with the lowest id. It is shown under id 0, and under its own again when a leader registers.

And two protect groups from strangers. What a registration changed ends with it: with its connection, or its
silence. And a broker name belongs to the *proven* brokers that registered under it (`registrants.py` says how
that is shown), as long as one of them is heard: *foreign* ones are refused there, and leave when the first
proven one comes. The table must not know how anything is proven, nor ask anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final, NamedTuple

import msgspec

from broker.namesrv.errors import RefusedRegistrationError
from dledger_mq.remoting.log_point import LogPoint
from dledger_mq.remoting.registration import BrokerIdentity, Registration
from dledger_mq.remoting.route import LEADER_ID, BrokerData, ClusterInfo, QueueData, TopicRoute
from dledger_mq.remoting.topic_config import (
    PERM_READ,
    PERM_WRITE,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUBSCRIPTION,
    WireDataVersion,
    WireTopicConfig,
)

BROKER_TIMEOUT_MS: Final = 120_000
"""After this long without a registration an address is taken out."""

TOPICS_MAX: Final = 1_000_000
PLACES_MAX: Final = 4_000_000
"""Of all topics together, the broker names that serve them."""

BROKER_NAMES_MAX: Final = 10_000
ADDRESSES_MAX: Final = 40_000
"""Bounds on what registrations can make a name server remember; foreign ones find it full at half of each."""

ADDRESSES_OF_NAME_MAX: Final = 64
"""A group has nine members at most, and RocketMQ's have a few: each look at a name goes through all of them."""

NAME_CHARS_MAX: Final = 1024
"""Of the name of a broker, a cluster or a topic, and of an address; RocketMQ's longest are of 255."""


class RegisterReply(msgspec.Struct, frozen=True):
    """The result of a registration.

    Attributes:
        leader_addr, ha_server_addr: the leader's addresses, empty when it leads or none is known.
        displaced: foreign brokers that had to leave the name.
    """

    leader_addr: str = ""
    ha_server_addr: str = ""
    displaced: tuple[BrokerIdentity, ...] = ()


class Member(msgspec.Struct, frozen=True):
    """A broker of the group that has a name, and the committed place in its log that it named last."""

    broker_addr: str
    point: LogPoint
    connection: Hashable


class ProvenBroker(NamedTuple):
    """A broker that was shown to be who it says, whether or not its log is known.

    Attributes:
        point: the committed place that it named last, of one that is known to be of the name's group.
        leads: it is the one that is listed under the id 0.
    """

    identity: BrokerIdentity
    connection: Hashable
    point: LogPoint | None
    leads: bool


class _Live(msgspec.Struct):
    """An address that is heard.

    Attributes:
        is_proven: the broker at this address was shown to have registered itself.
        point: how far its log is committed, of one that is known to be of the name's group.
        is_doubtful: nobody has said yet that it is a member of the name's group.
    """

    identity: BrokerIdentity
    data_version: WireDataVersion
    registered_ms: int
    connection: Hashable
    is_proven: bool
    point: LogPoint | None
    is_doubtful: bool

    def deadline_ms(self) -> int:
        return self.registered_ms + (self.identity.timeout_ms or BROKER_TIMEOUT_MS)


class _BrokerName(msgspec.Struct):
    """All addresses of one broker name.

    Invariants (`check`): every listed address is heard, and listed under one id. The name lives as long as any
    address of it is heard, listed or not: a replaced leader is not listed until it registers as a follower. All
    that are heard are proven, or none is.

    Attributes:
        last_leader_addr: who registered under id 0 last; empty: nobody yet.
        topics: what is routed to it, in the order in which it came, and the address of the doubtful broker that alone
            has named it; empty: others have.
    """

    name: str
    cluster: str
    heard: dict[str, _Live] = {}
    addrs: dict[int, str] = {}
    topics: dict[str, str] = {}
    last_leader_addr: str = ""
    topics_version: WireDataVersion | None = None

    def check(self) -> None:
        """Assert the invariants."""
        listed = list(self.addrs.values())
        assert self.heard, f"{self.name} is kept, and nobody is heard under it"
        assert self.heard.keys() >= set(listed), (
            f"{self.name} lists {listed}, heard is {list(self.heard)}"
        )
        assert len(set(listed)) == len(listed), f"{self.name} lists an address twice: {self.addrs}"
        proven = [live.is_proven for live in self.heard.values()]
        assert all(proven) or not any(proven), (
            f"of {self.name} only some are proven: {list(self.heard)}"
        )

    def data(self) -> BrokerData:
        return BrokerData(self.shown_addrs(), self.name, self.cluster)

    def shown_addrs(self) -> dict[int, str]:
        """Return the addresses by broker id, as clients and tools get them: one that stands in has the id 0.

        Before the first leader nobody stands in: nothing is routed yet.
        """
        shown = dict(self.addrs)
        if LEADER_ID in shown or not shown or not self.last_leader_addr or not self.is_proven:
            return shown
        id_ = min(shown, key=lambda each: (shown[each] != self.last_leader_addr, each))
        return {LEADER_ID: shown.pop(id_), **shown}

    @property
    def is_proven(self) -> bool:
        return any(live.is_proven for live in self.heard.values())

    def leader(self) -> _Live | None:
        return self.heard.get(self.addrs.get(LEADER_ID, ""))


class RegisteredGroup(NamedTuple):
    """A group as it is registered: its nodes, and whether its leader is one of them."""

    broker_name: str
    node_count: int
    has_leader: bool


class RouteTable:
    """Everything a name server knows of brokers and topics."""

    def __init__(self) -> None:
        self._names: dict[str, _BrokerName] = {}
        self._live: dict[str, _Live] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        """By topic and broker name. Invariant: each broker name is in `_names` and has the topic there, and no topic is
        without one."""
        self._place_count = 0

    # Registrations.

    def register(
        self,
        identity: BrokerIdentity,
        registration: Registration,
        *,
        now_ms: int,
        connection: Hashable,
        is_proven: bool = False,
        point: LogPoint | None = None,
        is_doubtful: bool = False,
    ) -> RegisterReply:
        """Add or refresh a broker, and the topics of a leader.

        Args:
            identity: the broker that registers.
            registration: what it serves; only the leader's topics count.
            now_ms: a clock that does not go back.
            connection: over which it came; `connection_closed` takes the broker out.
            is_proven: its sender was shown to be who it says.
            point: a committed place in the sender's log, which is known to be that of the name's group.
            is_doubtful: nobody has said yet that it is a member: it changes no topic that others have named, and those
                that it brings go with it.

        Raises:
            RefusedRegistrationError: it is foreign and the name or the address is a proven broker's, it
                claims the id 0 with a term below that of the leader that is heard, it is the first
                one of its address and holds a single topic (an increment that overtook the first
                full registration), or a bound is reached. Nothing has changed.
        """
        entry = self._names.get(identity.broker_name)
        self._check(entry, identity, registration, is_proven=is_proven)
        self._forget_other_place(identity)
        displaced: list[BrokerIdentity] = []
        if is_proven and entry is not None and not entry.is_proven:
            displaced = self._remove_all(entry.heard)
        # The old one is gone when nobody else was left in it.
        entry = self._names.get(identity.broker_name)
        if entry is None:
            entry = _BrokerName(identity.broker_name, identity.cluster_name)
            self._names[entry.name] = entry
        entry.cluster = identity.cluster_name
        for broker_id, addr in tuple(entry.addrs.items()):
            if addr == identity.broker_addr and broker_id != identity.broker_id:
                del entry.addrs[broker_id]
        entry.addrs[identity.broker_id] = identity.broker_addr
        live = _Live(
            identity, registration.data_version, now_ms, connection, is_proven, point, is_doubtful
        )
        self._live[identity.broker_addr] = entry.heard[identity.broker_addr] = live
        entry.check()
        if identity.broker_id == LEADER_ID:
            entry.last_leader_addr = identity.broker_addr
            self._take_topics(
                entry, registration, doubted=identity.broker_addr if is_doubtful else ""
            )
            return RegisterReply(displaced=tuple(displaced))
        leader = entry.leader()
        if leader is None:
            return RegisterReply(displaced=tuple(displaced))
        return RegisterReply(
            leader.identity.broker_addr, leader.identity.ha_server_addr, tuple(displaced)
        )

    def _check(
        self,
        entry: _BrokerName | None,
        identity: BrokerIdentity,
        registration: Registration,
        *,
        is_proven: bool,
    ) -> None:
        """Raise what speaks against a registration, before anything is changed: a refused one must leave no trace."""
        addr = identity.broker_addr
        if not is_proven:
            self._check_foreign(entry, addr)
        if entry is not None and is_proven == entry.is_proven:
            _check_term(entry, identity)
        topics = registration.topics
        if addr not in self._live and topics is not None and len(topics) == 1:
            raise RefusedRegistrationError(
                f"register broker failed: the first registration of {addr} holds a single topic, so it is not the "
                "whole table; nothing has changed"
            )
        # Foreign ones leave when the name's group comes: they keep nobody out.
        others = entry if entry is not None and entry.is_proven == is_proven else None
        share = 1 if is_proven else 2
        self._check_addresses(entry, others, identity, share=share)
        self._check_topics(entry, topics or {}, share=share)

    def _check_addresses(
        self,
        entry: _BrokerName | None,
        others: _BrokerName | None,
        identity: BrokerIdentity,
        *,
        share: int,
    ) -> None:
        """Raise what is over a bound of names and addresses.

        Args:
            entry: of the broker's name; None: nobody has it.
            others: the same, if those who have it are to stay.
            identity: who registers.
            share: the sender may fill a bound by its part of it, 1 or 2.
        """
        addr = identity.broker_addr
        _check_lengths((identity.broker_name, identity.cluster_name, addr, identity.ha_server_addr))
        if entry is None and len(self._names) >= BROKER_NAMES_MAX // share:
            raise RefusedRegistrationError(
                f"{len(self._names)} broker names are registered already, at most {BROKER_NAMES_MAX // share}; "
                "nothing has changed"
            )
        count = 0 if others is None or addr in others.heard else len(others.heard)
        if count >= ADDRESSES_OF_NAME_MAX:
            raise RefusedRegistrationError(
                f"{count} brokers are registered under {identity.broker_name} already, at most "
                f"{ADDRESSES_OF_NAME_MAX}; nothing has changed"
            )
        if addr not in self._live and len(self._live) >= ADDRESSES_MAX // share:
            raise RefusedRegistrationError(
                f"{len(self._live)} brokers are registered already, at most {ADDRESSES_MAX // share}; nothing has "
                "changed"
            )

    def _check_topics(
        self, entry: _BrokerName | None, topics: Collection[str], *, share: int
    ) -> None:
        """Raise what is over a bound of topics; see `_check_addresses`.

        Who brings none that is new is refused nothing, though proven ones have filled more than a foreign one may.
        """
        _check_lengths(topics)
        topics_max, places_max = TOPICS_MAX // share, PLACES_MAX // share
        if len(self._topics) + len(topics) > topics_max:
            new = sum(1 for name in topics if name not in self._topics)
            if new and len(self._topics) + new > topics_max:
                raise RefusedRegistrationError(
                    f"{len(self._topics)} topics are registered, and {new} more would be more than {topics_max}; "
                    "nothing has changed"
                )
        if self._place_count + len(topics) > places_max:
            known = entry.topics if entry is not None else {}
            new = sum(1 for name in topics if name not in known)
            if new and self._place_count + new > places_max:
                raise RefusedRegistrationError(
                    f"topics are registered at {self._place_count} places, and {new} more would be more than "
                    f"{places_max}; nothing has changed"
                )

    def _check_foreign(self, entry: _BrokerName | None, addr: str) -> None:
        known = self._live.get(addr)
        if known is not None and known.is_proven:
            raise RefusedRegistrationError(
                f"the broker at {addr} has registered and proven itself over another connection: this registration, "
                "which proves nothing, is not its own; nothing has changed"
            )
        if entry is not None and entry.is_proven:
            raise RefusedRegistrationError(
                f"{entry.name} is the name of a group that is alive: the broker at {addr}, which registers under it, "
                "must prove to be a member; nothing has changed"
            )

    def _forget_other_place(self, identity: BrokerIdentity) -> None:
        """Remove an address from another broker name: it serves one."""
        live = self._live.get(identity.broker_addr)
        if live is not None and live.identity.broker_name != identity.broker_name:
            self._remove(identity.broker_addr)

    def _take_topics(self, entry: _BrokerName, registration: Registration, *, doubted: str) -> None:
        """Route the topics of a leader to its broker name; those that it no longer names stay.

        Args:
            entry: of the name.
            registration: what the leader serves.
            doubted: its address, if it is doubtful; else empty.
        """
        if registration.topics is None:
            return
        is_changed = not doubted and registration.data_version != entry.topics_version
        if not doubted:
            entry.topics_version = registration.data_version
        for name, config in registration.topics.items():
            queues = self._topics.setdefault(name, {})
            # One that somebody had deleted here, and the broker still has, comes back in any case.
            is_new = entry.name not in queues
            if is_changed or is_new or entry.topics[name]:
                queues[entry.name] = _queue_data(entry.name, config)
                entry.topics[name] = doubted
            if is_new:
                self._place_count += 1

    def unregister(self, identity: BrokerIdentity, connection: Hashable) -> bool:
        """Remove an address that registered over this connection; return True if there was one."""
        live = self._live.get(identity.broker_addr)
        is_its = live is not None and live.identity.broker_name == identity.broker_name
        if not is_its or not self.is_registered(identity.broker_addr, connection):
            return False
        self._remove(identity.broker_addr)
        return True

    def connection_closed(self, connection: Hashable) -> list[BrokerIdentity]:
        """Remove the addresses that registered over a connection; return who they were."""
        return self._remove_all(
            addr for addr, live in self._live.items() if live.connection == connection
        )

    def expire(self, now_ms: int) -> list[BrokerIdentity]:
        """Remove the addresses that have been silent for too long; return who they were."""
        return self._remove_all(
            addr for addr, live in self._live.items() if live.deadline_ms() <= now_ms
        )

    def _remove_all(self, addrs: Iterable[str]) -> list[BrokerIdentity]:
        gone = list(addrs)
        identities = [self._live[addr].identity for addr in gone]
        for addr in gone:
            self._remove(addr)
        return identities

    def _remove(self, addr: str) -> None:
        """Take an address out, and with the last one of its broker name the name and its topics."""
        live = self._live.pop(addr)
        entry = self._names[live.identity.broker_name]
        assert entry.heard.get(addr) is live, f"{addr} is heard, but not under {entry.name}"
        del entry.heard[addr]
        for broker_id, known in tuple(entry.addrs.items()):
            if known == addr:
                del entry.addrs[broker_id]
        if entry.heard:
            entry.check()
            if live.is_doubtful:
                for topic in [each for each, doubted in entry.topics.items() if doubted == addr]:
                    self._drop_place(entry, topic)
            return
        for topic in tuple(entry.topics):
            self._drop_place(entry, topic)
        del self._names[entry.name]

    def _drop_place(self, entry: _BrokerName, topic: str) -> None:
        """Route a topic to a broker name no more."""
        queues = self._topics[topic]
        del queues[entry.name], entry.topics[topic]
        if not queues:
            del self._topics[topic]
        self._place_count -= 1
        assert self._place_count >= 0, f"topics are routed to {self._place_count} broker names"

    def note_alive(self, broker_addr: str, connection: Hashable, now_ms: int) -> None:
        """Note a sign of life that is no registration, over the connection of one."""
        if self.is_registered(broker_addr, connection):
            self._live[broker_addr].registered_ms = now_ms

    def confirm(self, broker_addr: str, connection: Hashable) -> None:
        """Note that the broker which registered over this connection is a member of its name's group."""
        if self.is_registered(broker_addr, connection):
            self._live[broker_addr].is_doubtful = False

    def is_proven_elsewhere(self, identity: BrokerIdentity) -> bool:
        """Return True if a proven broker is heard at this address under another name."""
        live = self._live.get(identity.broker_addr)
        return (
            live is not None
            and live.is_proven
            and live.identity.broker_name != identity.broker_name
        )

    def is_registered(self, broker_addr: str, connection: Hashable) -> bool:
        """Return True if an address is registered over this connection."""
        live = self._live.get(broker_addr)
        return live is not None and live.connection == connection

    def known_version(self, broker_addr: str) -> WireDataVersion | None:
        """Return the data version that an address registered last, or None."""
        live = self._live.get(broker_addr)
        return None if live is None else live.data_version

    def members(self, broker_name: str) -> list[Member]:
        """Return the brokers that are known to be of the group that has a name."""
        entry = self._names.get(broker_name)
        return [
            Member(addr, live.point, live.connection)
            for addr, live in (entry.heard.items() if entry is not None else ())
            if live.point is not None
        ]

    def proven_brokers(self, broker_name: str) -> list[ProvenBroker]:
        """Return the proven brokers that are heard under a name, the one that came first at first."""
        entry = self._names.get(broker_name)
        if entry is None:
            return []
        leader = entry.leader()
        return [
            ProvenBroker(live.identity, live.connection, live.point, live is leader)
            for live in entry.heard.values()
            if live.is_proven
        ]

    def unlisted(self, broker_name: str) -> list[Hashable]:
        """Return the connections of brokers that are heard under a name and listed under no id of it."""
        entry = self._names.get(broker_name)
        if entry is None:
            return []
        listed = set(entry.addrs.values())
        return [live.connection for addr, live in entry.heard.items() if addr not in listed]

    # Questions of tools and clients.

    def route(self, topic: str) -> TopicRoute | None:
        """Return where a topic lives; None when nobody serves it.

        Broker names come in their order, from every name server alike: clients that choose a queue by its place in
        the list (Go's, for a sharding key) stay with it whichever name server they ask.
        """
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        return TopicRoute(
            queues=tuple(queues[name] for name in names),
            brokers=tuple(self._names[name].data() for name in names if name in self._names),
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for entry in self._names.values():
            clusters.setdefault(entry.cluster, []).append(entry.name)
        return ClusterInfo(
            brokers={name: entry.data() for name, entry in self._names.items()},
            clusters={cluster: tuple(names) for cluster, names in clusters.items()},
        )

    def registered_groups(self) -> list[RegisteredGroup]:
        """Return what is registered of each group."""
        return [
            RegisteredGroup(entry.name, len(entry.heard), entry.leader() is not None)
            for entry in self._names.values()
        ]

    def member_group(self, broker_name: str) -> BrokerData | None:
        """Return the addresses of one broker name, or None."""
        entry = self._names.get(broker_name)
        return None if entry is None else entry.data()

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that brokers of a cluster serve."""
        names = {entry.name for entry in self._names.values() if entry.cluster == cluster}
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the topics named after clusters and brokers, and the address of some broker to ask for more."""
        clusters = dict.fromkeys(entry.cluster for entry in self._names.values())
        leaders = (entry.shown_addrs().get(LEADER_ID) for entry in self._names.values())
        return [*clusters, *self._names], next((addr for addr in leaders if addr), None)

    def unit_topics(self, *, is_unit: bool | None, has_unit_subscription: bool) -> list[str]:
        """Return the topics with these unit flags.

        Args:
            is_unit: wanted unit bit; None takes either.
            has_unit_subscription: whether the unit subscription bit is demanded.
        """
        found: list[str] = []
        for topic, queues in self._topics.items():
            flags = next(iter(queues.values())).topic_sys_flag
            unit, subscription = bool(flags & SYS_FLAG_UNIT), flags & SYS_FLAG_UNIT_SUBSCRIPTION
            if is_unit in (None, unit) and (subscription or not has_unit_subscription):
                found.append(topic)
        return found

    # Changes by tools.

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write permission off all topics of a broker name; return how many there are."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all topics of a broker name readable and writable; return how many there are."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        entry = self._names.get(broker_name)
        if entry is None:
            return 0
        for topic in entry.topics:
            queues = self._topics[topic]
            queue = queues[broker_name]
            queues[broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
        return len(entry.topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> list[str]:
        """Forget a topic, everywhere or in one cluster; brokers that still have it bring it back.

        Returns:
            The broker names that served it.
        """
        entries = [self._names[name] for name in self._topics.get(topic, {})]
        gone = [entry for entry in entries if cluster is None or entry.cluster == cluster]
        for entry in gone:
            self._drop_place(entry, topic)
        return [entry.name for entry in gone]


def _check_term(entry: _BrokerName, identity: BrokerIdentity) -> None:
    leader = entry.leader()
    if leader is None or identity.broker_id != LEADER_ID:
        return
    known, claimed = leader.identity.term, identity.term
    is_other = leader.identity.broker_addr != identity.broker_addr
    if is_other and known is not None and claimed is not None and claimed < known:
        raise RefusedRegistrationError(
            f"{identity.broker_addr} claims to lead {identity.broker_name} in term {claimed}, but "
            f"{leader.identity.broker_addr} leads in term {known}; nothing has changed"
        )


def _check_lengths(texts: Iterable[str]) -> None:
    longest = max(map(len, texts), default=0)
    if longest > NAME_CHARS_MAX:
        raise RefusedRegistrationError(
            f"the longest of the names and addresses has {longest} characters, at most {NAME_CHARS_MAX}; nothing has "
            "changed"
        )


def _queue_data(broker_name: str, config: WireTopicConfig) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
