"""What is given to the client with a wrong type is refused at the call, with the library's own error and a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from dledger_mq import (
    Admin,
    ClientUsageError,
    IdempotentProducer,
    InvalidMessageError,
    Later,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Row,
    SimpleConsumer,
    TransactionProducer,
    blocking,
)
from dledger_mq.testing import open_fake_group

NAMESRV = "127.0.0.1:9"
QUEUE = MessageQueue("T", "broker-a", 0)
MESSAGE = Message("T", b"x")


class Five:
    """A whole number that is no `int`, such as numpy has."""

    def __index__(self) -> int:
        return 5


def make_consumer(**options: Any) -> PushConsumer:
    return PushConsumer(NAMESRV, "g", print, subscriptions={"T": "*"}, **options)


def make_twin(**options: Any) -> blocking.PushConsumer:
    return blocking.PushConsumer(
        NAMESRV, "g", lambda message: None, subscriptions={"T": "*"}, **options
    )


def make_receiver(**options: Any) -> SimpleConsumer:
    return SimpleConsumer(NAMESRV, "g", **({"subscriptions": {"T": "*"}} | options))


CONSTRUCTORS: list[tuple[Callable[[], object], str]] = [
    (lambda: Producer(5, "g"), "namesrv is 5, not text"),
    (lambda: Producer(NAMESRV, group=5), "group is int 5, not text"),
    (lambda: Producer(NAMESRV, None), "group is NoneType None, not text"),
    (lambda: Producer(NAMESRV, b"g"), "group is bytes b'g', not text"),
    (lambda: Producer(NAMESRV, "g", timeout_s="5"), "timeout_s is str '5', not a number of"),
    (lambda: Producer(NAMESRV, "g", timeout_s=None), "timeout_s is NoneType None"),
    (lambda: Producer(NAMESRV, "g", timeout_s=True), "timeout_s is bool True"),
    (lambda: Producer(NAMESRV, "g", timeout_s=math.nan), "timeout_s is nan"),
    (lambda: Producer(NAMESRV, "g", retries="5"), "retries is str '5', not a whole number"),
    (lambda: Producer(NAMESRV, "g", retries=1.5), "retries is float 1.5, not a whole number"),
    (lambda: Producer(NAMESRV, "g", retries=True), "retries is bool True, not a whole number"),
    (lambda: Producer(NAMESRV, "g", pending_max="5"), "pending_max is str '5'"),
    (lambda: Producer(NAMESRV, "g", pending_bytes_max=1e6), "pending_bytes_max is float"),
    (lambda: Producer(NAMESRV, "g", compress_level="5"), "compress_level is str '5'"),
    (lambda: Producer(NAMESRV, "g", compress_from_bytes="5"), "compress_from_bytes is str '5'"),
    (lambda: Producer(NAMESRV, "g", message_bytes_max=None), "message_bytes_max is NoneType"),
    (lambda: Producer(NAMESRV, "g", default_queues=Five()), "default_queues is Five"),
    (lambda: Producer(NAMESRV, "g", instance=7), "instance is int 7, not text"),
    (lambda: Producer(NAMESRV, "g", serializer="json"), "serializer is str 'json', not a function"),
    (lambda: Producer(NAMESRV, "g", hooks=print), "hooks is builtin_function_or_method"),
    (lambda: TransactionProducer(NAMESRV, "g", checker=None), "checker is NoneType None, not a f"),
    (lambda: TransactionProducer(NAMESRV, 7, checker=print), "group is int 7"),
    (lambda: IdempotentProducer(NAMESRV, "g", timeout_s="5"), "timeout_s is str '5'"),
    (lambda: PullConsumer(NAMESRV, 5), "group is int 5, not text"),
    (lambda: PullConsumer(NAMESRV, "g", timeout_s="5"), "timeout_s is str '5'"),
    (lambda: PullConsumer(NAMESRV, "g", timeout_s=0), "timeout_s 0 must be above 0"),
    (lambda: PullConsumer(NAMESRV, "g", instance=5), "instance is int 5"),
    (lambda: Admin(["127.0.0.1:9"]), "namesrv is ['127.0.0.1:9'], not text"),
    (lambda: Admin(NAMESRV, timeout_s="5"), "timeout_s is str '5'"),
    (lambda: PushConsumer(NAMESRV, 5, print, subscriptions={"T": "*"}), "group is int 5"),
    (lambda: PushConsumer(NAMESRV, "g", 5, subscriptions={"T": "*"}), "handler is int 5"),
    (lambda: PushConsumer(NAMESRV, "g", print, subscriptions=["T"]), "subscriptions is ['T']"),
    (lambda: PushConsumer(NAMESRV, "g", print, subscriptions={5: "*"}), "not 5 and '*'"),
    (lambda: PushConsumer(NAMESRV, "g", print, subscriptions=None), "at least one subscription"),
    (lambda: make_consumer(concurrency="5"), "concurrency is str '5', not a whole number"),
    (lambda: make_consumer(concurrency=True), "concurrency is bool True"),
    (lambda: make_consumer(consume_batch_max=1.0), "consume_batch_max is float 1.0"),
    (lambda: make_consumer(batch_handler=5), "batch_handler is int 5, not a function"),
    (lambda: make_consumer(ordered="no"), "ordered is str 'no', not True or False"),
    (lambda: make_consumer(broadcast=1), "broadcast is int 1, not True or False"),
    (lambda: make_consumer(allocation="average"), "allocation is str 'average', not a function"),
    (lambda: make_consumer(start_from=1.5), "start_from is float 1.5, not 'last'"),
    (lambda: make_consumer(start_from=None), "start_from is NoneType None, not 'last'"),
    (lambda: make_consumer(commit_interval_s="5"), "commit_interval_s is str '5'"),
    (lambda: make_consumer(max_reconsume_times="5"), "max_reconsume_times is str '5'"),
    (lambda: make_consumer(retry_delay_level="5"), "retry_delay_level is str '5'"),
    (lambda: make_consumer(suspend_s="5"), "suspend_s is str '5'"),
    (lambda: make_consumer(consume_timeout_s=None), "consume_timeout_s is NoneType"),
    (lambda: make_consumer(pull_batch="5"), "pull_batch is str '5'"),
    (lambda: make_consumer(pull_interval_s="5"), "pull_interval_s is str '5'"),
    (lambda: make_consumer(limits=1000), "limits is int 1000, not a FlowLimits"),
    (lambda: make_consumer(offsets_folder=5), "offsets_folder is int 5, not a str or a Path"),
    (lambda: make_consumer(listener=print), "not a RebalanceListener"),
    (lambda: make_consumer(deserializer="json"), "deserializer is str 'json', not a function"),
    (lambda: make_consumer(hooks="x"), "hooks is str 'x', not a ClientHooks"),
    (lambda: make_consumer(instance=5), "instance is int 5, not text"),
    (lambda: SimpleConsumer(NAMESRV, 5, subscriptions={"T": "*"}), "group is int 5, not text"),
    (lambda: make_receiver(subscriptions=["T"]), "subscriptions is ['T']"),
    (lambda: make_receiver(subscriptions=None), "at least one subscription"),
    (lambda: make_receiver(ordered=1), "ordered is int 1, not True or False"),
    (lambda: make_receiver(start_from=3), "start_from is int 3, not 'last' or 'first'"),
    (lambda: make_receiver(start_from=["last"]), "start_from is list"),
    (lambda: make_receiver(timeout_s="5"), "timeout_s is str '5'"),
    (lambda: make_receiver(timeout_s=0), "timeout_s 0 must be above 0"),
    (lambda: make_receiver(instance=5), "instance is int 5, not text"),
    (lambda: blocking.Producer(NAMESRV, 5), "group is int 5, not text"),
    (lambda: blocking.Producer(NAMESRV, "g", retries="5"), "retries is str '5'"),
    (lambda: blocking.IdempotentProducer(NAMESRV, "g", timeout_s="5"), "timeout_s is str '5'"),
    (lambda: blocking.TransactionProducer(NAMESRV, "g", checker=5), "checker is int 5"),
    (lambda: blocking.PullConsumer(NAMESRV, "g", timeout_s="5"), "timeout_s is str '5'"),
    (lambda: blocking.Admin(NAMESRV, timeout_s="5"), "timeout_s is str '5'"),
    (lambda: make_twin(concurrency="5"), "concurrency is str '5'"),
    (lambda: make_twin(batch_handler="x", concurrency=2), "batch_handler is str 'x'"),
    (lambda: Message("T", b"x", delay_ms="5"), "delay_ms is str '5', not a whole number"),
    (lambda: Message("T", b"x", delay_ms=None), "delay_ms is NoneType None"),
    (lambda: Message("T", b"x", delay_ms=1.5), "delay_ms is float 1.5"),
    (lambda: Message("T", b"x", delay_level=True), "delay_level is bool True"),
    (lambda: Message("T", b"x", flag="1"), "flag is str '1'"),
    (lambda: Message("T", b"x", deliver_at_ms="now"), "deliver_at_ms is str 'now'"),
    (lambda: Message("T", b"x", unique_key=5), "unique_key is int 5, not text"),
    (lambda: Message("T", b"x", keys=None), "keys is NoneType None, not text, or a list"),
    (lambda: Message("T", b"x", properties=None), "properties is NoneType None"),
    (lambda: Message("T", b"x", tags=0), "tags is int 0"),
    (lambda: Later(delay_level="5"), "delay_level is str '5'"),
    (lambda: Later(suspend_s="5"), "suspend_s is str '5'"),
    (lambda: Later(consumed="5"), "consumed is str '5'"),
]


@pytest.mark.parametrize(("make", "said"), CONSTRUCTORS)
def test_a_wrong_type_is_refused_by_the_constructor(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ClientUsageError, match=re.escape(said)):
        make()


@dataclass
class Clients:
    producer: Producer
    transactions: TransactionProducer
    rows: IdempotentProducer
    puller: PullConsumer
    pusher: PushConsumer
    receiver: SimpleConsumer
    admin: Admin


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with open_fake_group(queues=2) as group:
        group.create_topic("T")
        async with (
            Producer(group.namesrv, "p") as producer,
            TransactionProducer(group.namesrv, "t", checker=_no_checks) as transactions,
            IdempotentProducer(group.namesrv, "r") as rows,
            PullConsumer(group.namesrv, "c") as puller,
            PushConsumer(group.namesrv, "g", _drop, subscriptions={"T": "*"}) as pusher,
            SimpleConsumer(group.namesrv, "s", subscriptions={"T": "*"}) as receiver,
            Admin(group.namesrv) as admin,
        ):
            await producer.queues("T")
            await puller.assign({QUEUE: 0})
            yield Clients(producer, transactions, rows, puller, pusher, receiver, admin)
            assert not any(group.messages("T")), "nothing was sent"


async def _no_checks(message: object) -> None:
    raise AssertionError(message)


async def _drop(message: object) -> None:
    pass


async def _do(function: Callable[[], object]) -> None:
    function()


def _rows(clients: Clients, **changes: Any) -> Awaitable[object]:
    wanted: dict[str, Any] = {"sink_id": "s", "batch_id": 1, "queue": QUEUE}
    rows = changes.pop("rows", [Row(b"12345678", MESSAGE)])
    return clients.rows.send_rows(rows, **(wanted | changes))


Call = Callable[[Any], Awaitable[object]]

CALLS: list[tuple[Call, str]] = [
    (lambda c: c.producer.send("text"), "message is str 'text', not a Message"),
    (lambda c: c.producer.send(None), "message is NoneType None, not a Message"),
    (lambda c: c.producer.send(MESSAGE, queue="T"), "queue is str 'T', not a MessageQueue"),
    (lambda c: c.producer.send(MESSAGE, queue=("T", "broker-a", 0)), "queue is tuple"),
    (lambda c: c.producer.send(MESSAGE, key=5), "key is int 5, not text or bytes"),
    (lambda c: c.producer.send(MESSAGE, selector=5), "selector is int 5, not a function"),
    (lambda c: c.producer.send(MESSAGE, selector=lambda queues: 0), "queue is int 0"),
    (lambda c: c.producer.send(MESSAGE, timeout_s="5"), "timeout_s is str '5'"),
    (lambda c: c.producer.send(MESSAGE, timeout_s=math.nan), "timeout_s is nan"),
    (lambda c: c.producer.submit(b"x"), "message is bytes b'x', not a Message"),
    (lambda c: c.producer.submit(MESSAGE, timeout_s="5"), "timeout_s is str '5'"),
    (lambda c: _do(lambda: c.producer.send_nowait("x")), "message is str 'x', not a Message"),
    (lambda c: _do(lambda: c.producer.send_nowait(MESSAGE, queue=7)), "queue is int 7"),
    (lambda c: c.producer.send_oneway("x"), "message is str 'x', not a Message"),
    (lambda c: c.producer.send_batch(MESSAGE), "messages is Message"),
    (lambda c: c.producer.send_batch(None), "messages is NoneType None, not a list of Message"),
    (lambda c: c.producer.send_batch(["x"]), "message is str 'x', not a Message"),
    (lambda c: c.producer.submit_batch(5), "messages is int 5, not a list of Message"),
    (lambda c: c.producer.recall(5), "handle is int 5, not text"),
    (lambda c: c.producer.queues(5), "topic is int 5, not text"),
    (lambda c: c.transactions.send_in_transaction(MESSAGE, None), "local is NoneType None, not a"),
    (
        lambda c: c.transactions.send_in_transaction(MESSAGE, print, check_after_s="5"),
        "check_after_s is str '5'",
    ),
    (lambda c: c.transactions.send_in_transaction("x", print), "message is str 'x'"),
    (lambda c: _rows(c, rows=None), "rows is NoneType None, not a list of Row"),
    (lambda c: _rows(c, rows=[MESSAGE]), "rows is list"),
    (lambda c: _rows(c, rows=[Row("12345678", MESSAGE)]), "a row key is str '12345678'"),
    (lambda c: _rows(c, rows=[Row(b"12345678", b"x")]), "message is bytes b'x', not a Message"),
    (lambda c: _rows(c, sink_id=5), "sink_id is int 5, not text"),
    (lambda c: _rows(c, batch_id="5"), "batch_id is str '5', not a whole number"),
    (lambda c: _rows(c, queue="T"), "queue is str 'T'"),
    (lambda c: c.puller.queues(None), "topic is NoneType None, not text"),
    (lambda c: c.puller.committed("T"), "queue is str 'T', not a MessageQueue"),
    (lambda c: c.puller.commit(QUEUE, "5"), "offset is str '5', not a whole number"),
    (lambda c: c.puller.commit(QUEUE, 5.0), "offset is float 5.0, not a whole number"),
    (lambda c: c.puller.commit(QUEUE, None), "offset is NoneType None"),
    (lambda c: c.puller.min_offset(0), "queue is int 0"),
    (lambda c: c.puller.max_offset(None), "queue is NoneType None"),
    (lambda c: c.puller.offset_at(QUEUE, "now"), "timestamp_ms is str 'now'"),
    (lambda c: c.puller.bounds(QUEUE), "queues is MessageQueue"),
    (lambda c: c.puller.bounds(None), "queues is NoneType None, not a list of MessageQueue"),
    (lambda c: c.puller.bounds(["T"]), "queue is str 'T'"),
    (lambda c: c.puller.commit_all([QUEUE]), "offsets is list"),
    (lambda c: c.puller.commit_all({QUEUE: "5"}), "the offset of T@broker-a/0 is str '5'"),
    (lambda c: c.puller.assign(None), "queues is NoneType None"),
    (lambda c: c.puller.assign("T"), "queue is str 'T'"),
    (lambda c: c.puller.assign({QUEUE: "0"}), "the offset of T@broker-a/0 is str '0'"),
    (lambda c: c.puller.poll("1"), "timeout_s is str '1'"),
    (lambda c: c.puller.poll(1, max_messages="5"), "max_messages is str '5'"),
    (lambda c: _do(lambda: c.puller.seek(QUEUE, "5")), "offset is str '5'"),
    (lambda c: _do(lambda: c.puller.pause([QUEUE])), "queue is list"),
    (lambda c: _do(lambda: c.puller.resume("T")), "queue is str 'T'"),
    (lambda c: c.puller.pull(QUEUE, "0"), "offset is str '0'"),
    (lambda c: c.puller.pull("T", 0), "queue is str 'T'"),
    (lambda c: c.puller.pull(QUEUE, 0, max_messages=None), "max_messages is NoneType"),
    (lambda c: c.puller.pull(QUEUE, 0, hold_s="1"), "hold_s is str '1'"),
    (lambda c: c.puller.pull(QUEUE, 0, expression=5), "not 'T' and 5"),
    (lambda c: c.puller.pull_records(QUEUE, 0, node="0"), "node is str '0'"),
    (lambda c: c.puller.pull_records(QUEUE, 0, answer_within_s="1"), "answer_within_s is str"),
    (lambda c: c.pusher.subscribe(5), "not 5 and '*'"),
    (lambda c: c.pusher.unsubscribe(5), "topic is int 5"),
    (lambda c: c.pusher.seek(QUEUE, "5"), "offset is str '5'"),
    (lambda c: c.pusher.seek("T", 5), "queue is str 'T'"),
    (lambda c: _do(lambda: c.pusher.pause("T")), "queue is str 'T'"),
    (lambda c: _do(lambda: c.pusher.resume([QUEUE])), "queue is list"),
    (lambda c: c.receiver.receive("5"), "max_messages is str '5', not a whole number"),
    (lambda c: c.receiver.receive(33), "max_messages 33 is not in 1..32"),
    (lambda c: c.receiver.receive(1, invisible_s="1"), "invisible_s is str '1'"),
    (lambda c: c.receiver.receive(1, invisible_s=0), "invisible_s 0 is not in 0.001..259200"),
    (lambda c: c.receiver.receive(1, wait_s=None), "wait_s is NoneType"),
    (lambda c: c.receiver.receive(1, wait_s=-1), "wait_s -1 is below 0"),
    (lambda c: c.receiver.ack(5), "messages is int 5, not a message, or a list"),
    (lambda c: c.receiver.ack(["x"]), "message is str 'x', not one that `receive` has returned"),
    (lambda c: c.receiver.change_invisible_time(MESSAGE, 1), "message is Message"),
    (lambda c: c.admin.create_topic(5), "topic is int 5, not text"),
    (lambda c: c.admin.create_topic("U", queues="8"), "queues is str '8', not a whole number"),
    (lambda c: c.admin.create_topic("U", is_readable="no"), "is_readable is str 'no'"),
    (lambda c: c.admin.create_topic("U", is_writable=None), "is_writable is NoneType"),
    (lambda c: c.admin.create_topic("U", brokers="broker-a"), "brokers is str 'broker-a', not a l"),
    (lambda c: c.admin.create_topic("U", brokers=[1]), "one of brokers is int 1"),
    (lambda c: c.admin.describe_topic(None), "topic is NoneType None"),
    (lambda c: c.admin.delete_topic(5), "topic is int 5"),
    (lambda c: c.admin.create_group(5), "group is int 5"),
    (lambda c: c.admin.create_group("h", retries="16"), "retries is str '16'"),
    (lambda c: c.admin.create_group("h", ordered=1), "ordered is int 1, not True or False"),
    (lambda c: c.admin.create_group("h", brokers=5), "brokers is int 5, not a list of texts"),
    (lambda c: c.admin.describe_group(5), "group is int 5"),
    (lambda c: c.admin.delete_group("h", with_offsets="no"), "with_offsets is str 'no'"),
    (lambda c: c.admin.reset_offsets("h", "T", True), "True is not 'first', 'last'"),
    (lambda c: c.admin.reset_offsets("h", "T", None), "None is not 'first', 'last'"),
    (lambda c: c.admin.reset_offsets("h", "T", 1.5), "1.5 is not 'first', 'last'"),
    (lambda c: c.admin.reset_offsets("h", "T", {QUEUE: "5"}), "the offset of T@broker-a/0 is str"),
    (lambda c: c.admin.reset_offsets("h", 5, "last"), "topic is int 5"),
]


async def _answer(call: Call, clients: Clients) -> str:
    try:
        await call(clients)
    except ClientUsageError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - shown among the others
        return f"{type(error).__name__}: {error}"
    return "it was taken"


@pytest.mark.anyio
async def test_a_wrong_type_is_refused_by_the_call_and_nothing_is_sent(clients: Clients) -> None:
    """All in one group: to make one for each would take as long as all the rest."""
    answers = [(said, await _answer(call, clients)) for call, said in CALLS]
    assert [(said, answer) for said, answer in answers if said not in answer] == []


def test_the_table_is_long() -> None:
    assert len(CONSTRUCTORS) + len(CALLS) > 150


def test_numbers_that_are_no_int_are_converted_where_they_are_data() -> None:
    message = Message("T", b"x", delay_ms=Five(), flag=Five())  # type: ignore[arg-type]  # what is tested
    assert (message.delay_ms, message.delay_ms.__class__) == (5, int)
    assert message.flag.__class__ is int
    assert Producer(NAMESRV, "g", timeout_s=Fraction(1, 2)).timeout_s == 0.5  # type: ignore[arg-type]


def test_a_body_is_copied() -> None:
    body = bytearray(b"before")
    message = Message("T", body)
    body[:] = b"behind"
    assert message.body == b"before"


@pytest.mark.anyio
async def test_what_was_converted_is_stored() -> None:
    async with open_fake_group(queues=1) as group:
        group.create_topic("T")
        async with PullConsumer(group.namesrv, "c") as puller:
            await puller.commit(QUEUE, Five())  # type: ignore[arg-type]  # what is tested
        assert group.offsets == {("c", "T", 0): 5}


@pytest.mark.anyio
async def test_a_row_whose_mark_does_not_fit_is_refused_before_it_is_sent(clients: Clients) -> None:
    """Its own properties fit; with what says of which batch it is, they do not."""
    message = Message("T", b"x", properties={"p": "v" * 32_690})
    for rows in ([Row(b"12345678", message)], [Row(b"12345678", message)] * 2):
        with pytest.raises(InvalidMessageError, match="properties have"):
            await clients.rows.send_rows(rows, sink_id="s" * 50, batch_id=1, queue=QUEUE)
