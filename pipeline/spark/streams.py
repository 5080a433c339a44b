"""Starts a streaming query that keeps where it began beside its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

METADATA_FOLDER: Final = "rocketmq-source"


def start_stream(
    spark: SparkSession,
    options: Mapping[str, str],
    write: Callable[[DataStreamWriter], DataStreamWriter],
    *,
    checkpoint: str,
    schema: str | None = None,
) -> StreamingQuery:
    """Start a query on topics so that a kill in its first batch loses nothing.

    Args:
        spark: the session.
        options: of the source.
        write: makes a `DataStreamWriter` of the stream's data frame.
        checkpoint: the folder of the checkpoint, on a file system that the driver sees.
        schema: the columns that are wanted; default: all.

    Returns:
        The `StreamingQuery`.
    """
    reader = spark.readStream.format("rocketmq").options(**options)
    reader = reader.option("metadataPath", f"{checkpoint.rstrip('/')}/{METADATA_FOLDER}")
    if schema is not None:
        reader = reader.schema(schema)
    return write(reader.load()).option("checkpointLocation", checkpoint).start()
