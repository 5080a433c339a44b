"""Replies to request messages (324, 325 with 326): given on wherever the requester is, and what the replier hears."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.server.handlers import replies
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json
from tests.integration.broker.conftest import ANSWER_S, Cluster, ClusterMaker, Wire, send_ext

pytestmark = pytest.mark.usefixtures("patient", "_patient_replies")

TOPIC = "DefaultCluster_REPLY_TOPIC"
NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}


@pytest.fixture
def _patient_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_MS", "PUSH_MS_MIN"):
        monkeypatch.setattr(replies, name, 1000 * ANSWER_S)


def properties(correlation: str = "c-1", to: str = "requester", **more: str) -> str:
    pairs = {"CORRELATION_ID": correlation, "REPLY_TO_CLIENT": to, "MSG_TYPE": "reply", **more}
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items() if value)


def reply(wire: Wire, text: str = "", *, topic: str = TOPIC, body: bytes = b"answer") -> int:
    return wire.send_request(325, send_ext(topic, 0, text or properties()), body)


async def beat(wire: Wire, client_id: str = "requester") -> None:
    """What a producer says of itself."""
    body = write_json({"clientID": client_id, "producerDataSet": [{"groupName": "P"}]})
    assert (await wire.ask(34, {}, body)).code == 0


async def ask_for_reply(wire: Wire, client_id: str = "requester") -> None:
    """What a requester sends; nothing else is known of its client afterwards."""
    text = f"CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01{client_id}\x02TTL\x013000\x02"
    assert (await wire.send("T", b"question", properties=text)).code == 0


async def given(requester: Wire, replier: Wire, opaque: int) -> RemotingCommand:
    """Take the reply as a requester does; the answer to the replier."""
    pushed = await requester.push(326)
    assert pushed.body == b"answer"
    requester.reply(pushed)
    return await replier.answer(opaque)


@pytest.fixture
async def one(make_cluster: ClusterMaker) -> AsyncIterator[tuple[Wire, Wire]]:
    """A requester and a replier at the one broker of a group."""
    cluster = await make_cluster(1)
    broker = cluster.brokers["n0"]
    async with cluster.wire(broker) as requester, cluster.wire(broker) as replier:
        await beat(requester)
        yield requester, replier


async def test_the_requester_gets_the_reply_and_the_replier_hears_it(
    one: tuple[Wire, Wire],
) -> None:
    requester, replier = one
    opaque = reply(replier)
    pushed = await requester.push(326)
    assert not pushed.is_oneway
    ext = pushed.ext
    assert (ext["topic"], ext["producerGroup"], ext["queueId"]) == (TOPIC, "P", "0")
    assert ext["properties"].startswith(properties())
    assert "PUSH_REPLY_TIME\x01" in ext["properties"]
    assert ext["bornHost"].startswith("127.0.0.1:")
    assert ext["storeHost"].startswith("127.0.0.1:")
    assert int(ext["storeTimestamp"]) > int(ext["bornTimestamp"])
    assert not replier.has_answer(opaque)
    requester.reply(pushed)
    answer = await replier.answer(opaque)
    assert answer.code == 0
    assert {"msgId": "0", "queueId": "0", "queueOffset": "0"}.items() <= answer.ext.items()
    assert {"MSG_REGION", "TRACE_ON"} <= answer.ext.keys()  # Java dereferences them
    long_names = {NAMES[name]: value for name, value in send_ext(TOPIC, 0, properties()).items()}
    opaque = replier.send_request(324, long_names, b"answer")
    assert (await given(requester, replier, opaque)).code == 0


async def test_what_the_requester_says_is_what_the_replier_hears(
    one: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    requester, replier = one
    opaque = reply(replier)
    requester.reply(await requester.push(326), code=1, remark="no such request")
    answer = await replier.answer(opaque)
    assert (answer.code, answer.remark) == (
        1,
        "the requester requester refused the reply with 1: no such request",
    )
    monkeypatch.setattr(replies, "HOLD_MS", 0)  # whoever went away is not waited for
    opaque = reply(replier)
    await requester.push(326)
    requester.connection.close("it went away")
    answer = await replier.answer(opaque)
    assert (answer.code, (answer.remark or "")[:15]) == (1, "outcome unknown")


async def test_a_silent_requester_leaves_the_outcome_unknown(
    one: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    requester, replier = one
    monkeypatch.setattr(replies, "HOLD_MS", 0)
    monkeypatch.setattr(replies, "PUSH_MS_MIN", 50)
    answer = await replier.answer(reply(replier))
    assert (answer.code, "has not confirmed it in time" in (answer.remark or "")) == (1, True)
    requester.reply(await requester.push(326))
    assert (await requester.ask(30, {"topic": "T", "queueId": "0"})).code == 0


async def test_hostile_replies_are_refused_and_given_to_nobody(one: tuple[Wire, Wire]) -> None:
    requester, replier = one
    for text in (
        properties(correlation=""),
        properties(to=""),
        properties(correlation="x" * 256),
        properties(to="x" * 256),
        properties(to="a\x00b"),
        properties(correlation="line\nbreak"),
        "CORRELATION_ID\x01c-1",
        "\x02\x01",
    ):
        answer = await replier.answer(reply(replier, text))
        assert answer.code == 13, text
        assert "given to nobody" in (answer.remark or "")
    for topic in ("T", "../x_REPLY_TOPIC", "x" * 200 + "_REPLY_TOPIC", "", "TBW102"):
        assert (await replier.answer(reply(replier, topic=topic))).code == 13, topic
    huge = await replier.answer(reply(replier, body=bytes((4 << 20) + 1)))
    assert (huge.code, "maxMessageSize" in (huge.remark or "")) == (13, True)
    batch = send_ext(TOPIC, 0, properties()) | {"m": "true"}
    assert (await replier.ask(325, batch, b"x")).code == 13
    broken = send_ext(TOPIC, 0, properties()) | {"e": "no number"}
    assert (await replier.ask(325, broken, b"x")).code == 1
    assert not requester.pushed
    assert (await replier.messages(TOPIC)) == []


async def test_replies_are_bounded_in_number_and_bytes(
    one: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    requester, replier = one
    monkeypatch.setattr(replies, "REPLIES_MAX", 2)
    waiting = [reply(replier), reply(replier)]
    assert (await replier.answer(reply(replier))).code == 2
    assert [(await given(requester, replier, each)).code for each in waiting] == [0, 0]
    monkeypatch.setattr(replies, "REPLY_BYTES_MAX", 100)
    first = reply(replier)
    assert (await replier.answer(reply(replier))).code == 2
    assert (await given(requester, replier, first)).code == 0


async def test_what_a_message_says_of_its_client_counts_only_while_no_heartbeat_says_otherwise(
    one: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    requester, replier = one
    monkeypatch.setattr(replies, "RETURN_MS", -1)
    await ask_for_reply(replier, "unseen")
    opaque = reply(replier, properties(to="unseen"))
    assert (await given(replier, replier, opaque)).code == 0
    # Whoever copies a message, with its properties, asks for no reply: a heartbeat says who that is.
    await beat(replier, "replier")
    await ask_for_reply(replier, "requester")
    await ask_for_reply(replier, "unseen")
    opaque = reply(replier)
    assert (await given(requester, replier, opaque)).code == 0
    assert not replier.pushed


# Over nodes.


@pytest.fixture
async def cluster(make_cluster: ClusterMaker) -> Cluster:
    return await make_cluster(3)


def named(cluster: Cluster, leader: str) -> list[str]:
    """The leader and the others."""
    return [leader, *sorted(node for node in cluster.brokers if node != leader)]


@pytest.mark.parametrize("is_known_by_heartbeat", [True, False], ids=["heartbeat", "message"])
async def test_a_requester_is_found_wherever_it_is_connected(
    cluster: Cluster, *, is_known_by_heartbeat: bool
) -> None:
    await cluster.followers()
    nodes = named(cluster, str((await cluster.leader()).log.node_id))
    for client, other in ((1, 0), (0, 1), (1, 2), (1, 1)):
        async with (
            cluster.wire(cluster.brokers[nodes[client]]) as requester,
            cluster.wire(cluster.brokers[nodes[other]]) as replier,
        ):
            client_id = f"requester-{client}-{other}"
            await (beat if is_known_by_heartbeat else ask_for_reply)(requester, client_id)
            opaque = reply(replier, properties(to=client_id))
            assert (await given(requester, replier, opaque)).code == 0


async def test_a_requester_that_nobody_has_is_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "HOLD_MS", 0)  # nobody is waited for
    followers = await cluster.followers()
    assert len(followers) == 2
    for broker in followers:
        async with cluster.wire(broker) as replier:
            answer = await replier.answer(reply(replier))
            assert answer.code == 1
            assert answer.remark == (
                "the requester requester is connected to no node of this group: the reply was given to nobody"
            )


async def test_over_a_change_of_leader_the_requester_is_found_where_it_was(
    cluster: Cluster,
) -> None:
    await cluster.followers()
    old = await cluster.leader()
    async with cluster.wire(old) as requester:
        await beat(requester)
        await cluster.transfer()
        for broker in (await cluster.leader(), *await cluster.followers()):
            async with cluster.wire(broker) as replier:
                opaque = reply(replier)
                assert (await given(requester, replier, opaque)).code == 0


async def test_a_reply_waits_for_a_requester_that_comes_back_after_its_node_died(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java says nothing of itself for up to 30 s, but it sends its message again."""
    monkeypatch.setattr(replies, "HOLD_MS", 60_000)
    await cluster.followers()
    old = str((await cluster.leader()).log.node_id)
    async with cluster.wire(cluster.brokers[old]) as requester:
        await beat(requester)
    await cluster.kill(old)
    leader = await cluster.leader()
    async with cluster.wire(leader) as requester, cluster.wire(leader) as replier:
        opaque = reply(replier)
        assert (await replier.ask(30, {"topic": "T", "queueId": "0"})).code == 0
        assert not replier.has_answer(opaque)
        await ask_for_reply(requester)
        assert (await given(requester, replier, opaque)).code == 0
