"""The format "commitlog": the log in a store's folder as a table, scanned in parallel and up to what is committed.

What is read is settled at the first action of a data frame, by one process; tasks get ranges of the log and
nothing else. The path must lead to the store on every machine where tasks run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.log_options import log_columns, plan_log, read_log_options, scan_options
from pipeline.scan.batches import scan_batches
from pipeline.scan.columns import check_columns
from pipeline.scan.ranges import LogRange
from pipeline.spark.failures import printed_first
from pipeline.spark.schemas import arrow_schema, spark_schema
from pipeline.spark.shipped import with_shipped_files


class LogPartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, range_: LogRange) -> None:
        self.range = range_


class CommitLogReader(DataSourceReader):
    """Plans the scan of a store, and carries out its parts.

    Raises:
        PipelineUsageError: an option or a column does not exist.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = read_log_options(given)
        self._scan = scan_options(self._options, arrow_schema(schema))
        check_columns(self._scan.schema, {})

    @printed_first()
    def partitions(self) -> list[InputPartition]:
        """Decide how far to read, and split the log into ranges."""
        return [LogPartition(each) for each in plan_log(with_shipped_files(self._options)).ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range; nothing if Spark asks for the read of an empty plan."""
        with printed_first():
            if isinstance(partition, LogPartition):
                yield from scan_batches(partition.range, self._scan)


class CommitLogDataSource(DataSource):
    """The log of one store; docs/pipeline-jobs.md says how it is read."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "commitlog"

    @printed_first()
    def schema(self) -> StructType:
        """Return the columns that the options ask for."""
        return spark_schema(log_columns(read_log_options(self.options)))

    @printed_first()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table."""
        return CommitLogReader(self.options, schema)
