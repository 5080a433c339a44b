"""The producer against a group in memory that can be killed, elected and scripted."""

from __future__ import annotations

import socket
import zlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dledger_mq.client.errors import (
    ClientClosedError,
    ClientError,
    ClientUsageError,
    InvalidMessageError,
    NameServersUnreachableError,
    NoRouteError,
    SendOutcomeUnknownError,
    SendRefusedError,
)
from dledger_mq.client.messages import Message, unpack_body
from dledger_mq.client.producer import Producer
from dledger_mq.client.pull_consumer import PullConsumer
from dledger_mq.client.push_consumer import PushConsumer
from dledger_mq.client.queues import MessageQueue, queue_for_group, queue_for_key
from dledger_mq.client.retry import FEW_TRIES
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.testing import IGNORED, LOST, FakeGroup, open_fake_group
from jepsen.ports import free_ports
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group() as fake:
        yield fake


@pytest.fixture
async def producer(group: FakeGroup) -> AsyncIterator[Producer]:
    async with Producer(group.namesrv, "g", timeout_s=30) as one:
        yield one


def queue(number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


async def connect(producer: Producer) -> None:
    """What follows is no matter of a route or a connection that is not there yet."""
    await producer.send(Message("Before", b"x"))


def bodies(group: FakeGroup, number: int | None = None, topic: str = "T") -> list[bytes]:
    return [message.body for message in group.messages(topic, number)]


async def test_a_message_is_stored_and_the_result_says_where(
    group: FakeGroup, producer: Producer
) -> None:
    message = Message("T", b"x", tags="A", keys=("k1", "k2"), properties={"p": "v"}, flag=7)
    result = await producer.send(message, queue=queue(2))
    again = await producer.send(Message("T", b"y"), queue=queue(2))
    stored = group.messages("T", 2)[0]
    assert (stored.body, stored.flag) == (b"x", 7)
    assert stored.properties == (
        b"UNIQ_KEY\x01%b\x02TAGS\x01A\x02KEYS\x01k1 k2\x02p\x01v\x02" % result.unique_key.encode()
    )
    assert (result.status, result.queue, result.queue_offset) == ("SEND_OK", queue(2), 0)
    assert len(result.message_id) == len(result.unique_key) == 32
    assert (again.queue_id, again.queue_offset) == (2, 1)


@pytest.mark.parametrize("keys", ["k1 k2", ["k1", "k2"], ("k1", "k2")])
async def test_keys_are_one_text_or_several(
    group: FakeGroup, producer: Producer, keys: str | list[str]
) -> None:
    await producer.send(Message("T", b"x", keys=keys))
    assert group.messages("T")[0].find(b"KEYS") == b"k1 k2"


async def test_messages_without_a_queue_are_dealt_out_and_keys_stick(
    group: FakeGroup, producer: Producer
) -> None:
    for number in range(8):
        await producer.send(Message("T", b"%d" % number))
    assert [len(group.messages("T", q)) for q in range(4)] == [2, 2, 2, 2]
    chosen = {(await producer.send(Message("T", b"k"), key="same")).queue for _ in range(5)}
    assert len(chosen) == 1
    last = await producer.send(Message("T", b"s"), selector=lambda queues: queues[-1])
    assert last.queue == queue(3)


async def test_a_message_group_goes_to_one_queue_whichever_way_it_is_sent(
    group: FakeGroup, producer: Producer
) -> None:
    """Queue 3 of 4 is what Guava's consistentHash makes of "account-7".hashCode(), as in RocketMQ's proxy."""
    one = Message("T", b"x", message_group="account-7")
    first = await producer.send(one)
    pending = [await producer.submit(one), producer.send_nowait(one)]
    places = [first.queue, *[(await each.wait()).queue for each in pending]]
    places += [(await producer.send_batch([one, one])).queue]
    await producer.send_oneway(one)
    assert set(places) == {queue_for_group(await producer.queues("T"), "account-7")}
    assert {place.queue_id for place in places} == {3}
    assert all(m.find(b"__SHARDINGKEY") == b"account-7" for m in group.messages("T", 3))
    assert (await producer.send(one, queue=queue(0))).queue == queue(0)
    assert (await producer.send(one, key="k")).queue == queue_for_key(
        await producer.queues("T"), "k"
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"message_group": 7}, "message_group is int 7, not text"),
        ({"message_group": ""}, "is blank"),
        ({"message_group": " "}, "is blank"),
        ({"message_group": "a\x02b"}, "control character"),
        ({"message_group": "g" * 65}, "65 bytes, at most 64"),
        ({"message_group": "g", "delay_ms": 1}, "no delay"),
        ({"message_group": "g", "properties": {"__SHARDINGKEY": "h"}}, "given twice"),
    ],
)
async def test_a_message_group_that_cannot_be_is_refused(
    producer: Producer, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        await producer.send(Message("T", b"x", **more))


async def test_a_batch_has_one_message_group(producer: Producer) -> None:
    mixed = [Message("T", b"x", message_group=name) for name in ("a", "b")]
    for batch in (mixed, [mixed[0], Message("T", b"x")]):
        with pytest.raises(InvalidMessageError, match="one message group"):
            await producer.send_batch(batch)


async def test_large_bodies_travel_compressed(group: FakeGroup, producer: Producer) -> None:
    body = b"abc" * 3000
    await producer.send(Message("T", body), queue=queue(0))
    await producer.send(Message("T", b"a" * 4095), queue=queue(0))
    packed, plain = group.messages("T", 0)
    assert packed.sys_flag == 1
    assert zlib.decompress(packed.body) == unpack_body(packed.body, packed.sys_flag) == body
    assert (plain.sys_flag, len(plain.body)) == (0, 4095)


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", b"x" * (4 * 1024 * 1024 + 1)),
        Message("", b"x"),
        Message("white space", b"x"),
        Message("a/../b", b"x"),
        Message("T" * 128, b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
        Message("T", b"x", delay_level=19),
        Message("T", b"x", flag=2**31),
        Message("T", b"x", properties={"a\x01b": "v"}),
        Message("T", b"x", properties={"a": ""}),
        Message("T", b"x", properties={"UNIQ_KEY": "mine"}),
        Message("T", b"x", properties={"p": "v" * 32767}),
    ],
    ids=lambda message: f"{message.topic[:9]}-{len(message.body)}",
)
async def test_what_no_broker_would_store_is_refused_before_it_is_sent(
    group: FakeGroup, producer: Producer, message: Message
) -> None:
    group.create_topic("T")
    with pytest.raises(InvalidMessageError):
        await producer.send(message)
    assert group.sends == []


async def test_many_sends_in_flight_keep_their_order(group: FakeGroup, producer: Producer) -> None:
    pending = [
        await producer.submit(Message("T", b"%d" % n), queue=queue(n % 2)) for n in range(500)
    ]
    results = [await one.wait() for one in pending]
    assert [r.queue_offset for r in results] == [n // 2 for n in range(500)]
    assert bodies(group, 0) == [b"%d" % n for n in range(0, 500, 2)]
    statistics = producer.statistics()
    assert (statistics.pending, statistics.succeeded) == (0, 500)


async def test_a_killed_leader_costs_no_message_and_no_order(
    group: FakeGroup, producer: Producer
) -> None:
    """The leader dies with sends in flight, some of them stored: all arrive once and in order."""
    await producer.send(Message("T", b"first"), queue=queue(0))
    group.script.extend([LOST] * 10)  # stored, but the answers die with the leader
    pending = [await producer.submit(Message("T", b"%d" % n), queue=queue(0)) for n in range(50)]
    while len(group.sends) < 51:
        await anyio.lowlevel.checkpoint()
    await group.kill(group.nodes[0])
    group.elect(group.nodes[1])
    results = [await one.wait() for one in pending]
    assert bodies(group, 0) == [b"first", *(b"%d" % n for n in range(50))]
    assert [r.queue_offset for r in results] == list(range(1, 51))


async def test_sends_wait_out_an_election(group: FakeGroup, producer: Producer) -> None:
    await producer.send(Message("T", b"0"), queue=queue(0))
    await group.kill(group.nodes[0])
    async with anyio.create_task_group() as nursery:
        for n in range(1, 4):
            nursery.start_soon(producer.send, Message("T", b"%d" % n))
        while len(group.sends) < 12:  # both survivors were asked in vain again and again
            await anyio.lowlevel.checkpoint()
        group.elect(group.nodes[2])
    assert sorted(bodies(group)) == [b"0", b"1", b"2", b"3"]
    assert producer.statistics().failures == {"broker-a": 0}


async def test_an_unanswered_send_is_repeated_under_its_key_and_not_stored_twice(
    group: FakeGroup, producer: Producer
) -> None:
    group.script.append(LOST)
    pending = await producer.submit(Message("T", b"x"), queue=queue(1))
    while not group.sends:
        await anyio.lowlevel.checkpoint()
    await group.kill(group.nodes[0])
    group.elect(group.nodes[1])
    await pending.wait()
    assert [key for key, _ in group.sends] == [pending.unique_key] * len(group.sends)
    assert len(group.sends) >= 2
    assert bodies(group, 1) == [b"x"]


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR],
)
async def test_transient_answers_are_tried_again_in_order(
    group: FakeGroup, producer: Producer, code: int
) -> None:
    await producer.send(Message("T", b"first"), queue=queue(0))
    group.script.extend([code, code, 0])
    one, two = [
        await producer.submit(Message("T", text), queue=queue(0)) for text in (b"one", b"two")
    ]
    await one.wait()
    await two.wait()
    assert bodies(group, 0) == [b"first", b"one", b"two"]


async def test_a_refusal_ends_the_send_at_once(group: FakeGroup, producer: Producer) -> None:
    group.script.append(ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(SendRefusedError, match="13") as caught:
        await producer.send(Message("T", b"x"))
    assert (caught.value.code, caught.value.attempts, caught.value.definite) == (13, 1, True)
    assert len(group.sends) == 1


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST])
async def test_some_refusals_are_heard_from_a_few_nodes_before_they_are_believed(
    group: FakeGroup, producer: Producer, code: int
) -> None:
    group.script.extend([code] * 10)
    with pytest.raises(SendRefusedError) as caught:
        await producer.send(Message("T", b"x"))
    assert (caught.value.code, caught.value.attempts) == (code, FEW_TRIES)


async def test_no_answer_until_the_deadline_leaves_the_outcome_unknown(
    group: FakeGroup, producer: Producer
) -> None:
    await connect(producer)
    group.script.extend([IGNORED] * 50)
    for timeout_s in (0.2, 5.0, 30.0):  # in which it has to leave
        with pytest.raises(ClientError) as caught:
            await producer.send(Message("T", b"x"), timeout_s=timeout_s)
        if isinstance(caught.value, SendOutcomeUnknownError):
            break
    assert isinstance(caught.value, SendOutcomeUnknownError)
    await until(lambda: len(group.sends) > 1)
    assert caught.value.unique_key == group.sends[1][0]
    assert not caught.value.definite


async def test_a_message_can_be_sent_again_under_its_key(
    group: FakeGroup, producer: Producer
) -> None:
    await connect(producer)
    group.script.extend([LOST] * 50)
    for timeout_s in (0.2, 5.0, 30.0):  # in which it has to leave
        with pytest.raises(ClientError) as caught:
            await producer.send(Message("T", b"x"), queue=queue(0), timeout_s=timeout_s)
        if isinstance(caught.value, SendOutcomeUnknownError):
            break
    assert isinstance(caught.value, SendOutcomeUnknownError)
    await until(lambda: len(group.sends) > 1)
    group.script.clear()
    again = Message("T", b"x", unique_key=caught.value.unique_key)
    result = await producer.send(again, queue=queue(0))
    assert (result.unique_key, result.queue_offset) == (caught.value.unique_key, 0)
    assert bodies(group, 0) == [b"x"]
    with pytest.raises(InvalidMessageError):
        await producer.send(Message("T", b"x", unique_key="a\x02b"))


@pytest.mark.slow
async def test_refused_until_the_deadline_is_surely_not_stored(
    group: FakeGroup, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connect(producer)
    group.leader = None
    # The deadline falls into a pause: a try under way at that moment would be of unknown outcome.
    monkeypatch.setattr(
        "dledger_mq.client.lane.backoff_s", lambda tries: 0.0 if tries < 3 else 60.0
    )
    for timeout_s in (0.5, 5.0, 30.0):  # in which three refusals have to come
        with pytest.raises(ClientError) as caught:
            await producer.send(Message("T", b"y"), timeout_s=timeout_s)
        if isinstance(caught.value, SendRefusedError) and caught.value.attempts > 1:
            break
    assert isinstance(caught.value, SendRefusedError)
    assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert caught.value.attempts > 1


@pytest.mark.slow
async def test_an_unknown_try_is_not_forgotten_over_later_refusals(
    group: FakeGroup, producer: Producer
) -> None:
    await connect(producer)
    group.script.append(ResponseCode.SYSTEM_ERROR)
    group.script.extend([ResponseCode.SERVICE_NOT_AVAILABLE] * 100)
    for timeout_s in (0.5, 5.0, 30.0):  # in which it has to arrive
        with pytest.raises(ClientError) as caught:
            await producer.send(Message("T", b"y"), timeout_s=timeout_s)
        if len(group.sends) > 1:
            break
    assert isinstance(caught.value, SendOutcomeUnknownError)


@pytest.mark.slow
async def test_a_leader_that_hangs_is_left_for_the_new_one(
    group: FakeGroup, producer: Producer
) -> None:
    """A paused leader keeps its connections open and answers nothing."""
    await producer.send(Message("T", b"0"), queue=queue(0))
    group.nodes[0].is_paused = True
    group.elect(group.nodes[1])
    await producer.send(Message("T", b"1"), queue=queue(0))
    assert bodies(group, 0) == [b"0", b"1"]


async def test_name_servers_that_never_come_are_waited_for_as_long_as_the_caller_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    async with Producer(f"127.0.0.1:{port}", "g") as producer:
        with pytest.raises(NameServersUnreachableError):
            await producer.send(Message("T", b"x"), timeout_s=0.2)
        await until(lambda: "no name server answers" in caplog.text)
    assert caplog.text.count("no name server answers") == 1


async def test_a_mute_name_server_is_waited_for_by_all_at_once() -> None:
    ended: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with Producer(f"127.0.0.1:{mute.getsockname()[1]}", "g") as producer:

            async def send() -> None:
                with pytest.raises(NameServersUnreachableError) as caught:
                    await producer.send(Message("T", b"x"), timeout_s=0.1)
                ended.append(caught.value)

            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    for _ in range(50):
                        tasks.start_soon(send)
    assert len(ended) == 50


@pytest.mark.slow
@pytest.mark.parametrize("what", ["producer", "pull", "push"])
async def test_a_client_may_be_started_before_its_group(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="dledger_mq.client.name_servers")
    (port,) = free_ports(1)
    namesrv = f"127.0.0.1:{port}"
    seen = anyio.Event()

    async def use() -> None:
        if what == "producer":
            async with Producer(namesrv, "g", timeout_s=60) as producer:
                await producer.send(Message("T", b"y"))
        elif what == "pull":
            async with PullConsumer(namesrv, "g", timeout_s=60) as puller:
                assert await puller.topics() == ("T",)
                assert len(await puller.queues("T")) == 4
        else:
            async with PushConsumer(
                namesrv, "g", subscriptions={"T": "*"}, start_from="first"
            ) as consumer:
                assert (await anext(consumer)).body == b"x"
        seen.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await until(lambda: "no name server answers" in caplog.text)
        async with open_fake_group(namesrv_port=port) as group:
            group.put("T", 0, b"x")
            with anyio.fail_after(60):
                await seen.wait()
    assert caplog.text.count("no name server answers") == 1
    assert caplog.text.count(f"name server {namesrv} answers") == 1


async def test_the_first_broker_is_waited_for(group: FakeGroup) -> None:
    leader, group.leader = group.leader, None
    group.has_brokers = False
    async with anyio.create_task_group() as tasks, Producer(group.namesrv, "g") as producer:
        tasks.start_soon(producer.send, Message("T", b"x"))
        await until(lambda: group.topics_asked_for.count("T") >= 2)
        group.has_brokers, group.leader = True, leader
        await until(lambda: bodies(group) == [b"x"])


async def test_a_second_name_server_answers_when_the_first_is_gone(group: FakeGroup) -> None:
    (port,) = free_ports(1)
    async with Producer(f"127.0.0.1:{port};{group.namesrv}", "g") as producer:
        await producer.send(Message("T", b"x"))
    assert bodies(group) == [b"x"]


async def test_a_topic_that_may_not_be_created_has_no_route(
    group: FakeGroup, producer: Producer
) -> None:
    group.has_topics_on_demand = False
    with pytest.raises(NoRouteError):
        await producer.send(Message("T", b"x"))


async def test_batches_are_stored_whole(group: FakeGroup, producer: Producer) -> None:
    result = await producer.send_batch(
        [Message("T", b"%d" % n, tags="A") for n in range(3)], queue=queue(1)
    )
    assert bodies(group, 1) == [b"0", b"1", b"2"]
    assert len(result.message_id.split(",")) == len(set(result.unique_key.split(","))) == 3
    for wrong in (
        [],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x", delay_level=1)],
    ):
        with pytest.raises(InvalidMessageError):
            await producer.send_batch(wrong)
    with pytest.raises(InvalidMessageError, match="batch has"):
        await producer.send_batch([Message("T", b"x" * 3_000_000)] * 2)


async def test_oneway_asks_for_no_answer(group: FakeGroup, producer: Producer) -> None:
    await producer.send_oneway(Message("T", b"x"), queue=queue(0))
    while not group.messages("T"):
        await anyio.lowlevel.checkpoint()
    assert bodies(group) == [b"x"]


async def test_send_nowait_needs_a_known_route_and_room(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g", pending_max=2) as producer:
        with pytest.raises(anyio.WouldBlock):
            producer.send_nowait(Message("T", b"x"))
        await producer.queues("T")
        first = producer.send_nowait(Message("T", b"1"))
        producer.send_nowait(Message("T", b"2"), key="k")
        with pytest.raises(anyio.WouldBlock):
            producer.send_nowait(Message("T", b"3"))
        await first.wait()
        third = await producer.submit(Message("T", b"3"))
        await third.wait()
    assert sorted(bodies(group)) == [b"1", b"2", b"3"]


async def test_leaving_waits_for_what_was_submitted(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g") as producer:
        for n in range(100):
            await producer.submit(Message("T", b"%d" % n))
    assert len(bodies(group)) == 100


async def test_all_who_flush_go_on(group: FakeGroup, producer: Producer) -> None:
    await connect(producer)
    pending = await producer.submit(Message("T", b"x"))
    flushed: list[int] = []

    async def flush(number: int) -> None:
        await producer.flush()
        assert pending.is_done
        flushed.append(number)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush, 1)
            tasks.start_soon(flush, 2)
    assert sorted(flushed) == [1, 2]


async def test_a_producer_whose_block_was_cancelled_is_closed(group: FakeGroup) -> None:
    producer = Producer(group.namesrv, "g")
    with anyio.CancelScope() as scope:
        async with producer:
            await connect(producer)
            scope.cancel()
            await anyio.sleep_forever()
    with anyio.fail_after(30), pytest.raises(ClientClosedError):
        await producer.send(Message("Before", b"y"))
    assert bodies(group, topic="Before") == [b"x"]


async def test_an_error_of_the_caller_comes_out_as_it_is(group: FakeGroup) -> None:
    with pytest.raises(KeyError):
        async with Producer(group.namesrv, "g"):
            raise KeyError("mine")


async def test_cancelling_before_transmission_sends_nothing(
    group: FakeGroup, producer: Producer
) -> None:
    await producer.queues("T")
    group.create_topic("T")
    with anyio.move_on_after(0):
        await producer.send(Message("T", b"x"))
    await producer.flush()
    assert producer.statistics().pending == 0
    assert bodies(group) == []


async def test_misuse_is_said(group: FakeGroup, producer: Producer) -> None:
    with pytest.raises(ClientClosedError):
        await Producer(group.namesrv, "g").send(Message("T", b"x"))
    with pytest.raises(ClientUsageError):
        Producer(group.namesrv, "no good group")
    with pytest.raises(ClientUsageError):
        Producer(group.namesrv, "g", pending_max=0)
    with pytest.raises(ClientUsageError, match="no queue of topic"):
        await producer.send(Message("T", b"x"), queue=queue(0, "U"))
    for namesrv in ("", "nowhere", "host:0", "host:99999"):
        with pytest.raises(ClientUsageError):
            Producer(namesrv, "g")


@pytest.mark.slow
async def test_retries_can_be_bounded_and_say_what_is_known(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g", retries=2) as one:
        group.script.extend([ResponseCode.SYSTEM_BUSY] * 3)
        with pytest.raises(SendRefusedError) as refused:
            await one.send(Message("T", b"x"))
        group.script.extend([ResponseCode.SYSTEM_BUSY] * 2)
        assert (await one.send(Message("T", b"y"))).status == "SEND_OK"
    assert (refused.value.attempts, refused.value.code) == (3, ResponseCode.SYSTEM_BUSY)
    assert len(group.sends) == 6
    async with Producer(group.namesrv, "g", retries=0) as one:
        group.script.append(ResponseCode.SYSTEM_ERROR)  # may be stored
        with pytest.raises(SendOutcomeUnknownError):
            await one.send(Message("T", b"z"))


async def test_sizes_and_compression_can_be_chosen(group: FakeGroup) -> None:
    async with Producer(
        group.namesrv, "g", compress_from_bytes=100, compress_level=9, message_bytes_max=200
    ) as one:
        await one.send(Message("T", b"a" * 99), queue=queue(0))
        await one.send(Message("T", b"a" * 200), queue=queue(0))
        with pytest.raises(InvalidMessageError, match="at most 200"):
            await one.send(Message("T", b"a" * 201))
        with pytest.raises(InvalidMessageError, match="at most 200"):
            await one.send_batch([Message("T", b"a" * 150), Message("T", b"a" * 150)])
    small, large = group.messages("T", 0)
    assert small.body == b"a" * 99
    assert large.body == zlib.compress(b"a" * 200, 9)


async def test_a_new_topic_gets_as_many_queues_as_wanted(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "g", default_queues=2) as one:
        assert [each.queue_id for each in await one.queues("New")] == [0, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"compress_level": 10},
        {"compress_from_bytes": 0},
        {"message_bytes_max": 0},
        {"default_queues": 0},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ClientUsageError):
        Producer("127.0.0.1:1", "g", **options)  # type: ignore[arg-type]  # by name


async def test_every_node_hears_of_the_producer(group: FakeGroup, producer: Producer) -> None:
    await producer.send(Message("T", b"x"))
    with anyio.fail_after(30):
        while not all(node.heartbeats for node in group.nodes):
            await anyio.lowlevel.checkpoint()
    assert group.nodes[2].heartbeats[0].producer_groups == ("g",)
