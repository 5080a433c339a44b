"""Starts streaming queries that keep where they began beside their checkpoint, and that outlive passing failures.

A query that ended because nobody answered, or because a Python worker died, is started again from its checkpoint,
which is what somebody would do by hand. What would end it again in the same way - a wrong option, lost messages, a row
that cannot be sent, a mistake in the job - ends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.spark.checkpoints import METADATA_OPTION, below, qualified
from pipeline.spark.failures import is_passing, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

METADATA_FOLDER: Final = "rocketmq-source"
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


class LiveQuery:
    """A streaming query that is started again while somebody waits for its end.

    Whatever a `StreamingQuery` has, it has, too: of the query that runs now, or ran last.

    Args:
        start: starts the query.
        restarts: the bounds.
    """

    def __init__(self, start: Callable[[], StreamingQuery], restarts: Restarts) -> None:
        self._start = start
        self._restarts = restarts
        self._stopped = threading.Event()
        self._in_a_row = 0
        self.query = start()
        self.restart_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query has ended for good, and start it again meanwhile where that helps.

        Args:
            timeout: how long, in s; None: for ever.

        Returns:
            Whether it has ended; None without a timeout, as Spark does.

        Raises:
            StreamingQueryException: it failed in a way that would come again, or too often in a row.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                if until is None:
                    self.query.awaitTermination()
                    return None
                # Spark wants more than none.
                return bool(self.query.awaitTermination(max(until - time.monotonic(), 0.001)))
            except Exception as error:
                if not self._restarted(error, until):
                    raise

    def stop(self) -> None:
        """End the query; it is not started again."""
        self._stopped.set()
        self.query.stop()

    def _restarted(self, error: Exception, until: float | None) -> bool:
        """Start the query again after its failure; False if it is to stay ended."""
        if self._stopped.is_set() or not is_passing(error):
            return False
        self._in_a_row = 1 if self.query.lastProgress else self._in_a_row + 1
        name = self.query.name or self.query.id
        reason = reason_of(error)
        if self._in_a_row > self._restarts.most:
            most = self._restarts.most
            log.error("query %s failed, and after %d restarts again: %s", name, most, reason)
            return False
        pause = self._restarts.pause_of(self._in_a_row)
        if until is not None and time.monotonic() + pause >= until:
            return False
        log.warning(
            "query %s failed, and is started again in %g s (restart %d of at most %d in a row): %s",
            *(name, pause, self._in_a_row, self._restarts.most, reason),
        )
        if self._stopped.wait(pause):
            return False
        self.query = self._start()
        self.restart_count += 1
        return True


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
    reader = spark.readStream.format("rocketmq").options(**options)
    if not {name.lower() for name in options} & {METADATA_OPTION.lower()}:
        reader = reader.option(METADATA_OPTION, below(checkpoint, METADATA_FOLDER))
    if schema is not None:
        reader = reader.schema(schema)

    def start() -> StreamingQuery:
        return write(reader.load()).option("checkpointLocation", checkpoint).start()

    return LiveQuery(start, restarts)
