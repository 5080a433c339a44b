"""Topics that are not there for a reason: trace that is off (rules V1, V2), light queues. Whoever asks learns it."""

from __future__ import annotations

import pytest

from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.names import TRACE_TOPIC
from tests.integration.broker.conftest import ClusterMaker, Wire, send_ext

pytestmark = pytest.mark.usefixtures("each_stage", "patient")

OFF = "Message trace is off here: traceTopicEnable=true"


def query_ext(topic: str) -> dict[str, str]:
    times = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
    return {"topic": topic, "key": "ID", "maxNum": "64", **times}


async def test_off_everybody_who_asks_is_told_so(one: Wire) -> None:
    answers = [
        await one.send(TRACE_TOPIC),
        await one.pull(TRACE_TOPIC),
        await one.ask(12, query_ext(TRACE_TOPIC)),
        await one.ask(202, {"topic": TRACE_TOPIC}),
        await one.ask(351, {"topic": TRACE_TOPIC}),
    ]
    for answer in answers:
        assert answer.code == 17
        assert OFF in (answer.remark or "")
    others = [await one.pull("Other"), await one.ask(12, query_ext("Other"))]
    assert not any("trace" in (answer.remark or "") for answer in others)
    assert (await one.send("Own-trace")).code == 0, (
        "a topic of a client's own is one like any other"
    )


async def test_light_queues_are_refused_with_the_reason(one: Wire) -> None:
    light = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"
    refused = await one.send("T", properties=f"{light}UNIQ_KEY\x01u\x02")
    assert refused.code == 13
    assert "%LMQ%a,%LMQ%b. Light queues" in (refused.remark or "")
    items = [BatchItem(0, b"x", f"UNIQ_KEY\x01{n}\x02{light}".encode()) for n in range(2)]
    batch = send_ext("T") | {"m": "true"}
    assert (await one.ask(320, batch, encode_batch(items))).code == 13
    assert await one.messages("T") == []
    for answer in (await one.pull("%LMQ%a"), await one.ask(202, {"topic": "%LMQ%a"})):
        assert answer.code == 17
        assert "Light queues" in (answer.remark or "")


async def test_on_it_is_there_under_its_name(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, trace_topic=TRACE_TOPIC)
    lone = await cluster.leader()
    await cluster.wait(lambda: TRACE_TOPIC in lone.state.topics)
    topic = lone.state.topics.get(TRACE_TOPIC)
    assert topic is not None
    assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (1, 1, 6)
    async with cluster.wire(lone) as wire:
        assert (await wire.send(TRACE_TOPIC, properties="KEYS\x01ID\x02")).code == 0
        assert (await wire.ask(12, query_ext(TRACE_TOPIC))).code == 0


async def test_it_may_have_another_name(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, trace_topic="Traces")
    lone = await cluster.leader()
    await cluster.wait(lambda: "Traces" in lone.state.topics)
    assert TRACE_TOPIC not in lone.state.topics
