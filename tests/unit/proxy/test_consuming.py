"""Receiving and acknowledging for gRPC clients: against the group in memory, over lost answers and calls broken off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

pytest.importorskip("google.protobuf")

import anyio.lowlevel

from broker.proxy import consuming, renewals
from broker.proxy.accounts import ANYBODY
from broker.proxy.consuming import Consuming
from broker.proxy.facts import GroupFacts
from broker.proxy.protocol import message_class
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError
from broker.proxy.settings import read_receiver
from dledger_mq.client.session import Session
from dledger_mq.message.names import dlq_topic
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.testing import FakeGroup, open_fake_group
from dledger_mq.testing.fake_group import IGNORED, LOST
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio

GROUP, TOPIC = {"name": "g"}, {"name": "T"}


class NoFacts:
    """What brokers say of groups, unless they say otherwise."""

    async def group(self, _group: str, _brokers: Any) -> GroupFacts:
        return GroupFacts()


class Served:
    """The half of a proxy that serves consumers, before a group in memory."""

    def __init__(self, group: FakeGroup, session: Session) -> None:
        self.group = group
        self.client_is_gone = False
        facts: Any = NoFacts()
        self.consuming = Consuming(session, facts)

    async def receive(self, left_s: float = 10.0, write: Any = None, **fields: Any) -> list[Any]:
        given = {
            "group": GROUP,
            "message_queue": {"topic": TOPIC},
            "invisible_duration": {"seconds": 60},
            "long_polling_timeout": {},
            **fields,
        }
        request = message_class("ReceiveMessageRequest")(**given)
        client, wanted = read_receiver("c", ANYBODY, request, version=1)
        client.is_gone = self.client_is_gone
        parts: list[Any] = []

        async def collect(part: Any) -> None:
            parts.append(part)

        await self.consuming.receive(client, wanted, request, left_s=left_s, write=write or collect)
        return [part.message for part in parts if part.HasField("message")]

    async def ack(self, *receipts: str) -> list[int]:
        entries = [{"receipt_handle": one} for one in receipts]
        request = message_class("AckMessageRequest")(group=GROUP, topic=TOPIC, entries=entries)
        return [one.status.code for one in (await self.consuming.acknowledge(request)).entries]

    async def forward(self, receipt: str) -> Any:
        name = "ForwardMessageToDeadLetterQueueRequest"
        given = {"group": GROUP, "topic": TOPIC, "receipt_handle": receipt}
        return await self.consuming.forward_to_dead_letters(message_class(name)(**given))

    def in_flight(self) -> int:
        return self.group.pops.in_flight("g", "T")


def receipts(messages: list[Any]) -> list[str]:
    return [message.system_properties.receipt_handle for message in messages]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with open_fake_group(queues=1) as group, anyio.create_task_group() as tasks:
        group.create_topic("T")
        session = Session((group.namesrv,), tasks, heartbeat=lambda: None)
        yield Served(group, session)
        tasks.cancel_scope.cancel()


async def test_each_receipt_of_a_call_has_its_own_end(served: Served) -> None:
    for n in range(3):
        served.group.put("T", 0, b"%d" % n)
    first, second, third = receipts(await served.receive(auto_renew=True, batch_size=3))
    other = first.rpartition(" ")[0] + " U"
    assert await served.ack(first, "x", other, second) == [
        Code.OK,
        Code.INVALID_RECEIPT_HANDLE,
        Code.INVALID_RECEIPT_HANDLE,
        Code.OK,
    ]
    assert await served.ack(first, third) == [Code.INVALID_RECEIPT_HANDLE, Code.OK]
    assert served.in_flight() == 0
    assert len(served.consuming.renewals) == 0


async def test_receipts_of_brokers_that_nobody_knows_cost_one_question(served: Served) -> None:
    made_up = [f"0 1 60000 0 0 b{n} 0 0 4096 T" for n in range(20)]
    assert await served.ack(*made_up) == 20 * [Code.HA_NOT_AVAILABLE]
    assert served.group.topics_asked_for == ["T"]


async def test_nothing_is_kept_for_a_client_that_has_left_while_it_waited(served: Served) -> None:
    served.group.put("T", 0, b"x")
    served.client_is_gone = True
    with pytest.raises(CallRefusedError):
        await served.receive(auto_renew=True)
    assert len(served.consuming.renewals) == 0
    served.client_is_gone = False
    await until(lambda: RequestCode.CHANGE_MESSAGE_INVISIBLETIME in served.group.requests)
    served.group.advance(2)
    assert len(await served.receive()) == 1


async def test_a_message_is_given_back_by_no_time_at_all(served: Served) -> None:
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    given = {"group": GROUP, "topic": TOPIC, "receipt_handle": receipt}
    request = message_class("ChangeInvisibleDurationRequest")(**given, invisible_duration={})
    assert (await served.consuming.change(request)).status.code == Code.OK
    assert len(served.consuming.renewals) == 0
    served.group.advance(1)
    (again,) = await served.receive()
    assert again.system_properties.delivery_attempt == 2
    request.invisible_duration.seconds = -1
    with pytest.raises(CallRefusedError) as refused:
        await served.consuming.change(request)
    assert refused.value.code is Code.ILLEGAL_INVISIBLE_TIME


async def test_a_refused_acknowledgement_leaves_a_message_kept(served: Served) -> None:
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    kept = next(iter(served.consuming.renewals._kept.values()))
    served.group.pop_script.extend([ResponseCode.NO_PERMISSION])
    assert await served.ack(receipt) == [Code.HA_NOT_AVAILABLE]
    assert kept.holds == 0, "it is prolonged again"
    assert await served.ack(receipt) == [Code.OK]


async def test_a_lost_answer_says_so_and_the_next_try_finds_the_present_handle(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "LOOK_S", 0.01)
    monkeypatch.setattr(renewals, "RENEW_AFTER_S", 0.0)
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    kept = next(iter(served.consuming.renewals._kept.values()))
    handle = kept.message.handle
    monkeypatch.setattr(renewals, "RENEW_AFTER_S", 60.0)  # once: a second one could be broken off
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.consuming.renewals.run)
        await until(lambda: kept.message.handle != handle)
        tasks.cancel_scope.cancel()
    served.group.pop_script.append(IGNORED)
    served.consuming.acknowledging("g")._timeout_s = 0.1
    assert await served.ack(receipt) == [Code.PROXY_TIMEOUT]
    served.consuming.acknowledging("g")._timeout_s = 10.0
    assert await served.ack(receipt) == [Code.OK], "with the handle that it has by now"


async def test_an_acknowledgement_goes_on_when_its_call_is_broken_off(served: Served) -> None:
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    async with anyio.create_task_group() as tasks:

        async def acknowledge() -> None:
            await served.ack(receipt)

        tasks.start_soon(acknowledge)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await until(lambda: served.in_flight() == 0)
    await until(lambda: len(served.consuming.renewals) == 0)


async def test_what_is_popped_for_a_call_that_is_broken_off_comes_again_soon(
    served: Served,
) -> None:
    served.group.put("T", 0, b"x")
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            await served.receive()

        tasks.start_soon(receive)
        await until(lambda: RequestCode.POP_MESSAGE in served.group.requests)
        tasks.cancel_scope.cancel()
    await until(lambda: RequestCode.CHANGE_MESSAGE_INVISIBLETIME in served.group.requests)
    served.group.advance(2)
    (message,) = await served.receive()
    assert message.body == b"x"


async def test_a_client_that_does_not_read_holds_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "WRITE_S", 0.01)
    served.group.put("T", 0, b"x")

    async def stuck(_part: Any) -> None:
        await anyio.sleep_forever()

    await served.receive(write=stuck, auto_renew=True)
    assert len(served.consuming.renewals) == 0
    await until(lambda: RequestCode.CHANGE_MESSAGE_INVISIBLETIME in served.group.requests)
    served.group.advance(2)
    assert len(await served.receive()) == 1


async def test_a_message_is_forwarded_once_and_by_who_has_it(served: Served) -> None:
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    assert (await served.forward(receipt)).status.code == Code.OK
    with pytest.raises(CallRefusedError) as again:
        await served.forward(receipt)
    assert again.value.code is Code.INVALID_RECEIPT_HANDLE
    assert len(served.group.messages(dlq_topic("g"))) == 1
    assert (served.in_flight(), len(served.consuming.renewals)) == (0, 0)


async def test_of_a_dead_letter_whose_acknowledgement_is_lost_nothing_definite_is_said(
    served: Served,
) -> None:
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    served.group.pop_script.extend([ResponseCode.SUCCESS, LOST])
    served.consuming.acknowledging("g")._timeout_s = 1.0
    with pytest.raises(CallRefusedError) as lost:
        await served.forward(receipt)
    assert lost.value.code is Code.PROXY_TIMEOUT


async def test_one_client_cannot_take_all_the_room(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "KEPT_OF_CLIENT_MAX", 1)
    served.group.put("T", 0, b"x")
    (receipt,) = receipts(await served.receive(auto_renew=True))
    with pytest.raises(CallRefusedError) as full:
        await served.receive(auto_renew=True)
    assert full.value.code is Code.TOO_MANY_REQUESTS
    kept = next(iter(served.consuming.renewals._kept.values()))
    assert (kept.message.body, kept.message.properties) == (b"", {}), "its handle is enough"
    assert await served.ack(receipt) == [Code.OK]
