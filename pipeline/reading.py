"""The work of one task of the source: it reads ranges of queues into Arrow batches, without Spark.

Pulled records are decoded in bulk (`pipeline.scan`); nothing is done message by message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa

from dledger_mq.blocking import PullConsumer
from dledger_mq.message.errors import RecordError
from pipeline.broker_view import READ_GROUP
from pipeline.errors import PipelineError, PipelineUsageError
from pipeline.masks import mask_of
from pipeline.pulling import Chunk, PullTotals, RangePuller, ahead
from pipeline.ranges import QueueRange, describe
from pipeline.scan.columns import (
    LABEL_COLUMNS,
    MESSAGE_COLUMNS,
    METADATA_COLUMNS,
    record_batches,
)
from pipeline.scan.properties import PropertyColumn
from pipeline.scan.records import BATCH_BYTES_MAX, BATCH_ROWS_MAX, RecordTable, read_records
from pipeline.source_options import SourceOptions

MAP_OF_TEXTS: Final = pa.map_(pa.string(), pa.string())


def source_columns(options: SourceOptions) -> pa.Schema:
    """Return the columns that the options ask for."""
    columns = list(MESSAGE_COLUMNS)
    if not options.has_properties:
        columns = [column for column in columns if column.name != "properties"]
    elif options.properties_as_map:
        columns = [
            pa.field("properties", MAP_OF_TEXTS) if column.name == "properties" else column
            for column in columns
        ]
    columns.extend(LABEL_COLUMNS)
    if options.has_metadata:
        columns.extend(METADATA_COLUMNS)
    return pa.schema(columns)


def check_columns(wanted: pa.Schema, known: pa.Schema) -> None:
    """Refuse a projection with unknown columns.

    Raises:
        PipelineUsageError: names a column that does not exist, or has another type.
    """
    kinds = {column.name: column.type for column in known}
    for column in wanted:
        kind = kinds.get(column.name)
        if kind is None:
            raise PipelineUsageError(
                f"there is no column {column.name}; there are {', '.join(kinds)}"
            )
        if not column.type.equals(kind):
            raise PipelineUsageError(f"column {column.name} is {kind}, not {column.type}")


def read_batches(
    ranges: Sequence[QueueRange],
    options: SourceOptions,
    schema: pa.Schema,
    *,
    totals: PullTotals | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read ranges; every message of them that the filter wants comes once, queue by queue in order.

    Args:
        ranges: of one or several groups and topics.
        options: of the source.
        schema: the wanted columns, exactly as the batches will have them.
        totals: has what was pulled added to it.

    Raises:
        PipelineError: what `RangePuller` raises, or damaged records; names the ranges.
    """
    consumer = PullConsumer(
        options.name_server,
        READ_GROUP,
        timeout_s=options.retry_timeout_ms / 1000,
        **options.access.arguments(),
    )
    puller = RangePuller(consumer, options, totals)
    with consumer, closing(ahead(puller.chunks(ranges))) as chunks:
        for broker_name, records in _gathered(chunks):
            try:
                table = read_records(records)
                _check_bodies(table, schema)
            except RecordError as error:
                text = f"damaged records came from {broker_name} for {describe(ranges)}: {error}"
                raise PipelineError(text) from error
            table = _wanted(table, options)
            yield from record_batches(table, schema, {"brokerName": broker_name})


def _gathered(chunks: Iterator[Chunk]) -> Iterator[tuple[str, bytes]]:
    """Join chunks of one group up to the size of a batch."""
    held: list[bytes] = []
    name, size, count = "", 0, 0
    for chunk in chunks:
        is_full = (
            size + len(chunk.records) > BATCH_BYTES_MAX or count + chunk.rows_most > BATCH_ROWS_MAX
        )
        if held and (is_full or chunk.broker_name != name):
            yield name, b"".join(held)
            held, size, count = [], 0, 0
        name = chunk.broker_name
        held.append(chunk.records)
        size += len(chunk.records)
        count += chunk.rows_most
    if held:
        yield name, b"".join(held)


def _check_bodies(table: RecordTable, schema: pa.Schema) -> None:
    """Compare the bodies that are wanted with their checksums."""
    if "body" not in schema.names:
        return
    wrong = np.flatnonzero(~table.body_crc_ok())
    if len(wrong):
        first = int(wrong[0])
        raise RecordError(
            f"the body of {table.topics[first]}/{table.queue_id[first]} at queue offset "
            f"{table.queue_offset[first]} does not have its checksum",
            int(table.start[first]),
        )


def _wanted(table: RecordTable, options: SourceOptions) -> RecordTable:
    """Drop what brokers let through and nobody wants."""
    if options.selection.is_everything:
        return table
    properties = PropertyColumn(table)
    return table.select(mask_of(options.selection, len(table), properties.value))
