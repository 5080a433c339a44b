"""Messages of the past as one frame: an archive's, Parquet files', or those of a store's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pipeline.archive.manifests import MANIFESTS, listed_files
from pipeline.errors import UsageError
from pipeline.spark.archive_rows import parquet_rows

NEEDED: Final = (
    *("topic", "brokerName", "queueId", "queueOffset", "body", "properties", "storeTimestamp"),
)
"""Columns that every frame of messages has; the source, the log reader and archives give them."""


def parquet_history(spark: Any, folder: str, topics: frozenset[str] | None = None) -> Any:
    """Return what an archive's manifests list, or all Parquet files of a folder that is none.

    Raises:
        UsageError: there is no such folder, or its files have other columns.
        PipelineError: the archive is not as its manifests say.
    """
    place = Path(folder).absolute()
    if not place.exists():
        raise UsageError(f"there is no {folder}")
    if (place / MANIFESTS).exists():
        return parquet_rows(spark, listed_files(place, topics), str(place))
    frame = spark.read.parquet(str(place))
    missing = [column for column in NEEDED if column not in frame.columns]
    if missing:
        raise UsageError(f"the files in {folder} have no column {', '.join(missing)}")
    return frame


def log_history(
    spark: Any,
    store: str,
    up_to: str | None = None,
    topics: str | None = None,
    records: str = "messages",
) -> Any:
    """Return the records in a store's log, up to what is committed.

    Raises:
        UsageError: there is no such folder.
    """
    if not Path(store).exists():
        raise UsageError(f"there is no {store}")
    options = {"path": str(Path(store).absolute()), "records": records, "includeMetadata": "true"}
    if up_to is not None:
        options["upTo"] = up_to
    if topics is not None:
        options["topic"] = topics
    return spark.read.format("commitlog").options(**options).load()
