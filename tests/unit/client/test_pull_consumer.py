from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from dledger_mq import (
    ClientClosedError,
    ClientError,
    ClientUsageError,
    ConnectionLostError,
    NoRouteError,
    PullConsumer,
    RequestFailedError,
)
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.session import REQUEST_TIMEOUT_S, Session
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.testing import FakeGroup, open_fake_group

pytestmark = pytest.mark.anyio

Q = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


@pytest.fixture
async def consumer(group: FakeGroup) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(group.namesrv, "g", timeout_s=30) as one:
        yield one


async def test_reading_a_queue_to_its_end(group: FakeGroup, consumer: PullConsumer) -> None:
    for n in range(40):
        group.put("T", 0, b"%d" % n)
    assert await consumer.queues("T") == (Q, MessageQueue("T", "broker-a", 1))
    first = await consumer.pull(Q, 0)
    rest = await consumer.pull(Q, first.next_offset)
    end = await consumer.pull(Q, rest.next_offset)
    assert [m.body for m in (*first.messages, *rest.messages)] == [b"%d" % n for n in range(40)]
    assert [m.queue_offset for m in rest.messages] == list(range(32, 40))
    assert (end.messages, end.is_empty, end.next_offset, end.max_offset) == ((), True, 40, 40)


async def test_a_held_pull_returns_what_comes(group: FakeGroup, consumer: PullConsumer) -> None:
    async with anyio.create_task_group() as nursery:

        async def pull() -> None:
            pulled = await consumer.pull(Q, 0, hold_s=5)
            assert [m.body for m in pulled.messages] == [b"x"]

        nursery.start_soon(pull)
        while 11 not in group.requests:
            await anyio.lowlevel.checkpoint()
        group.put("T", 0, b"x")


async def test_tags(group: FakeGroup, consumer: PullConsumer) -> None:
    for tag in (b"A", b"B"):
        group.put("T", 0, tag, b"TAGS\x01%b\x02" % tag)
    assert [m.tags for m in (await consumer.pull(Q, 0, expression="B")).messages] == ["B"]
    nothing = await consumer.pull(Q, 0, expression="C")
    assert (nothing.messages, nothing.next_offset, nothing.is_empty) == ((), 2, False)


async def test_offsets(group: FakeGroup, consumer: PullConsumer) -> None:
    for _ in range(3):
        group.put("T", 0, b"x")
    group.drop_before("T", 0, 1)
    assert await consumer.committed(Q) is None
    await consumer.commit(Q, 2)
    assert await consumer.committed(Q) == 2
    assert (await consumer.min_offset(Q), await consumer.max_offset(Q)) == (1, 3)
    assert await consumer.offset_at(Q, 0) == 1
    wrong = await consumer.pull(Q, 0)
    assert (wrong.is_offset_wrong, wrong.next_offset) == (True, 1)


async def test_requests_outlive_the_leader(group: FakeGroup, consumer: PullConsumer) -> None:
    group.put("T", 0, b"x")
    assert (await consumer.pull(Q, 0)).messages
    await group.kill(group.nodes[0])
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(consumer.commit, Q, 1)
        while group.requests.count(15) < 4:
            await anyio.lowlevel.checkpoint()
        group.elect(group.nodes[2])
    assert (await consumer.pull(Q, 0)).messages
    assert await consumer.committed(Q) == 1


async def test_a_topic_that_is_just_being_created_is_waited_for(
    group: FakeGroup, consumer: PullConsumer
) -> None:
    async with anyio.create_task_group() as nursery:

        async def ask() -> None:
            assert len(await consumer.queues("New")) == 2

        nursery.start_soon(ask)
        while "New" not in group.topics_asked_for:
            await anyio.lowlevel.checkpoint()
        group.create_topic("New")


async def test_failures_are_said(group: FakeGroup, consumer: PullConsumer) -> None:
    with pytest.raises(NoRouteError):
        await consumer.queues("Unknown")
    await consumer.queues("T")
    with pytest.raises(RequestFailedError, match="17"):
        await consumer.pull(MessageQueue("Unknown", "broker-a", 0), 0)
    with pytest.raises(ClientUsageError):
        await consumer.pull(Q, 0, expression="||")
    with pytest.raises(ClientClosedError):
        await PullConsumer(group.namesrv, "g").queues("T")
    group.leader = None
    for timeout_s in (0.5, 5.0, 30.0):  # in which a refusal has to come
        async with PullConsumer(group.namesrv, "g", timeout_s=timeout_s) as hasty:
            with pytest.raises(ClientError) as raised:
                await hasty.pull(Q, 0)
        if isinstance(raised.value, RequestFailedError):
            break
    assert isinstance(raised.value, RequestFailedError)
    assert "14" in str(raised.value)


async def test_each_question_is_tried_for_as_long_as_its_caller_said(
    group: FakeGroup, consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried_s: list[tuple[int, float]] = []
    call = Session.call_group

    async def noted(
        session: Session,
        name: str,
        code: int,
        ext: dict[str, str],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> RemotingCommand:
        tried_s.append((code, timeout_s))
        return await call(session, name, code, ext, timeout_s=timeout_s)

    monkeypatch.setattr(Session, "call_group", noted)
    await consumer.commit(Q, 0)
    await consumer.committed(Q)
    await consumer.bounds([Q])
    await consumer.offset_at(Q, 0)
    assert tried_s == [(code, 30) for code in (15, 14, 30, 31, 29)]


async def test_records_come_as_they_are_from_any_node(
    group: FakeGroup, consumer: PullConsumer
) -> None:
    for n in range(3):
        group.put("T", 0, b"%d" % n)
    for node in (None, 0, 1, 2, 3):
        pulled = await consumer.pull_records(Q, 1, max_messages=2, node=node)
        assert [record.body for record in decode_records(pulled.records)] == [b"1", b"2"]
        assert (pulled.next_offset, pulled.max_offset) == (3, 3)
    await group.kill(group.nodes[1])
    with pytest.raises(ConnectionLostError):
        await consumer.pull_records(Q, 1, node=1)
    assert (await consumer.pull_records(Q, 1)).next_offset == 3


async def test_many_queues_are_asked_at_once(group: FakeGroup, consumer: PullConsumer) -> None:
    other = MessageQueue("T", "broker-a", 1)
    for _ in range(3):
        group.put("T", 0, b"x")
    group.drop_before("T", 0, 1)
    assert await consumer.bounds([other, Q]) == {other: (0, 0), Q: (1, 3)}
    await consumer.commit_all({Q: 2, other: 0})
    assert [await consumer.committed(queue) for queue in (Q, other)] == [2, 0]
    assert await consumer.topics() == ("T",)
