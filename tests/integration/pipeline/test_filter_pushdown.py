"""Why our readers push no filters down: PySpark remembers what was pushed, and the next query is wrong.

When this test fails, PySpark has mended it (docs/pipeline-source.md): readers may then define `pushFilters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

FLAG = "spark.sql.python.filterPushdown.enabled"


class Pushing(DataSourceReader):
    """Twelve rows; takes a filter on `n`."""

    def __init__(self) -> None:
        self.kept: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            if isinstance(one, EqualTo):
                self.kept = one.value
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((n % 4,) for n in range(12) if self.kept is None or n % 4 == self.kept)


class PushingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushing"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Pushing()


def test_a_pushed_filter_still_spoils_the_next_query(spark: Any) -> None:
    spark.dataSource.register(PushingSource)
    spark.conf.set(FLAG, "true")
    try:
        frame = spark.read.format("pushing").load()
        assert frame.where("n = 1").count() == 3
        assert frame.count() == 3, "12 would be right: filter pushdown works now"
    finally:
        spark.conf.unset(FLAG)


def test_our_formats_define_no_push_filters() -> None:
    from pipeline.spark.commitlog import CommitLogReader
    from pipeline.spark.source import TopicReader

    for reader in (TopicReader, CommitLogReader):
        assert reader.pushFilters is DataSourceReader.pushFilters
