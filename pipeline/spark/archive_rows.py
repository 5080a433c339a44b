"""The archive's rows: which columns, in which order, and totals by which two tables are compared."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from pipeline.archive.manifests import QueueTotals
from pipeline.scan.columns import (
    LOG_COLUMNS,
    MESSAGE_COLUMNS,
    METADATA_COLUMNS,
    RECORD_COLUMNS,
)
from pipeline.spark.schemas import spark_schema

ARCHIVE_COLUMNS: Final = pa.schema(
    [
        *MESSAGE_COLUMNS,
        *(LOG_COLUMNS.field(name) for name in ("physicalOffset", "size", "term", "index")),
        *(METADATA_COLUMNS.field(name) for name in ("msgId", "keys", "tags", "reconsumeTimes")),
        *(
            RECORD_COLUMNS.field(name)
            for name in ("sysFlag", "preparedTransactionOffset", "bornHost", "storeHost")
        ),
    ]
)
"""What is kept of each record, control records included. `topic` and `date` are partition columns."""

PARTITION_COLUMNS: Final = ("topic", "date")
SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Log that one task reads while it is archived."""


def dated(rows: Any) -> Any:
    """The rows with `date`, the day in UTC on which each was stored."""
    return rows.withColumn("date", f.date_format("storeTimestamp", "yyyy-MM-dd"))


def arranged(rows: Any) -> Any:
    """The rows as they are written: a queue's in one task, a file's in the order of queue and offset."""
    keys = (*PARTITION_COLUMNS, "queueId", "queueOffset", "physicalOffset")
    return dated(rows).repartition("topic", "queueId").sortWithinPartitions(*keys)


def totals(rows: Any) -> Any:
    """Per queue: count, offsets, and two sums over a 64-bit hash of all columns, whatever the order."""
    hashed = f.xxhash64(*(f.col(name) for name in ARCHIVE_COLUMNS.names))
    return (
        rows.withColumn("hash", hashed)
        .groupBy("topic", "queueId")
        .agg(
            f.count("*").alias("count"),
            f.min("queueOffset").alias("min_offset"),
            f.max("queueOffset").alias("max_offset"),
            f.bit_xor("hash").alias("hash_xor"),
            f.sum(f.col("hash").cast("decimal(38,0)")).cast("string").alias("hash_sum"),
        )
    )


def collected(per_queue: Any) -> tuple[QueueTotals, ...]:
    """Totals as they stand in a manifest, sorted by queue."""
    found = [
        QueueTotals(
            row["topic"],
            row["queueId"],
            row["count"],
            row["min_offset"],
            row["max_offset"],
            row["hash_xor"],
            row["hash_sum"],
        )
        for row in per_queue.collect()
    ]
    return tuple(sorted(found, key=lambda each: (each.topic, each.queue_id)))


def first_difference(log: tuple[QueueTotals, ...], written: tuple[QueueTotals, ...]) -> str | None:
    """What differs first between two tables, in words; None when nothing does."""
    one = {(each.topic, each.queue_id): each for each in log}
    other = {(each.topic, each.queue_id): each for each in written}
    for topic, queue_id in sorted(one.keys() | other.keys()):
        left, right = one.get((topic, queue_id)), other.get((topic, queue_id))
        if left != right:
            return f"topic {topic}, queue {queue_id}: the log has {_words(left)}, the files have {_words(right)}"
    return None


def _words(each: QueueTotals | None) -> str:
    if each is None:
        return "nothing"
    return (
        f"{each.count} rows from offset {each.min_offset} to {each.max_offset}, "
        f"hash {each.hash_xor & 0xFFFF_FFFF_FFFF_FFFF:016x}"
    )


def log_rows(spark: Any, path: str, first_index: int, last_index: int, broker_name: str) -> Any:
    """All records of some entries of the log in a store, in the archive's columns."""
    reader = spark.read.format("commitlog").schema(spark_schema(ARCHIVE_COLUMNS))
    options = {
        "records": "all",
        "fromIndex": str(first_index),
        "upTo": str(last_index),
        "splitBytes": str(SPLIT_BYTES),
    }
    if broker_name:
        options["brokerName"] = broker_name
    return reader.options(**options).load(path)


def parquet_rows(spark: Any, paths: list[str], base: str | None = None) -> Any:
    """Rows of archived files, in the archive's columns and `date`.

    Args:
        spark: the session.
        paths: one staging folder, or files that manifests list (`listed_files`).
        base: for files: the archive's folder, which their partition folders stand in.
    """
    schema = spark_schema(ARCHIVE_COLUMNS).add("date", StringType())
    reader = spark.read.schema(schema)
    if base is not None:
        reader = reader.option("basePath", base)
    return reader.parquet(*paths) if paths else spark.createDataFrame([], schema)
