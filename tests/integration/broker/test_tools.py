"""What tools ask about one topic or group, over a socket, against what was sent and consumed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from broker.server.handlers import tool_reads
from dledger_mq.message.hashes import tags_code
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_json
from tests.integration.broker.conftest import Wire

pytestmark = pytest.mark.usefixtures("each_stage", "patient")

TOLERANCE_MS = 60_000


def parsed(body: bytes) -> Any:
    """A body in fastjson's form."""
    return read_json(body)


async def commit(one: Wire, group: str, queue: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "T", "queueId": str(queue)}
    assert (await one.ask(15, {**fields, "commitOffset": str(offset)})).code == 0


async def subscribe(
    one: Wire,
    group: str,
    topic: str,
    expression: str,
    tags: list[str],
    *,
    client_id: str = "c1",
    model: str = "CLUSTERING",
    language: str = "JAVA",
) -> None:
    subscription = {
        "topic": topic,
        "subString": expression,
        "subVersion": 7,
        "tagsSet": tags,
        "codeSet": [tags_code(tag) for tag in tags],
        "expressionType": "TAG",
        "classFilterMode": False,
    }
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    beat = await one.ask(34, {}, json.dumps(body).encode(), language=language)
    assert beat.code == 0


async def test_351_and_352_one_topic_and_one_group(one: Wire) -> None:
    wanted = {"topic": "T2", "readQueueNums": "3", "writeQueueNums": "2", "perm": "6"}
    wanted |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "true"}
    attributes = {"attributes": "+message.type=FIFO"}
    assert (await one.ask(17, wanted | attributes)).code == 0
    topic = json.loads((await one.ask(351, {"topic": "T2"})).body)
    assert (topic["topicName"], topic["readQueueNums"], topic["writeQueueNums"]) == ("T2", 3, 2)
    assert topic["order"] is True
    assert topic["attributes"] == {"message.type": "FIFO"}
    missing = await one.ask(351, {"topic": "Unknown"})
    assert (missing.code, missing.remark) == (17, "topic[Unknown] not exist")
    body = json.dumps({"groupName": "G2", "retryMaxTimes": 3}).encode()
    assert (await one.ask(200, {}, body)).code == 0
    group = json.loads((await one.ask(352, {"group": "G2"})).body)
    assert (group["groupName"], group["retryMaxTimes"], group["consumeEnable"]) == ("G2", 3, True)
    missing = await one.ask(352, {"group": "nobody"})
    assert (missing.code, missing.remark) == (26, "the consumer group[nobody] not exist")


async def test_305_system_topics(one: Wire) -> None:
    await one.send("T")
    found = json.loads((await one.ask(305)).body)
    assert found["brokerAddr"] == one.connection.peer
    assert {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"} <= set(found["topicList"])
    assert "T" not in found["topicList"]


async def test_343_and_345_what_a_group_consumes(one: Wire) -> None:
    await one.send("T")
    assert json.loads((await one.ask(343, {"group": "G"})).body)["topicList"] == []
    await commit(one, "G", 0, 1)
    assert json.loads((await one.ask(343, {"group": "G"})).body)["topicList"] == ["T"]
    await subscribe(one, "G", "T", "red || blue", ["red", "blue"])
    found = json.loads((await one.ask(345, {"group": "G", "topic": "T"})).body)
    assert (found["group"], found["topic"]) == ("G", "T")
    assert found["subscriptionData"]["subString"] == "red || blue"
    nobody = json.loads((await one.ask(345, {"group": "H", "topic": "T"})).body)
    assert nobody == {"group": "H", "topic": "T"}


async def test_303_since_when_a_group_waits(one: Wire) -> None:
    began_ms = time.time() * 1000
    for _ in range(3):
        await one.send("T", queue=1)
    await commit(one, "G", 1, 2)
    await commit(one, "H", 1, 3)
    for group, lacks in (("G", True), ("H", False), ("nobody", True)):
        found = parsed((await one.ask(303, {"topic": "T", "group": group})).body)
        spans = {span["messageQueue"]["queueId"]: span for span in found["consumeTimeSpanSet"]}
        assert len(spans) == 4
        none = spans[0]
        times = (none["minTimeStamp"], none["maxTimeStamp"], none["consumeTimeStamp"])
        assert (*times, none["delayTime"]) == (-1, -1, -1, 0)
        first, last, at = (
            spans[1][name] for name in ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp")
        )
        assert began_ms - 1000 <= first <= at <= last < began_ms + TOLERANCE_MS
        assert (at == first) or group != "nobody"
        assert (0 < spans[1]["delayTime"] < TOLERANCE_MS) or not lacks
        assert lacks or spans[1]["delayTime"] == 0
    assert (await one.ask(303, {"topic": "Unknown", "group": "G"})).code == 17


async def test_308_how_far_all_groups_are(one: Wire) -> None:
    for queue in (0, 0, 0, 1, 1):
        await one.send("T", queue=queue)
    await commit(one, "slow", 0, 1)
    await commit(one, "fast", 0, 3)
    await commit(one, "fast", 1, 2)

    async def corrections(compared: str, left_out: str = "") -> object:
        fields = {"topic": "T", "compareGroup": compared, "filterGroups": left_out}
        return parsed((await one.ask(308, fields)).body)["correctionOffsets"]

    assert await corrections("fast") == {0: 1, 1: 2}
    assert await corrections("nobody", "slow,other") == {0: 3, 1: 2}
    assert await corrections("slow", "slow") == {0: 2**63 - 1, 1: 2}
    assert await corrections("fast", "fast") == {0: 1}


async def test_317_and_208_how_far_groups_are_and_when_they_were_there(one: Wire) -> None:
    began_ms = time.time() * 1000
    for queue in (0, 0, 1):
        await one.send("T", queue=queue)
    for name in ("G", "H"):
        assert (await one.ask(200, {}, json.dumps({"groupName": name}).encode())).code == 0
    await commit(one, "G", 0, 1)
    found = parsed((await one.ask(317, {"isOrder": "false"})).body)
    (of_group,) = found["consumeStatsList"]
    ((name, (stats,)),) = of_group.items()
    assert name == "G"
    table = {queue.queue_id: row for queue, row in stats["offsetTable"].items()}
    assert (table[0]["brokerOffset"], table[0]["consumerOffset"]) == (2, 1)
    # RocketMQ's tools subtract one from the other as they stand.
    assert (table[1]["brokerOffset"], table[1]["consumerOffset"]) == (1, 0)
    assert [table[queue]["isCommitted"] for queue in (0, 1)] == [True, False]
    assert found["totalDiff"] == 2
    ordered = parsed((await one.ask(317, {"isOrder": "true"})).body)
    assert ordered["consumeStatsList"] == []
    found = parsed((await one.ask(208, {"consumerGroup": "G"})).body)
    table = {queue.queue_id: row for queue, row in found["offsetTable"].items()}
    assert began_ms - 1000 <= table[0]["lastTimestamp"] < began_ms + TOLERANCE_MS
    assert table[1]["lastTimestamp"] == 0


async def test_317_refuses_more_queues_than_fit_one_answer(
    one: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.send("T")
    assert (await one.ask(200, {}, json.dumps({"groupName": "G"}).encode())).code == 0
    await commit(one, "G", 0, 1)
    monkeypatch.setattr(tool_reads, "QUEUES_MAX", 4)
    assert (await one.ask(317, {"isOrder": "false"})).code == 0
    monkeypatch.setattr(tool_reads, "QUEUES_MAX", 3)
    refused = await one.ask(317, {"isOrder": "false"})
    assert (refused.code, "4 queues, more than 3" in (refused.remark or "")) == (1, True)


async def test_321_units_of_a_queue(one: Wire) -> None:
    for tag in ("red", "blue", "green"):
        await one.send("T", b"body", properties=f"TAGS\x01{tag}\x02")
    fields = {"topic": "T", "queueId": "0", "index": "1", "count": "9"}
    found = json.loads((await one.ask(321, fields)).body)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    blue, green = found["queueData"]
    assert (blue["tagsCode"], green["tagsCode"]) == (tags_code("blue"), tags_code("green"))
    assert 0 < blue["physicOffset"] < green["physicOffset"]
    message = await one.ask(33, {"offset": str(green["physicOffset"])})
    assert len(message.body) == green["physicSize"]
    assert (blue["eval"], green["eval"]) == (True, True)
    await subscribe(one, "G", "T", "green", ["green"])
    found = json.loads((await one.ask(321, fields | {"consumerGroup": "G"})).body)
    assert [unit["eval"] for unit in found["queueData"]] == [False, True]
    assert found["subscriptionData"]["subString"] == "green"
    few = json.loads((await one.ask(321, fields | {"index": "-5", "count": "1"})).body)
    assert [unit["tagsCode"] for unit in few["queueData"]] == [tags_code("red")]
    none = json.loads((await one.ask(321, fields | {"index": "99", "count": "-1"})).body)
    assert none["queueData"] == []
    missing = await one.ask(321, fields | {"queueId": "3"})
    assert (missing.code, missing.remark) == (1, "3@T is not exist!")


async def test_314_a_group_gets_another_ones_offsets_and_no_others(one: Wire) -> None:
    for queue in (0, 0, 1, 1):
        await one.send("T", queue=queue)
    await commit(one, "source", 0, 1)
    for queue, offset in ((0, 2), (1, 2)):
        await commit(one, "target", queue, offset)

    async def offsets(group: str) -> dict[int, int]:
        found: dict[int, int] = parsed((await one.ask(43)).body)["offsetTable"].get(
            f"T@{group}", {}
        )
        return found

    async def clone(target: str, **more: str) -> RemotingCommand:
        return await one.ask(314, {"srcGroup": "source", "destGroup": target, **more})

    assert (await clone("other", topic="Unknown", offline="true")).code == 0
    assert await offsets("other") == {}
    assert (await clone("target", topic="T", offline="true")).code == 0
    assert await offsets("target") == {0: 1}, "it goes back, and queue 1 is as new"
    assert await offsets("source") == {0: 1}
    await subscribe(one, "source", "T2", "*", [])
    assert (await clone("other", offline="false")).code == 0
    assert await offsets("other") == {}, "the source does not subscribe to the topic any more"
    assert (await clone("other", offline="true")).code == 0
    assert await offsets("other") == {0: 1}
    assert (await clone("nobody's group", topic="T")).code == 1
    assert (await clone("source")).code == 0
    assert await offsets("source") == {0: 1}


async def test_328_who_produces_here(one: Wire) -> None:
    assert json.loads((await one.ask(328)).body) == {"data": {}}
    body = {
        "clientID": "c1",
        "consumerDataSet": [],
        "producerDataSet": [{"groupName": "P"}, {"groupName": "Q"}],
    }
    assert (await one.ask(34, {}, json.dumps(body).encode())).code == 0
    found = json.loads((await one.ask(328)).body)["data"]
    assert list(found) == ["P", "Q"]
    (producer,) = found["P"]
    assert producer["clientId"] == "c1"
    assert producer["remoteIP"].startswith("127.0.0.1:")
    assert abs(producer["lastUpdateTimestamp"] - time.time() * 1000) < TOLERANCE_MS


async def stats(one: Wire, name: str, key: str) -> Any:
    answer = await one.ask(315, {"statsName": name, "statsKey": key})
    assert answer.code == 0, answer.remark
    return parsed(answer.body)


@pytest.mark.usefixtures("long_minute")
async def test_315_how_much_was_put_and_got_lately(one: Wire) -> None:
    sent = [await one.send("T", body=b"x" * 10) for _ in range(8)]
    messages = await one.messages("T")
    await one.messages("T", group="other", offset=3)
    for consumed in (0, 6):
        await commit(one, "G", 0, consumed)
    assert {answer.code for answer in sent} == {0}
    size_bytes = sum(message.size_bytes for message in messages)
    expected = {
        ("TOPIC_PUT_NUMS", "T"): 8,
        ("TOPIC_PUT_SIZE", "T"): size_bytes,
        ("GROUP_GET_NUMS", "T@G"): 8,
        ("GROUP_GET_SIZE", "T@G"): size_bytes,
        ("GROUP_GET_NUMS", "T@other"): 5,
        ("GROUP_GET_NUMS", "T@nobody"): 0,
        ("BROKER_GET_NUMS", "DefaultCluster"): 13,
    }
    for (name, key), wanted in expected.items():
        found = await stats(one, name, key)
        assert [found[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [
            wanted
        ] * 3
        assert (found["statsMinute"]["tps"] > 0) == (wanted > 0)
    mean = (await stats(one, "TOPIC_PUT_SIZE", "T"))["statsMinute"]["avgpt"]
    assert mean == size_bytes / 8
    for name, key in (("TOPIC_PUT_NUMS", "Unknown"), ("SNDBCK_PUT_NUMS", "T@G")):
        missing = await one.ask(315, {"statsName": name, "statsKey": key})
        assert (missing.code, missing.remark) == (1, f"The stats <{name}> <{key}> not exist")
    table = parsed((await one.ask(208, {"consumerGroup": "G"})).body)
    assert table["consumeTps"] > 0
    (of_group,) = parsed((await one.ask(317, {"isOrder": "false"})).body)["consumeStatsList"]
    assert of_group["G"][0]["consumeTps"] > 0
