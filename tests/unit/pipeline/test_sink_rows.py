"""Arrow batches become messages; what cannot be sent is named by row, partition and reason."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from dledger_mq import row_key
from pipeline.errors import BadRowError
from pipeline.sink.columns import check_columns
from pipeline.sink.options import read_options
from pipeline.sink.rows import OutRow, RowReader

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")


def reader(columns: dict[str, str], **more: str) -> RowReader:
    given = {"nameServer": "h:1", "topic": "Out"} | more
    options = read_options({k: v for k, v in given.items() if v}, is_stream=True)
    return RowReader(check_columns(columns, options), options, 3)


def read(columns: dict[str, tuple[str, list[Any]]], **more: str) -> list[OutRow]:
    batch = pa.RecordBatch.from_pydict({name: values for name, (_, values) in columns.items()})
    kinds = {name: kind for name, (kind, _) in columns.items()}
    return list(reader(kinds, **more).read(batch))


def test_every_column_finds_its_place() -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=datetime.UTC)
    (row,) = read(
        {
            "keys": ("string", ["k1 k2"]),
            "body": ("string", ["grüße"]),
            "tags": ("string", ["T"]),
            "properties": ("string", ['{"colour":"red","UNIQ_KEY":"old","MSG_REGION":"x"}']),
            "flag": ("int", [7]),
            "deliverAt": ("timestamp", [moment]),
        }
    )
    message = row.message
    assert (message.topic, message.body, message.flag) == ("Out", "grüße".encode(), 7)
    assert (message.tags, message.keys) == ("T", "k1 k2")
    assert message.properties == {"colour": "red"}, "what belongs to the old message stays there"
    assert message.deliver_at_ms == 1_767_323_045_006
    assert row.number == 0


def test_maps_arrays_and_nulls() -> None:
    first, second = read(
        {
            "body": ("binary", [b"1", b"2"]),
            "keys": ("array<string>", [["a", None, "b"], None]),
            "properties": (
                "map<string,string>",
                pa.array([[("x", "1"), ("y", None)], None], type=pa.map_(pa.string(), pa.string())),
            ),
            "tags": ("string", [None, "T"]),
            "delayLevel": ("int", [None, 3]),
            "delayMs": ("bigint", [70, None]),
        }
    )
    assert (first.message.keys, first.message.properties) == (["a", "b"], {"x": "1"})
    assert (second.message.keys, second.message.delay_level) == ((), 3)
    assert (first.message.delay_level, first.message.delay_ms) == (0, 70)


def test_tags_and_keys_of_a_message_that_was_read_stay_with_it() -> None:
    (row,) = read(
        {"body": ("string", ["x"]), "properties": ("string", ['{"TAGS":"T","KEYS":"a b"}'])}
    )
    assert (row.message.tags, row.message.keys, row.message.properties) == ("T", "a b", {})


def test_the_topic_is_the_options_else_the_rows() -> None:
    columns = {"body": ("string", ["x", "y"]), "topic": ("string", ["A", "B"])}
    assert [row.message.topic for row in read(columns)] == ["Out", "Out"]
    assert [row.message.topic for row in read(columns, topic="")] == ["A", "B"]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"body": ("string", ["ok", None])}, "body is null"),
        ({"body": ("string", ["ok", ""])}, "empty body"),
        ({"body": ("binary", [b"ok", b"x" * (4 * 1024 * 1024 + 1)])}, "4194305 bytes"),
        (
            {"body": ("string", ["ok"] * 2), "properties": ("string", ["{}", "[1]"])},
            "no JSON object",
        ),
        ({"body": ("string", ["ok"] * 2), "delayLevel": ("int", [0, 19])}, "delay level 19"),
        (
            {"body": ("string", ["ok"] * 2)}
            | {"delayLevel": ("int", [0, 1]), "delayMs": ("int", [5, 5])},
            "one",
        ),
        ({"body": ("string", ["ok"] * 2), "flag": ("bigint", [0, 2**40])}, "32-bit"),
    ],
)
def test_a_bad_row_is_named(columns: dict[str, tuple[str, list[Any]]], why: str) -> None:
    with pytest.raises(BadRowError) as caught:
        read(columns)
    assert str(caught.value).startswith("row 1 of partition 3 cannot be sent: ")
    assert why in str(caught.value)


def test_a_bad_row_is_told_apart_by_its_keys() -> None:
    with pytest.raises(
        BadRowError, match=r"row 0 of partition 3 \(keys 'order-5'\) cannot be sent"
    ):
        read({"body": ("string", [None]), "keys": ("string", ["order-5"])})


SOURCE = {
    "body": ("string", ["x", "y"]),
    "topic": ("string", ["In", "In"]),
    "brokerName": ("string", ["a", "a"]),
    "queueId": ("int", [0, 0]),
    "queueOffset": ("bigint", [4, 5]),
}
ONCE = {"delivery": "exactly-once"}


def test_keys_of_exactly_once_rows() -> None:
    assert [row.key for row in read(SOURCE)] == [b"", b""], "at least once needs none"
    assert [row.key for row in read(SOURCE, **ONCE)] == [
        row_key("source", "In", "a", "0", "4"),
        row_key("source", "In", "a", "0", "5"),
    ]
    named = {"body": ("string", ["x"]), "idempotencyKey": ("string", ["order-5"])}
    assert read(named, **ONCE)[0].key == row_key("key", "order-5")
    positions = read({"body": ("string", ["x", "y"])}, rowKeys="position", **ONCE)
    assert [row.key for row in positions] == [
        row_key("position", "3", "0"),
        row_key("position", "3", "1"),
    ]


def test_two_rows_from_one_source_row_need_names_of_their_own() -> None:
    twice = SOURCE | {"queueOffset": ("bigint", [4, 4])}
    with pytest.raises(
        BadRowError, match=r"second row .* comes from In@a/0 offset 4: give a column"
    ):
        read(twice, **ONCE)


@pytest.mark.parametrize("name", ["topic", "brokerName", "queueOffset"])
def test_a_row_that_cannot_be_known_again_is_refused(name: str) -> None:
    with pytest.raises(BadRowError, match="is null: the row cannot be known again"):
        read(SOURCE | {name: (SOURCE[name][0], [None, None])}, **ONCE)


def test_numbers_go_on_over_batches() -> None:
    rows = reader({"body": "string"})
    batch = pa.RecordBatch.from_pydict({"body": ["x", "y"]})
    assert [row.number for _ in range(2) for row in rows.read(batch)] == [0, 1, 2, 3]
