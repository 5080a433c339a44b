"""The options of the sink (docs/pipeline.md has the table)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.messages import BODY_BYTES_MAX
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.message.names import topic_problem
from dledger_mq.message.row_keys import SINK_ID_BYTES_MAX
from pipeline.access import BrokerAccess, read_access
from pipeline.errors import PipelineUsageError
from pipeline.locations import Location, LocationError, location, location_here, placed
from pipeline.option_names import SOURCE_OPTIONS
from pipeline.options import OptionReader

WHAT: Final = 'the sink of format "rocketmq"'
PRODUCER_GROUP: Final = "dledger-pipeline"

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
HASH: Final = "hash"
ROUND_ROBIN: Final = "roundrobin"
COLUMN: Final = "column"
AUTO: Final = "auto"
POSITION: Final = "position"
FAIL: Final = "fail"
SKIP: Final = "skip"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options that a user gave.

    Attributes:
        topic: None: each row says its own.
        sink_id: None: the id of the streaming query.
        batch_id: of a batch write; a stream has its own.
        row_keys: AUTO: from idempotencyKey or source coordinates; POSITION: partition and row number.
        batch_bytes: bodies and properties of one request, at most; a larger row goes alone.
        send_s: how long a send is tried, over all nodes and failovers.
        rows_per_second: of each task; None for no bound.
        metadata_folder: where the queue list of an exactly-once sink is kept.
        skips_older_batch: rows of a batch below the sink's current one are counted; otherwise they are an error.
        counts_file: gets a line with the counts of each batch.
        access: who writes, and how connections are encrypted.
    """

    name_server: str
    topic: str | None
    is_exactly_once: bool
    sink_id: str | None
    batch_id: int
    queue_selector: str
    row_keys: str
    batch_bytes: int
    send_s: float
    rows_per_second: int | None
    metadata_folder: Location | None
    skips_older_batch: bool
    counts_file: Path | None
    access: BrokerAccess


def read_options(
    given: Mapping[str, str], *, is_stream: bool, is_table: bool = False
) -> SinkOptions:
    """Read and check the options of a sink.

    Args:
        given: names and texts.
        is_stream: a streaming query writes.
        is_table: they are those of a table in a catalog: the source's are passed over.

    Raises:
        PipelineUsageError: names the option and what is wrong with it.
    """
    reader = OptionReader(given, WHAT)
    name_server, topic = _name_server(reader), _topic(reader)
    delivery = reader.choice("delivery", (AT_LEAST_ONCE, EXACTLY_ONCE), AT_LEAST_ONCE)
    is_exactly_once = delivery == EXACTLY_ONCE
    sink_id = _sink_id(reader)
    if is_stream:
        reader.refuse("batchId", "is for batch writes; a stream counts its own batches")
    batch_id = reader.number("batchId", 0, most=10**18 - 1)
    if is_exactly_once and not is_stream and sink_id is None:
        raise PipelineUsageError(
            f"{WHAT}: delivery exactly-once in a batch write needs option sinkId, a name that is the "
            "same when the write is repeated"
        )
    queue_selector = _queue_selector(reader, is_exactly_once=is_exactly_once)
    send_timeout_ms = reader.number("sendTimeoutMs", 3000, least=1, most=600_000)
    retries = reader.number("retries", 3, most=1000)
    options = SinkOptions(
        name_server=name_server,
        topic=topic,
        is_exactly_once=is_exactly_once,
        sink_id=sink_id,
        batch_id=batch_id,
        queue_selector=queue_selector,
        row_keys=reader.choice("rowKeys", (AUTO, POSITION), AUTO),
        batch_bytes=reader.number("sendBatchBytes", 1 << 20, least=1, most=BODY_BYTES_MAX),
        send_s=send_timeout_ms * (retries + 1) / 1000,
        rows_per_second=reader.number("maxRowsPerSecond", None, least=1),
        metadata_folder=_metadata_folder(reader),
        skips_older_batch=reader.choice("olderBatch", (FAIL, SKIP), FAIL) == SKIP,
        counts_file=_counts_file(reader),
        access=read_access(reader),
    )
    reader.finish(SOURCE_OPTIONS if is_table else ())
    return options


def placed_options(given: Mapping[str, str], default_store: str | None) -> dict[str, str]:
    """Return options with the whole name of the checkpoint; see `placed`."""
    return {
        name: placed(text, default_store) if name.lower() == "checkpointlocation" else text
        for name, text in given.items()
    }


def _name_server(reader: OptionReader) -> str:
    name_server = reader.required("nameServer")
    try:
        parse_name_servers(name_server)
    except ClientUsageError as error:
        raise reader.error("nameServer", f"is {name_server!r}: {error}") from error
    return name_server


def _topic(reader: OptionReader) -> str | None:
    topic = reader.text("topic")
    problem = topic_problem(topic) if topic is not None else None
    if problem is not None:
        raise reader.error("topic", f"is {topic!r}: {problem}")
    return topic


def _sink_id(reader: OptionReader) -> str | None:
    text = reader.text("sinkId")
    if text is not None and (
        not text.isprintable() or not 0 < len(text.encode()) <= SINK_ID_BYTES_MAX
    ):
        raise reader.error(
            "sinkId", f"is {text!r}, it must be 1 to {SINK_ID_BYTES_MAX} bytes of printable text"
        )
    return text


def _queue_selector(reader: OptionReader, *, is_exactly_once: bool) -> str:
    """Return how the queue of a row is chosen; exactly once needs a choice that is the same again."""
    selector = reader.choice("queueSelector", (HASH, ROUND_ROBIN, COLUMN), HASH)
    if is_exactly_once and selector == ROUND_ROBIN:
        raise reader.error(
            "queueSelector",
            "is roundrobin: with delivery exactly-once a row must meet the same queue when it is sent "
            "again (use hash or column)",
        )
    return selector


def _counts_file(reader: OptionReader) -> Path | None:
    given = reader.text("countsPath")
    path = location_here(given) if given is not None else None
    if given is not None and path is None:
        raise reader.error("countsPath", f"is {given!r}; it must be a file that the driver sees")
    return path


def _metadata_folder(reader: OptionReader) -> Location | None:
    """Return `metadataPath`, else a folder below the checkpoint; None when there is no place for such a file."""
    given, checkpoint = reader.text("metadataPath"), reader.text("checkpointLocation")
    if given is not None:
        try:
            return location(given)
        except LocationError as error:
            raise reader.error("metadataPath", f"names no folder: {error}") from None
    try:
        return None if checkpoint is None else location(checkpoint) / "rocketmq-sink"
    except LocationError:
        return None
