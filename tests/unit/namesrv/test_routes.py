"""The routing table: registration, expiry, changes of leader, and what tools change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.namesrv.errors import RefusedRegistrationError
from broker.namesrv.routes import (
    ADDRESSES_OF_NAME_MAX,
    BROKER_TIMEOUT_MS,
    NAME_CHARS_MAX,
    RegisterReply,
    RouteTable,
)
from dledger_mq.remoting.log_point import LogPoint
from dledger_mq.remoting.registration import BrokerIdentity, Registration
from dledger_mq.remoting.topic_config import WireDataVersion, WireTopicConfig

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
TOPICS = ("T", "U")


@dataclass
class Table:
    """A route table with short words for what brokers do."""

    routes: RouteTable = field(default_factory=RouteTable)
    now_ms: int = 0

    def register(
        self,
        addr: str,
        broker_id: int = 0,
        *,
        name: str = "broker-a",
        cluster: str = "main",
        term: int | None = None,
        topics: tuple[str, ...] | None = TOPICS,
        version: int = 1,
        perm: int = 6,
        connection: str = "",
        timeout_ms: int | None = None,
        is_proven: bool = False,
        point: LogPoint | None = None,
    ) -> RegisterReply:
        table = None
        if topics is not None:
            table = {topic: WireTopicConfig(topic_name=topic, perm=perm) for topic in topics}
        return self.routes.register(
            BrokerIdentity(cluster, name, addr, broker_id, f"ha-{addr}", term, timeout_ms),
            Registration(WireDataVersion(counter=version), table),
            now_ms=self.now_ms,
            connection=connection or addr,
            is_proven=is_proven,
            point=point,
        )

    def addrs(self, name: str = "broker-a") -> dict[int, str]:
        group = self.routes.member_group(name)
        return {} if group is None else dict(group.broker_addrs)

    def perm(self, topic: str) -> int:
        route = self.routes.route(topic)
        assert route is not None
        return route.queues[0].perm


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_leader_registers_and_its_topics_are_routed(table: Table) -> None:
    assert table.routes.route("T") is None
    assert table.register(A) == RegisterReply()
    route = table.routes.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queues] == ["broker-a"]
    assert [dict(broker.broker_addrs) for broker in route.brokers] == [{0: A}]
    assert table.routes.topics() == ["T", "U"]


def test_a_route_is_the_same_from_every_name_server_in_whatever_order_brokers_came() -> None:
    """Go's client takes the queue of a sharding key by its place, and asks another name server each time."""
    brokers = [("broker-a", A), ("broker-b", B), ("broker-c", C)]
    routes = []
    for order in (brokers, brokers[::-1], [*brokers[1:], brokers[0]]):
        table = Table()
        for name, addr in order:
            table.register(addr, name=name)
        routes.append(table.routes.route("T"))
    assert routes[0] is not None
    assert [queue.broker_name for queue in routes[0].queues] == [name for name, _ in brokers]
    assert routes == [routes[0]] * 3


def test_followers_are_listed_and_told_the_leader(table: Table) -> None:
    assert table.register(B, 1) == RegisterReply()
    table.register(A)
    assert table.register(B, 1) == RegisterReply(A, f"ha-{A}")
    assert table.addrs() == {0: A, 1: B}


def test_only_the_leaders_topics_count(table: Table) -> None:
    table.register(A, topics=("T", "V"))
    table.register(B, 1, topics=("X", "Y"), version=2)
    assert table.routes.topics() == ["T", "V"]


def test_a_new_leader_replaces_the_old_one(table: Table) -> None:
    """The old one is not listed as 0 any more, nor anywhere until it registers as a follower."""
    table.register(A, term=1)
    table.register(B, 1, term=1)
    table.register(B, 0, term=2)
    assert table.addrs() == {0: B}
    assert table.register(A, 2, term=2) == RegisterReply(B, f"ha-{B}")
    assert table.addrs() == {0: B, 2: A}


def follow(table: Table, *members: tuple[str, int], term: int = 1) -> None:
    for addr, broker_id in members:
        table.register(addr, broker_id, term=term, is_proven=True)


def lead(table: Table, addr: str, term: int = 1) -> None:
    table.register(addr, term=term, is_proven=True)


@pytest.mark.parametrize(
    ("happens", "shown"),
    [
        pytest.param((), {0: A, 2: B, 3: C}, id="nothing"),
        pytest.param(("dies A",), {0: B, 3: C}, id="the leader dies: the lowest id stands in"),
        pytest.param(("silent A",), {0: B, 3: C}, id="the leader falls silent"),
        pytest.param(("leaves A",), {0: B, 3: C}, id="the leader leaves"),
        pytest.param(("dies A", "dies B"), {0: C}, id="who stood in dies as well"),
        pytest.param(("dies A", "leads C"), {0: C, 2: B}, id="and has its own id again"),
        pytest.param(("follows A",), {0: A, 2: B, 3: C}, id="who led last stands in itself"),
        pytest.param(("follows A", "leads B"), {0: B, 1: A, 3: C}, id="until the next leads"),
        pytest.param(("follows A", "dies A"), {0: B, 3: C}, id="or it dies"),
        pytest.param(("leads B",), {0: B, 3: C}, id="a replaced leader is not listed"),
        pytest.param(("leads B", "dies B"), {0: C}, id="nor does it stand in"),
        pytest.param(("leads B", "dies B", "follows A"), {0: A, 3: C}, id="before it follows"),
        pytest.param(("dies A", "follows A"), {0: A, 2: B, 3: C}, id="back before an election"),
        pytest.param(("dies A", "dies B", "dies C"), {}, id="nobody is there"),
        pytest.param(
            ("dies A", "dies B", "dies C", "follows B"), {2: B}, id="nobody led in this life"
        ),
    ],
)
def test_from_leader_to_leader_somebody_who_forwards_has_the_id_0(
    table: Table, happens: tuple[str, ...], shown: dict[int, str]
) -> None:
    addrs, ids = {"A": A, "B": B, "C": C}, {A: 1, B: 2, C: 3}
    follow(table, (B, 2), (C, 3))
    lead(table, A)
    for what, addr in ((event.split()[0], addrs[event.split()[1]]) for event in happens):
        if what == "dies":
            table.routes.connection_closed(addr)
        elif what == "silent":
            table.now_ms += BROKER_TIMEOUT_MS
            for other in {A, B, C} - {addr}:
                table.routes.note_alive(other, other, table.now_ms)
            table.routes.expire(table.now_ms)
        elif what == "leaves":
            table.routes.unregister(BrokerIdentity("main", "broker-a", addr, 0), addr)
        elif what == "follows":
            follow(table, (addr, ids[addr]), term=2)
        else:
            assert what == "leads"
            lead(table, addr, term=2)
    assert table.addrs() == shown
    route = table.routes.route("T")
    info = table.routes.cluster_info()
    if 0 in shown:
        assert route is not None
        assert [dict(broker.broker_addrs) for broker in route.brokers] == [shown]
        assert info.brokers["broker-a"].broker_addrs == shown
        assert table.routes.system_topics()[1] == shown[0]
    else:
        assert route is None
        assert table.routes.system_topics()[1] is None


def test_before_the_first_leader_nobody_stands_in(table: Table) -> None:
    follow(table, (B, 2), (C, 3))
    assert table.addrs() == {2: B, 3: C}


def test_foreign_brokers_stand_in_for_nobody(table: Table) -> None:
    """RocketMQ's followers refuse what only a leader may do."""
    table.register(B, 1, term=1)
    table.register(A, term=1)
    table.routes.connection_closed(A)
    assert table.addrs() == {1: B}
    table.register(A, term=1)
    table.register(A, 2, term=2)
    assert table.addrs() == {1: B, 2: A}
    assert table.routes.route("T") is not None


def test_who_stands_in_has_no_term_to_keep_a_leader_out_with(table: Table) -> None:
    follow(table, (B, 2), (C, 3), term=9)
    lead(table, A, term=9)
    table.routes.connection_closed(A)
    lead(table, C, term=5)
    assert table.addrs() == {0: C, 2: B}


def test_a_deposed_leader_cannot_come_back_with_its_old_term(table: Table) -> None:
    table.register(A, term=4)
    table.register(B, term=5)
    with pytest.raises(RefusedRegistrationError, match=r"term 4.* leads in term 5"):
        table.register(A, term=4)
    assert table.addrs() == {0: B}
    table.register(A, 1, term=5)
    table.register(A, term=6)
    assert table.addrs() == {0: A}


def test_a_term_ends_with_the_registration_that_told_it(table: Table) -> None:
    """With its connection, with its silence, and with its word."""
    huge = 2**63 - 1
    table.register(B, 1, term=5)
    table.register(A, term=huge)
    with pytest.raises(RefusedRegistrationError):
        table.register(C, term=5)
    table.routes.connection_closed(A)
    table.register(C, term=5)
    assert table.addrs() == {0: C, 1: B}
    table.register(A, term=huge, timeout_ms=1000)
    table.routes.expire(1000)
    table.register(C, term=5)
    table.register(A, term=huge)
    table.routes.unregister(BrokerIdentity("main", "broker-a", A, 0), A)
    table.register(C, term=5)
    assert table.addrs() == {0: C, 1: B}


def test_a_name_of_proven_brokers_takes_no_foreign_ones(table: Table) -> None:
    table.register(A, term=5, is_proven=True)
    for broker_id in (0, 3):
        for addr in (A, B):
            with pytest.raises(RefusedRegistrationError):
                table.register(addr, broker_id, term=2**63 - 1, connection="stranger")
    with pytest.raises(RefusedRegistrationError, match="is not its own"):
        table.register(A, name="another", connection="stranger")
    assert table.addrs() == {0: A}
    table.routes.connection_closed(A)
    table.register(B, connection="stranger")
    assert table.addrs() == {0: B}, "a name that nobody has"


def test_foreign_brokers_leave_when_the_group_comes(table: Table) -> None:
    table.register(B, term=2**63 - 1, topics=("T", "Evil"), connection="stranger")
    table.register(C, 1, connection="stranger")
    reply = table.register(A, term=5, is_proven=True)
    assert [gone.broker_addr for gone in reply.displaced] == [B, C]
    assert table.addrs() == {0: A}
    assert table.routes.topics() == ["T", "U"]
    assert table.routes.connection_closed("stranger") == []


def test_only_the_connection_of_a_registration_speaks_for_it(table: Table) -> None:
    table.register(A, term=5)
    assert not table.routes.unregister(BrokerIdentity("main", "broker-a", A, 0), "stranger")
    table.routes.note_alive(A, "stranger", BROKER_TIMEOUT_MS)
    assert table.addrs() == {0: A}
    assert [gone.broker_addr for gone in table.routes.expire(BROKER_TIMEOUT_MS)] == [A]


def test_a_topic_that_was_deleted_here_comes_back_with_the_next_registration(table: Table) -> None:
    table.register(A)
    table.routes.wipe_write_perm("broker-a")
    assert table.routes.delete_topic("T") == ["broker-a"]
    assert table.routes.delete_topic("T") == []
    assert table.routes.route("T") is None
    table.register(A)
    assert (table.perm("T"), table.perm("U")) == (6, 4)


def test_strangers_leave_room(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.namesrv.routes.TOPICS_MAX", 4)
    monkeypatch.setattr("broker.namesrv.routes.BROKER_NAMES_MAX", 4)
    with pytest.raises(RefusedRegistrationError, match="3 more would be more than 2"):
        table.register(B, name="x", topics=("1", "2", "3"))
    table.register(B, name="x", topics=("1", "2"))
    table.register(C, name="y", topics=())
    with pytest.raises(RefusedRegistrationError, match="2 broker names"):
        table.register(A, name="z", topics=())
    table.register(A, is_proven=True)
    assert table.addrs() == {0: A}


def test_one_name_has_few_brokers_and_they_keep_its_group_out_of_nothing(table: Table) -> None:
    for number in range(ADDRESSES_OF_NAME_MAX):
        table.register(f"10.1.0.1:{number}", number, connection="stranger")
    with pytest.raises(RefusedRegistrationError, match=f"{ADDRESSES_OF_NAME_MAX} brokers"):
        table.register(B, 99, connection="stranger")
    table.register("10.1.0.1:1", 1, connection="stranger")
    table.register(A, is_proven=True)
    assert table.addrs() == {0: A}


def test_all_names_together_have_a_bound_of_brokers_and_of_places_of_topics(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.namesrv.routes.ADDRESSES_MAX", 4)
    monkeypatch.setattr("broker.namesrv.routes.PLACES_MAX", 4)
    table.register(A, name="x")
    with pytest.raises(RefusedRegistrationError, match="at 2 places, and 2 more"):
        table.register(B, name="y")
    table.register(B, name="y", topics=())
    with pytest.raises(RefusedRegistrationError, match="2 brokers are registered already"):
        table.register(C, name="z", topics=())
    table.register(A, name="x", version=2)
    table.register(C, is_proven=True)
    table.routes.delete_topic("T")
    table.routes.connection_closed(A)
    table.routes.connection_closed(C)
    table.register(A, name="x")


@pytest.mark.parametrize("bound", ["TOPICS_MAX", "PLACES_MAX"])
def test_a_foreign_broker_stays_though_proven_ones_fill_more_than_its_half(
    table: Table, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"broker.namesrv.routes.{bound}", 6)
    table.register(A, name="x")
    table.register(B, topics=("V", "W", "X"), is_proven=True)
    table.register(A, name="x", version=2)
    table.register(C, 1, name="x", topics=())
    with pytest.raises(RefusedRegistrationError, match="and 1 more would be more than 3"):
        table.register(A, name="x", topics=("T", "U", "new"), version=3)


@pytest.mark.parametrize("what", ["name", "cluster", "addr", "topics"])
def test_names_and_addresses_have_a_bound(table: Table, what: str) -> None:
    long = "x" * (NAME_CHARS_MAX + 1)
    wrong = ("T", long) if what == "topics" else long
    values: dict[str, Any] = {"addr": A, what: wrong}
    with pytest.raises(RefusedRegistrationError, match=r"longest.* has 102\d characters"):
        table.register(**values)
    assert table.routes.cluster_info().clusters == {}


def test_members_are_those_whose_log_is_known(table: Table) -> None:
    point = LogPoint(7, 2, 99)
    table.register(A, term=2, is_proven=True, point=point)
    table.register(B, 1, term=2, is_proven=True)
    (member,) = table.routes.members("broker-a")
    assert (member.broker_addr, member.point, member.connection) == (A, point, A)
    assert table.routes.members("nobody") == []


def test_without_terms_the_last_one_wins(table: Table) -> None:
    table.register(A)
    table.register(B)
    table.register(A)
    assert table.addrs() == {0: A}


def test_an_unchanged_version_moves_the_time_only(table: Table) -> None:
    table.register(A)
    table.now_ms = BROKER_TIMEOUT_MS - 1
    table.register(A, perm=4)
    assert table.perm("T") == 6
    table.now_ms += BROKER_TIMEOUT_MS - 1
    assert table.routes.expire(table.now_ms) == []
    table.register(A, perm=4, version=2)
    assert table.perm("T") == 4


def test_a_follower_that_takes_over_brings_its_topics(table: Table) -> None:
    """Even when it registered the same version as a follower before, and no leader ever did."""
    table.register(B, 1)
    assert table.routes.topics() == []
    table.register(B, 0)
    assert table.routes.topics() == ["T", "U"]


def test_topics_that_a_registration_leaves_out_stay(table: Table) -> None:
    table.register(A)
    table.register(A, topics=("V",), version=2)
    assert table.routes.topics() == ["T", "U", "V"]


def test_an_increment_before_the_first_full_registration_is_refused(table: Table) -> None:
    with pytest.raises(RefusedRegistrationError, match="register broker failed"):
        table.register(A, topics=("T",))
    assert table.routes.topics() == []


def test_silence_ends_a_broker(table: Table) -> None:
    table.register(A)
    table.register(B, 1, timeout_ms=1000)
    assert [gone.broker_addr for gone in table.routes.expire(1000)] == [B]
    table.routes.note_alive(A, A, 50_000)
    assert table.routes.expire(BROKER_TIMEOUT_MS) == []
    assert [gone.broker_addr for gone in table.routes.expire(50_000 + BROKER_TIMEOUT_MS)] == [A]
    assert table.routes.route("T") is None
    assert table.routes.cluster_info().clusters == {}


def test_a_closed_connection_ends_what_registered_over_it(table: Table) -> None:
    table.register(A, connection="one")
    table.register(B, 1, connection="two")
    table.register(A, connection="three")
    assert table.routes.connection_closed("one") == []
    assert [gone.broker_addr for gone in table.routes.connection_closed("three")] == [A]
    assert table.addrs() == {1: B}


def test_the_end_of_a_replaced_leader_does_not_touch_the_new_one(table: Table) -> None:
    table.register(A)
    table.register(B)
    table.routes.connection_closed(A)
    assert table.addrs() == {0: B}
    table.routes.unregister(BrokerIdentity("main", "broker-a", B, 0), B)
    assert table.routes.topics() == []


def test_unknown_brokers_may_leave(table: Table) -> None:
    table.routes.unregister(BrokerIdentity("main", "broker-a", A, 0), A)
    table.register(A)
    table.routes.unregister(BrokerIdentity("main", "other-name", A, 0), A)
    assert table.addrs() == {0: A}


def test_an_address_moves_to_another_broker_name(table: Table) -> None:
    table.register(A)
    table.register(A, name="broker-b")
    assert table.addrs() == {}
    assert table.addrs("broker-b") == {0: A}


def test_tables_of_clusters_and_topics(table: Table) -> None:
    table.register(A)
    table.register(B, name="broker-b", cluster="other", topics=("U", "V"))
    info = table.routes.cluster_info()
    assert info.clusters == {"main": ("broker-a",), "other": ("broker-b",)}
    assert set(info.brokers) == {"broker-a", "broker-b"}
    assert table.routes.topics_of_cluster("other") == ["U", "V"]
    assert table.routes.system_topics() == (["main", "other", "broker-a", "broker-b"], A)
    route = table.routes.route("U")
    assert route is not None
    assert [queue.broker_name for queue in route.queues] == ["broker-a", "broker-b"]
    table.routes.delete_topic("U", "main")
    assert table.routes.topics_of_cluster("main") == ["T"]
    table.routes.delete_topic("U")
    assert table.routes.topics() == ["T", "V"]


def test_write_permission(table: Table) -> None:
    table.register(A)
    assert table.routes.wipe_write_perm("broker-a") == 2
    assert table.perm("T") == 4
    table.register(A)
    assert table.perm("T") == 4, "until the next changed registration"
    assert table.routes.add_write_perm("broker-a") == 2
    assert table.perm("T") == 6
    assert table.routes.wipe_write_perm("nobody") == 0


def test_unit_topics(table: Table) -> None:
    table.routes.register(
        BrokerIdentity("main", "broker-a", A, 0),
        Registration(
            WireDataVersion(),
            {
                str(flag): WireTopicConfig(topic_name=str(flag), topic_sys_flag=flag)
                for flag in range(4)
            },
        ),
        now_ms=0,
        connection=A,
    )
    unit = table.routes.unit_topics
    assert unit(is_unit=True, has_unit_subscription=False) == ["1", "3"]
    assert unit(is_unit=None, has_unit_subscription=True) == ["2", "3"]
    assert unit(is_unit=False, has_unit_subscription=True) == ["2"]


class RouteTableMachine(RuleBasedStateMachine):
    """Any order of what brokers do keeps the table sound."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    @rule(
        addr=st.sampled_from([A, B, C]),
        broker_id=st.integers(0, 2),
        term=st.none() | st.integers(1, 3),
        name=st.sampled_from(["broker-a", "broker-b"]),
        version=st.integers(1, 2),
        is_proven=st.booleans(),
    )
    def register(
        self,
        addr: str,
        broker_id: int,
        term: int | None,
        name: str,
        version: int,
        is_proven: bool,
    ) -> None:
        before = self.table.addrs(name)
        try:
            self.table.register(
                addr, broker_id, term=term, name=name, version=version, is_proven=is_proven
            )
        except RefusedRegistrationError:
            assert self.table.addrs(name) == before
        else:
            shown = self.table.addrs(name)
            assert shown.get(broker_id) == addr or (is_proven and addr in shown.values())
            assert broker_id or shown[0] == addr

    @rule(addr=st.sampled_from([A, B, C]))
    def close(self, addr: str) -> None:
        self.table.routes.connection_closed(addr)
        assert self.table.routes.known_version(addr) is None

    @rule(elapsed_ms=st.integers(0, BROKER_TIMEOUT_MS))
    def wait(self, elapsed_ms: int) -> None:
        self.table.now_ms += elapsed_ms
        self.table.routes.expire(self.table.now_ms)

    @invariant()
    def every_listed_address_is_heard_and_listed_once(self) -> None:
        info = self.table.routes.cluster_info()
        listed = [addr for broker in info.brokers.values() for addr in broker.broker_addrs.values()]
        assert len(listed) == len(set(listed))
        assert all(self.table.routes.known_version(addr) is not None for addr in listed)

    @invariant()
    def clients_of_proven_brokers_always_find_a_leader(self) -> None:
        for topic in self.table.routes.topics():
            route = self.table.routes.route(topic)
            assert route is not None
            for broker in route.brokers:
                entry = self.table.routes._names[broker.broker_name]
                is_listed = bool(broker.broker_addrs) and entry.is_proven
                assert 0 in broker.broker_addrs or not is_listed

    @invariant()
    def a_broker_name_knows_its_topics(self) -> None:
        routes = self.table.routes
        for name, entry in routes._names.items():
            assert {*entry.topics} == {topic for topic, at in routes._topics.items() if name in at}
        assert routes._place_count == sum(map(len, routes._topics.values()))

    @invariant()
    def every_queue_has_its_broker(self) -> None:
        for topic in self.table.routes.topics():
            route = self.table.routes.route(topic)
            assert route is not None
            assert [queue.broker_name for queue in route.queues] == [
                broker.broker_name for broker in route.brokers
            ]


TestRouteTableMachine = RouteTableMachine.TestCase
TestRouteTableMachine.settings = settings(max_examples=30, stateful_step_count=20)


def test_a_table_that_contradicts_itself_is_noticed(table: Table) -> None:
    table.register(A)
    table.routes._names["broker-a"].addrs[1] = B
    with pytest.raises(AssertionError, match="broker-a lists"):
        table.register(A)
