"""The routing table: which brokers live, which topics they serve. Pure: time and connections come in.

It is soft state. Brokers register with every name server every 30 s and at once when something changes;
an address that falls silent, or whose connection closes, is taken out. Nothing is written to disk and
name servers do not tell each other: each hears the same brokers.

Two rules protect clients during a change of leader. An address has one broker id: registering under
another one takes the old entry out. And the id 0 of a broker name belongs to the highest Raft term that
claimed it: a deposed leader that has not noticed yet cannot take the route back. Brokers without a
term (plain RocketMQ) follow the older rule: the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

import msgspec

from broker.namesrv.errors import RefusedRegistrationError
from broker.remoting.registration import BrokerIdentity, Registration
from broker.remoting.route import LEADER_ID, BrokerData, ClusterInfo, QueueData, TopicRoute
from broker.remoting.topic_config import (
    PERM_READ,
    PERM_WRITE,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUBSCRIPTION,
    DataVersion,
    TopicConfig,
)

BROKER_TIMEOUT_MS: Final = 120_000
"""After this long without a registration an address is taken out."""

TOPICS_MAX: Final = 1_000_000
BROKER_NAMES_MAX: Final = 10_000
"""Bounds on what registrations can make a name server remember."""


class RegisterReply(msgspec.Struct, frozen=True):
    """What a broker is told: the leader's addresses, empty when it leads or none is known."""

    leader_addr: str = ""
    ha_server_addr: str = ""


class _Live(msgspec.Struct):
    """An address that is heard."""

    identity: BrokerIdentity
    data_version: DataVersion
    heard_ms: int
    connection: Hashable

    def deadline_ms(self) -> int:
        return self.heard_ms + (self.identity.timeout_ms or BROKER_TIMEOUT_MS)


class _BrokerName(msgspec.Struct):
    """All addresses of one broker name.

    Invariant: every address here is heard. The name lives as long as any address of it is heard, listed
    or not: a replaced leader is not listed until it registers as a follower.
    """

    name: str
    cluster: str
    addrs: dict[int, str] = {}
    leader_term: int | None = None
    topics_version: DataVersion | None = None

    def data(self) -> BrokerData:
        return BrokerData(dict(self.addrs), self.name, self.cluster)


class RouteTable:
    """Everything a name server knows of brokers and topics."""

    def __init__(self) -> None:
        self._names: dict[str, _BrokerName] = {}
        self._live: dict[str, _Live] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}

    # Brokers speak.

    def register(
        self,
        identity: BrokerIdentity,
        registration: Registration,
        *,
        now_ms: int,
        connection: Hashable,
    ) -> RegisterReply:
        """Take in a registration.

        Args:
            identity: who registers.
            registration: what it serves; only the leader's topics count.
            now_ms: a clock that does not go back.
            connection: over which it came; `connection_closed` takes the broker out.

        Raises:
            RefusedRegistrationError: it claims the id 0 with a term below the known one, it is the first
                one of its address and holds a single topic (an increment that overtook the first
                full registration), or a bound is reached. Nothing has changed.
        """
        self._check(identity, registration)
        self._forget_other_place(identity)
        entry = self._names.get(identity.broker_name)
        if entry is None:
            entry = _BrokerName(identity.broker_name, identity.cluster_name)
            self._names[entry.name] = entry
        entry.cluster = identity.cluster_name
        for broker_id, addr in tuple(entry.addrs.items()):
            if addr == identity.broker_addr and broker_id != identity.broker_id:
                del entry.addrs[broker_id]
        entry.addrs[identity.broker_id] = identity.broker_addr
        self._live[identity.broker_addr] = _Live(
            identity, registration.data_version, now_ms, connection
        )
        if identity.broker_id == LEADER_ID:
            entry.leader_term = identity.term
            self._take_topics(entry, registration)
            return RegisterReply()
        leader = self._live.get(entry.addrs.get(LEADER_ID, ""))
        if leader is None:
            return RegisterReply()
        return RegisterReply(leader.identity.broker_addr, leader.identity.ha_server_addr)

    def _check(self, identity: BrokerIdentity, registration: Registration) -> None:
        entry = self._names.get(identity.broker_name)
        if identity.broker_id == LEADER_ID and entry is not None:
            known, claimed = entry.leader_term, identity.term
            if known is not None and claimed is not None and claimed < known:
                raise RefusedRegistrationError(
                    f"{identity.broker_addr} claims to lead {identity.broker_name} in term "
                    f"{claimed}, but {entry.addrs.get(LEADER_ID, 'a broker')} led in term {known}"
                )
        topics = registration.topics
        if identity.broker_addr not in self._live and topics is not None and len(topics) == 1:
            raise RefusedRegistrationError("register broker failed")
        if entry is None and len(self._names) >= BROKER_NAMES_MAX:
            raise RefusedRegistrationError(
                f"{BROKER_NAMES_MAX} broker names are registered already"
            )
        if len(self._topics) + len(topics or ()) > TOPICS_MAX:
            new = sum(1 for name in topics or () if name not in self._topics)
            if len(self._topics) + new > TOPICS_MAX:
                raise RefusedRegistrationError(f"more than {TOPICS_MAX} topics")

    def _forget_other_place(self, identity: BrokerIdentity) -> None:
        """An address serves one broker name: take it out of another one."""
        live = self._live.get(identity.broker_addr)
        if live is not None and live.identity.broker_name != identity.broker_name:
            self._remove(identity.broker_addr)

    def _take_topics(self, entry: _BrokerName, registration: Registration) -> None:
        if registration.topics is None or registration.data_version == entry.topics_version:
            return
        entry.topics_version = registration.data_version
        for name, config in registration.topics.items():
            self._topics.setdefault(name, {})[entry.name] = _queue_data(entry.name, config)

    def unregister(self, identity: BrokerIdentity) -> None:
        """Take an address out; unknown ones are no error."""
        live = self._live.get(identity.broker_addr)
        if live is not None and live.identity.broker_name == identity.broker_name:
            self._remove(identity.broker_addr)

    def connection_closed(self, connection: Hashable) -> list[BrokerIdentity]:
        """Take out the addresses that registered over a connection; who they were."""
        return self._remove_all(
            addr for addr, live in self._live.items() if live.connection == connection
        )

    def expire(self, now_ms: int) -> list[BrokerIdentity]:
        """Take out the addresses that have been silent for too long; who they were."""
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
        live = self._live.pop(addr)
        entry = self._names[live.identity.broker_name]
        for broker_id, known in tuple(entry.addrs.items()):
            if known == addr:
                del entry.addrs[broker_id]
        if not entry.addrs and not any(
            other.identity.broker_name == entry.name for other in self._live.values()
        ):
            del self._names[entry.name]
            self._drop_topics_of(entry.name)

    def _drop_topics_of(self, broker_name: str) -> None:
        for topic, queues in tuple(self._topics.items()):
            if queues.pop(broker_name, None) is not None and not queues:
                del self._topics[topic]

    def heard(self, broker_addr: str, now_ms: int) -> None:
        """A sign of life that is no registration."""
        live = self._live.get(broker_addr)
        if live is not None:
            live.heard_ms = now_ms

    def known_version(self, broker_addr: str) -> DataVersion | None:
        """The data version that an address registered last."""
        live = self._live.get(broker_addr)
        return None if live is None else live.data_version

    # Tools and clients ask.

    def route(self, topic: str) -> TopicRoute | None:
        """Where a topic lives; None when nobody serves it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        return TopicRoute(
            queues=tuple(queues.values()),
            brokers=tuple(self._names[name].data() for name in queues if name in self._names),
        )

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for entry in self._names.values():
            clusters.setdefault(entry.cluster, []).append(entry.name)
        return ClusterInfo(
            brokers={name: entry.data() for name, entry in self._names.items()},
            clusters={cluster: tuple(names) for cluster, names in clusters.items()},
        )

    def member_group(self, broker_name: str) -> BrokerData | None:
        """The addresses of one broker name."""
        entry = self._names.get(broker_name)
        return None if entry is None else entry.data()

    def topics(self) -> list[str]:
        """All topics."""
        return list(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that brokers of a cluster serve."""
        names = {entry.name for entry in self._names.values() if entry.cluster == cluster}
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and brokers, and the address of some broker to ask for more."""
        clusters = dict.fromkeys(entry.cluster for entry in self._names.values())
        leaders = (entry.addrs.get(LEADER_ID) for entry in self._names.values())
        return [*clusters, *self._names], next((addr for addr in leaders if addr), None)

    def unit_topics(self, *, is_unit: bool | None, has_unit_subscription: bool) -> list[str]:
        """Topics by their unit flags.

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

    # Tools change.

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write permission off all topics of a broker name; how many there are."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all topics of a broker name readable and writable; how many there are."""
        return self._change_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or in one cluster; brokers that still have it bring it back."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        for name in tuple(queues):
            entry = self._names.get(name)
            if cluster is None or (entry is not None and entry.cluster == cluster):
                del queues[name]
        if not queues:
            del self._topics[topic]


def _queue_data(broker_name: str, config: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=config.perm,
        read_queue_nums=config.read_queue_nums,
        topic_sys_flag=config.topic_sys_flag,
        write_queue_nums=config.write_queue_nums,
    )
