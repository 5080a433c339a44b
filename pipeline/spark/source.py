"""Reading topics: the batch reader and the stream reader behind `format("rocketmq")`.

Spark makes these objects where it likes, and pickles them: a planner asks brokers (`broker_view`), tasks in
workers read the ranges that the planner gave them (`reading`), and nothing else passes between the two.

Filters are not pushed down on purpose: PySpark 4.3 keeps what was pushed for one query in the table, and the
next query on it returns too few rows (tests/integration/pipeline/test_filter_pushdown.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from pipeline.archive.history import History, HistoryPart, read_history
from pipeline.broker_view import BrokerView
from pipeline.locations import Location
from pipeline.offsets import OffsetsForm, from_form
from pipeline.planning import JoinedView, StreamOffsets, batch_offsets, divided
from pipeline.pulling import PullTotals
from pipeline.ranges import QueueRange, plan
from pipeline.reading import check_columns, read_batches, source_columns
from pipeline.source_options import SourceOptions
from pipeline.spark.failures import printed_first
from pipeline.spark.pull_counts import PullsByStream, stream_name
from pipeline.spark.schemas import arrow_schema, spark_schema
from pipeline.spark.shipped import with_shipped_files


class RangesPartition(InputPartition):
    """The offsets that one task reads from brokers."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        self.ranges = ranges


class HistoryPartition(InputPartition):
    """The files that one task reads from an archive."""

    def __init__(self, part: HistoryPart) -> None:
        self.part = part


class TopicTasks:
    """The common part of both readers: cutting a batch into tasks, and the tasks themselves.

    Args:
        options: of the source.
        schema: the wanted columns, all or some.
        parallelism: how many tasks a batch gets at most, unless numPartitions says so.
        counts: is told what the tasks of a stream have pulled.

    Raises:
        PipelineUsageError: a column does not exist or has another type.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        parallelism: int,
        counts: Accumulator[PullsByStream] | None = None,
    ) -> None:
        self.options = options
        self._counts = counts
        self._schema = arrow_schema(schema)
        check_columns(self._schema, arrow_schema(spark_schema(source_columns(options))))
        self.tasks_max = options.num_partitions or parallelism

    def tasks(
        self, start: Mapping[MessageQueue, QueueOffset], end: Mapping[MessageQueue, QueueOffset]
    ) -> list[InputPartition]:
        """Return the tasks between two offsets; what is in `end` only has no rows yet."""
        known = {queue: offset for queue, offset in end.items() if queue in start}
        parts = plan(
            start,
            known,
            bins_max=self.tasks_max,
            parts_min=self.options.min_partitions,
        )
        return [RangesPartition(ranges) for ranges in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what a task has; nothing if Spark asks for the read of an empty plan."""
        with printed_first():
            if isinstance(partition, RangesPartition):
                options = with_shipped_files(self.options)
                totals = PullTotals()
                try:
                    yield from read_batches(partition.ranges, options, self._schema, totals=totals)
                finally:
                    self._report(totals)
            elif isinstance(partition, HistoryPartition):
                yield from read_history(partition.part, self.options, self._schema)

    def _report(self, totals: PullTotals) -> None:
        """Report to the driver what a task has pulled; of one that fails nothing arrives."""
        name = stream_name(self.options)
        if self._counts is not None and name is not None:
            self._counts.add({name: totals})


class TopicReader(DataSourceReader):
    """Reads topics as a table: from start to end as they are when the first action runs."""

    def __init__(self, options: SourceOptions, schema: StructType, parallelism: int) -> None:
        self._tasks = TopicTasks(options, schema, parallelism)

    @printed_first()
    def partitions(self) -> list[InputPartition]:
        """Decide start and end, and distribute the ranges over partitions."""
        options = self._tasks.options
        view = BrokerView(with_shipped_files(options))
        try:
            if options.archive is not None:
                return self._with_archive(options.archive, view)
            return self._tasks.tasks(*batch_offsets(options, view))
        finally:
            view.close()

    def _with_archive(self, archive: Location, view: BrokerView) -> list[InputPartition]:
        """Return tasks of which some read the archive, and the others what comes after it."""
        options = self._tasks.options
        opened: list[History] = []

        def open_history(broker_name: str | None) -> History:
            opened[:] = [History(archive, options.wants, broker_name)]
            return opened[0]

        joined = JoinedView(options, view, open_history)
        start, end = batch_offsets(options, joined)
        archived, live = divided(start, end, joined.past)
        parts = opened[0].parts(archived, self._tasks.tasks_max)
        return [*map(HistoryPartition, parts), *self._tasks.tasks(live, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges."""
        return self._tasks.read(partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream; see `pipeline.planning.StreamOffsets`."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        parallelism: int,
        counts: Accumulator[PullsByStream] | None = None,
    ) -> None:
        self._tasks = TopicTasks(options, schema, parallelism, counts)
        self._view = BrokerView(with_shipped_files(options))
        self._offsets = StreamOffsets(options, self._view)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit that maxOffsetsPerTrigger sets."""
        most = self._tasks.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @printed_first()
    def initialOffset(self) -> OffsetsForm:
        """Return where a new query begins."""
        return self._offsets.initial()

    @printed_first()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present ends as the end of the stream."""
        self._offsets.freeze()

    @printed_first()
    def latestOffset(self, start: OffsetsForm, limit: ReadLimit) -> OffsetsForm:
        """Return the end of the next batch."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._offsets.latest(start, most)

    def reportLatestOffset(self) -> OffsetsForm | None:
        """Return what is committed, for the lag in progress reports."""
        return self._offsets.newest()

    def partitions(self, start: OffsetsForm, end: OffsetsForm) -> list[InputPartition]:
        """Return the partitions between two offsets; depends on nothing else, so that a batch can be repeated."""
        return self._tasks.tasks(
            from_form(start, "the start of a batch"), from_form(end, "the end of a batch")
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges."""
        return self._tasks.read(partition)

    def stop(self) -> None:
        """Close the connections to the brokers."""
        self._view.close()


def default_parallelism() -> int:
    """Return how many tasks a batch gets when nobody knows the cluster."""
    return max(os.cpu_count() or 1, 2)
