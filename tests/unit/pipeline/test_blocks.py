"""Arrow batches that are read by columns are sent as those that are read row by row: the same bytes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_mq import IdempotentProducer, Message, MessageQueue, SendResult
from dledger_mq.client.lane import PendingSend
from dledger_mq.message.ids import UniqKeyMaker
from dledger_mq.message.numbers import QueueOffset
from pipeline.errors import BadRowError, PipelineError
from pipeline.sink.blocks import read_block
from pipeline.sink.columns import COORDINATES, check_columns
from pipeline.sink.counts import BatchCounts
from pipeline.sink.options import read_options
from pipeline.sink.row_keys import RowKeyMaker
from pipeline.sink.rows import RowReader
from pipeline.sink.sender import RowSender, SinkTask

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

QUEUES = tuple(MessageQueue("Out", "a", number) for number in range(3))
NOW_NS = 1_770_000_000_000_000_000


class Recorder(IdempotentProducer):
    """A producer whose sends are stored as soon as they are queued; it keeps their frames."""

    def __init__(self) -> None:
        super().__init__("h:1", "jobs")
        self.frames: list[bytes] = []
        numbers = iter(range(1, 10**6))
        self._here: Any = SimpleNamespace(
            unique_keys=UniqKeyMaker(b"\x7f\0\0\1", 1, 1),
            opaques=SimpleNamespace(take=lambda: next(numbers)),
            loop=SimpleNamespace(new_event=trio.Event),
            routes=SimpleNamespace(knows=lambda _: True),
        )
        maker: Any = self._maker
        maker.session = self._here

    def _live(self) -> Any:
        return self._here

    async def wait_for_room(self) -> None:
        pass

    async def _choose(self, message: Message, **named: Any) -> MessageQueue:  # type: ignore[override]  # the queue is given
        queue: MessageQueue = named["queue"]
        assert queue.topic == message.topic
        return queue

    async def submit(self, message: Message, **named: Any) -> PendingSend:
        pending = self._maker.single(message, named["queue"], deadline=0.0)
        self._enter(pending, at_once=False)
        return pending

    def _enter(self, pending: PendingSend, *, at_once: bool) -> Any:
        assert not at_once
        self.frames.append(pending.frame)
        count = pending.unique_key.count(",") + 1
        pending.result = SendResult(
            "SEND_OK",
            pending.unique_key,
            "",
            pending.queue,
            QueueOffset(0),
            rows_stored="1" * count,
        )


class Case(NamedTuple):
    """What is written, and how."""

    columns: dict[str, tuple[str, Any]]
    options: dict[str, str]


class Way(NamedTuple):
    """One way of sending, and what came of it."""

    frames: list[bytes]
    counts: BatchCounts
    read_count: int


def record_batch(case: Case) -> Any:
    return pa.RecordBatch.from_pydict({name: values for name, (_, values) in case.columns.items()})


def write(case: Case, *, by_columns: bool) -> Way | None:
    """Write a batch in one of the two ways; None: not by columns."""
    given = {"nameServer": "h:1", "topic": "Out", "sinkId": "s", "batchId": "4"} | case.options
    options = read_options(given, is_stream=False)
    kinds = {name: kind for name, (kind, _) in case.columns.items()}
    reader = RowReader(check_columns(kinds, options), options, 3)
    batch = record_batch(case)

    async def run() -> Way | None:
        sender: Any = RowSender(options, SinkTask(3, "s", 4, QUEUES))
        producer = sender._producer = Recorder()
        if by_columns:
            block = read_block(reader, options, batch)
            if block is None:
                assert reader.count == 0
                return None
            await sender.send_block(block)
        else:
            await sender.send(reader.read(batch))
        return Way(producer.frames, sender.counts, reader.count)

    with patch.object(time, "time_ns", lambda: NOW_NS):
        return trio.run(run)


texts = st.one_of(
    st.none(), st.text(max_size=4), st.sampled_from(["a b", "T", "ü", "\x01", "x" * 9])
)
maps = st.one_of(
    st.none(),
    st.lists(st.tuples(st.sampled_from(["a", "b", "KEYS", "TAGS", "UNIQ_KEY", ""]), texts)),
)
TYPES: dict[str, tuple[str, Any, Any]] = {
    "tags": ("string", texts, pa.string()),
    "keys": ("string", texts, pa.string()),
    "key lists": ("array<string>", st.one_of(st.none(), st.lists(texts)), pa.list_(pa.string())),
    "properties": ("map<string,string>", maps, pa.map_(pa.string(), pa.string())),
    "json": ("string", st.sampled_from([None, "{}", '{"a":"1","KEYS":"k"}', "["]), pa.string()),
    "flag": ("int", st.sampled_from([None, 0, 0, 0, 7]), pa.int32()),
    "delayMs": ("bigint", st.sampled_from([None, 0, 0, 0, 7]), pa.int64()),
    "idempotencyKey": ("string", st.one_of(st.text(), st.text(), st.none()), pa.string()),
    "topic": ("string", st.sampled_from(["In", "In", "On", None]), pa.string()),
    "brokerName": ("string", st.sampled_from(["a", "b"]), pa.string()),
    "queueId": ("int", st.integers(0, 3), pa.int32()),
    "queueOffset": ("bigint", st.integers(0, 2**40), pa.int64()),
}
PLACE = set(COORDINATES)
NAMES = {"key lists": "keys", "json": "properties"}
SETS: st.SearchStrategy[set[str]] = st.sampled_from(
    [
        set(),
        {"keys"},
        {"keys", "tags"},
        {"key lists", "properties"},
        {"properties", "tags", "keys", "flag"},
        {"json", "tags"},
        {"idempotencyKey", "delayMs"},
        PLACE | {"keys", "properties"},
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Batches of any shape, most of them usual."""
    count = draw(st.integers(1, 6))
    body = st.one_of(st.binary(min_size=1, max_size=40), st.just(b"z" * 5000))
    bodies = pa.array(draw(st.lists(body, min_size=count, max_size=count)), type=pa.binary())
    columns: dict[str, tuple[str, Any]] = {"body": ("binary", bodies)}
    for name in sorted(draw(SETS)):
        kind, values, of_arrow = TYPES[name]
        drawn = draw(st.lists(values, min_size=count, max_size=count))
        columns[NAMES.get(name, name)] = (kind, pa.array(drawn, type=of_arrow))
    options = {"delivery": draw(st.sampled_from(["at-least-once", "exactly-once"]))}
    if options["delivery"] == "exactly-once":
        options["rowKeys"] = "position"
    else:
        options["queueSelector"] = draw(st.sampled_from(["hash", "roundrobin"]))
    return Case(columns, options)


@settings(max_examples=150)
@given(cases())
def test_what_is_sent_by_columns_is_what_is_sent_row_by_row(case: Case) -> None:
    block = write(case, by_columns=True)
    try:
        rows = write(case, by_columns=False)
    except (BadRowError, PipelineError):
        assert block is None, "what cannot be sent is not usual"
        return
    assert block in (rows, None)


USUAL: dict[str, tuple[str, Any]] = {
    "body": ("string", ["one", "two", "grün", "four"]),
    "keys": ("string", ["k1", None, "", "ü"]),
    "tags": ("string", ["T", "T", None, ""]),
    "properties": (
        "map<string,string>",
        pa.array(
            [[("a", "1"), ("UNIQ_KEY", "x")], None, [], [("b", "")]], type=TYPES["properties"][2]
        ),
    ),
    "flag": ("int", [0, None, 0, 0]),
}


@pytest.mark.parametrize("without", [(), ("properties",), ("properties", "tags"), ("keys", "flag")])
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_usual_rows_are_sent_by_columns(delivery: str, without: tuple[str, ...]) -> None:
    columns = {name: values for name, values in USUAL.items() if name not in without}
    case = Case(columns, {"delivery": delivery, "rowKeys": "position"})
    block = write(case, by_columns=True)
    assert block is not None
    assert block == write(case, by_columns=False)
    assert block.counts == BatchCounts(4, 4)


@pytest.mark.parametrize(
    "unusual",
    [
        {"body": ("string", ["x", None, "y", "z"])},
        {"body": ("string", ["x", "", "y", "z"])},
        {"flag": ("int", [0, 0, 1, 0])},
        {"keys": ("string", ["a", "b\x02", None, None])},
        {"tags": ("string", ["a", "b\x01", None, None])},
        {"properties": ("string", ["{}", None, "[]", None])},
        {"properties": ("string", ["{}", None, '{"a":"\x7f\\u0001"}', None])},
        {"delayLevel": ("int", [0, 0, 0, 3])},
    ],
)
def test_unusual_rows_are_read_one_by_one(unusual: dict[str, tuple[str, Any]]) -> None:
    assert write(Case(USUAL | unusual, {}), by_columns=True) is None


def test_a_slice_of_a_batch_is_sent_as_it_is() -> None:
    whole = {"body": ("binary", pa.array([b"1", b"2", b"3"]).slice(1))}
    case = Case(whole, {})
    block = write(case, by_columns=True)
    assert block is not None
    assert block == write(case, by_columns=False)
    assert block.read_count == 2


def test_a_source_row_that_comes_twice_is_left_to_be_named() -> None:
    columns: dict[str, tuple[str, Any]] = {
        "body": ("string", ["x", "y", "z"]),
        "topic": ("string", ["In"] * 3),
        "brokerName": ("string", ["a"] * 3),
        "queueId": ("int", [0] * 3),
        "queueOffset": ("bigint", [4, 5, 4]),
    }
    case = Case(columns, {"delivery": "exactly-once"})
    assert write(case, by_columns=True) is None
    given = {"nameServer": "h:1", "topic": "Out", "sinkId": "s", "delivery": "exactly-once"}
    options = read_options(given, is_stream=False)
    kinds = {name: kind for name, (kind, _) in columns.items()}
    reader = RowReader(check_columns(kinds, options), options, 3)
    batch = record_batch(case)
    assert read_block(reader, options, batch) is None
    first = list(reader.read(batch.slice(0, 2)))
    assert len(first) == 2, "the batch that was declined has left no key behind"
    assert read_block(reader, options, batch.slice(1, 1)) is None, "a key of an earlier batch"


def test_a_batch_is_full_by_its_bytes() -> None:
    case = Case({"body": ("binary", [b"x" * 1000] * 100)}, {"sendBatchBytes": "20000"})
    block, rows = write(case, by_columns=True), write(case, by_columns=False)
    assert block is not None
    assert block == rows
    assert max(map(len, block.frames)) <= 20_000
    assert len(block.frames) == 9, "three queues, 15 rows of 1272 bytes to each send"


def test_of_rows_that_cannot_be_known_again_no_key_is_kept_and_of_others_it_is() -> None:
    maker = RowKeyMaker(COORDINATES, 0)
    first, second = (("b", "T", 0, 1), ("b", "T", 0, 2))
    assert maker.several(0, [None], [first]) is not None
    assert maker.several(1, [None, None], [second, first]) is None
    assert maker.one(1, None, second) == RowKeyMaker(COORDINATES, 0).one(0, None, second)
    with pytest.raises(ValueError, match="a second row"):
        maker.one(2, None, first)
