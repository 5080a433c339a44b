"""How far a streaming query is behind, read from Spark's own reports of its progress.

Spark's reports have a field `metrics` for each source, and a column for it in the UI, but only sources in Java can fill
them: the interface for Python (4.3) asks a reader for its latest offset and for nothing else. From that offset the lag
follows, and `commitGroup` shows the same to tools that know consumer groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dledger_mq.client.queues import MessageQueue
from pipeline.errors import PipelineUsageError
from pipeline.offsets import Offsets, from_form

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQueryProgress


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
