"""How far a streaming query is behind and how much it pulls: from Spark's own reports of its progress, and beside them.

Spark's reports have a field `metrics` for each source, and a column for it in the UI, but only sources in Java can fill
them: the interface for Python (4.3) asks a reader for its latest offset and for nothing else. From that offset the lag
follows (`lag_of`), and `commitGroup` shows the same to tools that know consumer groups. `metrics_of` asks brokers for
the rest, and the accumulator that tasks add their pulls to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dledger_mq.client.queues import MessageQueue
from pipeline.broker_view import BrokerView
from pipeline.errors import PipelineUsageError
from pipeline.offsets import Offsets, from_form

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQueryProgress

    from pipeline.spark.streams import LiveQuery


@dataclass(frozen=True, slots=True)
class QueueBehind:
    """The lag of a query in one queue.

    Attributes:
        messages: that are committed, and not done.
        seconds: since the first of them was stored, by the broker's clock then and this machine's now; 0 without one.
    """

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """The lag of a query, and the pulls of its tasks.

    Attributes:
        queues: each that a batch has read from, or has noted.
        pulls: answers of brokers that the tasks have had, since the query was started in this session, over its
            restarts and with what was read twice; of tasks that have ended. None: no task has told.
        size: bytes of records in them, as they came; None likewise.
    """

    queues: dict[MessageQueue, QueueBehind]
    pulls: int | None
    size: int | None

    @property
    def messages(self) -> int:
        """The lag of all queues together."""
        return sum(each.messages for each in self.queues.values())

    @property
    def seconds(self) -> float:
        """The lag of the queue that is furthest behind."""
        return max((each.seconds for each in self.queues.values()), default=0.0)


def metrics_of(query: LiveQuery) -> SourceMetrics:
    """Ask brokers how far a query is behind now: beyond the last batch that is done.

    Args:
        query: that `start_stream` has started.

    Raises:
        PipelineUsageError: it was started otherwise.
        InconclusiveError: brokers do not answer.
    """
    source = query.source
    if source is None:
        raise PipelineUsageError("only a query that start_stream has started knows its source")
    progress = query.lastProgress
    done = _done(progress) if progress else {}
    pulled = source.pulled()
    return SourceMetrics(
        _behind(BrokerView(source.options), done) if done else {},
        None if pulled is None else pulled.pulls,
        None if pulled is None else pulled.size,
    )


def _behind(view: BrokerView, done: Offsets) -> dict[MessageQueue, QueueBehind]:
    """Ask what lies behind offsets; queues that are gone are left out. Raises as `BrokerView.bounds`."""
    with closing(view):
        bounds = view.bounds(may_miss=True)
        lags = {
            queue: max(bounds[queue].end - max(at, bounds[queue].start), 0)
            for queue, at in done.items()
            if queue in bounds
        }
        stored = view.store_times({queue: done[queue] for queue, lag in lags.items() if lag})
    now_ms = time.time() * 1000
    return {
        queue: QueueBehind(lag, max(now_ms - stored.get(queue, now_ms), 0.0) / 1000)
        for queue, lag in lags.items()
    }


def _done(progress: Mapping[str, Any] | StreamingQueryProgress) -> Offsets:
    """Return what the last batch has ended with."""
    done: Offsets = {}
    for source in progress["sources"]:
        done |= _offsets(source["endOffset"])
    return done


def lag_of(progress: Mapping[str, Any] | StreamingQueryProgress) -> dict[MessageQueue, int]:
    """Return how many messages each queue has beyond what a query has read.

    Args:
        progress: `query.lastProgress`, or what a `StreamingQueryListener` gets.

    Returns:
        By queue; empty where no source of ours has reported yet.
    """
    lags: dict[MessageQueue, int] = {}
    for source in progress["sources"]:
        done, newest = (_offsets(source[name]) for name in ("endOffset", "latestOffset"))
        for queue, end in newest.items():
            lags[queue] = lags.get(queue, 0) + max(end - done.get(queue, end), 0)
    return lags


def _offsets(text: object) -> Offsets:
    """Read an offset of a report; nothing where it is none of ours."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
        return from_form(value, "an offset of a query's progress")
    except (ValueError, PipelineUsageError):
        return {}
