"""What a caller may conclude from a request to a group: nothing sent, unknown, or an answer."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import anyio
import pytest

from dledger_mq import ClientClosedError, ClientError, Message, MessageQueue, SendRefusedError
from dledger_mq.blocking import PullConsumer
from dledger_mq.client.errors import (
    ClosedMeanwhileError,
    ConnectionLostError,
    NotConnectedError,
    RequestFailedError,
    TooLateError,
)
from dledger_mq.client.link import Link
from dledger_mq.client.producer import Producer
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.testing import FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio

CODE = int(RequestCode.GET_BROKER_RUNTIME_INFO)


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group() as fake:
        fake.create_topic("T")
        yield fake


@pytest.fixture
async def producer(group: FakeGroup) -> AsyncIterator[Producer]:
    async with Producer(group.namesrv, "g", timeout_s=30) as one:
        await one.send(Message("T", b"connected"))
        yield one


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
async def test_nothing_is_sent_when_the_time_is_over(
    group: FakeGroup, producer: Producer, timeout_s: float
) -> None:
    session = producer._live()
    await session.call_group("broker-a", CODE, {}, timeout_s=30)
    asked = group.requests.count(CODE)
    with pytest.raises(TooLateError) as late:
        await session.call_group("broker-a", CODE, {}, timeout_s=timeout_s)
    assert late.value.definite
    sent = len(group.sends)
    with pytest.raises(SendRefusedError):
        await producer.send(Message("T", b"late"), timeout_s=timeout_s)
    # What is sent now comes next on the same connections.
    await session.call_group("broker-a", CODE, {}, timeout_s=30)
    await producer.send(Message("T", b"in time"))
    assert group.requests.count(CODE) == asked + 1
    assert len(group.sends) == sent + 1


@pytest.mark.parametrize(
    ("first", "then", "expected", "is_definite"),
    [
        (
            ConnectionLostError("cut"),
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ConnectionLostError,
            False,
        ),
        (ConnectionLostError("cut"), NotConnectedError("down"), ConnectionLostError, False),
        (NotConnectedError("down"), NotConnectedError("down"), NotConnectedError, True),
    ],
)
async def test_a_try_of_unknown_outcome_is_not_forgotten_over_later_ones(
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    first: ClientError,
    then: ClientError | ResponseCode,
    expected: type[ClientError],
    is_definite: bool,
) -> None:
    ends = [first]

    async def call(*_: object, **__: object) -> RemotingCommand:
        end = ends.pop() if ends else then
        if isinstance(end, ClientError):
            raise end
        return RemotingCommand(code=end, opaque=1)

    monkeypatch.setattr(Link, "call", call)
    with pytest.raises(expected) as caught:
        await producer._live().call_group("broker-a", CODE, {}, timeout_s=0.05)
    assert caught.value.definite is is_definite


async def test_a_client_that_was_left_asks_nobody(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        await producer.send(Message("T", b"x"))
        session = producer._live()
    with pytest.raises(ClientClosedError):
        await session.call_group("broker-a", CODE, {}, timeout_s=30)


async def test_a_heartbeat_that_was_due_as_the_client_was_left_raises_nothing(
    group: FakeGroup,
) -> None:
    async with Producer(group.namesrv, "g") as producer:
        await producer.send(Message("T", b"x"))
        session = producer._live()
    assert session.routes.all_addresses()
    await session.beat()
    assert not session._is_node_without_heartbeat()


async def test_a_call_during_which_a_blocking_client_is_left_is_unknown(group: FakeGroup) -> None:
    found: list[ClientError] = []

    def pull(consumer: PullConsumer) -> None:
        try:
            consumer.pull(MessageQueue("T", "broker-a", 0), 0, hold_s=30)
        except ClientError as error:
            found.append(error)

    def work() -> None:
        with PullConsumer(group.namesrv, "g") as consumer:
            consumer.queues("T")
            thread = threading.Thread(target=pull, args=(consumer,))
            thread.start()
            while RequestCode.PULL_MESSAGE not in group.requests:
                pass
        thread.join(30)

    await anyio.to_thread.run_sync(work)
    assert [error.definite for error in found] == [False]
    assert isinstance(found[0], ClosedMeanwhileError | ConnectionLostError)


def test_a_code_says_whether_its_error_is_definite() -> None:
    assert RequestFailedError(ResponseCode.SYSTEM_BUSY, "").definite
    assert not RequestFailedError(ResponseCode.SYSTEM_ERROR, "").definite
