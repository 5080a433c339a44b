"""How much the tasks of streams have pulled: told by the tasks, gathered by an accumulator of Spark.

A source in Python hands rows to Spark and nothing else, and Spark's reports have no numbers of it. But an accumulator
that a registered format holds reaches its tasks, and what a task has added comes back when it ends. One accumulator
serves a session; a stream is known in it by its metadataPath, which no two of them share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.accumulators import Accumulator, AccumulatorParam

from pipeline.pulling import PullTotals
from pipeline.source_options import SourceOptions

if TYPE_CHECKING:
    from pyspark import SparkContext

PullsByStream = dict[str, PullTotals]


class PullsByStreamParam(AccumulatorParam[PullsByStream]):
    """Adds up totals, stream by stream."""

    def zero(self, value: PullsByStream) -> PullsByStream:
        """Return nothing, whatever is known by now."""
        return {}

    def addInPlace(self, value1: PullsByStream, value2: PullsByStream) -> PullsByStream:
        """Add the second to the first, and return it."""
        for name, more in value2.items():
            value1[name] = value1.get(name, PullTotals()) + more
        return value1


_OF_CONTEXTS: WeakKeyDictionary[SparkContext, Accumulator[PullsByStream]] = WeakKeyDictionary()


def pull_counts(context: SparkContext) -> Accumulator[PullsByStream]:
    """Return the accumulator of a session's context, made when it is asked for first."""
    if context not in _OF_CONTEXTS:
        _OF_CONTEXTS[context] = context.accumulator({}, PullsByStreamParam())
    return _OF_CONTEXTS[context]


def stream_name(options: SourceOptions) -> str | None:
    """Return the name of a stream in the accumulator; None: it cannot be told from others."""
    return None if options.metadata_path is None else str(options.metadata_path)
