"""A query is started again after failures that pass, within bounds, while somebody waits for it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pipeline.spark.streams import LiveQuery, Restarts

NOBODY = "pipeline.errors.InconclusiveError: nobody answers"
GONE = "pipeline.errors.DataLossError: T@b/0 begins at 7"
QUICK = Restarts(most=2, pause_s=0.001)


class Query:
    """A streaming query that ends as it is told to."""

    id = "4711"
    name = None

    def __init__(self, failure: str | None, batches: int = 0) -> None:
        self.failure = failure
        self.lastProgress = {"batchId": batches} if batches else None
        self.is_stopped = False

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return None if timeout is None else True

    def stop(self) -> None:
        self.is_stopped = True


def live(*queries: Query, restarts: Restarts = QUICK) -> LiveQuery:
    ahead: Any = iter(queries)
    return LiveQuery(lambda: next(ahead), restarts)


def test_a_query_goes_on_after_failures_that_pass(caplog: pytest.LogCaptureFixture) -> None:
    query = live(Query(NOBODY), Query(NOBODY), Query(None))
    with caplog.at_level(logging.WARNING):
        assert query.awaitTermination(60) is True
    assert query.restart_count == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"query 4711 failed, and is started again in 0.00{number} s (restart {number} of at most 2 in a row): "
        "nobody answers"
        for number in (1, 2)
    ]
    assert live(Query(None)).awaitTermination() is None


def test_too_many_in_a_row_are_the_end_and_a_batch_between_them_begins_anew() -> None:
    with pytest.raises(RuntimeError, match="nobody answers"):
        live(*[Query(NOBODY) for _ in range(3)]).awaitTermination()
    query = live(*[Query(NOBODY, batches=n % 2) for n in range(9)], Query(None))
    query.awaitTermination()
    assert query.restart_count == 9


def test_what_would_come_again_ends_it() -> None:
    query = live(Query(GONE), Query(None))
    with pytest.raises(RuntimeError, match="begins at 7"):
        query.awaitTermination()
    assert query.restart_count == 0
    with pytest.raises(RuntimeError, match="nobody answers"):
        live(Query(NOBODY), Query(None), restarts=Restarts(most=0)).awaitTermination()


def test_a_query_that_was_stopped_is_not_started_again() -> None:
    first = Query(NOBODY)
    query = live(first, Query(None))
    query.stop()
    assert first.is_stopped
    with pytest.raises(RuntimeError, match="nobody answers"):
        query.awaitTermination()


def test_pauses_grow_up_to_a_bound_and_keep_to_the_time_that_was_given() -> None:
    bounds = Restarts(pause_s=1, pause_max_s=5)
    assert [bounds.pause_of(n) for n in range(1, 5)] == [1, 2, 4, 5]
    with pytest.raises(RuntimeError, match="nobody answers"):
        live(Query(NOBODY), Query(None), restarts=Restarts(pause_s=60)).awaitTermination(0.01)
