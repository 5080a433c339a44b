"""The profile of a stretch of history, hour by hour: traffic, retries, and how fast groups were.

Frames in, frames out; `messages` has the source's columns, `properties` as a map, made `slim`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from dledger_mq.message.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    SYSTEM_TOPIC_PREFIX,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STORM_RATE: Final = 0.1
"""Retries per message of the topic, in one hour, from which on it is a storm ..."""
STORM_RETRIES: Final = 10
"""... if there are at least so many."""


def slim(records: DataFrame) -> DataFrame:
    """Return the frame with `bodyBytes` instead of bodies, and the properties that count: little enough to be kept."""
    named = [f.lit(name) for name in ("RETRY_TOPIC", "UNIQ_KEY")]
    kept = f.map_filter("properties", lambda name, _: name.isin(*named))
    slimmer = records.withColumn("bodyBytes", f.octet_length("body")).drop("body")
    return slimmer.withColumn("properties", kept)


def traffic(messages: DataFrame) -> DataFrame:
    """Return per topic and hour: messages, their rate, and sizes of bodies; topics of applications only."""
    own = messages.where(
        ~f.col("topic").startswith(RETRY_PREFIX)
        & ~f.col("topic").startswith(DLQ_PREFIX)
        & ~f.col("topic").startswith(SYSTEM_TOPIC_PREFIX)
        & ~f.col("topic").isin(*SEND_FORBIDDEN_TOPICS)
    )
    size = f.col("bodyBytes")
    return (
        own.groupBy("topic", _hour())
        .agg(
            f.count("*").alias("messages"),
            (f.count("*") / 3600).alias("per_second"),
            f.sum(size).alias("bytes"),
            f.round(f.avg(size)).cast("bigint").alias("mean_bytes"),
            f.max(size).alias("max_bytes"),
        )
        .orderBy("topic", "hour")
    )


def retries(messages: DataFrame, topics_traffic: DataFrame) -> DataFrame:
    """Return per consumer group, topic and hour: retries and dead letters, and whether that is a storm."""
    given_back = messages.where(
        f.col("topic").startswith(RETRY_PREFIX) | f.col("topic").startswith(DLQ_PREFIX)
    )
    is_dead = f.col("topic").startswith(DLQ_PREFIX)
    group = f.when(is_dead, f.substr("topic", f.lit(len(DLQ_PREFIX) + 1))).otherwise(
        f.substr("topic", f.lit(len(RETRY_PREFIX) + 1))
    )
    counted = given_back.groupBy(
        group.alias("group"),
        f.coalesce(f.col("properties")["RETRY_TOPIC"], f.lit("")).alias("topic"),
        _hour(),
    ).agg(
        f.count_if(~is_dead).alias("retries"),
        f.count_if(is_dead).alias("dead_letters"),
        f.count_distinct(f.col("properties")["UNIQ_KEY"]).alias("distinct_messages"),
    )
    of_topic = topics_traffic.select("topic", "hour", f.col("messages").alias("sent"))
    rate = f.col("retries") / f.greatest(f.col("sent"), f.lit(1))
    return (
        counted.join(of_topic, ["topic", "hour"], "left")
        .fillna(0, ["sent"])
        .withColumn("retries_per_message", f.round(rate, 3))
        .withColumn("is_storm", (rate >= STORM_RATE) & (f.col("retries") >= STORM_RETRIES))
        .select(
            *("group", "topic", "hour", "retries", "dead_letters", "distinct_messages"),
            *("retries_per_message", "is_storm"),
        )
        .orderBy("group", "topic", "hour")
    )


def delays(records: DataFrame) -> DataFrame:
    """Return per consumer group and topic: how long after its storing a message was committed as consumed.

    Args:
        records: of the log, control records among them (`records=all`): each offset that a group commits
            is joined with the message just below it. Commits come seconds apart, so the delay includes
            that interval.
    """
    commit = "commits array<array<string>>"
    commits = (
        records.where(f.col("op") == "commit_offsets")
        .select(
            f.explode(
                f.from_json("command", f"struct<{commit.replace(' ', ':', 1)}>").commits
            ).alias("c"),
            f.col("storeTimestamp").alias("committed_at"),
        )
        .select(
            f.col("c")[0].alias("group"),
            f.col("c")[1].alias("topic"),
            f.col("c")[2].cast("int").alias("queueId"),
            (f.col("c")[3].cast("bigint") - 1).alias("queueOffset"),
            "committed_at",
        )
        .groupBy("group", "topic", "queueId", "queueOffset")
        .agg(f.min("committed_at").alias("committed_at"))
    )
    stored = records.where("op is null").select(
        "topic", "queueId", "queueOffset", f.col("storeTimestamp").alias("stored_at")
    )
    joined = commits.join(stored, ["topic", "queueId", "queueOffset"])
    seconds = (f.unix_micros("committed_at") - f.unix_micros("stored_at")) / 1e6
    return (
        joined.withColumn("seconds", seconds)
        .groupBy("group", "topic")
        .agg(
            f.count("*").alias("commits"),
            f.round(f.percentile("seconds", 0.5), 3).alias("p50_s"),
            f.round(f.percentile("seconds", 0.99), 3).alias("p99_s"),
            f.round(f.max("seconds"), 3).alias("max_s"),
        )
        .orderBy(f.desc("p99_s"), "group", "topic")
    )


def _hour() -> Column:
    return f.date_trunc("hour", f.col("storeTimestamp")).alias("hour")
