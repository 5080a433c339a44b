"""The format "rocketmq" (also "dledger"): topics as tables and streams, read and written."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from pipeline.errors import PipelineUsageError
from pipeline.reading import source_columns
from pipeline.sink.options import WHAT
from pipeline.source_options import read_source_options
from pipeline.spark.schemas import spark_schema
from pipeline.spark.sink import BatchSinkWriter, SinkPlan, StreamSinkWriter, plan_sink
from pipeline.spark.source import TopicReader, TopicStreamReader, default_parallelism


class RocketMQDataSource(DataSource):
    """Topics of a broker; docs/pipeline-source.md says how they are read, docs/pipeline.md how written.

    Attributes:
        parallelism: how many tasks the session runs at a time; set when it is registered with one.
        speculates: whether the session may run a task twice at the same time; set likewise.
    """

    parallelism: ClassVar[int | None] = None
    speculates: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "rocketmq"

    def schema(self) -> StructType:
        """Return the columns that the options ask for."""
        return spark_schema(source_columns(read_source_options(self.options, "either")))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        return TopicReader(self.options, schema, self.parallelism or default_parallelism())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return TopicStreamReader(self.options, schema, self.parallelism or default_parallelism())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan a batch write."""
        return BatchSinkWriter(self._plan_sink(schema, overwrite=overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Plan a streaming query's writes."""
        return StreamSinkWriter(self._plan_sink(schema, overwrite=overwrite, is_stream=True))

    def _plan_sink(self, schema: StructType, *, overwrite: bool, is_stream: bool) -> SinkPlan:
        if self.speculates:
            raise PipelineUsageError(
                f"{WHAT} needs spark.speculation=false: two attempts would send twice"
            )
        return plan_sink(schema, self.options, overwrite=overwrite, is_stream=is_stream)


class DLedgerDataSource(RocketMQDataSource):
    """The same under this project's name."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "dledger"
