"""The trace that clients write: of sends, transactions and deliveries, beside them, bounded; and how it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from dledger_mq import (
    ClientUsageError,
    ConsumeResult,
    Later,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from dledger_mq.client import trace_writer
from dledger_mq.client.errors import ClientError, NoRouteError
from dledger_mq.client.messages import unpack_body
from dledger_mq.client.trace_reader import ClientTrace, trace_of
from dledger_mq.client.trace_writer import (
    RECORDS_MAX,
    WAITING_MAX,
    TraceStatistics,
    TraceWriter,
)
from dledger_mq.message.names import TRACE_TOPIC
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.trace_records import (
    ConsumeEnd,
    EndTransactionTrace,
    RecallTrace,
    SubAfterTrace,
    TracedKind,
    TraceRecord,
    decode_trace,
)
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import until
from tests.waiting import WAIT_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGroup]:
    """A group whose clients are left only when their trace is written, however long that takes."""
    monkeypatch.setattr(trace_writer, "CLOSE_S", WAIT_S)
    async with open_fake_group(queues=1) as fake:
        fake.create_topic("T")
        fake.create_topic(TRACE_TOPIC)
        yield fake


def records_in(group: FakeGroup, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
    return [
        record
        for message in group.messages(topic)
        for record in decode_trace(unpack_body(message.body, message.sys_flag)).records
    ]


def story(group: FakeGroup, message_id: str) -> ClientTrace:
    return trace_of(message_id, group.messages(TRACE_TOPIC))


async def test_sends_are_told_of_once_they_are_stored(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "shop", trace=True) as producer:
        plain = await producer.send(Message("T", b"one"))
        full = await producer.send(Message("T", b"three", tags="red", keys=["a", "b"]))
        late = await producer.send(Message("T", b"later", delay_level=1))
        batch = [Message("T", b"x"), Message("T", b"yy")]
        both = await (await producer.submit_batch(batch)).wait()
        await producer.send_oneway(Message("T", b"nobody answers"))
        statistics = producer.statistics().trace
        assert statistics is not None
        assert statistics.written + statistics.waiting == 5
    (first,) = story(group, plain.unique_key).sends
    assert (first.told.topic, first.told.group, first.told.body_bytes) == ("T", "shop", 3)
    assert (first.told.region, first.told.tags, first.told.keys) == ("DefaultRegion", "", "")
    assert first.told.offset_message_id == plain.message_id
    assert first.told.store_host == group.nodes[0].address
    assert (first.told.is_success, first.told.kind) == (True, TracedKind.NORMAL)
    assert first.client == "127.0.0.1"
    (second,) = story(group, full.unique_key).sends
    assert (second.told.tags, second.told.keys) == ("red", "a b")
    assert story(group, late.unique_key).sends[0].told.kind == TracedKind.DELAY
    sizes = [story(group, key).sends[0].told.body_bytes for key in both.unique_key.split(",")]
    assert sizes == [1, 2]
    assert len(records_in(group)) == 5
    keys = " ".join(
        decode_properties(message.properties)["KEYS"] for message in group.messages(TRACE_TOPIC)
    ).split()
    assert {plain.unique_key, full.unique_key, "a", "b"} <= set(keys)


async def test_what_was_refused_is_not_told(group: FakeGroup) -> None:
    group.script.append(ResponseCode.MESSAGE_ILLEGAL)
    async with Producer(group.namesrv, "shop", trace=True) as producer:
        with pytest.raises(ClientError):
            await producer.send(Message("T", b"refused"))
    assert records_in(group) == []


async def test_nothing_is_written_unless_it_is_asked_for(group: FakeGroup) -> None:
    async with Producer(group.namesrv, "shop") as producer:
        await producer.send(Message("T", b"one"))
        assert producer.statistics().trace is None
    async with PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first"
    ) as consumer:
        await anext(consumer)
        assert consumer.statistics().trace is None
    assert records_in(group) == []


async def test_a_broker_may_forbid_it(group: FakeGroup) -> None:
    group._reply = SendReplies("Here", trace_on=False)
    async with Producer(group.namesrv, "shop", trace=True) as producer:
        await producer.send(Message("T", b"one"))
        group._reply = SendReplies("There")
        known = await producer.send(Message("T", b"two"))
    assert [record.message_id for record in records_in(group)] == [known.unique_key]
    assert story(group, known.unique_key).sends[0].told.region == "There"


async def test_traces_go_where_they_shall_and_are_not_traced(group: FakeGroup) -> None:
    group.create_topic("Own")
    async with Producer(group.namesrv, "shop", trace=True, trace_topic="Own") as producer:
        await producer.send(Message("T", b"one"))
        await producer.send(Message("Own", b"no trace"))
        await producer.send_batch([Message("Own", b"no trace either")])
    assert len(records_in(group, "Own")) == 1
    assert records_in(group) == []
    with pytest.raises(ClientUsageError, match="illegal"):
        Producer(group.namesrv, "shop", trace_topic="no topic")
    with pytest.raises(ClientUsageError, match="trace is"):
        PushConsumer(group.namesrv, "g", subscriptions={"T": "*"}, trace=1)  # type: ignore[arg-type]


async def test_the_end_of_a_transaction_is_told(group: FakeGroup) -> None:
    states = [TransactionState.COMMIT, TransactionState.ROLLBACK, None]

    async def local(message: Message, transaction_id: str) -> TransactionState | None:
        return states[int(message.body)]

    async def checker(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer(group.namesrv, "p", checker=checker, trace=True) as producer:
        results = [
            await producer.send_in_transaction(
                Message("T", str(number).encode(), tags="red", keys="k"), local
            )
            for number in range(3)
        ]
        group.clock.advance(3600)
        await until(lambda: len(group.messages("T")) == 2)
        await until(
            lambda: producer.statistics().trace == TraceStatistics(7, 0, 0)
        )  # three sends, three ends, one check
    ends = [
        (end.told.state, end.told.is_from_check, end.told.tags, end.told.keys, end.told.topic)
        for result in results
        for end in story(group, result.sent.unique_key).ends
    ]
    assert ends == [
        ("COMMIT_MESSAGE", False, "red", "k", "T"),
        ("ROLLBACK_MESSAGE", False, "red", "k", "T"),
        ("UNKNOW", False, "red", "k", "T"),
        ("COMMIT_MESSAGE", True, "red", "k", "T"),
    ]
    one = story(group, results[0].sent.unique_key)
    assert one.sends[0].told.kind == TracedKind.HALF
    assert one.ends[0].told.transaction_id == results[0].transaction_id
    assert one.ends[0].told.store_host == group.nodes[0].address


async def test_each_call_of_a_handler_is_told_before_and_after(group: FakeGroup) -> None:
    answers: Iterator[ConsumeResult | None] = iter([ConsumeResult.LATER, None])

    def handle(message: ReceivedMessage) -> ConsumeResult | None:
        if message.body == b"broken" and not message.reconsume_times:
            raise ZeroDivisionError
        return next(answers) if message.body == b"later" else None

    async with Producer(group.namesrv, "shop") as producer:
        sent = [
            await producer.send(Message("T", body, keys="k"))
            for body in (b"fine", b"later", b"broken")
        ]
    async with PushConsumer(
        group.namesrv, "g", handle, subscriptions={"T": "*"}, start_from="first", trace=True
    ) as consumer:
        await until(lambda: consumer.statistics().trace == TraceStatistics(10, 0, 0))
    fine, later, broken = (story(group, one.unique_key).deliveries for one in sent)
    (once,) = fine
    assert once.before is not None
    assert once.after is not None
    assert (once.group, once.before.keys, once.before.retry_times) == ("g", "k", 0)
    assert (once.after.is_success, once.after.end, once.after.group) == (True, 0, "g")
    assert once.after.at_ms >= once.before.at_ms == once.began_ms
    assert ends_of(later) == [(0, ConsumeEnd.FAILED), (1, ConsumeEnd.SUCCESS)]
    assert ends_of(broken) == [(0, ConsumeEnd.EXCEPTION), (1, ConsumeEnd.SUCCESS)]


def ends_of(deliveries: Any) -> list[tuple[int, int]]:
    return sorted((one.before.retry_times, one.after.end) for one in deliveries)


async def test_of_a_batch_each_message_has_its_own_end(group: FakeGroup) -> None:
    calls: list[int] = []

    async def handle(messages: tuple[ReceivedMessage, ...]) -> Later | None:
        calls.append(len(messages))
        return Later(consumed=1) if len(calls) == 1 else None

    for number in range(2):
        group.put("T", 0, b"%d" % number)
    group.log.store("T", 0, b"silent", b"TRACE_ON\x01false\x02", sys_flag=0, flag=0, born_ms=1)
    async with PushConsumer(
        group.namesrv,
        "g",
        subscriptions={"T": "*"},
        batch_handler=handle,
        consume_batch_max=3,
        start_from="first",
        trace=True,
    ) as consumer:
        await until(lambda: sum(calls) >= 5 and consumer.statistics().trace is not None)
        await until(lambda: consumer.statistics().trace == TraceStatistics(6, 0, 0))
    after = [record for record in records_in(group) if isinstance(record, SubAfterTrace)]
    assert [record.is_success for record in after] == [True, False, True]


async def test_a_loop_that_ends_has_begun_and_not_ended_its_message(group: FakeGroup) -> None:
    group.put("T", 0, b"one")
    member = PushConsumer(
        group.namesrv, "g", subscriptions={"T": "*"}, start_from="first", trace=True
    )

    async def break_off() -> None:
        async with member as consumer:
            await anext(consumer)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await break_off()
    (record,) = records_in(group)
    delivery = story(group, record.message_id).deliveries[0]
    assert delivery.before is not None
    assert (delivery.after, delivery.group) == (None, "g")


async def test_where_no_trace_is_taken_messages_are_sent_all_the_same(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers have no trace topic, and create none."""
    monkeypatch.setattr(trace_writer, "PAUSE_S", 0.01)
    del group.log.queues[TRACE_TOPIC]
    group.has_topics_on_demand = False
    async with Producer(group.namesrv, "shop", trace=True) as producer:
        for _ in range(3):
            await producer.send(Message("T", b"one"))
        await until(lambda: producer.statistics().trace == TraceStatistics(0, 3, 0), 60)
        assert producer.statistics().succeeded == 3
    assert len(group.messages("T")) == 3


class Carrier:
    """A producer that takes nothing until it is let."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.errors: list[Exception] = []
        self.may_send = anyio.Event()

    async def send(self, message: Message) -> SendResult:
        await self.may_send.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(message)
        return None  # type: ignore[return-value]  # nobody looks at it

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Carrier]:
        yield self


@asynccontextmanager
async def running(carrier: Carrier) -> AsyncIterator[TraceWriter]:
    writer = TraceWriter("Own")
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(writer.run, carrier.open)
        yield writer
        await writer.close()
        nursery.cancel_scope.cancel()


def record(number: int, keys: str = "") -> EndTransactionTrace:
    return EndTransactionTrace(
        at_ms=number,
        region="",
        group="g",
        topic="T",
        message_id=f"ID{number}",
        tags="",
        keys=keys,
        store_host="",
        kind=0,
        transaction_id="",
        state="",
        is_from_check=False,
    )


async def test_what_finds_no_room_is_dropped_and_counted() -> None:
    carrier = Carrier()
    async with running(carrier) as writer:
        for number in range(WAITING_MAX + 7):
            writer.add(record(number))
        assert writer.statistics() == TraceStatistics(0, 7, WAITING_MAX)
        carrier.may_send.set()
        await until(lambda: writer.statistics() == TraceStatistics(WAITING_MAX, 7, 0))
    sizes = [len(decode_trace(message.body).records) for message in carrier.taken]
    assert sum(sizes) == WAITING_MAX
    assert max(sizes) == RECORDS_MAX


async def test_a_message_of_records_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "KEYS_CHARS_MAX", 30)
    carrier = Carrier()
    carrier.may_send.set()
    async with running(carrier) as writer:
        for number in range(4):
            writer.add(record(number, "key-of-some-length"))
        writer.add(RecallTrace(1, "", "g", "T", "ID9", is_success=True))
    found = [(len(decode_trace(one.body).records), one.keys) for one in carrier.taken]
    assert sum(count for count, _ in found) == 5
    assert found[0] == (2, ("ID0", "key-of-some-length", "ID1"))


async def test_what_a_message_was_refused_for_is_dropped_and_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_writer, "PAUSE_S", 0.01)
    carrier = Carrier()
    carrier.errors.append(NoRouteError("Own", "none"))
    carrier.may_send.set()
    async with running(carrier) as writer:
        writer.add(record(0))
        await until(lambda: writer.statistics() == TraceStatistics(0, 1, 0))
        writer.add(record(1))
        await until(lambda: writer.statistics() == TraceStatistics(1, 1, 0))


async def test_a_trace_that_fails_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    carrier = Carrier()
    carrier.errors.append(ZeroDivisionError())
    carrier.may_send.set()
    async with running(carrier) as writer:
        writer.add(record(0))
        await until(lambda: writer.statistics().dropped == 1)
        writer.add(record(1))
        assert writer.statistics() == TraceStatistics(0, 2, 0)
    assert "message trace has failed" in caplog.text


async def test_who_is_left_does_not_wait_long_for_its_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace_writer, "CLOSE_S", 0.01)
    carrier = Carrier()
    with anyio.fail_after(60):
        async with running(carrier) as writer:
            writer.add(record(0))
    assert "1 of the trace records for Own were dropped" in caplog.text


async def test_records_are_joined_to_deliveries_whatever_is_missing(group: FakeGroup) -> None:
    golden = trace_of("nobody", group.messages(TRACE_TOPIC))
    assert golden.is_empty
    body = (
        "SubAfter\x01R1\x01ID\x013\x01true\x01k\x010\x0177\x02"
        "SubBefore\x015\x01r\x01g\x01R2\x01ID\x010\x01k\x02"
        "Pub\x01broken\x02"
        "Recall\x019\x01r\x01g\x01T\x01ID\x01true\x02"
        "Recall\x019\x01r\x01g\x01T\x01Other\x01true\x02"
    )
    group.put(TRACE_TOPIC, 0, body.encode())
    group.put(TRACE_TOPIC, 0, body.encode())
    found = story(group, "ID")
    assert [(one.group, one.began_ms) for one in found.deliveries] == [("g", 5), ("", 77)]
    assert [one.told.at_ms for one in found.recalls] == [9]
    assert (found.unreadable, found.is_empty) == (2, False)
