"""Logs of replicas compared by their records, in two stages: sums per chunk, then the records of chunks that differ.

Chunks are of entry indexes, which mean the same on every replica. Pure: from data frames to data frames, but for
`replica_rows`, which reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from dledger.raft.ids import Index

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK_ENTRIES: Final = 4096
HASHED: Final = (
    "topic", "flag", "body", "properties", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp",
    "physicalOffset", "size", "term", "index", "crcOk", "sysFlag", "reconsumeTimes", "preparedTransactionOffset",
    "bornHost", "storeHost",
)  # fmt: skip
_TYPES: Final = {
    "topic": "string", "flag": "int", "body": "binary", "properties": "string", "queueId": "int",
    "queueOffset": "bigint", "bornTimestamp": "timestamp", "storeTimestamp": "timestamp",
    "physicalOffset": "bigint", "size": "int", "term": "bigint", "index": "bigint", "crcOk": "boolean",
    "sysFlag": "int", "reconsumeTimes": "int", "preparedTransactionOffset": "bigint", "bornHost": "string",
    "storeHost": "string", "segment": "string", "problem": "string",
}  # fmt: skip


def replica_rows(
    spark: SparkSession, stores: Mapping[str, str], first_index: Index, last_index: Index
) -> DataFrame:
    """Return all records of some entries on every replica, with a hash of each; damage is marked, not refused.

    Args:
        spark: the session.
        stores: folder by the replica's name.
        first_index: the first entry.
        last_index: the last one.
    """
    schema = ", ".join(f"`{name}` {kind}" for name, kind in _TYPES.items())
    options = {
        "records": "all",
        "onCorrupt": "mark",
        "fromIndex": str(first_index),
        "upTo": str(last_index),
    }
    frames = [
        spark.read.format("commitlog")
        .schema(schema)
        .options(**options)
        .load(path)
        .withColumn("replica", f.lit(name))
        for name, path in stores.items()
    ]
    rows = reduce(lambda one, other: one.unionByName(other), frames)
    return rows.withColumn("hash", f.xxhash64(*(f.col(name) for name in HASHED)))


def chunk_sums(rows: DataFrame) -> DataFrame:
    """Return per replica and chunk: count, two sums over hashes, and the first damaged place."""
    damage = f.struct("physicalOffset", "segment", "index", "problem")
    is_damaged = f.col("problem").isNotNull() | ~f.col("crcOk")
    chunk = f.floor(f.coalesce(f.col("index"), f.lit(-1)) / CHUNK_ENTRIES).alias("chunk")
    return rows.groupBy("replica", chunk).agg(
        f.count("*").alias("count"),
        f.bit_xor("hash").alias("hash_xor"),
        f.sum(f.col("hash").cast("decimal(38,0)")).alias("hash_sum"),
        f.min(f.when(is_damaged, damage)).alias("damage"),
    )


def differing_chunks(sums: DataFrame, replicas: int) -> DataFrame:
    """Return the chunks that are not the same on all replicas, in order."""
    alike = f.struct("count", "hash_xor", "hash_sum")
    return (
        sums.groupBy("chunk")
        .agg(f.count_distinct(alike).alias("kinds"), f.count("*").alias("replicas"))
        .where((f.col("kinds") > 1) | (f.col("replicas") < replicas))
        .select("chunk")
        .orderBy("chunk")
    )


def differing_records(rows: DataFrame, replicas: int) -> DataFrame:
    """Return the places at which replicas have not the same record, in order: the hash of each replica there."""
    return (
        rows.where(f.col("problem").isNull())
        .groupBy("physicalOffset", "index", "topic", "queueId", "queueOffset")
        .agg(
            f.map_from_entries(f.collect_list(f.struct("replica", "hash"))).alias("hashes"),
            f.count_distinct("hash").alias("kinds"),
            f.count("*").alias("count"),
        )
        .where((f.col("kinds") > 1) | (f.col("count") < replicas))
        .orderBy("physicalOffset")
    )
