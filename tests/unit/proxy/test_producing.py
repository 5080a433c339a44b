"""Sends and ends of transactions for gRPC clients, against the group in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

pytest.importorskip("google.protobuf")

from broker.proxy import producing
from broker.proxy.handles import OpenTransaction
from broker.proxy.producing import Producing
from broker.proxy.protocol import message_class
from broker.proxy.protocol.numbers import Code, MessageType
from broker.proxy.refusals import CallRefusedError, refused_with
from dledger_mq.client.errors import NoRouteError
from dledger_mq.client.session import Session
from dledger_mq.net.frame_socket import FrameSocket
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.testing import FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio


class Kinds:
    """What a topic takes; None: nobody can tell."""

    def __init__(self) -> None:
        self.said: tuple[MessageType, ...] | None = tuple(MessageType)

    async def kinds(self, topic: str, _brokers: Any) -> tuple[MessageType, ...]:
        if self.said is None:
            raise NoRouteError(topic)
        return self.said

    def known_kinds(self, _topic: str) -> tuple[MessageType, ...]:
        return ()


class Served:
    """The half of a proxy that serves producers, before a group in memory."""

    def __init__(self, group: FakeGroup, session: Session) -> None:
        self.group, self.kinds = group, Kinds()
        facts: Any = self.kinds
        self.producing = Producing(session, facts)

    async def send(self, *groups: str, body: bytes = b"x") -> list[int]:
        messages = [
            {
                "topic": {"name": "T"},
                "body": body,
                "system_properties": {
                    "message_id": f"0{n}",
                    "message_type": 1,
                    "message_group": group,
                },
            }
            for n, group in enumerate(groups)
        ]
        request = message_class("SendMessageRequest")(messages=messages)
        answer = await self.producing.send(request, "10.0.0.7:1")
        return [one.status.code for one in answer.entries]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with open_fake_group(queues=1) as group, anyio.create_task_group() as tasks:
        group.create_topic("T")
        yield Served(group, Session((group.namesrv,), tasks, heartbeat=lambda: None))
        tasks.cancel_scope.cancel()


async def test_what_follows_a_message_that_failed_does_not_overtake_it(served: Served) -> None:
    served.group.script.append(ResponseCode.NO_PERMISSION)
    assert await served.send("g", "g", "g") == [Code.FORBIDDEN] + 2 * [Code.HA_NOT_AVAILABLE]
    assert served.group.messages("T") == []
    assert await served.send("g", "", "g") == 3 * [Code.OK]
    assert len(served.group.messages("T")) == 3


async def test_calls_that_come_while_another_is_under_way_leave_in_one_write(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    send = FrameSocket.send_nowait

    def counted(self: FrameSocket, data: bytes) -> None:
        counts.append(data.count(b'"b":"T"'))  # of an answer 0
        send(self, data)

    monkeypatch.setattr(FrameSocket, "send_nowait", counted)
    await served.send("")  # connected
    counts.clear()
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(served.send, "")
    assert [count for count in counts if count] == [1, 19]


async def test_an_answer_after_which_nobody_knows_says_so(served: Served) -> None:
    served.group.script.append(ResponseCode.SYSTEM_ERROR)
    assert await served.send("") == [Code.PROXY_TIMEOUT]


async def test_what_is_wrong_with_a_message_is_told_apart() -> None:
    for remark, code in (
        ("timer message illegal: 604800000 ms ahead", Code.ILLEGAL_DELIVERY_TIME),
        ("the body has 5 bytes, at most 4", Code.MESSAGE_CORRUPTED),
    ):
        assert refused_with(ResponseCode.MESSAGE_ILLEGAL, remark).code is code


async def test_a_topic_takes_what_it_is_for_and_all_while_nobody_tells(served: Served) -> None:
    served.kinds.said = (MessageType.FIFO,)
    assert await served.send("", "g") == [Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, Code.OK]
    served.kinds.said = None
    assert await served.send("") == [Code.OK]


async def test_calls_beyond_the_memory_for_them_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "BYTES_MAX", 200_000)
    monkeypatch.setattr(producing, "THREAD_BYTES", 1000)
    assert await served.send("", body=b"x" * 150_000) == [Code.OK], "read beside the loop"
    with pytest.raises(CallRefusedError) as full:
        await served.send("", "", body=b"x" * 150_000)
    assert full.value.code is Code.TOO_MANY_REQUESTS
    assert await served.send("", body=b"x" * 150_000) == [Code.OK], "its room is free again"


async def test_an_end_that_decides_nothing_is_answered_at_once(served: Served) -> None:
    open_one = OpenTransaction("01", served.group.broker_name, 1, 2).encode()
    request = message_class("EndTransactionRequest")(topic={"name": "T"}, transaction_id=open_one)
    assert (await served.producing.end(request)).status.code == Code.OK
    assert RequestCode.END_TRANSACTION not in served.group.requests
