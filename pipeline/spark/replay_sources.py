"""What a replay reads: all of it once, to count, and then for each batch the part that has its rows.

A stretch of a queue's offsets is counted together with where its rows stand - in which entries of a log, in which
Parquet files - so that a batch reads these, and not everything again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import functions as f

from dledger.raft.ids import Index
from pipeline.spark.history import log_history, parquet_history

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FILE: Final = "_file"
_FILE_PATH: Final = "_metadata.file_path"
"""Hidden column of Spark's; files that a filter on it leaves out are not opened."""


class ReplaySource(Protocol):
    """Messages of the past, and where they stand."""

    def whole(self, topic: str | None) -> DataFrame:
        """Return the messages of a topic, or all of them."""

    def places(self) -> Column:
        """Return the aggregate of rows of `whole` that says where they stand, as an array."""

    def part(self, topic: str, places: Iterable[Any]) -> DataFrame:
        """Return the messages of a topic that stand in some of these places; others may be among them."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """A store's log up to an entry; places are entries, the first and the last one."""

    spark: SparkSession
    store: str
    last_index: Index

    def whole(self, topic: str | None) -> DataFrame:
        """Return the messages, with the index of the entry that each is in."""
        return log_history(self.spark, self.store, self.last_index, topic, with_index=True)

    def places(self) -> Column:
        """Return the first and the last entry of some rows."""
        return f.array(f.min("index"), f.max("index"))

    def part(self, topic: str, places: Iterable[Any]) -> DataFrame:
        """Return the messages from the first of these entries to the last one."""
        indexes = [Index(each) for each in places]
        return log_history(self.spark, self.store, max(indexes), topic, first_index=min(indexes))


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """An archive, or a folder with Parquet files; places are files."""

    spark: SparkSession
    folder: str

    def whole(self, topic: str | None) -> DataFrame:
        """Return the messages, with the file that each is in."""
        frame = self._frame(topic)
        # An archive may have no file of the topic.
        return frame.withColumn(_FILE, f.col(_FILE_PATH) if frame.inputFiles() else f.lit(""))

    def places(self) -> Column:
        """Return the files of some rows."""
        return f.collect_set(_FILE)

    def part(self, topic: str, places: Iterable[Any]) -> DataFrame:
        """Return the messages in these files."""
        return self._frame(topic).where(f.col(_FILE_PATH).isin(sorted(set(places))))

    def _frame(self, topic: str | None) -> DataFrame:
        topics = None if topic is None else frozenset({topic})
        return parquet_history(self.spark, self.folder, topics)
