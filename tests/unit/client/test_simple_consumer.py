"""Receiving for a time, acknowledging, prolonging: against the group in memory, over dead leaders and lost answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from dledger_mq import (
    AckOutcomeUnknownError,
    AckRefusedError,
    BySql,
    ClientClosedError,
    HandleExpiredError,
    NoRouteError,
    PoppedMessage,
    RequestFailedError,
    SimpleConsumer,
)
from dledger_mq.client import group_order
from dledger_mq.client.session import Session
from dledger_mq.message.names import retry_topic
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_response
from dledger_mq.testing import FakeGroup, open_fake_group
from dledger_mq.testing.fake_group import IGNORED, LOST
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio

Open = Callable[..., AbstractAsyncContextManager[SimpleConsumer]]


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        yield fake


@pytest.fixture
def make(group: FakeGroup) -> Open:
    def one(**changed: Any) -> SimpleConsumer:
        settings: dict[str, Any] = {"subscriptions": {"T": "*"}, "timeout_s": 30.0} | changed
        return SimpleConsumer(group.namesrv, "g", **settings)

    return one


@pytest.fixture
async def consumer(make: Open) -> AsyncIterator[SimpleConsumer]:
    async with make() as one:
        yield one


def bodies(messages: tuple[PoppedMessage, ...]) -> list[bytes]:
    return [message.body for message in messages]


async def test_what_is_received_nobody_else_gets_until_its_time_is_over(
    group: FakeGroup, consumer: SimpleConsumer, make: Open
) -> None:
    for n in range(5):
        group.put("T", 0, b"%d" % n)
    first = await consumer.receive(2, invisible_s=60, wait_s=0)
    async with make() as other:
        assert bodies(await other.receive(invisible_s=60, wait_s=0)) == [b"2", b"3", b"4"]
        assert await other.receive(wait_s=0) == ()
        await consumer.ack(first[0])
        group.advance(61)
        again = await other.receive(invisible_s=60, wait_s=0)
    assert bodies(again) == [b"1", b"2", b"3", b"4"]
    assert {message.reconsume_times for message in again} == {1}
    assert first[0].reconsume_times == 0
    assert first[0].invisible_until_ms < again[0].invisible_until_ms
    with pytest.raises(HandleExpiredError) as late:
        await consumer.ack(first[1])
    assert late.value.expired == (first[1],)
    assert late.value.definite


async def test_a_batch_says_which_handles_were_dead(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    for n in range(6):
        group.put("T", 0, b"%d" % n)
    received = await consumer.receive(wait_s=0)
    await consumer.ack(received[1])
    changed = await consumer.change_invisible_time(received[3], 9)
    with pytest.raises(
        HandleExpiredError, match="2 expired, such as T@broker-a/0 offset 1"
    ) as raised:
        await consumer.ack(received[:4])
    assert raised.value.expired == (received[1], received[3])
    await consumer.ack([changed, *received[4:], changed])
    assert group.pops.in_flight("g", "T") == 0
    assert group.requests.count(RequestCode.BATCH_ACK_MESSAGE) == 2
    with pytest.raises(HandleExpiredError, match="6 expired"):
        await consumer.ack(received)
    await consumer.ack([])


async def test_a_batch_of_messages_that_lie_far_apart(group: FakeGroup, make: Open) -> None:
    for n in range(2500):
        group.put("T", 0, b"%d" % n, b"TAGS\x01%s\x02" % (b"A" if n % 1200 == 0 else b"B"))
    async with make(subscriptions={"T": "A"}) as consumer:
        received = await consumer.receive(wait_s=0)
        assert bodies(received) == [b"0", b"1200", b"2400"]
        await consumer.ack(received)
    assert group.pops.in_flight("g", "T") == 0


async def test_time_is_prolonged_or_cut_short(group: FakeGroup, consumer: SimpleConsumer) -> None:
    group.put("T", 0, b"x")
    (message,) = await consumer.receive(invisible_s=10, wait_s=0)
    longer = await consumer.change_invisible_time(message, 100)
    assert longer.handle != message.handle
    assert longer.invisible_until_ms > message.invisible_until_ms
    with pytest.raises(HandleExpiredError, match="the time was not changed: 1 expired"):
        await consumer.change_invisible_time(message, 100)
    group.advance(50)
    assert await consumer.receive(wait_s=0) == ()
    await consumer.change_invisible_time(longer, 0.001)
    (again,) = await consumer.receive(wait_s=60)
    assert (again.body, again.reconsume_times) == (b"x", 1)


async def test_a_consumer_that_waits_gets_what_comes_and_what_becomes_due(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    async with anyio.create_task_group() as tasks:

        async def put() -> None:
            await until(lambda: RequestCode.NOTIFICATION in group.requests)
            group.put("T", 0, b"x")

        tasks.start_soon(put)
        assert bodies(await consumer.receive(invisible_s=0.2, wait_s=60)) == [b"x"]
    assert bodies(await consumer.receive(wait_s=60)) == [b"x"]
    assert await consumer.receive(wait_s=0.05) == ()


async def test_many_that_wait_have_one_question_under_way_for_each_place(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    got: list[bytes] = []

    async def receive() -> None:
        got.extend(bodies(await consumer.receive(1, wait_s=60)))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(receive)
        await until(lambda: RequestCode.NOTIFICATION in group.requests)
        asked = group.requests.count(RequestCode.NOTIFICATION)
        assert asked <= 2  # the topic, and the retry topic
        for n in range(8):
            group.put("T", 0, b"%d" % n)
    assert sorted(got) == [b"%d" % n for n in range(8)]


async def test_the_retry_topic_is_received_from_too(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    group.create_topic(retry_topic("g"), 1)
    group.put(retry_topic("g"), 0, b"x", b"RETRY_TOPIC\x01T\x02")
    (message,) = await consumer.receive(wait_s=60)
    assert (message.topic, message.queue.topic) == ("T", retry_topic("g"))
    assert message.handle.split(" ")[4] == "1"
    await consumer.ack(message)
    assert group.pops.in_flight("g", retry_topic("g")) == 0


async def test_tags_and_properties_choose(group: FakeGroup, make: Open) -> None:
    for tag in (b"A", b"B"):
        group.put("T", 0, tag, b"TAGS\x01%b\x02size\x011%b\x02" % (tag, tag.replace(b"B", b"0")))
    async with make(subscriptions={"T": "B || C"}) as consumer:
        assert bodies(await consumer.receive(wait_s=0)) == [b"B"]
    async with SimpleConsumer(
        group.namesrv, "h", subscriptions={"T": BySql("TAGS = 'A'")}
    ) as other:
        assert bodies(await other.receive(wait_s=0)) == [b"A"]


async def test_messages_that_only_the_hash_of_their_tag_lets_through_are_done_with(
    group: FakeGroup, make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group.log, "matches", lambda *_: True)  # as if all tags had one hash
    for n, tag in enumerate((b"A", b"B", b"A")):
        group.put("T", 0, b"%d" % n, b"TAGS\x01%b\x02" % tag)
    async with make(subscriptions={"T": "B"}) as consumer:
        assert bodies(await consumer.receive(1, wait_s=0)) == [b"1"]
    assert group.pops.in_flight("g", "T") == 1


async def test_in_order_nothing_follows_before_all_is_acknowledged(
    group: FakeGroup, make: Open
) -> None:
    for n in range(4):
        group.put("T", 0, b"%d" % n)
    async with make(ordered=True) as consumer, make(ordered=True) as other:
        first = await consumer.receive(2, invisible_s=60, wait_s=0)
        assert bodies(first) == [b"0", b"1"]
        await consumer.ack(first[0])
        assert await other.receive(wait_s=0) == ()
        async with anyio.create_task_group() as tasks:

            async def next_ones() -> None:
                assert bodies(await other.receive(wait_s=60)) == [b"2", b"3"]

            tasks.start_soon(next_ones)
            await until(lambda: RequestCode.NOTIFICATION in group.requests)
            await consumer.ack(first[1])


async def test_without_a_word_the_brokers_setting_of_the_group_decides_on_its_order(
    group: FakeGroup, make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_order, "KEPT_S", 0.0)
    group.ordered_groups.add("g")
    for n in range(4):
        group.put("T", 0, b"%d" % n)
    async with make() as consumer, make() as other:
        first = await consumer.receive(2, wait_s=0)
        assert await other.receive(2, wait_s=0) == (), "the first ones are not acknowledged"
        await consumer.ack(first)
        group.ordered_groups.clear()
        assert bodies(await consumer.receive(1, wait_s=0)) == [b"2"]
        assert bodies(await other.receive(1, wait_s=0)) == [b"3"]


async def test_what_the_caller_says_about_the_order_is_not_asked(
    group: FakeGroup, make: Open
) -> None:
    group.ordered_groups.add("g")
    for n in range(2):
        group.put("T", 0, b"%d" % n)
    async with make(ordered=False) as consumer:
        for n in range(2):
            assert bodies(await consumer.receive(1, wait_s=0)) == [b"%d" % n]
    assert RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG not in group.requests


async def test_a_broker_is_asked_about_the_order_once_for_a_while(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    for _ in range(3):
        await consumer.receive(wait_s=0)
    assert group.requests.count(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == 1


@pytest.mark.parametrize(
    "code", [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
)
async def test_a_broker_that_knows_no_such_group_has_none_in_order(
    group: FakeGroup, consumer: SimpleConsumer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_order(group, monkeypatch, code)
    group.put("T", 0, b"x")
    assert bodies(await consumer.receive(wait_s=0)) == [b"x"]


async def test_a_refused_order_is_an_error_with_its_cause(
    group: FakeGroup, consumer: SimpleConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were handed out in any order could not be put in order again."""
    refuse_order(group, monkeypatch, ResponseCode.NO_PERMISSION)
    group.put("T", 0, b"x")
    with pytest.raises(
        RequestFailedError, match="whether g is in order \\(say `ordered`\\): refused"
    ):
        await consumer.receive(wait_s=0)
    assert group.pops.in_flight("g", "T") == 0


def refuse_order(group: FakeGroup, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    administer = group._administer

    def answer(request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
            return make_response(request.opaque, code, "refused")
        return administer(request)

    monkeypatch.setattr(group, "_administer", answer)


@pytest.mark.parametrize("ordered", [True, None])
async def test_in_order_a_pop_whose_answer_was_lost_is_repeated_at_once(
    group: FakeGroup, make: Open, *, ordered: bool | None
) -> None:
    group.ordered_groups.add("g")
    group.put("T", 0, b"x")
    group.pop_script.append(LOST)
    async with make(ordered=ordered) as consumer:
        async with anyio.create_task_group() as tasks:

            async def in_vain() -> None:
                assert await consumer.receive(invisible_s=600, wait_s=0) is None, "it was answered"

            tasks.start_soon(in_vain)
            await until(lambda: group.pops.in_flight("g", "T") == 1)
            tasks.cancel_scope.cancel()
        (message,) = await consumer.receive(invisible_s=600, wait_s=0)
        await consumer.ack(message)


async def test_receiving_and_acknowledging_follow_the_leader(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    group.put("T", 0, b"0")
    (message,) = await consumer.receive(wait_s=0)
    await group.kill(group.nodes[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.ack, message)
        await until(lambda: group.requests.count(RequestCode.ACK_MESSAGE) >= 2)
        group.elect(group.nodes[1])
    assert group.pops.in_flight("g", "T") == 0
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            assert bodies(await consumer.receive(wait_s=60)) == [b"1"]

        asked = group.requests.count(RequestCode.NOTIFICATION)
        tasks.start_soon(receive)
        await until(lambda: group.requests.count(RequestCode.NOTIFICATION) > asked)
        await group.kill(group.nodes[1])
        group.elect(group.nodes[2])
        group.put("T", 0, b"1")


@pytest.mark.parametrize("several", [False, True])
async def test_an_ack_whose_answer_was_lost_with_the_leader_is_of_unknown_outcome(
    group: FakeGroup, consumer: SimpleConsumer, several: bool
) -> None:
    for n in range(2):
        group.put("T", 0, b"%d" % n)
    received = await consumer.receive(wait_s=0)
    code = RequestCode.BATCH_ACK_MESSAGE if several else RequestCode.ACK_MESSAGE
    group.pop_script.append(LOST)
    async with anyio.create_task_group() as tasks:

        async def acknowledge() -> None:
            with pytest.raises(AckOutcomeUnknownError, match="done or not") as raised:
                await consumer.ack(received if several else received[0])
            assert raised.value.unknown == (received if several else received[:1])
            assert not raised.value.definite

        tasks.start_soon(acknowledge)
        await until(lambda: code in group.requests)
        await group.kill(group.nodes[0])
        group.elect(group.nodes[1])


async def test_an_ack_that_was_not_carried_out_before_the_leader_died_is_done_by_the_next(
    group: FakeGroup, consumer: SimpleConsumer
) -> None:
    group.put("T", 0, b"x")
    (message,) = await consumer.receive(wait_s=0)
    group.pop_script.append(IGNORED)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.ack, message)
        await until(lambda: RequestCode.ACK_MESSAGE in group.requests)
        await group.kill(group.nodes[0])
        group.elect(group.nodes[1])
    assert group.pops.in_flight("g", "T") == 0


async def test_an_ack_that_nobody_takes_or_that_is_refused_leaves_the_handle_good(
    group: FakeGroup, make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The end falls into a pause: a try under way at that moment would be of unknown outcome.
    monkeypatch.setattr(
        "dledger_mq.client.session.backoff_s", lambda tries: 0.0 if tries < 3 else 60.0
    )
    group.put("T", 0, b"x")
    async with make() as consumer:
        (message,) = await consumer.receive(wait_s=0)
        group.leader = None
        with pytest.raises(AckRefusedError, match="nothing was done") as raised:
            await consumer.ack(message)
        group.elect(group.nodes[0])
        assert raised.value.undone == (message,)
        assert raised.value.retriable
        group.pop_script.append(ResponseCode.NO_PERMISSION)
        with pytest.raises(AckRefusedError, match="16"):
            await consumer.ack(message)
        group.pop_script.append(
            ResponseCode.SYSTEM_ERROR
        )  # a broker's own word for an unknown outcome
        with pytest.raises(AckOutcomeUnknownError):
            await consumer.ack(message)
        await consumer.ack(message)


async def test_an_ack_of_a_consumer_that_is_left_was_surely_not_carried_out(
    group: FakeGroup, make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.put("T", 0, b"x")
    async with make() as consumer:
        (message,) = await consumer.receive(wait_s=30)

        async def left(*_: object, **_options: object) -> None:
            raise ClientClosedError("the client was left")

        monkeypatch.setattr(Session, "call_group_in_doubt", left)
        with pytest.raises(AckRefusedError, match="the client was left") as raised:
            await consumer.ack(message)
    assert raised.value.undone == (message,)


async def test_what_receiving_cannot_do_is_an_error(group: FakeGroup, make: Open) -> None:
    async with make(timeout_s=1.0) as hasty:
        assert await hasty.receive(wait_s=0) == ()
        group.leader = None
        with pytest.raises(RequestFailedError, match="14"):
            await hasty.receive(wait_s=0)
        group.elect(group.nodes[0])
    async with make() as consumer:
        assert await consumer.receive(wait_s=0) == ()
        group.pop_script.append(ResponseCode.NO_PERMISSION)
        with pytest.raises(RequestFailedError, match="16"):
            await consumer.receive(wait_s=0)
        group.put("T", 0, b"x")
        group.pop_script.extend([ResponseCode.POLLING_FULL, ResponseCode.SYSTEM_ERROR])
        assert bodies(await consumer.receive(wait_s=0)) == [b"x"]
    async with make(subscriptions={"Unknown": "*"}) as consumer:
        with pytest.raises(NoRouteError):
            await consumer.receive(wait_s=0)
    with pytest.raises(ClientClosedError):
        await consumer.receive()


async def test_brokers_know_the_consumer_as_a_member_while_it_is_open(
    group: FakeGroup, make: Open
) -> None:
    async with make() as consumer:
        await consumer.receive(wait_s=0)
        await until(lambda: group.nodes[0].heartbeats)
        (entry,) = group.nodes[0].heartbeats[0].consumers
        assert entry.group == "g"
        assert {item.topic for item in entry.subscriptions} == {"T", retry_topic("g")}
        await consumer.receive(wait_s=0)  # its answer comes behind that to the heartbeat
        assert RequestCode.UNREGISTER_CLIENT not in group.requests
    await until(lambda: RequestCode.UNREGISTER_CLIENT in group.requests)  # not waited for for long


async def test_a_broker_that_holds_no_notice_is_not_asked_in_a_circle(
    group: FakeGroup, consumer: SimpleConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_at_once(
        _node: object, connection: Connection, request: RemotingCommand
    ) -> None:
        connection.send_nowait(encode_command(group.pops.answer(request)))

    monkeypatch.setattr(group, "_hold_notice", answer_at_once)
    assert await consumer.receive(wait_s=0) == ()
    routes_before = len(group.topics_asked_for)
    assert await consumer.receive(wait_s=0.5) == ()
    assert group.requests.count(RequestCode.NOTIFICATION) <= 20, "two topics are asked for"
    assert len(group.topics_asked_for) <= routes_before + 1, "name servers are asked after failures"
