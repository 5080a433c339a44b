"""Joins the sink to Spark: planned on the driver, written by tasks, nothing undone.

`writer` and `streamWriter` of the data source come here. The plan (options, columns, queue list) is made on the
driver and travels to the tasks by pickle; a task waits for every acknowledgement before it says that it is
done. What was sent stays sent: an aborted job's rows are there, and for an exactly-once sink its repetition
finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from dledger_mq import MessageQueue
from pipeline.errors import PipelineError, PipelineUsageError
from pipeline.sink.columns import SinkColumns, check_columns
from pipeline.sink.counts import BatchCounts, report, summed
from pipeline.sink.options import WHAT, SinkOptions, placed_options, read_options
from pipeline.sink.queues import plan_queues
from pipeline.sink.rows import RowReader
from pipeline.sink.sender import SinkTask, send_all
from pipeline.spark.failures import printed_first
from pipeline.spark.shipped import with_shipped_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Properties of a streaming task; Spark sets them and documents them nowhere. Tests watch them.
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):
    """The commit message of one task: what it wrote, of which batch."""

    sink_id: str
    batch_id: int
    counts: BatchCounts


@dataclass(frozen=True)
class SinkPlan:
    """The plan that tasks carry out."""

    options: SinkOptions
    columns: SinkColumns
    queues: tuple[MessageQueue, ...]


def plan_sink(
    schema: StructType,
    given: Mapping[str, str],
    *,
    overwrite: bool,
    is_stream: bool,
    is_table: bool = False,
    speculates: bool = False,
    default_store: str | None = None,
) -> SinkPlan:
    """Check everything that can be checked before a task runs.

    Args:
        schema: the frame's `StructType`.
        given: the options.
        overwrite: whether the mode is overwrite (stream: complete).
        is_stream: whether a streaming query writes.
        is_table: whether options and columns are those of a table in a catalog.
        speculates: whether the session may run a task twice at the same time.
        default_store: the session's default file system, in which a checkpoint lies whose name has no scheme.

    Raises:
        PipelineUsageError: option, column or mode.
        PipelineError: no such topic, or nobody there.
    """
    if overwrite:
        mode = "outputMode complete" if is_stream else 'mode "overwrite"'
        raise PipelineUsageError(f'{WHAT} only appends, {mode} is not for topics; use "append"')
    given = placed_options(given, default_store)
    options = read_options(given, is_stream=is_stream, is_table=is_table)
    if speculates and not options.is_exactly_once:
        raise PipelineUsageError(
            f"{WHAT} with delivery at-least-once needs spark.speculation=false: two attempts of a task would send its "
            "rows twice; with delivery exactly-once they are stored once"
        )
    fields = {field.name: field.dataType.simpleString() for field in schema.fields}
    columns = check_columns(fields, options, is_table=is_table)
    return SinkPlan(options, columns, plan_queues(with_shipped_files(options)))


@printed_first()
def _write(plan: SinkPlan, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    sink_id, batch_id = _batch_of(plan.options, context)
    task = SinkTask(partition, sink_id, batch_id, plan.queues)
    reader = RowReader(plan.columns, plan.options, partition)
    options = with_shipped_files(plan.options)
    return SinkCommit(sink_id, batch_id, send_all(options, task, reader, iterator))


def _report(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Report what became of a batch; called on the driver, when all of its tasks are done."""
    commits = [each for each in messages if isinstance(each, SinkCommit)]
    if commits:
        counts = summed(each.counts for each in commits)
        report(counts, commits[0].sink_id, commits[0].batch_id, plan.options.counts_file)


def _batch_of(options: SinkOptions, context: TaskContext | None) -> tuple[str, int]:
    """Return the sink and the batch that a task writes."""
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context is not None else None
    if query_id is None or batch_id is None or options.batch_id:
        if options.is_exactly_once and options.sink_id is None:
            raise PipelineError(
                f"{WHAT}: this version of Spark does not give a task its query and batch "
                f"({QUERY_ID_PROPERTY} {query_id!r}, {BATCH_ID_PROPERTY} {batch_id!r})"
            )
        return options.sink_id or "", options.batch_id
    return options.sink_id or str(query_id), int(batch_id)


class BatchSinkWriter(DataSourceArrowWriter):
    """Writes the tasks of a batch."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one partition and wait until all are stored."""
        return _write(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report what was written: every row was stored when its task ended."""
        _report(self._plan, messages)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes the tasks of a streaming query's batches."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one partition and wait until all are stored."""
        return _write(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Report what was written: every row was stored when its task ended."""
        _report(self._plan, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Do nothing: what was sent may have been read. The batch is repeated."""
