"""What brokers say of topics and groups, with brokers that are scripts and a clock in hand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from broker.proxy.facts import FIRST_TIMEOUT_S, KEPT_S, Facts
from broker.proxy.protocol.numbers import Code, MessageType
from broker.proxy.refusals import CallRefusedError, refused_with
from dledger_mq.client.errors import ClientError, RequestTimeoutError
from dledger_mq.client.session import REQUEST_TIMEOUT_S
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand

pytestmark = pytest.mark.anyio


class Brokers:
    """Broker groups, each with what it says; the time; and the questions with their patience."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.now = 0.0
        self.loop = SimpleNamespace(now=lambda: self.now)
        self.asked: list[tuple[str, float]] = []
        session: Any = self
        self.facts = Facts(session)

    async def call_group(
        self, name: str, _code: int, _ext: dict[str, str], *, timeout_s: float
    ) -> RemotingCommand:
        self.asked.append((name, timeout_s))
        said = self.said[name]
        if isinstance(said, ClientError):
            raise said
        if isinstance(said, int):
            return RemotingCommand(code=said, opaque=1, flag=1)
        body = json.dumps(said).encode()
        return RemotingCommand(code=0, opaque=1, flag=1, body=body)

    async def is_ordered(self) -> bool:
        return (await self.facts.group("g", sorted(self.said))).is_ordered


SILENT = RequestTimeoutError("silent")
ABSENT = int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
ORDERED = {"consumeMessageOrderly": True}


async def test_a_group_without_a_leader_keeps_nobody_from_the_others() -> None:
    brokers = Brokers(a=SILENT, b=ORDERED)
    assert await brokers.is_ordered()
    assert await brokers.is_ordered()
    assert brokers.asked == [("a", FIRST_TIMEOUT_S), ("b", REQUEST_TIMEOUT_S)], "once for a while"


async def test_one_that_knows_the_name_is_heard_over_one_that_does_not() -> None:
    assert await Brokers(a=ABSENT, b=ORDERED).is_ordered()
    assert not await Brokers(a=ABSENT, b=SILENT).is_ordered()


async def test_what_was_said_last_holds_while_nobody_answers() -> None:
    brokers = Brokers(a=ORDERED)
    assert await brokers.is_ordered()
    brokers.now += KEPT_S
    brokers.said["a"] = SILENT
    assert await brokers.is_ordered()
    assert await brokers.is_ordered()
    assert brokers.asked[1:] == [("a", FIRST_TIMEOUT_S)], "and is not asked for at each call"
    brokers.now += KEPT_S
    brokers.said["a"] = {}
    assert not await brokers.is_ordered()


async def test_what_nobody_has_ever_said_is_not_made_up() -> None:
    with pytest.raises(RequestTimeoutError):
        await Brokers(a=SILENT).is_ordered()
    with pytest.raises(CallRefusedError) as refused:
        await Brokers(a=int(ResponseCode.NO_PERMISSION)).is_ordered()
    assert refused.value.code is Code.FORBIDDEN


async def test_kinds_are_those_of_the_attribute() -> None:
    one = Brokers(a={"attributes": {"message.type": "FIFO"}})
    assert await one.facts.kinds("T", ["a"]) == (MessageType.FIFO,)
    assert len(await Brokers(a={}).facts.kinds("T", ["a"])) == 4


def test_only_what_is_surely_not_done_is_said_to_be_refused() -> None:
    assert refused_with(ResponseCode.SYSTEM_ERROR, "x").code is Code.PROXY_TIMEOUT
    assert refused_with(ResponseCode.TOPIC_NOT_EXIST, "x").code is Code.TOPIC_NOT_FOUND
