"""The facade without async, called from a thread while the group in memory runs in this one."""

from __future__ import annotations

import inspect
import os
import queue as queues
import signal
import socket
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import dledger_mq
import dledger_mq.blocking
from dledger_mq import (
    ClientClosedError,
    ClientHooks,
    ClientUsageError,
    ClosedMeanwhileError,
    HandleExpiredError,
    InvalidMessageError,
    Later,
    Message,
    MessageQueue,
    NameServersUnreachableError,
    ReceivedMessage,
    SendOutcomeUnknownError,
    SendRefusedError,
    SendResult,
)
from dledger_mq.blocking import (
    Admin,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from dledger_mq.client.outbox import Outbox
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.testing import IGNORED, FakeGroup, open_fake_group
from tests.waiting import wait_until


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


async def test_sending(group: FakeGroup) -> None:
    def work() -> None:
        with Producer(group.namesrv, "g") as producer:
            one, two = producer.queues("T")
            assert producer.send(Message("T", b"0"), queue=two).queue == two
            results = producer.send_many([Message("T", b"%d" % n) for n in range(50)], key="k")
            assert all(isinstance(result, SendResult) for result in results)
            batch = producer.send_batch([Message("T", b"a"), Message("T", b"b")], queue=one)
            assert batch.queue == one
            producer.send_oneway(Message("T", b"c"), queue=one)
            with pytest.raises(InvalidMessageError):
                producer.send(Message("T", b""))

    await trio.to_thread.run_sync(work)
    await wait_until(lambda: len(group.messages("T")) == 54)  # nobody waited for the one-way send


async def test_one_failure_among_many(group: FakeGroup) -> None:
    group.script.extend([0, ResponseCode.MESSAGE_ILLEGAL, 0])

    def work() -> None:
        with Producer(group.namesrv, "g") as producer:
            ended = producer.send_many([Message("T", b"%d" % n) for n in range(3)], key="k")
        assert [type(end) for end in ended] == [SendResult, SendRefusedError, SendResult]

    await trio.to_thread.run_sync(work)


async def test_futures_keep_the_order_of_the_calls_and_end_as_sends_do(group: FakeGroup) -> None:
    group.script.extend([0, 0, ResponseCode.MESSAGE_ILLEGAL])

    def work() -> None:
        with Producer(group.namesrv, "g", pending_max=8) as producer:
            futures = [producer.send_async(Message("T", b"%d" % n), key="k") for n in range(50)]
            invalid = producer.send_async(Message("T", b""))
            producer.flush()
            assert all(future.done() for future in (*futures, invalid))
            assert isinstance(futures[2].exception(), SendRefusedError)
            assert isinstance(invalid.exception(), InvalidMessageError)
            offsets = [one.result().queue_offset for one in futures if not one.exception()]
            assert offsets == list(range(49))
            statistics = producer.statistics()
            assert (statistics.succeeded, statistics.refused, statistics.pending) == (49, 1, 0)
            last = producer.send_async(Message("T", b"last"))
        assert last.result().status == "SEND_OK", "leaving waits for it"
        with pytest.raises(ClientClosedError):
            producer.send_async(Message("T", b"too late"))

    await trio.to_thread.run_sync(work)
    assert len(group.messages("T")) == 50


async def test_a_callback_hands_over_the_next_message_and_never_waits_for_itself(
    group: FakeGroup,
) -> None:
    """It once waited for room that only its own thread makes, and with it everything else of the client."""
    told: queues.Queue[object] = queues.Queue()

    def work() -> None:
        with Producer(group.namesrv, "g", pending_max=2) as producer:

            def go_on(_ended: object) -> None:
                for number in range(3):
                    try:
                        told.put(producer.send_async(Message("T", b"%d" % number)))
                    except ClientUsageError as error:
                        told.put(error)

            producer.send_async(Message("T", b"first")).add_done_callback(go_on)
            ended = [told.get(timeout=30) for _ in range(3)]
            assert [isinstance(one, ClientUsageError) for one in ended] == [False, False, True]
            assert "2 messages have not ended" in str(ended[2])
            producer.flush()

    await trio.to_thread.run_sync(work)
    assert sorted(each.body for each in group.messages("T")) == [b"0", b"1", b"first"]


async def test_calls_are_let_in_when_there_is_an_outbox_for_them(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(group.namesrv, "g")
    was_open: list[bool] = []

    def make(*args: Any) -> Outbox:
        was_open.append(producer.is_open)
        return Outbox(*args)

    monkeypatch.setattr("dledger_mq.blocking.producers.Outbox", make)

    def work() -> None:
        for _ in range(2):
            with producer:
                producer.send_async(Message("T", b"x")).result(timeout=60)

    await trio.to_thread.run_sync(work)
    assert was_open == [False, False]


async def test_all_threads_that_flush_go_on(group: FakeGroup) -> None:
    group.script.append(IGNORED)

    def work() -> None:
        with Producer(group.namesrv, "g", timeout_s=1) as producer:
            future = producer.send_async(Message("T", b"x"))
            threads = [threading.Thread(target=producer.flush, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert future.done()
            assert not any(thread.is_alive() for thread in threads)

    await trio.to_thread.run_sync(work)


def test_futures_share_the_time_in_which_no_route_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        producer = Producer(f"127.0.0.1:{mute.getsockname()[1]}", "g", timeout_s=0.1).open()
        futures = [producer.send_async(Message("T", b"%d" % n)) for n in range(100)]
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
    assert all(isinstance(one.exception(0), NameServersUnreachableError) for one in futures)


async def test_a_future_has_its_time_once_the_producer_has_room(group: FakeGroup) -> None:
    def work() -> None:
        with Producer(group.namesrv, "g", pending_bytes_max=1) as producer:
            producer.send(Message("T", b"the route is known"))
            group.script.append(IGNORED)
            first, second = (producer.send_async(Message("T", b"x"), timeout_s=2) for _ in range(2))
            assert isinstance(first.exception(30), SendOutcomeUnknownError)
            assert second.result(30).status == "SEND_OK"

    await trio.to_thread.run_sync(work)


async def test_a_future_can_be_cancelled_before_its_message_leaves(group: FakeGroup) -> None:
    group.has_brokers = False

    def work() -> None:
        with Producer(group.namesrv, "g") as producer:
            first = producer.send_async(Message("New", b"waits for a route"), timeout_s=60)
            second = producer.send_async(Message("New", b"cancelled"))
            assert second.cancel()
            group.has_brokers = True
            assert first.result(60).status == "SEND_OK"

    await trio.to_thread.run_sync(work)
    assert [message.body for message in group.messages("New")] == [b"waits for a route"]


async def test_pulling(group: FakeGroup) -> None:
    group.put("T", 0, b"x")

    def work() -> None:
        with PullConsumer(group.namesrv, "g") as consumer:
            first = consumer.queues("T")[0]
            assert consumer.committed(first) is None
            pulled = consumer.pull(first, consumer.min_offset(first))
            assert [message.body for message in pulled.messages] == [b"x"]
            consumer.commit(first, pulled.next_offset)
            assert consumer.committed(first) == consumer.max_offset(first) == 1
            assert consumer.offset_at(first, 0) == 0

    await trio.to_thread.run_sync(work)


async def test_being_handed_messages(group: FakeGroup) -> None:
    group.put("T", 0, b"x")
    inbox: queues.Queue[ReceivedMessage] = queues.Queue()

    def work() -> None:
        with PushConsumer(
            group.namesrv, "g", inbox.put, subscriptions={"T": "*"}, start_from="first"
        ) as consumer:
            assert consumer.wait_assigned()
            assert inbox.get(timeout=60).body == b"x"
            consumer.commit()
            assert len(consumer.assigned) >= 2

    await trio.to_thread.run_sync(work)
    assert group.offsets["g", "T", 0] == 1


async def test_taking_messages_in_a_loop(group: FakeGroup) -> None:
    for number in range(4):
        group.put("T", number % 2, b"%d" % number)

    def work() -> list[bytes]:
        got: list[bytes] = []
        with PushConsumer(
            group.namesrv, "g", subscriptions={"T": "*"}, start_from="first"
        ) as consumer:
            for message in consumer:
                got.append(message.body)
                if len(got) == 4:
                    break
        return got

    assert sorted(await trio.to_thread.run_sync(work)) == [b"0", b"1", b"2", b"3"]
    assert group.offsets[("g", "T", 0)] == group.offsets[("g", "T", 1)] == 2


async def test_batches_and_broadcast_in_threads(group: FakeGroup, tmp_path: Path) -> None:
    for n in range(4):
        group.put("T", 0, b"%d" % n)
    inbox: queues.Queue[list[bytes]] = queues.Queue()

    def handle(messages: tuple[ReceivedMessage, ...]) -> Later | None:
        bodies = [message.body for message in messages]
        inbox.put(bodies)
        return Later(consumed=1) if bodies == [b"2", b"3"] else None

    def work(*, broadcast: bool) -> list[list[bytes]]:
        with PushConsumer(
            group.namesrv,
            "g",
            batch_handler=handle,
            consume_batch_max=2,
            concurrency=1,
            subscriptions={"T": "*"},
            start_from="first",
            broadcast=broadcast,
            offsets_folder=tmp_path,
        ):
            return [inbox.get(timeout=60) for _ in range(2 if broadcast else 3)]

    whole = [[b"0", b"1"], [b"2", b"3"]]
    assert await trio.to_thread.run_sync(partial(work, broadcast=True)) == whole
    assert (group.offsets, group.sent_back) == ({}, [])
    assert await trio.to_thread.run_sync(partial(work, broadcast=False)) == [*whole, [b"3"]]
    assert group.sent_back == [(b"3", 0)]


async def test_misuse_is_said(group: FakeGroup) -> None:
    producer = Producer(group.namesrv, "g")
    with pytest.raises(ClientClosedError):
        producer.send(Message("T", b"x"))
    with pytest.raises(ClientUsageError):
        Producer("", "g")

    def work() -> None:
        with producer:
            pass
        with pytest.raises(ClientClosedError):
            producer.send(Message("T", b"x"))
        producer.close()

    await trio.to_thread.run_sync(work)


async def test_a_client_is_opened_and_closed_and_opened_again(group: FakeGroup) -> None:
    producer = Producer(group.namesrv, "g")

    def work() -> None:
        for _ in range(2):
            with producer:
                assert (
                    producer.send_async(Message("T", b"x")).result(timeout=60).status == "SEND_OK"
                )
                with pytest.raises(ClientUsageError, match="open already"):
                    producer.open()
                assert producer.is_open

    await trio.to_thread.run_sync(work)
    assert len(group.messages("T")) == 2


async def test_a_client_is_opened_after_an_attempt_that_failed(
    group: FakeGroup, tmp_path: Path
) -> None:
    folder = tmp_path / "offsets"
    folder.touch()

    def work() -> None:
        consumer = PushConsumer(
            group.namesrv,
            "g",
            print,
            subscriptions={"T": "*"},
            broadcast=True,
            offsets_folder=folder,
        )
        for _ in range(2):
            with pytest.raises(NotADirectoryError):
                consumer.open()
            assert not consumer.is_open
        folder.unlink()
        with consumer:
            assert consumer.wait_assigned()

    await trio.to_thread.run_sync(work)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_whose_the_client_is() -> None:
    producer = Producer("127.0.0.1:1", "g").open()
    pid = os.fork()
    if not pid:  # never returns into the tests
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)
        calls = (
            producer.statistics,
            producer.flush,
            lambda: producer.send_async(Message("T", b"x")),
        )
        said = 0
        for call in calls:
            try:
                call()
            except ClientClosedError as error:
                said += "forked" in str(error)
        producer.close()
        os._exit(0 if said == len(calls) and not producer.is_open else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert producer.statistics().pending == 0
    producer.close()


async def test_receiving(group: FakeGroup) -> None:
    for n in range(3):
        group.put("T", 0, b"%d" % n)

    def work() -> None:
        with SimpleConsumer(group.namesrv, "g", subscriptions={"T": "*"}) as consumer:
            messages = consumer.receive(3, invisible_s=60, wait_s=0)
            assert [message.body for message in messages] == [b"0", b"1", b"2"]
            longer = consumer.change_invisible_time(messages[0], 120)
            consumer.ack([longer, messages[1]])
            consumer.ack(messages[2])
            with pytest.raises(HandleExpiredError):
                consumer.ack(messages[2])
            assert consumer.receive(wait_s=0) == ()

    await trio.to_thread.run_sync(work)
    assert group.pops.in_flight("g", "T") == 0


async def test_administering(group: FakeGroup) -> None:
    def work() -> None:
        with Admin(group.namesrv) as admin:
            admin.create_topic("U", queues=3)
            assert admin.list_topics() == ("T", "U")
            assert len(admin.describe_topic("U").queues) == 3
            admin.create_group("g")
            place = MessageQueue("T", "broker-a", 0)
            assert admin.reset_offsets("g", "T", {place: 0}) == {place: 0}
            assert admin.describe_group("g").offsets == {place: 0}
            admin.delete_group("g", with_offsets=True)
            assert admin.list_groups() == ()
            admin.delete_topic("U")
            with pytest.raises(ClientUsageError):
                admin.create_topic("no topic")
        with pytest.raises(ClientClosedError):
            admin.list_topics()

    await trio.to_thread.run_sync(work)


async def test_a_local_transaction_that_never_returns_does_not_keep_its_producer_open(
    group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    began, may_end = threading.Event(), threading.Event()
    ends: queues.Queue[object] = queues.Queue()

    def local(message: Message, transaction_id: str) -> None:
        began.set()
        assert may_end.wait(60)

    def work() -> None:
        producer = TransactionProducer(group.namesrv, "g", checker=lambda message: None).open()

        def send() -> None:
            try:
                ends.put(producer.send_in_transaction(Message("T", b"x"), local))
            except ClientClosedError as error:
                ends.put(error)

        threading.Thread(target=send, daemon=True).start()
        assert began.wait(30)
        producer.close()
        assert isinstance(ends.get(timeout=30), ClosedMeanwhileError)

    with trio.fail_after(60):
        await trio.to_thread.run_sync(work)
    assert "local" in caplog.text
    may_end.set()


class Refusing(ClientHooks):
    """An application whose own code fails on one message."""

    def sending(self, message: Message) -> Message:
        if message.body == b"bad":
            raise ZeroDivisionError
        return message


async def test_a_failure_of_the_hooks_ends_one_future_and_not_the_producer(
    group: FakeGroup,
) -> None:
    def work() -> None:
        with Producer(group.namesrv, "g", hooks=Refusing()) as producer:
            bad = producer.send_async(Message("T", b"bad"))
            good = producer.send_async(Message("T", b"good"))
            with pytest.raises(ZeroDivisionError):
                bad.result(timeout=60)
            assert good.result(timeout=60).status == "SEND_OK"

    await trio.to_thread.run_sync(work)


def test_methods_have_the_signature_and_the_docstring_of_the_async_ones() -> None:
    assert inspect.signature(Producer.send) == inspect.signature(dledger_mq.Producer.send)
    assert Producer.send.__doc__ == dledger_mq.Producer.send.__doc__
    assert not inspect.iscoroutinefunction(Producer.send)


@pytest.mark.parametrize(
    "name",
    [
        "Admin",
        "Producer",
        "PullConsumer",
        "PushConsumer",
        "IdempotentProducer",
        "TransactionProducer",
    ],
)
def test_every_method_has_its_twin(name: str) -> None:
    """But for those that make no sense without async: a pending send, or names that brokers give."""
    ours = {each for each in dir(getattr(dledger_mq.blocking, name)) if each[0] != "_"}
    theirs = {each for each in dir(getattr(dledger_mq, name)) if each[0] != "_"}
    only_async = {"start", "stop", "client_id", "live_session", "paused"}
    only_async |= {"submit", "submit_batch", "submit_rows", "submit_columns"}
    only_async |= {"send_nowait", "wait_for_room"}
    assert theirs - ours - only_async == set()
