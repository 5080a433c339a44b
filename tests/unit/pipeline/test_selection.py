"""What is chosen by tags, a condition and keys is what filtering the whole would leave, wherever it is judged."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import pyarrow as pa

from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.subscriptions import BySql
from dledger_mq.filters import compile_filter
from dledger_mq.message.properties import (
    decode_properties,
    encode_properties,
    find_property,
    split_keys,
)
from pipeline.archive.history import History, read_history
from pipeline.masks import mask_of
from pipeline.ranges import QueueRange
from pipeline.scan.properties import PropertyColumn
from pipeline.scan.records import read_records
from pipeline.selection import MessageChoice
from pipeline.source_options import read_source_options
from tests.property.store.test_record_shapes_twin import record_of
from tests.unit.pipeline.archives import write_archive
from tests.unit.store.lone_broker import LoneBroker

LEAST = {"nameServer": "h:1", "topic": "orders"}

ROWS = [
    encode_properties(dict(pairs))
    for pairs in itertools.product(
        [("TAGS", "paid"), ("TAGS", "it's"), ("x", "y")],
        [("KEYS", "k1 k2"), ("KEYS", "k12"), ("KEYS", " k2  k'3 "), ("u", "v")],
        [("n", "7"), ("n", "many"), ("region", "EU")],
    )
] + [b"", b"n\x01\xff\x02", b"KEYS\x01k1", b"n\x019\x02n\x011\x02"]
"""The last ones are not as encoders write them."""

SELECTIONS = [
    MessageChoice(),
    MessageChoice(tags=("it's", "paid")),
    MessageChoice(condition="n > 3 OR region IS NOT NULL"),
    MessageChoice(condition="1 = 1"),
    MessageChoice(condition="n IS NULL -- and no more"),
    MessageChoice(keys=("k2",)),
    MessageChoice(keys=("k'3", "k1")),
    MessageChoice(("paid",), "n > 3 -- seven", ("k1", "k12")),
]


def is_wanted(wanted: MessageChoice, properties: bytes) -> bool:
    """Say it of one message, plainly."""
    tag = (find_property(properties, b"TAGS") or b"").decode()
    keys = {key.decode() for key in split_keys(find_property(properties, b"KEYS") or b"")}
    return (
        (not wanted.tags or tag in wanted.tags)
        and (wanted.condition is None or compile_filter(wanted.condition).matches(properties))
        and (not wanted.keys or bool(keys & set(wanted.keys)))
    )


@pytest.mark.parametrize("wanted", SELECTIONS, ids=str)
def test_columns_are_judged_as_messages_are(wanted: MessageChoice) -> None:
    table = read_records(b"".join(map(record_of, ROWS)))
    mask = mask_of(wanted, len(ROWS), PropertyColumn(table).value)
    assert mask.tolist() == [is_wanted(wanted, row) for row in ROWS]
    assert wanted.is_everything == mask.all() or wanted.condition == "1 = 1"


@pytest.mark.parametrize("wanted", SELECTIONS, ids=str)
def test_a_broker_is_asked_for_what_can_be_wanted_and_for_little_else(
    wanted: MessageChoice,
) -> None:
    asked = wanted.asked
    if isinstance(asked, BySql):
        told = compile_filter(asked.text)
        let_through = [row for row in ROWS if told.matches(row)]
        chosen = [row for row in ROWS if is_wanted(wanted, row)]
        assert [row for row in let_through if is_wanted(wanted, row)] == chosen
        assert len(let_through) < len(ROWS) or wanted.condition == "1 = 1"
        assert len(let_through) <= 2 * len(chosen), "k1 is in k12"
    else:
        assert asked == (" || ".join(wanted.tags) or "*")
        assert (wanted.condition, wanted.keys) == (None, ())


def test_what_does_not_fit_one_expression_is_asked_for_in_part() -> None:
    keys = tuple(f"order-{n}" for n in range(2000))
    assert MessageChoice(keys=keys).asked == "*"
    assert MessageChoice(("a", "b"), keys=keys).asked == "a || b"
    assert MessageChoice(("a",), "n > 3", keys).asked == BySql("n > 3")


@pytest.mark.parametrize("wanted", [MessageChoice(("paid",)), *SELECTIONS[2:]], ids=str)
def test_an_archive_is_judged_likewise(wanted: MessageChoice, tmp_path: Path) -> None:
    broker = LoneBroker()
    given = [*ROWS[:-3], b'x\x01\\"\x02']
    for number, properties in enumerate(given):
        broker.stage("orders", 0, b"%d" % number, **decode_properties(properties))
    broker.commit()
    archive = write_archive(tmp_path, broker.log.entries)
    texts = {
        "subExpression": " || ".join(wanted.tags),
        "sqlExpression": wanted.condition,
        "keys": " ".join(wanted.keys),
    }
    given_texts = {name: text for name, text in texts.items() if text}
    options = read_source_options(LEAST | given_texts, "batch")
    assert options.selection == wanted
    history = History(archive, options.wants, "broker-a")
    (part,) = history.parts([QueueRange(MessageQueue("orders", "broker-a", 0), 2, 34)], 1)
    schema = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])
    rows = [row for each in read_history(part, options, schema) for row in each.to_pylist()]
    expected = [number for number in range(2, 34) if is_wanted(wanted, given[number])]
    assert [row["queueOffset"] for row in rows] == expected
    assert [int(row["body"]) for row in rows] == expected
    assert expected
