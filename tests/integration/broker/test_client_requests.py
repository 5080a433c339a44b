"""What tools ask of clients through the broker: 223 with 221, 307, 309; and clients that answer otherwise, or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.server.handlers import client_calls
from dledger_mq.message.record import decode_record
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_json
from dledger_mq.remoting.message_queue import WireQueue
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire
from tests.integration.broker.test_tools import subscribe

pytestmark = pytest.mark.usefixtures("patient")

INFO = b'{"mqTable":{},"properties":{},"statusTable":{},"subscriptionSet":[]}'
ASK = {"consumerGroup": "G", "clientId": "c1"}


class Bench:
    """A tool, and the member c1 of group G; both may be connected to any node."""

    def __init__(self, tool: Wire, client: Wire) -> None:
        self.tool = tool
        self.client = client

    def ask(self, code: int = 307, **more: str) -> int:
        return self.tool.send_request(code, ASK | more)


@asynccontextmanager
async def connected(cluster: Cluster, *, tool: str, client: str) -> AsyncIterator[Bench]:
    async with (
        cluster.wire(cluster.brokers[tool]) as tool_wire,
        cluster.wire(cluster.brokers[client]) as client_wire,
    ):
        await subscribe(client_wire, "G", "T", "*", [])
        yield Bench(tool_wire, client_wire)


@pytest.fixture
async def bench(make_cluster: ClusterMaker) -> AsyncIterator[Bench]:
    cluster = await make_cluster(1)
    async with connected(cluster, tool="n0", client="n0") as made:
        yield made


async def test_307_a_tool_gets_what_the_client_says(bench: Bench) -> None:
    opaque = bench.ask(jstackEnable="true")
    asked = await bench.client.push(307)
    assert not asked.is_oneway
    assert asked.ext == {**ASK, "jstackEnable": "true"}
    bench.client.reply(asked, INFO)
    answer = await bench.tool.answer(opaque)
    assert (answer.code, answer.body) == (0, INFO)
    opaque = bench.ask()
    bench.client.reply(await bench.client.push(307), code=1, remark="The Consumer Group <G> ...")
    answer = await bench.tool.answer(opaque)
    assert (answer.code, answer.remark) == (1, "The Consumer Group <G> ...")


@pytest.mark.parametrize(("group", "client"), [("G", "c2"), ("H", "c1")])
async def test_who_is_not_there_is_not_asked(bench: Bench, group: str, client: str) -> None:
    answer = await bench.tool.ask(307, {"consumerGroup": group, "clientId": client})
    assert (answer.code, answer.remark) == (1, f"The Consumer <{group}> <{client}> not online")
    assert (await bench.tool.ask(307, {"consumerGroup": group})).code == 1


async def test_309_the_client_gets_the_message_and_says_what_came_of_it(bench: Bench) -> None:
    sent = await bench.tool.send("T", b"body")
    opaque = bench.ask(309, msgId=sent.ext["msgId"])
    asked = await bench.client.push(309)
    assert asked.ext["brokerName"] == "broker-a"
    assert decode_record(asked.body).body == b"body"
    bench.client.reply(asked, b'{"consumeResult":"CR_SUCCESS"}')
    assert (await bench.tool.answer(opaque)).body == b'{"consumeResult":"CR_SUCCESS"}'
    for unknown in ("0" * 32, "7F00000100002A9F00000000000000FF", "no id"):
        assert (await bench.tool.ask(309, {**ASK, "msgId": unknown})).code == 1


async def test_223_where_the_members_say_that_they_are(bench: Bench) -> None:
    fields = {"group": "G", "topic": "T"}
    await subscribe(bench.tool, "G", "T", "*", [], client_id="c2")
    opaque = bench.tool.send_request(223, fields)
    first, second = await bench.client.push(221), await bench.tool.push(221)
    assert first.ext == second.ext == fields
    table = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}'
    bench.client.reply(first, table)
    assert not bench.tool.has_answer(opaque)
    bench.tool.reply(second, b"what?")
    answer = await bench.tool.answer(opaque)
    queue = WireQueue("broker-a", 0, "T")
    assert read_json(answer.body) == {
        "consumerTable": {"c1": {queue: 7}, "c2": {}},
        "messageQueueTable": {},
    }
    opaque = bench.tool.send_request(223, fields | {"clientAddr": "c1"})
    bench.client.reply(await bench.client.push(221), code=1, remark="not now")
    answer = await bench.tool.answer(opaque)
    assert (answer.code, answer.remark) == (1, "c1 answered 1: not now")
    assert (await bench.tool.ask(223, fields | {"group": "H"})).code == 1


# Clients that do otherwise.


async def test_answers_to_what_was_not_asked_change_nothing(bench: Bench) -> None:
    opaque = bench.ask()
    asked = await bench.client.push(307)
    for wrong in (asked.opaque + 1, asked.opaque - 1, 0, -1, 2**31 - 1):
        bench.client.reply(RemotingCommand(code=307, opaque=wrong), b"wrong")
    bench.tool.reply(asked, b"over another connection")
    assert (await bench.client.ask(30, {"topic": "T", "queueId": "0"})).code == 0
    assert (await bench.tool.ask(30, {"topic": "T", "queueId": "0"})).code == 0
    assert not bench.tool.has_answer(opaque)
    bench.client.reply(asked, INFO)
    bench.client.reply(asked, b"once more")
    assert (await bench.tool.answer(opaque)).body == INFO


async def test_a_client_that_goes_without_an_answer_ends_the_wait(bench: Bench) -> None:
    opaque = bench.ask()
    await bench.client.push(307)
    bench.client.connection.close("it went away")
    answer = await bench.tool.answer(opaque)
    assert (answer.code, "ended before its answer" in (answer.remark or "")) == (1, True)


async def test_a_silent_client_is_not_waited_for_longer_than_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_calls, "CALL_MS", 100)
    answer = await bench.tool.answer(bench.ask())
    assert (answer.code, answer.remark) == (207, "c1 did not answer in time")
    late = await bench.client.push(307)
    bench.client.reply(late, INFO)
    assert (await bench.client.ask(30, {"topic": "T", "queueId": "0"})).code == 0


async def test_calls_are_bounded_in_number_and_size(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_calls, "CALLS_MAX", 2)
    monkeypatch.setattr(client_calls, "ANSWER_BYTES_MAX", 100)
    waiting = [bench.ask() for _ in range(2)]
    refused = await bench.tool.answer(bench.ask())
    assert (refused.code, "2 requests wait" in (refused.remark or "")) == (2, True)
    bench.client.reply(await bench.client.push(307), b"x" * 101)
    bench.client.reply(await bench.client.push(307), b"x" * 100)
    long, right = [await bench.tool.answer(opaque) for opaque in waiting]
    assert (long.code, long.remark) == (1, "the answer of c1 has 101 bytes")
    assert right.code == 0


# Over nodes.


@pytest.fixture
async def cluster(make_cluster: ClusterMaker) -> Cluster:
    return await make_cluster(3)


Places = Callable[[list[str]], tuple[str, str]]


@pytest.mark.parametrize(
    "places",
    [
        lambda nodes: (nodes[0], nodes[1]),
        lambda nodes: (nodes[1], nodes[0]),
        lambda nodes: (nodes[1], nodes[2]),
        lambda nodes: (nodes[1], nodes[1]),
    ],
    ids=["client at a follower", "tool at a follower", "both at followers", "both at one follower"],
)
async def test_a_client_is_asked_wherever_it_is_connected(cluster: Cluster, places: Places) -> None:
    await cluster.followers()
    leader = str((await cluster.leader()).log.node_id)
    tool, client = places([leader, *sorted(node for node in cluster.brokers if node != leader)])
    async with connected(cluster, tool=tool, client=client) as bench:
        opaque = bench.ask()
        asked = await bench.client.push(307)
        bench.client.reply(asked, INFO)
        assert (await bench.tool.answer(opaque)).body == INFO
        sent = await bench.tool.send("T", b"body")
        opaque = bench.ask(309, msgId=sent.ext["msgId"])
        asked = await bench.client.push(309)
        assert decode_record(asked.body).body == b"body"
        bench.client.connection.close("it went away")
        answer = await bench.tool.answer(opaque)
        assert (answer.code, "ended before its answer" in (answer.remark or "")) == (1, True)
