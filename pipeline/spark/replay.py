"""Sends messages of the past again: from Parquet or a store's log to a topic, in order, each exactly once.

A replay has an id. Its rows go through the exactly-once sink under the sink id "replay-ID", with the original
coordinates as keys, so a replay that was interrupted is simply started again. Rows of one original queue go
to one queue of the target, in their order. Large replays are cut into batches by queue offset, the same way
every time, because a broker group remembers the rows of a sink's current batch only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from pyspark.sql import functions as f

from dledger_mq import MessageQueue
from pipeline.errors import PipelineUsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BATCH_ROWS: Final = 2_000_000
"""Half of what a broker group takes in one batch of a sink."""

STRETCH_OFFSETS: Final = 1 << 14
"""Offsets of a queue that are counted together: most of a replay's 2 million, and few enough to skip what is sparse."""

ORIGIN_TOPIC: Final = "ORIGIN_TOPIC"
ORIGIN_BROKER: Final = "ORIGIN_BROKER"
ORIGIN_QUEUE_ID: Final = "ORIGIN_QUEUE_ID"
ORIGIN_QUEUE_OFFSET: Final = "ORIGIN_QUEUE_OFFSET"
ORIGIN_STORE_TIMESTAMP: Final = "ORIGIN_STORE_TIMESTAMP"
_MARKS: Final = (
    *(ORIGIN_TOPIC, ORIGIN_BROKER, ORIGIN_QUEUE_ID),
    *(ORIGIN_QUEUE_OFFSET, ORIGIN_STORE_TIMESTAMP),
)


@dataclass(frozen=True, slots=True)
class ReplaySelection:
    """The selection of messages for a replay; None: no bound.

    Attributes:
        from_ms, to_ms: store time in ms since 1970, `to_ms` excluded.
    """

    topic: str
    from_ms: int | None = None
    to_ms: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class QueueCount:
    """The number of messages replayed of one original queue."""

    broker_name: str
    queue_id: int
    messages: int
    first: int
    last: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of an original queue.

    Attributes:
        count: what is replayed of it.
        twice: offsets that two different messages have.
        places: where its rows stand, as the source says it.
    """

    count: QueueCount
    twice: int
    places: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a replay.

    Attributes:
        queues: by name of the original group and queue id.
        tasks: how many send at a time; rows of one queue are in one of them.
        keeps_delays: what was delayed is delayed for as long again; otherwise it is sent at once.
    """

    topic: str
    queues: Mapping[tuple[str, int], MessageQueue]
    tasks: int
    keeps_delays: bool = False


def chosen(frame: DataFrame, wanted: ReplaySelection) -> DataFrame:
    """Return the messages that are wanted."""
    rows = frame.where(f.col("topic") == wanted.topic)
    if wanted.from_ms is not None:
        rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(wanted.from_ms)))
    if wanted.to_ms is not None:
        rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(wanted.to_ms)))
    if wanted.key is not None:
        keys = f.coalesce(f.col("properties")["KEYS"], f.lit(""))
        rows = rows.where(f.array_contains(f.split(keys, " "), wanted.key))
    return rows


def with_map(frame: DataFrame) -> DataFrame:
    """Return the frame with `properties` as a map, whatever it was."""
    if frame.schema["properties"].dataType.typeName() == "map":
        return frame
    return frame.withColumn("properties", f.from_json("properties", "map<string,string>"))


def stretches_of(rows: DataFrame, places: Column) -> list[Stretch]:
    """Count what would be replayed, stretch by stretch.

    Args:
        rows: what is chosen.
        places: the aggregate that says where rows stand (`ReplaySource.places`).
    """
    number = f.floor(f.col("queueOffset") / STRETCH_OFFSETS)
    found = rows.groupBy("brokerName", "queueId", number.alias("stretch")).agg(
        f.count("*").alias("messages"),
        f.min("queueOffset").alias("first"),
        f.max("queueOffset").alias("last"),
        f.sum(f.octet_length("body")).alias("bytes"),
        f.count_distinct("queueOffset").alias("offsets"),
        f.count_distinct("queueOffset", "storeTimestamp").alias("distinct"),
        places.alias("places"),
    )
    return [
        Stretch(
            QueueCount(r.brokerName or "", r.queueId, r.messages, r.first, r.last, r.bytes),
            r.distinct - r.offsets,
            tuple(r.places),
        )
        for r in found.collect()
    ]


def counts_of(stretches: Sequence[Stretch]) -> list[QueueCount]:
    """Return the sums of stretches, queue by queue.

    Raises:
        PipelineUsageError: two different messages have one place, so the sink would take the second for the first.
    """
    by_queue: dict[tuple[str, int], list[Stretch]] = defaultdict(list)
    for each in stretches:
        by_queue[each.count.broker_name, each.count.queue_id].append(each)
    counts: list[QueueCount] = []
    for (broker_name, queue_id), some in sorted(by_queue.items()):
        twice = sum(each.twice for each in some)
        if twice:
            raise PipelineUsageError(
                f"queue {broker_name}/{queue_id} had {twice} offsets twice: its topic was "
                "removed and made anew in this history; replay one after the other, with --from and --to and an "
                "--id of its own for each"
            )
        counts.append(
            QueueCount(
                broker_name,
                queue_id,
                sum(each.count.messages for each in some),
                min(each.count.first for each in some),
                max(each.count.last for each in some),
                sum(each.count.body_bytes for each in some),
            )
        )
    return counts


def batches_of(stretches: Sequence[Stretch], span: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of each batch that has rows, in order, and where these stand.

    Args:
        stretches: all of the replay.
        span: how many offsets of each queue are in a batch (`batch_span`).
    """
    places: dict[int, set[Any]] = defaultdict(set)
    for each in stretches:
        for batch in range(each.count.first // span, each.count.last // span + 1):
            places[batch].update(each.places)
    for batch in sorted(places):
        yield batch, sorted(places[batch])


def target_of(broker_name: str, queue_id: int, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the target's queue for an original queue: the same number where it exists."""
    group = crc32(broker_name.encode())
    names = sorted({queue.broker_name for queue in queues})
    own = [queue for queue in queues if queue.broker_name == names[group % len(names)]]
    return own[queue_id % len(own)]


def batch_span(counts: Sequence[QueueCount], rows_max: int = BATCH_ROWS) -> int:
    """Return how many offsets of each queue go into one batch.

    It depends on the number of queues alone, so that an interrupted replay is cut alike when more has come.
    """
    return max(1, rows_max // max(1, len(counts)))


def outgoing(rows: DataFrame, target: Target) -> DataFrame:
    """Return the rows as the sink takes them, partitioned and sorted so that each queue keeps its order."""
    origin = f.concat_ws("/", f.coalesce("brokerName", f.lit("")), "queueId")
    places = {queue: place for place, queue in enumerate(sorted(set(target.queues.values())))}
    named = [(f"{name}/{number}", to) for (name, number), to in target.queues.items()]
    place = _looked_up(origin, {text: places[to] for text, to in named})
    marks = f.create_map(
        f.lit(ORIGIN_TOPIC),
        "topic",
        f.lit(ORIGIN_BROKER),
        f.coalesce("brokerName", f.lit("")),
        f.lit(ORIGIN_QUEUE_ID),
        f.col("queueId").cast("string"),
        f.lit(ORIGIN_QUEUE_OFFSET),
        f.col("queueOffset").cast("string"),
        f.lit(ORIGIN_STORE_TIMESTAMP),
        f.unix_millis("storeTimestamp").cast("string"),
    )
    own = f.map_filter(
        f.coalesce("properties", f.create_map().cast("map<string,string>")),
        lambda name, _: ~name.isin(*_MARKS),
    )
    return (
        rows.withColumn("_place", place)
        .repartitionById(target.tasks, f.col("_place") % target.tasks)
        .sortWithinPartitions("_place", "brokerName", "queueId", "queueOffset")
        .select(
            "body",
            f.lit(target.topic).alias("topic"),
            (f.col("flag") if "flag" in rows.columns else f.lit(0)).alias("flag"),
            *(_delays() if target.keeps_delays else ()),
            f.map_filter(
                f.map_concat(own, marks), lambda _, text: text.isNotNull() & (text != "")
            ).alias("properties"),
            _looked_up(origin, {text: to.queue_id for text, to in named}).alias("queueId"),
            _looked_up(origin, {text: to.broker_name for text, to in named}).alias("brokerName"),
            f.concat_ws(
                "/", "topic", f.coalesce("brokerName", f.lit("")), "queueId", "queueOffset"
            ).alias("idempotencyKey"),
        )
    )


def _delays() -> tuple[Column, Column]:
    """Return how long each message is to wait again: its level, or as many ms as its sender wanted."""
    given = f.col("properties")
    level = given["DELAY"].try_cast("int")
    wait_ms = f.coalesce(
        given["TIMER_DELAY_SEC"].try_cast("bigint") * 1000,
        given["TIMER_DELAY_MS"].try_cast("bigint"),
        given["TIMER_DELIVER_MS"].try_cast("bigint") - f.unix_millis("bornTimestamp"),
    )
    is_timed = level.isNull() & (wait_ms > 0)
    return level.alias("delayLevel"), f.when(is_timed, wait_ms).alias("delayMs")


def _looked_up(key: Column, values: Mapping[str, int | str]) -> Column:
    pairs = [f.lit(part) for pair in values.items() for part in pair]
    return f.create_map(*pairs)[key]


def between(rows: DataFrame, low: int, high: int) -> DataFrame:
    """Return the rows of one batch: queue offsets from `low` to `high`, without `high`."""
    return rows.where((f.col("queueOffset") >= low) & (f.col("queueOffset") < high))
