"""The format "rocketmq" (also "dledger"): topics as tables and streams, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pyspark.accumulators import Accumulator
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
from pipeline.source_options import FORMAT, read_source_options
from pipeline.spark.failures import printed_first
from pipeline.spark.pull_counts import PullsByStream
from pipeline.spark.schemas import spark_schema
from pipeline.spark.sink import BatchSinkWriter, SinkPlan, StreamSinkWriter, plan_sink
from pipeline.spark.source import TopicReader, TopicStreamReader, default_parallelism
from pipeline.spark.table_options import created_options, keeping, table_options

WITHOUT_OPTIONS: Final = (
    f"{FORMAT} got no options. A table in a catalog keeps them only when it is created without a list of columns: "
    "CREATE TABLE t USING rocketmq OPTIONS (nameServer '...', topic '...')"
)


class RocketMQDataSource(DataSource):
    """Topics of a broker; docs/pipeline-source.md says how they are read, docs/pipeline.md how written.

    Attributes:
        parallelism: how many tasks the session runs at a time; set when it is registered with one.
        speculates: whether the session may run a task twice at the same time; set likewise.
        default_store: the session's default file system; None: the disks of this machine. Set likewise.
        counts: of what the tasks of streams have pulled; set likewise.
    """

    parallelism: ClassVar[int | None] = None
    speculates: ClassVar[bool] = False
    default_store: ClassVar[str | None] = None
    counts: ClassVar[Accumulator[PullsByStream] | None] = None

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "rocketmq"

    @printed_first()
    def schema(self) -> StructType:
        """Return the columns that the options ask for; those of a new table keep its options."""
        created = created_options(self.options)
        if created is None:
            return spark_schema(source_columns(read_source_options(self.options, "either")))
        options = read_source_options(created, "either", is_table=True)
        return keeping(spark_schema(source_columns(options)), created)

    @printed_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        given, is_table = self._given(schema)
        options = read_source_options(given, "batch", is_table=is_table)
        return TopicReader(options, schema, self.parallelism or default_parallelism())

    @printed_first()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        given, is_table = self._given(schema)
        options = read_source_options(given, "stream", is_table=is_table)
        parallelism = self.parallelism or default_parallelism()
        return TopicStreamReader(options, schema, parallelism, self.counts)

    @printed_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan a batch write."""
        return BatchSinkWriter(self._plan_sink(schema, overwrite=overwrite, is_stream=False))

    @printed_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Plan a streaming query's writes."""
        return StreamSinkWriter(self._plan_sink(schema, overwrite=overwrite, is_stream=True))

    def _given(self, schema: StructType) -> tuple[Mapping[str, str], bool]:
        """Return the options, and whether they are those of a table in a catalog."""
        kept = table_options(schema, self.options)
        if kept is None and not self.options:
            raise PipelineUsageError(WITHOUT_OPTIONS)
        return (self.options, False) if kept is None else (kept, True)

    def _plan_sink(self, schema: StructType, *, overwrite: bool, is_stream: bool) -> SinkPlan:
        given, is_table = self._given(schema)
        return plan_sink(
            schema,
            given,
            overwrite=overwrite,
            is_stream=is_stream,
            is_table=is_table,
            speculates=self.speculates,
            default_store=self.default_store,
        )


class DLedgerDataSource(RocketMQDataSource):
    """The same under this project's name."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "dledger"
