"""Options of tables in catalogs: kept in the schema, and divided between source and sink."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pipeline.errors import PipelineUsageError
from pipeline.option_names import SINK_OPTIONS, SOURCE_OPTIONS
from pipeline.sink.columns import check_columns
from pipeline.sink.options import read_options
from pipeline.source_options import read_source_options
from pipeline.spark.table_options import created_options, keeping, table_options

SCHEMA = StructType([StructField("topic", StringType()), StructField("body", BinaryType())])
LEAST = {"nameserver": "h:1", "topic": "T"}


def test_what_a_catalog_hands_over_twice_is_taken_once() -> None:
    doubled = LEAST | {f"option.{name}": text for name, text in LEAST.items()}
    assert created_options(doubled | {"provider": "rocketmq", "owner": "me"}) == LEAST
    assert created_options(LEAST) is None


def test_the_schema_keeps_them_through_json_and_a_query_comes_first() -> None:
    kept = StructType.fromJson(keeping(SCHEMA, LEAST).jsonValue())
    assert table_options(kept, {}) == LEAST
    assert table_options(kept, {"Topic": "U", "x": "y"}) == {
        "nameserver": "h:1",
        "topic": "U",
        "x": "y",
    }
    assert table_options(kept, {"nameServer": "h:2", "topic": "U"}) is None, "a frame from there"
    assert table_options(SCHEMA, {}) is None


def test_no_two_tables_have_the_same_columns() -> None:
    types = [
        keeping(SCHEMA, options)["topic"].metadata["__CHAR_VARCHAR_TYPE_STRING"]
        for options in (LEAST, LEAST | {"topic": "U"}, dict(reversed(LEAST.items())))
    ]
    assert types[0] == types[2] != types[1]
    assert all(2**30 <= int(each[8:-1]) < 2**31 - 1 for each in types)


def test_each_side_passes_over_what_is_the_others() -> None:
    both = LEAST | {"sendTimeoutMs": "5", "maxOffsetsPerTrigger": "7", "commitGroup": "g"}
    assert read_source_options(both, "batch", is_table=True).topics == ("T",)
    assert read_source_options(both, "stream", is_table=True).max_offsets_per_trigger == 7
    assert read_options(both, is_stream=False, is_table=True).topic == "T"
    for read in (
        lambda: read_source_options(LEAST | {"topik": "x"}, "batch", is_table=True),
        lambda: read_options(LEAST | {"topik": "x"}, is_stream=False, is_table=True),
    ):
        with pytest.raises(PipelineUsageError, match="did you mean topic"):
            read()


def test_columns_of_stored_messages_may_be_inserted() -> None:
    sink = read_options(LEAST, is_stream=False)
    fields = {"body": "binary", "storeTimestamp": "timestamp", "msgId": "string"}
    assert "body" in check_columns(fields, sink, is_table=True)
    with pytest.raises(PipelineUsageError, match="no column storeTimestamp"):
        check_columns(fields, sink)


def test_the_names_are_those_that_are_read() -> None:
    for names, read in (
        (SOURCE_OPTIONS, lambda: read_source_options(LEAST | {"?": "x"}, "either")),
        (SINK_OPTIONS, lambda: read_options(LEAST | {"?": "x"}, is_stream=False)),
    ):
        with pytest.raises(PipelineUsageError) as caught:
            read()
        (known,) = re.findall(r"\(it has (.*)\)", str(caught.value))
        assert set(known.split(", ")) == names
