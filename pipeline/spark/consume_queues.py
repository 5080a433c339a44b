"""Consume queues computed by Spark, beside the broker's fold and independent of it.

A queue's units follow from its records alone: those on its topic and queue id, in the order of the log, after the
last removal of the topic, as far as their queue offsets count up from 0. What the fold says must be the same
(`checked_queues`): two programs that agree are rarely wrong in the same way.

The third field of a unit is left out for the schedule topic: due times depend on commands, which only a fold follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from crc32c import crc32c
from pyspark.sql import functions as f

from broker.store.control import DeleteTopic
from broker.store.state import BrokerState
from broker.store.topics import is_deletable
from dledger.raft.ids import Index
from dledger_mq.message.names import SCHEDULE_TOPIC
from dledger_mq.message.sys_flags import TRANSACTION_PREPARED

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
NEEDED: Final = (
    "topic string, queueId int, queueOffset bigint, physicalOffset bigint, size int, sysFlag int, "
    "tagHash bigint"
)
RESULT: Final = "topic string, queueId int, maxOffset bigint, digest bigint, wrongOffsets bigint"


def queue_digests(rows: DataFrame, deletions: dict[str, int]) -> DataFrame:
    """Return per queue: how many units, their CRC32C, and how many records had another offset than the next.

    Pure: from a frame with the columns `NEEDED` to a frame with the columns `RESULT`.

    Args:
        rows: records, in any order.
        deletions: topics that were removed, and the physical offset of the last command that did it.
    """

    def digest(queue: pd.DataFrame) -> pd.DataFrame:
        """Digest one queue in log order; records before the topic's last deletion are no longer in its queue."""
        topic = str(queue["topic"].iloc[0])
        kept = queue[queue["physicalOffset"] > deletions.get(topic, -1)]
        kept = kept.sort_values("physicalOffset")
        units, wrong = _in_sequence(kept)
        crc = crc32c(packed(units).tobytes())
        return pd.DataFrame(
            {
                "topic": [topic],
                "queueId": [int(queue["queueId"].iloc[0])],
                "maxOffset": [len(units)],
                "digest": [crc],
                "wrongOffsets": [wrong],
            }
        )

    shown = rows.where(f.col("sysFlag").bitwiseAND(TRANSACTION_PREPARED) == 0)
    return shown.groupBy("topic", "queueId").applyInPandas(digest, RESULT)


def _in_sequence(queue: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the records whose queue offset is the next one, and how many others there are."""
    offsets = queue["queueOffset"].to_numpy()
    if np.array_equal(offsets, np.arange(len(offsets))):
        return queue, 0
    places: list[int] = []
    for place, offset in enumerate(offsets.tolist()):
        if offset == len(places):
            places.append(place)
    return queue.iloc[places], len(offsets) - len(places)


def packed(units: pd.DataFrame) -> NDArray[np.void]:
    """Return units as they stand in the files of consume queues."""
    made: NDArray[np.void] = np.empty(len(units), UNIT)
    made["physical_offset"] = units["physicalOffset"]
    made["size"] = units["size"]
    made["tag_hash"] = units["tagHash"]
    return made


def checked_queues(
    spark: SparkSession, path: str, last_index: Index, folded: BrokerState
) -> list[str]:
    """Compare the queues of a fold with those that Spark computes; what differs, in words.

    Args:
        spark: the session.
        path: the store.
        last_index: the entry up to which `folded` was folded.
        folded: the broker's fold.
    """
    load = spark.read.format("commitlog").options(upTo=str(last_index), records="all")
    rows = load.schema(NEEDED).load(path)
    found = {
        (row["topic"], row["queueId"]): row
        for row in queue_digests(rows, _deletions(spark, path, last_index)).collect()
        if row["maxOffset"]
    }
    differing: list[str] = []
    wanted = {
        (queue.key[0].decode(), queue.key[1]): queue for queue in folded.queues if queue.max_offset
    }
    for key in sorted(wanted.keys() | found.keys()):
        queue, row = wanted.get(key), found.get(key)
        one = (queue.max_offset, queue.digest()) if queue is not None else (0, 0)
        other = (row["maxOffset"], row["digest"]) if row is not None else (0, 0)
        if one != other and not (key[0] == SCHEDULE_TOPIC and one[0] == other[0]):
            differing.append(
                f"topic {key[0]}, queue {key[1]}: the fold has {one[0]} units with digest {one[1]:08x}, "
                f"Spark has {other[0]} with {other[1]:08x}"
            )
    return differing


def _deletions(spark: SparkSession, path: str, last_index: Index) -> dict[str, int]:
    """Return the last removal of each topic."""
    load = spark.read.format("commitlog").options(upTo=str(last_index), records="control")
    commands = load.schema("op string, command string, physicalOffset bigint").load(path)
    tag = DeleteTopic.__struct_config__.tag
    named = commands.where(f.col("op") == tag).select(
        f.get_json_object("command", "$.name").alias("topic"), "physicalOffset"
    )
    last = named.groupBy("topic").agg(f.max("physicalOffset").alias("at"))
    return {row["topic"]: row["at"] for row in last.collect() if is_deletable(row["topic"])}
