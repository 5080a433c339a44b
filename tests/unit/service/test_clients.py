"""Live clients here and everywhere: rules Q."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.service.clients import (
    CLIENT_EXPIRY_MS,
    CONNECTION_BYTES_MAX,
    NODE_EXPIRY_MS,
    USUAL_BYTES,
    ClientUnion,
    ConsumerClient,
    LocalClients,
    ProducerClient,
    consumers_of,
    producers_of,
)
from broker.service.wait_room import ROOM_BYTES
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.heartbeat import MessageModel, Subscription, decode_heartbeat

FRAMES = Path(__file__).parents[2] / "golden" / "frames"


def consumer(
    client_id: str = "c1", group: str = "g", *topics: str, version: int = 1
) -> ConsumerClient:
    subscriptions = tuple(Subscription(topic, version=version) for topic in topics or ("T",))
    return ConsumerClient(group, client_id, subscriptions=subscriptions)


def ids(union: ClientUnion, group: str = "g") -> list[str]:
    return sorted(union.members(group))


@pytest.mark.parametrize("name", ["cpp-heartbeat-consumer-broadcast", "node-heartbeat-consumer"])
def test_what_real_clients_send(name: str) -> None:
    decoder = FrameDecoder()
    decoder.feed((FRAMES / f"{name}.bin").read_bytes())
    frame = decoder.next_frame()
    assert frame is not None
    beat = decode_heartbeat(frame.body)
    (found,) = consumers_of(beat, language="CPP", version=63, address="1.2.3.4:5")
    assert found.subscription("TopicA") is not None
    assert found.message_model is (
        MessageModel.BROADCASTING if "broadcast" in name else MessageModel.CLUSTERING
    )
    assert producers_of(beat, language="CPP", version=63, address="") == []


def test_a_heartbeat_that_says_the_same_changes_nothing() -> None:
    local = LocalClients()
    assert local.heartbeat(1, [consumer()], [], 0) == ["g"]
    assert local.heartbeat(1, [consumer()], [], 10) == []
    assert local.changes == 1


def test_q4_a_topic_that_is_no_longer_named_is_dropped() -> None:
    local = LocalClients()
    local.heartbeat(1, [consumer("c1", "g", "T", "U")], [], 0)
    assert local.heartbeat(1, [consumer("c1", "g", "U")], [], 10) == ["g"]
    (found,) = local.consumers("g")
    assert found.subscription("T") is None


def test_q2_silent_clients_go_after_120_s() -> None:
    local = LocalClients()
    local.heartbeat(1, [consumer()], [ProducerClient("p", "c1")], 0)
    assert local.expire(CLIENT_EXPIRY_MS) == []
    assert local.expire(CLIENT_EXPIRY_MS + 1) == ["g"]
    assert local.consumers() == []
    assert local.producers("p") == []


def test_a_closed_connection_takes_its_clients_along() -> None:
    local = LocalClients()
    local.heartbeat(1, [consumer("c1"), consumer("c1", "h")], [ProducerClient("p", "c1")], 0)
    local.heartbeat(2, [consumer("c2")], [], 0)
    assert local.connection_closed(1) == ["g", "h"]
    assert [client.client_id for client in local.consumers("g")] == ["c2"]
    assert local.producers("p") == []
    assert local.connection_closed(1) == []


def test_a_client_that_came_back_survives_its_old_connection() -> None:
    local = LocalClients()
    local.heartbeat(1, [consumer()], [], 0)
    local.heartbeat(2, [consumer()], [], 1)
    assert local.connection_closed(1) == []
    assert local.connections_of("g") == [2]


def test_unregister_ignores_empty_names() -> None:
    local = LocalClients()
    local.heartbeat(1, [consumer()], [ProducerClient("p", "c1")], 0)
    assert local.unregister("c1", consumer_group="", producer_group="p") == []
    assert local.unregister("c1", consumer_group="g", producer_group="") == ["g"]
    assert local.unregister("c1", consumer_group="g", producer_group="") == []


def test_the_union_joins_all_nodes() -> None:
    union = ClientUnion()
    assert union.put("n0", [consumer("c1")], 0) == ["g"]
    assert union.put("n1", [consumer("c2"), consumer("c3", "h")], 0) == ["g", "h"]
    assert ids(union) == ["c1", "c2"]
    assert union.put("n1", [consumer("c2"), consumer("c3", "h")], 5) == []
    assert union.put("n1", [], 6) == ["g", "h"]
    assert union.groups() == ["g"]


def test_a_client_on_two_nodes_counts_once() -> None:
    union = ClientUnion()
    union.put("n0", [consumer("c1")], 0)
    assert union.put("n1", [consumer("c1")], 0) == []
    assert ids(union) == ["c1"]
    assert union.put("n0", [], 1) == []


def test_a_silent_node_takes_its_clients_along() -> None:
    union = ClientUnion()
    union.put("n0", [consumer("c1")], 0)
    union.put("n1", [consumer("c2")], 0)
    union.touch("n1", NODE_EXPIRY_MS)
    assert union.expire(NODE_EXPIRY_MS + 1) == ["g"]
    assert ids(union) == ["c2"]


def test_a_new_leader_starts_from_what_it_knew() -> None:
    old, new = ClientUnion(), ClientUnion()
    old.put("n0", [consumer("c1")], 0)
    old.put("n1", [consumer("c2")], 0)
    assert new.replace(old.by_node(), 0) == ["g"]
    new.leadership_began(50_000)
    assert new.expire(50_000 + NODE_EXPIRY_MS) == []
    assert ids(new) == ["c1", "c2"]


def test_g8_the_newest_subscription_counts() -> None:
    union = ClientUnion()
    union.put("n0", [consumer("c1", "g", "T", version=1), consumer("c2", "g", "T", version=2)], 0)
    found = union.subscription("g", "T")
    assert found is not None
    assert found.version == 2
    assert union.subscription("g", "U") is None
    assert union.groups_of_topic("T") == ["g"]


@pytest.mark.parametrize("newer", ["n0", "n1"])
def test_what_a_client_told_last_counts_whichever_node_it_told(newer: str) -> None:
    union = ClientUnion()
    for node in ("n0", "n1"):
        union.put(node, [consumer(version=2 if node == newer else 1)], 0)
    found = union.subscription("g", "T")
    assert found is not None
    assert found.version == 2


def test_a_newer_version_of_a_subscription_changes_the_union_but_no_roll() -> None:
    """Java clients raise it whenever their queues change: a notice for each would make all of them rebalance."""
    union = ClientUnion()
    union.put("n0", [consumer(version=1)], 0)
    version = union.version
    assert union.put("n0", [consumer(version=2)], 0) == []
    assert union.version == version + 1
    other = ClientUnion()
    other.replace({"n0": [consumer(version=1)]}, 0)
    assert other.replace(union.by_node(), 0) == []


def test_another_topic_changes_the_roll() -> None:
    union = ClientUnion()
    union.put("n0", [consumer("c1", "g", "T")], 0)
    assert union.put("n0", [consumer("c1", "g", "T", "U")], 0) == ["g"]
    assert union.put("n0", [consumer("c1", "g", "U")], 0) == ["g"]


def test_the_version_moves_with_the_content() -> None:
    union = ClientUnion()
    union.put("n0", [consumer()], 0)
    version = union.version
    union.put("n0", [consumer()], 1)
    assert union.version == version
    union.put("n0", [consumer("c9")], 2)
    assert union.version > version


def with_text(client_id: str, size_bytes: int) -> ConsumerClient:
    """A consumer that keeps as many bytes, most of them in one expression."""
    empty = ConsumerClient("g", client_id, subscriptions=(Subscription("T", ""),))
    text = "a" * (size_bytes - empty.kept_bytes)
    return ConsumerClient("g", client_id, subscriptions=(Subscription("T", text),))


def test_what_the_clients_of_one_connection_keep_is_bounded() -> None:
    local = LocalClients()
    largest = with_text("c", CONNECTION_BYTES_MAX)
    assert largest.kept_bytes == CONNECTION_BYTES_MAX
    assert not local.has_room(1, [with_text("c", CONNECTION_BYTES_MAX + 1)], [])
    assert local.has_room(1, [largest], [])
    local.heartbeat(1, [largest], [], 0)
    assert not local.has_room(1, [], [ProducerClient("p", "c")]), "under another name it is more"
    assert not local.has_room(1, [consumer("c2")], [])
    assert local.has_room(1, [largest], []), "the next heartbeat says the same"
    assert local.has_room(1, [with_text("c", 5000)], [ProducerClient("p", "c")])
    assert local.has_room(2, [consumer("c2")], [ProducerClient("p", "c2")])


@pytest.mark.parametrize("how", ["leaves", "is silent", "unregisters", "moves", "shrinks"])
def test_connections_that_keep_much_share_a_room(how: str) -> None:
    local = LocalClients()
    for number in range(ROOM_BYTES // CONNECTION_BYTES_MAX):
        large = with_text(f"c{number}", CONNECTION_BYTES_MAX)
        assert local.has_room(number, [large], [])
        local.heartbeat(number, [large], [], 0)
    late = with_text("late", CONNECTION_BYTES_MAX)
    assert not local.has_room(100, [late], [])
    assert local.has_room(100, [with_text("usual", USUAL_BYTES)], []), "usual ones need none"
    match how:
        case "leaves":
            local.connection_closed(0)
        case "is silent":
            local.expire(CLIENT_EXPIRY_MS + 1)
        case "unregisters":
            local.unregister("c0", consumer_group="g", producer_group="")
        case "moves":
            local.heartbeat(7, [with_text("c0", USUAL_BYTES)], [], 0)
        case "shrinks":
            local.heartbeat(0, [with_text("c0", USUAL_BYTES)], [], 0)
    assert local.has_room(100, [late], [])
