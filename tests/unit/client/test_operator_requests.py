"""What brokers and tools ask of a consumer: 220, 221, 307, 309."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from dledger_mq.client.assignment import Assignment
from dledger_mq.client.consume_results import ConsumeResult
from dledger_mq.client.local_offsets import encode_offsets
from dledger_mq.client.push_consumer import PushConsumer
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.rates import Rate
from dledger_mq.message.record import encode_record
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import RemotingCommand, make_request
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import Inbox, consumer, until

pytestmark = pytest.mark.anyio

QUEUE = MessageQueue("T", "broker-a", 0)
WIRE = WireQueue("broker-a", 0, "T")
NOTHING = make_request(0, 0)


class BrokerLink:
    """The broker's end: hands requests to a consumer and keeps its answers."""

    def __init__(self, one: PushConsumer) -> None:
        assert one._session is not None
        self._ask = one._session._on_request
        self.answers: list[RemotingCommand] = []

    def answer(self, command: RemotingCommand) -> None:
        self.answers.append(command)

    async def ask(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, is_oneway: bool = False
    ) -> RemotingCommand:
        command = make_request(code, 7, ext, body=body, is_oneway=is_oneway)
        self._ask(self, command)  # type: ignore[arg-type]  # of a Link it uses only `answer`
        if is_oneway:
            return NOTHING
        await until(lambda: self.answers)
        return self.answers.pop()


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        for n in range(5):
            fake.put("T", 0, b"%d" % n)
        yield fake


@pytest.mark.parametrize("ordered", [False, True])
async def test_220_the_offset_of_a_queue_moves_and_what_was_read_is_dropped(
    group: FakeGroup, ordered: bool
) -> None:
    inbox = Inbox()
    ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    async with consumer(group, inbox, ordered=ordered) as one:
        await until(lambda: len(inbox.got) == 5)
        link = BrokerLink(one)
        other = {**ext, "group": "other"}
        body = encode_offsets({QUEUE: 3, MessageQueue("T", "broker-a", 9): 1})
        for code_ext, data in ((other, body), (ext, b"what?"), (ext, body)):
            await link.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, code_ext, data, is_oneway=True)
        await until(lambda: len(inbox.got) == 7)
        await until(lambda: one.statistics().unfinished == 0)
        await anyio.wait_all_tasks_blocked()
    assert sorted(inbox.bodies[5:]) == [b"3", b"4"]
    assert group.offsets["g", "T", 0] == 5
    assert link.answers == []


async def test_what_comes_while_the_consumer_closes_does_not_end_its_last_commit(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox()
    asked: list[BrokerLink] = []
    commit_all = Assignment.commit_all

    async def commit_after_requests(assignment: Assignment) -> None:
        for link in asked:
            ext = {"topic": "T", "group": "g"}
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            await link.ask(code, ext, encode_offsets({QUEUE: 1}), is_oneway=True)
            answer = await link.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"})
            assert "closed" in (answer.remark or "")
        await commit_all(assignment)

    monkeypatch.setattr(Assignment, "commit_all", commit_after_requests)
    async with consumer(group, inbox) as one:
        await until(lambda: len(inbox.got) == 5)
        asked.append(BrokerLink(one))
    assert group.offsets["g", "T", 0] == 5


async def test_220_a_broadcast_member_moves_in_its_file(group: FakeGroup, tmp_path: Path) -> None:
    inbox = Inbox()
    async with consumer(group, inbox, broadcast=True, offsets_folder=tmp_path) as one:
        await until(lambda: len(inbox.got) == 5)
        await BrokerLink(one).ask(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            {"topic": "T", "group": "g"},
            encode_offsets({QUEUE: 4}),
            is_oneway=True,
        )
        await until(lambda: len(inbox.got) == 6)
    assert inbox.bodies[5:] == [b"4"]
    assert group.offsets == {}


async def test_221_tells_the_offsets_of_a_topic(group: FakeGroup) -> None:
    inbox = Inbox()
    async with consumer(group, inbox) as one:
        await until(lambda: one.statistics().consumed == 5 and len(one.assigned) == 3)
        link = BrokerLink(one)
        answer = await link.ask(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"}
        )
        refused = await link.ask(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "other"}
        )
    table = read_object(answer.body)["messageQueueTable"]
    assert table == {WIRE: 5, WireQueue("broker-a", 1, "T"): 0}
    assert (answer.code, answer.opaque, answer.is_response) == (0, 7, True)
    assert (refused.code, "other" in (refused.remark or "")) == (1, True)


async def test_307_shows_queues_rates_and_settings(group: FakeGroup) -> None:
    inbox = Inbox()
    inbox.answers = [ValueError("no")]
    ext = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "true"}
    async with consumer(group, inbox, subscriptions={"T": "*"}, concurrency=1) as one:
        await until(lambda: one.statistics().consumed == 5)  # one of them at the second try
        answer = await BrokerLink(one).ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    info = read_object(answer.body)
    queue: Any = info["mqTable"][WIRE]  # type: ignore[index,call-overload]  # JSON
    assert (queue["commitOffset"], queue["cachedMsgCount"], queue["droped"]) == (5, 0, False)
    assert abs(time.time() * 1000 - queue["lastPullTimestamp"]) < 60_000
    properties = info["properties"]
    assert isinstance(properties, dict)
    assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert properties["PROP_CONSUMEORDERLY"] == "false"
    assert properties["PROP_THREADPOOL_CORE_SIZE"] == "1"
    status: Any = info["statusTable"]["T"]  # type: ignore[index,call-overload]
    assert status["consumeFailedMsgs"] == 1
    assert status["consumeOKTPS"] == pytest.approx(5 / 60)
    subscriptions = info["subscriptionSet"]
    assert isinstance(subscriptions, list)
    assert [each["topic"] for each in subscriptions] == ["T", "%RETRY%g"]  # type: ignore[index,call-overload]
    assert "thread" in str(info["jstack"])


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (None, "CR_SUCCESS"),
        (ConsumeResult.LATER, "CR_LATER"),
        (ValueError("broken"), "CR_THROW_EXCEPTION"),
    ],
)
async def test_309_the_handler_consumes_one_message_and_the_result_is_told(
    group: FakeGroup, result: ConsumeResult | Exception | None, verdict: str
) -> None:
    inbox = Inbox()
    record = encode_record(
        topic=b"%RETRY%g",
        queue_id=1,
        queue_offset=3,
        physical_offset=9,
        sys_flag=0,
        flag=0,
        born_timestamp_ms=1,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_timestamp_ms=1,
        store_host=b"\x7f\0\0\1\0\0\0\1",
        body=b"direct",
        properties=b"RETRY_TOPIC\x01T\x02",
    )
    ext = {"consumerGroup": "g", "clientId": "c", "brokerName": "broker-a"}
    async with consumer(group, inbox, start_from="last") as one:
        await one.wait_assigned()
        inbox.answers = [result]
        link = BrokerLink(one)
        answer = await link.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, record)
        unreadable = await link.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, b"junk")
    body = read_object(answer.body)
    assert (body["consumeResult"], body["order"], body["autoCommit"]) == (verdict, False, True)
    assert ("broken" in str(body["remark"])) == (verdict == "CR_THROW_EXCEPTION")
    assert [(m.body, m.topic) for m in inbox.got] == [(b"direct", "T")]
    assert group.sent_back == []
    assert unreadable.code == 1


def test_rates_forget_after_a_minute() -> None:
    rate = Rate()
    assert (rate.count(0), rate.mean_ms(0)) == (0, 0.0)
    rate.add(0.5, 3, 0.2)
    rate.add(0.9, 1, 0.4)
    rate.add(30, 10, 0.3)
    assert rate.count(59.9) == 14
    assert rate.mean_ms(59.9) == pytest.approx(300)
    assert rate.count(60) == 10
    assert rate.count(1000) == 0
