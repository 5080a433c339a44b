"""The options of reading topics, checked and typed (docs/pipeline-source.md has the table).

Everything that can be refused without asking a broker is refused here, when the table or stream is defined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.subscriptions import EVERYTHING, BySql, subscribe
from dledger_mq.message.names import (
    group_problem,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    topic_problem,
)
from pipeline.access import BrokerAccess, read_access
from pipeline.assignment import AssignedQueues, read_assignment
from pipeline.errors import PipelineUsageError
from pipeline.locations import Location, LocationError, location
from pipeline.offsets import EARLIEST, LATEST, Offsets, from_form
from pipeline.option_names import SINK_OPTIONS
from pipeline.options import OptionReader
from pipeline.selection import MessageChoice

Use = Literal["batch", "stream", "either"]
"""The kind of reading; "either" while that is not known: then only what suits neither is refused."""

FORMAT: Final = 'format "rocketmq"'
PULL_BATCH_MAX: Final = 1024
HOUR_MS: Final = 3_600_000

_GROUP_REFUSED: Final = (
    "is not taken: where a query stands is in its checkpoint; commitGroup shows it to lag tools"
)
_ARCHIVE_REFUSED: Final = (
    "is for batch reads, a stream reads from brokers only: read the history as a batch up to endingOffsets, and "
    "let the stream start there (startingOffsets)"
)


class BoundaryKind(Enum):
    """The kinds of a start or an end."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIME = "time"
    QUEUE_TIMES = "times of queues"


@dataclass(frozen=True, slots=True)
class Boundary:
    """The place where reading begins or ends.

    Attributes:
        kind: how it was said.
        offsets: for OFFSETS; LATEST and EARLIEST may stand for numbers. For QUEUE_TIMES: ms since 1970.
        timestamp_ms: for TIME: the first message stored then or later.
        or_latest: for times as a start: where no message is so young, the queue's end will do.
    """

    kind: BoundaryKind
    offsets: Offsets | None = None
    timestamp_ms: int = 0
    or_latest: bool = False


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of reading topics, under their own names."""

    name_server: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    assigned: AssignedQueues | None
    starting: Boundary
    ending: Boundary
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    num_partitions: int | None
    min_partitions: int | None
    selection: MessageChoice
    pull_batch_size: int
    pull_timeout_ms: int
    retry_timeout_ms: int
    fetch_retries: int
    fetch_retry_interval_ms: int
    has_properties: bool
    properties_as_map: bool
    has_metadata: bool
    commit_group: str | None
    metadata_path: Location | None
    reads_followers: bool
    archive: Location | None
    access: BrokerAccess

    def wants(self, topic: str) -> bool:
        """Return whether a topic is one of those asked for, whether it exists or not."""
        if self.topic_pattern is None:
            return topic in self.topics
        return bool(matching(self.topic_pattern, [topic]))

    def reads(self, queue: MessageQueue) -> bool:
        """Return whether a queue is one of those asked for."""
        return queue in self.assigned if self.assigned is not None else self.wants(queue.topic)

    @property
    def subject(self) -> str:
        """The topics, for errors."""
        if self.topic_pattern is not None:
            return f"topics matching {self.topic_pattern!r}"
        return f"topic{'s' if len(self.topics) > 1 else ''} {', '.join(self.topics)}"


def read_source_options(
    given: Mapping[str, str], use: Use, *, is_table: bool = False
) -> SourceOptions:
    """Check and type the options.

    Args:
        given: names and texts.
        use: how it is read.
        is_table: they are those of a table in a catalog, which is written, too, and read either way: what is
            meant for another use is passed over.

    Raises:
        PipelineUsageError: names the option and what is wrong with it.
    """
    options = OptionReader(given, FORMAT)
    _refuse_unsuited(options, use, is_table=is_table)
    topics, pattern, assigned = _topics(options)
    read = SourceOptions(
        name_server=_name_server(options),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        starting=_starting(options, use),
        ending=_ending(options),
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", None, least=1),
        min_offsets_per_trigger=options.number("minOffsetsPerTrigger", None, least=1),
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", HOUR_MS // 4),
        fail_on_data_loss=options.boolean("failOnDataLoss", default=True),
        num_partitions=options.number("numPartitions", None, least=1, most=100_000),
        min_partitions=options.number("minPartitions", None, least=1, most=100_000),
        selection=MessageChoice(_tags(options), _condition(options), _keys(options)),
        pull_batch_size=options.number("pullBatchSize", 256, least=1, most=PULL_BATCH_MAX),
        pull_timeout_ms=options.number("pullTimeoutMs", 3000, least=1, most=HOUR_MS),
        retry_timeout_ms=options.number("retryTimeoutMs", 60_000, least=1, most=24 * HOUR_MS),
        fetch_retries=options.number("fetchOffset.numRetries", 3, most=1000),
        fetch_retry_interval_ms=options.number("fetchOffset.retryIntervalMs", 1000, most=HOUR_MS),
        has_properties=_includes_properties(options),
        properties_as_map=options.choice("propertiesAs", ("json", "map"), "json") == "map",
        has_metadata=options.boolean("includeMetadata", default=False),
        commit_group=_commit_group(options),
        metadata_path=_location(options, "metadataPath"),
        reads_followers=options.choice("readFrom", ("leader", "any"), "leader") == "any",
        archive=_location(options, "includeArchive"),
        access=read_access(options),
    )
    options.finish(SINK_OPTIONS if is_table else ())
    return read


def _refuse_unsuited(options: OptionReader, use: Use, *, is_table: bool) -> None:
    """Refuse what no reading takes, and what is meant for another use.

    Raises:
        PipelineUsageError: names the option.
    """
    options.refuse("group", _GROUP_REFUSED)
    options.refuse("consumerGroup", _GROUP_REFUSED)
    if use == "batch" and not is_table:
        for name in (
            "maxOffsetsPerTrigger",
            "minOffsetsPerTrigger",
            "maxTriggerDelay",
            "commitGroup",
        ):
            options.refuse(name, "is for streams")
    if use == "stream":
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            options.refuse(name, "is for batch reads: a stream has no end")
        options.refuse("includeArchive", _ARCHIVE_REFUSED)


def _name_server(options: OptionReader) -> str:
    text = options.required("nameServer")
    try:
        return ";".join(parse_name_servers(text))
    except ClientUsageError as error:
        raise options.error("nameServer", f"is {text!r}: {error}") from None


_SUBJECTS: Final = ("topic", "subscribe", "topicPattern", "subscribePattern", "assign")


def _topics(options: OptionReader) -> tuple[tuple[str, ...], str | None, AssignedQueues | None]:
    """Return the topics, sorted, and their queues if not all are meant; or a pattern."""
    said = {name: options.text(name) for name in _SUBJECTS}
    given = [name for name, text in said.items() if text is not None]
    if len(given) != 1:
        raise PipelineUsageError(
            f"{FORMAT} needs one of the options topic, subscribe (the same), topicPattern, subscribePattern (the "
            f"same) and assign; given: {', '.join(given) or 'none'}"
        )
    name = given[0]
    if name == "assign":
        value = _json("assign", said[name] or "")
        assigned = read_assignment(value, f"{FORMAT}: option assign")
        return assigned.topics, None, assigned
    if name.endswith("Pattern"):
        pattern = said[name] or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise options.error(name, f"is {pattern!r}, no regex: {error}") from None
        return (), pattern, None
    topics = [topic.strip() for topic in (said[name] or "").split(",")]
    for topic in topics:
        problem = topic_problem(topic)
        if problem is not None:
            raise options.error(name, f"names {topic!r}: {problem}")
    return tuple(sorted(set(topics))), None, None


def _starting(options: OptionReader, use: Use) -> Boundary:
    """Return where to begin; a time wins over offsets, as in Spark's Kafka source."""
    text = options.text("startingOffsets")
    time_ms = options.number("startingTimestamp", None)
    times = options.text("startingOffsetsByTimestamp")
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    or_latest = strategy == "latest"
    if time_ms is not None:
        return Boundary(BoundaryKind.TIME, timestamp_ms=time_ms, or_latest=or_latest)
    if times is not None:
        wanted = _offsets("startingOffsetsByTimestamp", times)
        return Boundary(BoundaryKind.QUEUE_TIMES, wanted, or_latest=or_latest)
    if text is None:
        return Boundary(BoundaryKind.EARLIEST if use == "batch" else BoundaryKind.LATEST)
    if text.lower() == "earliest":
        return Boundary(BoundaryKind.EARLIEST)
    marks = {EARLIEST} if use == "batch" else {EARLIEST, LATEST}
    if text.lower() == "latest":
        if use == "batch":
            raise options.error("startingOffsets", "is latest: a batch read would have no rows")
        return Boundary(BoundaryKind.LATEST)
    return Boundary(BoundaryKind.OFFSETS, _offsets("startingOffsets", text, frozenset(marks)))


def _ending(options: OptionReader) -> Boundary:
    """Return where to end; a time wins over offsets here too."""
    text = options.text("endingOffsets")
    time_ms = options.number("endingTimestamp", None)
    times = options.text("endingOffsetsByTimestamp")
    if time_ms is not None:
        return Boundary(BoundaryKind.TIME, timestamp_ms=time_ms, or_latest=True)
    if times is not None:
        wanted = _offsets("endingOffsetsByTimestamp", times)
        return Boundary(BoundaryKind.QUEUE_TIMES, wanted, or_latest=True)
    if text is None or text.lower() == "latest":
        return Boundary(BoundaryKind.LATEST)
    if text.lower() == "earliest":
        raise options.error("endingOffsets", "is earliest: nothing would lie before it")
    return Boundary(BoundaryKind.OFFSETS, _offsets("endingOffsets", text, frozenset({LATEST})))


def _offsets(name: str, text: str, marks: frozenset[int] = frozenset()) -> Offsets:
    return from_form(_json(name, text), f"{FORMAT}: option {name}", marks)


def _json(name: str, text: str) -> object:
    try:
        value: object = json.loads(text, object_pairs_hook=_object_without_repeats)
    except ValueError as error:
        raise PipelineUsageError(
            f"{FORMAT}: option {name} is no JSON ({error}): {text[:200]}"
        ) from None
    return value


def _object_without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a name stands twice in one object: {[name for name, _ in pairs]}")
    return found


def _tags(options: OptionReader) -> tuple[str, ...]:
    text = options.text("subExpression") or EVERYTHING
    try:
        return tuple(sorted(subscribe("any", text, 0).tags))
    except ClientUsageError:
        raise options.error("subExpression", f"is {text!r}, no tags joined with ||") from None


def _condition(options: OptionReader) -> str | None:
    text = options.text("sqlExpression")
    try:
        return None if text is None else BySql(text).text
    except ClientUsageError as error:
        raise options.error("sqlExpression", f"is no condition: {error}") from None


def _keys(options: OptionReader) -> tuple[str, ...]:
    keys = (options.text("keys") or "").split()
    if any("||" in key for key in keys):
        raise options.error("keys", f"is {' '.join(keys)!r}: blanks separate keys, not ||")
    return tuple(sorted(set(keys)))


def _includes_properties(options: OptionReader) -> bool:
    first = options.boolean("includeProperties", default=True)
    alias = options.boolean("includeHeaders", default=True)
    return first and alias


def _commit_group(options: OptionReader) -> str | None:
    group = options.text("commitGroup")
    problem = group_problem(group) if group is not None else None
    if problem is not None:
        raise options.error("commitGroup", f"is {group!r}: {problem}")
    return group


def _location(options: OptionReader, name: str) -> Location | None:
    path = options.text(name)
    try:
        return None if path is None else location(path)
    except LocationError as error:
        raise options.error(name, f"names no folder: {error}") from None


def matching(pattern: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics whose whole name matches.

    The system's are never among them, retry and dead letter topics only if the pattern has a "%".
    """
    regex = re.compile(pattern)
    return tuple(
        topic
        for topic in topics
        if regex.fullmatch(topic)
        and not is_system_topic(topic)
        and ("%" in pattern or not (is_retry_topic(topic) or is_dlq_topic(topic)))
    )
