"""Reading ranges without Spark, from a broker group in memory: everything once, losses said, over dead leaders."""

from __future__ import annotations

import itertools
import struct
import threading
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")
pytest.importorskip("numpy", reason="numpy is not installed (extra `spark`)")

import pyarrow as pa

from dledger_mq.blocking import PullConsumer
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.record import decode_records
from dledger_mq.message.sys_flags import COMPRESSED
from dledger_mq.testing import FakeGroup, open_fake_group
from pipeline import pulling
from pipeline.errors import DataLossError, InconclusiveError, PipelineError, PipelineUsageError
from pipeline.pulling import PullTotals, ahead, trimmed
from pipeline.ranges import QueueRange
from pipeline.reading import check_columns, read_batches, source_columns
from pipeline.source_options import SourceOptions, read_source_options

PATIENCE_S = 60
"""Longer than a busy machine needs to find the next leader."""

Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


def options(group: FakeGroup, **more: object) -> SourceOptions:
    given = {
        "nameServer": group.namesrv,
        "topic": "T",
        "pullBatchSize": "8",
        "retryTimeoutMs": f"{PATIENCE_S * 1000}",
    }
    return read_source_options(given | {name: str(value) for name, value in more.items()}, "batch")


async def read(
    ranges: Sequence[QueueRange], wanted: SourceOptions, *columns: str
) -> list[dict[str, Any]]:
    every = source_columns(wanted)
    schema = pa.schema(
        [every.field(name) for name in columns or ("queueId", "queueOffset", "body")]
    )

    def run() -> list[dict[str, Any]]:
        batches = list(read_batches(ranges, wanted, schema))
        assert all(batch.schema == schema for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]

    return await trio.to_thread.run_sync(run)


def put(group: FakeGroup, queue_id: int, count: int, tag: bytes = b"A") -> None:
    for n in range(count):
        group.put("T", queue_id, b"%d" % n, b"TAGS\x01%b\x02" % tag)


async def test_ranges_are_read_exactly(group: FakeGroup) -> None:
    put(group, 0, 40)
    put(group, 1, 10)
    rows = await read([QueueRange(Q0, 3, 33), QueueRange(Q1, 0, 10)], options(group))
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == [
        *((0, n) for n in range(3, 33)),
        *((1, n) for n in range(10)),
    ]
    assert rows[0]["body"] == b"3"


async def test_what_is_pulled_is_added_up(group: FakeGroup) -> None:
    put(group, 0, 40)
    wanted = options(group)
    totals = PullTotals(1, 1)

    def run() -> int:
        schema = source_columns(wanted)
        ranges = [QueueRange(Q0, 3, 33)]
        return sum(b.num_rows for b in read_batches(ranges, wanted, schema, totals=totals))

    assert await trio.to_thread.run_sync(run) == 30
    records = sum(map(len, group.log.queues["T"][0][3:33]))
    assert totals == PullTotals(1 + 4, 1 + records), "eight at a time"


async def test_a_filter_leaves_gaps_and_no_loss_and_ends_where_it_should(group: FakeGroup) -> None:
    for tag in (b"A", b"B", b"C"):
        put(group, 0, 20, tag)
    rows = await read([QueueRange(Q0, 10, 45)], options(group, subExpression="A || C"))
    assert [row["queueOffset"] for row in rows] == [*range(10, 20), *range(40, 45)]


async def test_tags_of_one_hash_are_told_apart(group: FakeGroup) -> None:
    # "Aa" and "BB" have the same Java hash; a broker lets both through.
    put(group, 0, 1, b"Aa")
    put(group, 0, 1, b"BB")
    group.log.matches = lambda *_: True  # type: ignore[method-assign]
    rows = await read([QueueRange(Q0, 0, 2)], options(group, subExpression="BB"))
    assert [row["queueOffset"] for row in rows] == [1]


async def test_a_condition_and_keys_are_judged_by_the_broker_and_again_here(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.create_topic("%RETRY%g")
    for n in range(60):
        properties = b"n\x01%d\x02KEYS\x01k%d common\x02" % (n, n)
        group.put("T", 0, b"", properties)
        group.put("%RETRY%g", 0, b"", properties)  # read without a filter
    wanted = options(group, sqlExpression="n >= 20", keys="k7 k25 k9")
    sent: list[int] = []
    pull = PullConsumer.pull_records

    def counted(*args: Any, **named: Any) -> Any:
        pulled = pull(*args, **named)
        sent.append(len(decode_records(pulled.records)))
        return pulled

    monkeypatch.setattr(PullConsumer, "pull_records", counted)
    rows = await read([QueueRange(Q0, 0, 60)], wanted)
    assert [row["queueOffset"] for row in rows] == [25]
    assert sum(sent) == 1, "k25: the broker finds texts in KEYS, and k7 and k9 are too early"
    again = MessageQueue("%RETRY%g", "broker-a", 0)
    rows = await read([QueueRange(again, 0, 60)], wanted)
    assert [row["queueOffset"] for row in rows] == [25]
    assert sum(sent) == 1 + 60


async def test_where_sql92_is_switched_off_keys_are_judged_here_and_a_condition_is_refused(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(30):
        group.put("T", 0, b"", b"n\x01%d\x02KEYS\x01k%d\x02TAGS\x01t%d\x02" % (n, n, n % 2))
    serve = group._on_pull

    def refusing(node: Any, connection: Any, request: Any) -> None:
        if request.fields.expression_type == "SQL92":
            return group._refuse(connection, request.opaque, 1)
        return serve(node, connection, request)

    monkeypatch.setattr(group, "_on_pull", refusing)
    for more, expected in (({}, [7, 12]), ({"subExpression": "t1"}, [7])):
        for source in ("leader", "any"):
            wanted = options(group, keys="k7 k12", readFrom=source, **more)
            rows = await read([QueueRange(Q0, 0, 30)], wanted)
            assert [row["queueOffset"] for row in rows] == expected
    with pytest.raises(
        PipelineError, match=r"T@broker-a/0 \[0, 30\) cannot be read from 0 on: .*code 1"
    ):
        await read([QueueRange(Q0, 0, 30)], options(group, sqlExpression="n > 5"))


async def test_what_retention_took_is_named_or_passed_over(group: FakeGroup) -> None:
    put(group, 0, 20)
    group.drop_before("T", 0, 7)
    with pytest.raises(DataLossError) as caught:
        await read([QueueRange(Q0, 4, 12)], options(group))
    assert "T@broker-a/0 begins at 7: offsets 4 to 6 of T@broker-a/0 [4, 12) are gone" in str(
        caught.value
    )
    rows = await read([QueueRange(Q0, 4, 12)], options(group, failOnDataLoss="false"))
    assert [row["queueOffset"] for row in rows] == list(range(7, 12))
    assert await read([QueueRange(Q0, 2, 5)], options(group, failOnDataLoss="false")) == []


async def test_what_never_comes_ends_with_a_deadline(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(group, 0, 5)
    moments = itertools.count(step=PATIENCE_S)
    clock = SimpleNamespace(monotonic=lambda: float(next(moments)), sleep=time.sleep)
    monkeypatch.setattr(pulling, "time", clock)
    with pytest.raises(DataLossError, match=r"cannot be read from 5 on: the queue ends at 5"):
        await read([QueueRange(Q0, 0, 9)], options(group))


async def test_a_leader_may_die_in_the_middle(group: FakeGroup) -> None:
    put(group, 0, 100)
    async with trio.open_nursery() as nursery:

        async def look() -> None:
            rows = await read([QueueRange(Q0, 0, 100)], options(group))
            assert [row["queueOffset"] for row in rows] == list(range(100))

        nursery.start_soon(look)
        while group.requests.count(11) < 3:
            await trio.lowlevel.checkpoint()
        await group.kill(group.nodes[0])
        group.elect(group.nodes[2])


async def test_followers_answer_when_they_may(group: FakeGroup) -> None:
    put(group, 0, 30)
    put(group, 1, 30)
    assert len(await read([QueueRange(Q0, 0, 30)], options(group, readFrom="any"))) == 30
    await group.kill(group.nodes[1])
    assert len(await read([QueueRange(Q0, 0, 30)], options(group, readFrom="any"))) == 30


async def test_nobody_there_and_refusals_are_sentences(group: FakeGroup) -> None:
    for node in group.nodes:
        await group.kill(node)
    with pytest.raises(InconclusiveError, match=r"T@broker-a/0 \[0, 1\) cannot be read from 0 on"):
        await read([QueueRange(Q0, 0, 1)], options(group, retryTimeoutMs=100))


async def test_a_damaged_body_names_its_place(group: FakeGroup) -> None:
    put(group, 0, 3)
    stored = group.log.queues["T"][0]
    stored[1] = stored[1].replace(b"1", b"2")
    with pytest.raises(PipelineError, match="body of T/0 at queue offset 1"):
        await read([QueueRange(Q0, 0, 3)], options(group))
    assert len(await read([QueueRange(Q0, 0, 3)], options(group), "queueOffset")) == 3


async def test_a_body_that_does_not_inflate_is_given_as_it_is(group: FakeGroup) -> None:
    for body in (zlib.compress(b"whole"), b"no zlib at all", b"plain"):
        sys_flag = 0 if body == b"plain" else COMPRESSED
        group.log.store("T", 0, body, b"", sys_flag=sys_flag, flag=0, born_ms=-(2**60))
    rows = await read([QueueRange(Q0, 0, 3)], options(group), "body", "properties", "bornTimestamp")
    assert [row["body"] for row in rows] == [b"whole", b"no zlib at all", b"plain"]
    assert {row["properties"] for row in rows} == {"{}"}


async def test_stopping_early_leaves_nothing_behind(group: FakeGroup) -> None:
    put(group, 0, 500)
    wanted = options(group)
    schema = pa.schema([("queueOffset", pa.int64())])

    def run() -> int:
        before = set(threading.enumerate())
        batches = read_batches([QueueRange(Q0, 0, 500)], wanted, schema)
        next(batches)
        batches.close()  # type: ignore[attr-defined]  # it is a generator
        left = set(threading.enumerate()) - before
        for thread in left:
            thread.join(PATIENCE_S / 2)
        return sum(thread.is_alive() for thread in left)

    with trio.fail_after(60):
        assert await trio.to_thread.run_sync(run) == 0


def test_columns_follow_the_options_and_projections_are_checked() -> None:
    given = {"nameServer": "h:1", "topic": "T", "includeMetadata": "true", "propertiesAs": "map"}
    every = source_columns(read_source_options(given, "batch"))
    assert every.names[:4] == ["topic", "flag", "body", "properties"]
    assert pa.types.is_map(every.field("properties").type)
    assert every.names[-1] == "reconsumeTimes"
    bare = source_columns(read_source_options(given | {"includeProperties": "false"}, "batch"))
    assert "properties" not in bare.names
    check_columns(pa.schema([every.field("body")]), every)
    with pytest.raises(PipelineUsageError, match="there is no column key; there are topic, flag"):
        check_columns(pa.schema([("key", pa.string())]), every)
    with pytest.raises(PipelineUsageError, match="column queueId is int32, not int64"):
        check_columns(pa.schema([("queueId", pa.int64())]), every)


def test_records_outside_a_range_are_cut_off() -> None:
    def record(offset: int) -> bytes:
        return struct.pack(">iiiiiqq", 36, 0, 0, 0, 0, offset, 0)

    data = b"".join(map(record, range(5, 9)))
    assert trimmed(data, 5, 9) == data
    assert trimmed(data, 6, 8) == record(6) + record(7)
    assert trimmed(data, 0, 5) == b""
    assert trimmed(data + b"\0\0", 5, 9) == data + b"\0\0"


def test_reading_ahead_keeps_order_and_failures() -> None:
    def failing() -> Any:
        yield from range(20)
        raise ValueError("here")

    items = ahead(failing(), depth=3)
    assert [next(items) for _ in range(20)] == list(range(20))
    with pytest.raises(ValueError, match="here"):
        next(items)
