"""Starts streaming queries that keep where they began beside their checkpoint, and that outlive passing failures.

A query that ended because nobody answered, or because a Python worker died, is started again from its checkpoint,
which is what somebody would do by hand. What would end it again in the same way - a wrong option, lost messages, a row
that cannot be sent, a mistake in the job - ends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import PipelineUsageError
from pipeline.source_options import SourceOptions, read_source_options
from pipeline.spark.checkpoints import METADATA_OPTION, below, qualified
from pipeline.spark.failures import is_passing, reason_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from pipeline.pulling import PullTotals
    from pipeline.spark.pull_counts import PullsByStream

METADATA_FOLDER: Final = "rocketmq-source"
TURN_S: Final = 0.5
"""The time that several queries share before all of them are looked at again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restarts:
    """The bounds within which a query is started again.

    Attributes:
        most: in a row, without a batch that was done in between; 0: never.
        pause_s: before the first of them; it doubles with each.
        pause_max_s: and is never longer.
    """

    most: int = 5
    pause_s: float = 1.0
    pause_max_s: float = 60.0

    def pause_of(self, number: int) -> float:
        """Return the pause before a restart in s; the first one in a row has number 1."""
        return float(min(self.pause_s * 2 ** (number - 1), self.pause_max_s))


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The source of a query.

    Attributes:
        given: its options.
        context: of the session.
    """

    given: Mapping[str, str]
    context: SparkContext

    @property
    def options(self) -> SourceOptions:
        """The options, read. Raises PipelineUsageError, as the query itself does then."""
        return read_source_options(self.given, "stream")

    def pulled(self) -> PullTotals | None:
        """Return what tasks have pulled; None: none has told."""
        from pipeline.spark.pull_counts import pull_counts, stream_name

        told: PullsByStream = pull_counts(self.context).value
        return told.get(stream_name(self.options) or "")


class LiveQuery:
    """A streaming query that is started again while somebody waits for its end.

    Whatever a `StreamingQuery` has, it has, too: of the query that runs now, or ran last. Any thread may wait, and
    several may.

    Args:
        start: starts the query.
        restarts: the bounds; they hold for its first start as well, which the constructor waits for.
        source: what it reads, for `metrics_of`.

    Attributes:
        query: the one that runs, or ran last.
        restart_count: how often another has taken its place.

    Raises:
        What the first start raises, if it would come again, or has come too often.
    """

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        restarts: Restarts,
        source: StreamSource | None = None,
    ) -> None:
        self.source = source
        self._start = start
        self._restarts = restarts
        self._stopped = threading.Event()
        self._turn = threading.Lock()  # of those who wait, one starts it again
        self._in_a_row = 0
        self._due_s: float | None = None
        """The time of the start that is due after a failure, by the monotonic clock; None: none is."""
        self._failure: Exception | None = None
        self._name = "the query"
        self.query = self._first()
        self.restart_count = 0

    def __getattr__(self, name: str) -> Any:
        if name == "query":
            raise AttributeError("the query was not started yet")
        return getattr(self.query, name)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query has ended for good, and start it again meanwhile where that helps.

        Args:
            timeout: how long, in s; None: for ever. A pause before a restart that is longer goes on when
                somebody waits again.

        Returns:
            Whether it has ended; None without a timeout, as Spark does.

        Raises:
            StreamingQueryException: it failed in a way that would come again, or too often in a row.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while self._is_started_again(until_s):
            query = self.query
            try:
                if until_s is None:
                    query.awaitTermination()
                    return None
                # Spark wants more than none.
                return bool(query.awaitTermination(max(until_s - time.monotonic(), 0.001)))
            except Exception as error:
                if not self._is_noted(query, error):
                    raise
        return False

    def stop(self) -> None:
        """End the query; it is not started again."""
        self._stopped.set()
        self.query.stop()

    def _first(self) -> StreamingQuery:
        """Start the query for the first time; what fails meanwhile has a restart's pauses and bounds."""
        while True:
            try:
                return self._named(self._start())
            except Exception as error:
                if not self._is_passed_over(error):
                    raise
            due_s, self._due_s = self._due_s, None
            assert due_s is not None, f"{self._name} failed, and is not to be started"
            time.sleep(max(due_s - time.monotonic(), 0.0))

    def _named(self, query: StreamingQuery) -> StreamingQuery:
        self._name = f"query {query.name or query.id}"
        return query

    def _is_noted(self, query: StreamingQuery, error: Exception) -> bool:
        """Take note of the failure of a query, unless somebody else who waits has done so; False if it is the end."""
        with self._turn:
            if query is not self.query or self._due_s is not None:
                return True
            if query.lastProgress:
                self._in_a_row = 0
            return self._is_passed_over(error)

    def _is_passed_over(self, error: Exception) -> bool:
        """Set the time of the next start after a failure; False if there is to be none."""
        if self._stopped.is_set() or not is_passing(error):
            return False
        self._in_a_row += 1
        reason, most = reason_of(error), self._restarts.most
        if self._in_a_row > most:
            log.error("%s failed, and after %d restarts again: %s", self._name, most, reason)
            return False
        pause_s = self._restarts.pause_of(self._in_a_row)
        log.warning(
            "%s failed, and is started again in %g s (restart %d of at most %d in a row): %s",
            *(self._name, pause_s, self._in_a_row, most, reason),
        )
        self._failure, self._due_s = error, time.monotonic() + pause_s
        return True

    def _is_started_again(self, until_s: float | None) -> bool:
        """Wait for the time of a start that is due, and start; False if `until_s` is before it.

        Raises:
            What ended the query: it was stopped meanwhile, or cannot be started.
        """
        while (due_s := self._due_s) is not None:
            end_s = due_s if until_s is None else min(due_s, until_s)
            if self._stopped.wait(max(end_s - time.monotonic(), 0.0)):
                assert self._failure is not None, "a start is due after a failure only"
                raise self._failure
            if end_s < due_s:
                return False
            with self._turn:
                if self._due_s == due_s:
                    self._start_again()
        return True

    def _start_again(self) -> None:
        """Put another query in the place of one that failed; one that does not start is another failure in the row."""
        try:
            query = self._start()
        except Exception as error:
            if self._is_passed_over(error):
                return
            raise
        self.query = self._named(query)
        self.restart_count += 1
        self._due_s = None
        # `stop` sets the event, then stops the query it finds: whichever was first, the new one is stopped.
        if self._stopped.is_set():
            query.stop()


def await_any(queries: Collection[LiveQuery], timeout: float | None = None) -> LiveQuery | None:
    """Wait until one of several queries has ended for good, and start each again meanwhile where that helps.

    The place of `spark.streams.awaitAnyTermination`, which sees only that a query has failed.

    Args:
        queries: at least one.
        timeout: how long, in s; None: for ever.

    Returns:
        The query that has ended; None: none has in that time.

    Raises:
        StreamingQueryException: one failed in a way that would come again, or too often in a row; the others go on,
            but nobody starts them again before they are waited for.
    """
    if not queries:
        raise PipelineUsageError("there is no query to wait for")
    until_s = None if timeout is None else time.monotonic() + timeout
    turn_s = TURN_S / len(queries)
    while True:
        for query in queries:
            left_s = turn_s if until_s is None else until_s - time.monotonic()
            if query.awaitTermination(max(min(turn_s, left_s), 0.0)):
                return query
        if until_s is not None and time.monotonic() >= until_s:
            return None


def start_stream(
    spark: SparkSession,
    options: Mapping[str, str],
    write: Callable[[DataStreamWriter], DataStreamWriter],
    *,
    checkpoint: str,
    schema: str | None = None,
    restarts: Restarts = Restarts(),
) -> LiveQuery:
    """Start a query on topics so that a kill in its first batch loses nothing.

    Args:
        spark: the session.
        options: of the source; without metadataPath that is a folder below the checkpoint.
        write: makes a `DataStreamWriter` of the stream's data frame; called again for each restart.
        checkpoint: the folder of the checkpoint, as Spark has it: without a scheme one of `fs.defaultFS`.
        schema: the columns that are wanted; default: all.
        restarts: how often the query is started again after a failure that passes.

    Returns:
        The query, which is used like a `StreamingQuery`.

    Raises:
        PipelineUsageError: the checkpoint lies where this package keeps no files, and there is no metadataPath.
    """
    checkpoint = qualified(spark, checkpoint)
    given = dict(options)
    if METADATA_OPTION.lower() not in {name.lower() for name in options}:
        given[METADATA_OPTION] = below(checkpoint, METADATA_FOLDER)
    reader = spark.readStream.format("rocketmq").options(**given)
    if schema is not None:
        reader = reader.schema(schema)

    def start() -> StreamingQuery:
        return write(reader.load()).option("checkpointLocation", checkpoint).start()

    return LiveQuery(start, restarts, StreamSource(given, spark.sparkContext))
