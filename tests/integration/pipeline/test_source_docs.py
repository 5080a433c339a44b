"""Every example of docs/pipeline-source.md and pipeline-kafka.md runs; their options are those that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from struct import pack as struct_pack
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pyspark.sql.functions import struct

from dledger_mq import Message
from pipeline.archive.manifests import listed_files
from pipeline.errors import PipelineUsageError
from pipeline.option_names import SINK_OPTIONS, SOURCE_OPTIONS
from pipeline.sink.columns import COLUMNS
from pipeline.source_options import read_source_options
from tests.integration.pipeline.archiving import archive_all
from tests.integration.pipeline.second_way import committed_rows, pulled, rows_of
from tests.integration.pipeline.topics import Topics

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "pipeline-source.md"
FROM_KAFKA = DOCS / "pipeline-kafka.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def order(number: int) -> Message:
    return Message(
        "Orders",
        b'{"id":%d,"price":%d.5}' % (number, number),
        tags="paid",
        keys=(f"order-{number}",),
        properties={"region": ("EU", "US")[number % 2], "amount": f"{number * 10}"},
    )


def texts(numbers: Iterable[int]) -> set[bytes]:
    return {order(number).body for number in numbers}


def test_every_example_runs(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topics.send([order(n) for n in range(20)])
    names: dict[str, Any] = {"__name__": "__main__"}
    topics.fill("Copies", 1)
    archive_all(spark, topics, tmp_path / "archive")
    topics.send([order(n) for n in range(20, 24)])
    examples = BLOCK.findall(PAGE.read_text()) + of_kafka(has_avro=False)
    assert len(examples) >= 6
    for number, example in enumerate(examples):
        text = example.replace("127.0.0.1:9876", topics.namesrv).replace("/data/", f"{tmp_path}/")
        # The session of the tests is the running one, so `open_session` finds it.
        exec(compile(text, f"example {number}", "exec"), names)
    spark.sql("DROP VIEW paid")
    spark.sql("DROP TABLE orders")
    # By a consumer and by pyarrow, too.
    stored = pulled(topics, "Orders")
    assert len(stored) == 25, "one was inserted"
    bodies = sorted(message.body for message in stored)
    held = rows_of(listed_files(tmp_path / "archive", frozenset({"Orders"})))
    assert sorted(row["body"] for row in held) == sorted(order(n).body for n in range(20))
    assert sorted(bytes(row.body) for row in names["whole"].select("body").collect()) == bodies
    written = committed_rows(tmp_path / "orders")
    assert sorted(row["text"].encode() for row in written) == bodies
    assert sorted(row.id for row in names["orders"].collect() if row.id is not None) == list(
        range(24)
    )
    copies = [json.loads(message.body) for message in pulled(topics, "Copies")]
    assert len(copies) == 1 + 25
    assert sorted(each["id"] for each in copies if each) == list(range(24))
    for name, numbers in (("late", range(24)), ("expensive", range(12, 24, 2)), ("some", (17, 21))):
        expected = {(m.queue.queue_id, m.queue_offset) for m in stored if m.body in texts(numbers)}
        if name == "some":
            expected |= {(m.queue.queue_id, m.queue_offset) for m in stored if m.body == b"{}"}
        rows = names[name].select("queueId", "queueOffset").collect()
        assert sorted(tuple(row) for row in rows) == sorted(expected), name


def of_kafka(*, has_avro: bool) -> list[str]:
    """The examples of the page for those who come from Kafka; one kind of them needs a jar."""
    return [each for each in BLOCK.findall(FROM_KAFKA.read_text()) if ("avro" in each) is has_avro]


def test_bodies_are_avro(spark: Any, topics: Topics) -> None:
    if not spark.conf.get("spark.jars", ""):
        pytest.skip("the jar of Spark's Avro is not installed (make interop)")
    topic = topics.fresh()
    topics.send([Message(topic, b"no order")])
    orders = spark.createDataFrame([(1, 1.5), (2, None), (300, -2.0)], "id bigint, price double")
    names: dict[str, Any] = {"spark": spark, "orders": orders, "struct": struct}
    (example,) = of_kafka(has_avro=True)
    exec(example.replace("127.0.0.1:9876", topics.namesrv).replace("AvroOrders", topic), names)
    read = sorted(map(tuple, names["from_topic"].where("id is not null").collect()))
    assert read == [(1, 1.5), (2, None), (300, -2.0)]
    assert names["from_topic"].count() == 4, "what is no order is a null"
    # As the format's specification has it: a union's branch, a zigzag number, a double.
    sent = {message.body for message in pulled(topics, topic)}
    numbers = {b"\x02\x02\x02" + struct_pack("<d", 1.5), b"\x02\x04\x00"}
    assert sent == {b"no order", *numbers, b"\x02\xd8\x04\x02" + struct_pack("<d", -2.0)}


def test_the_table_names_every_option() -> None:
    given = {"nameServer": "h:1", "topic": "T", "no such option": "x"}
    with pytest.raises(PipelineUsageError) as caught:
        read_source_options(given, "either")
    known = str(caught.value).partition("(it has ")[2].removesuffix(")").split(", ")
    assert len(known) > 20
    text = PAGE.read_text()
    assert [name for name in known if f"`{name}`" not in text] == []


def test_the_page_for_those_who_come_from_kafka_names_options_that_there_are() -> None:
    table = FROM_KAFKA.read_text().partition("\n| Kafka |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    assert len(rows) > 20
    known = {*SOURCE_OPTIONS, *SINK_OPTIONS, *COLUMNS, "storeTimestamp", "start_stream"}
    for theirs, here in rows:
        told = here + (theirs if "the same" in here else "")
        assert set(re.findall(r"`([A-Za-z][\w.]*)`", told)) <= known, told
