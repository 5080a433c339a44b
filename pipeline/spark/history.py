"""Messages of the past as one frame: an archive's, Parquet files', or those of a store's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from dledger.raft.ids import Index
from pipeline.archive.manifests import MANIFESTS, listed_files
from pipeline.errors import PipelineUsageError
from pipeline.folders import open_folder, understood
from pipeline.spark.archive_rows import for_spark, parquet_rows
from pipeline.spark.failures import reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST: Final = Index(1)
NEEDED: Final = (
    *("topic", "brokerName", "queueId", "queueOffset", "body", "properties", "storeTimestamp"),
)
"""Columns that every frame of messages has; the source, the log reader and archives give them."""

LOG_SCHEMA: Final = (
    "topic string, brokerName string, queueId int, queueOffset bigint, flag int, body binary, properties string, "
    "bornTimestamp timestamp, storeTimestamp timestamp"
)
"""The same of a log. A source does not learn what a query uses, so it is asked for no more than that."""

CONTROL_SCHEMA: Final = f"{LOG_SCHEMA}, op string, command string, problem string"
"""Of control records, too."""


def parquet_history(
    spark: SparkSession, folder: str, topics: frozenset[str] | None = None
) -> DataFrame:
    """Return what an archive's manifests list, or all Parquet files of a folder that is none.

    Raises:
        PipelineUsageError: there is no such folder, nothing in it is Parquet, or its files have other columns.
        PipelineError: the archive is not as its manifests say.
    """
    place = understood(folder)
    place = place.absolute() if isinstance(place, Path) else place
    if isinstance(place, Path) and not place.exists():
        raise PipelineUsageError(f"there is no {folder}")
    is_here = isinstance(place, Path) and (place / MANIFESTS).exists()
    if is_here or open_folder(place).names(MANIFESTS):
        return parquet_rows(spark, listed_files(place, topics), str(place))
    try:
        frame = spark.read.parquet(for_spark(str(place)))
    except AnalysisException as error:
        raise PipelineUsageError(
            f"{folder} cannot be read as Parquet: {reason_of(error)}"
        ) from error
    missing = [column for column in NEEDED if column not in frame.columns]
    if missing:
        raise PipelineUsageError(f"the files in {folder} have no column {', '.join(missing)}")
    return frame


def log_history(
    spark: SparkSession,
    store: str,
    last_index: Index,
    topic: str | None = None,
    *,
    first_index: Index = FIRST,
    with_control: bool = False,
    with_index: bool = False,
) -> DataFrame:
    """Return the messages in a store's log from an entry up to another.

    Args:
        spark: the session.
        store: the folder.
        last_index: the last entry that is read.
        topic: whose; None: all.
        first_index: the first entry that is read.
        with_control: control records as well.
        with_index: the column `index` as well, of the entry that a message is in.
    """
    options = {
        "fromIndex": str(first_index),
        "upTo": str(last_index),
        "records": "all" if with_control else "messages",
    }
    if topic is not None:
        options["topic"] = topic
    schema = CONTROL_SCHEMA if with_control else LOG_SCHEMA
    schema += ", index bigint" if with_index else ""
    return spark.read.format("commitlog").schema(schema).options(**options).load(store)
