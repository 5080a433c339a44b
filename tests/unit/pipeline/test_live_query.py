"""A query is started again after failures that pass, within bounds, while somebody waits for it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pipeline.errors import PipelineUsageError
from pipeline.spark.streams import LiveQuery, Restarts, await_any

NOBODY = "pipeline.errors.InconclusiveError: nobody answers"
NO_WORKER = "org.apache.spark.SparkException: Python worker failed to connect back."
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


class Running(Query):
    """One that runs until it is stopped."""

    def __init__(self) -> None:
        super().__init__(None)
        self.ended = threading.Event()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        is_over = self.ended.wait(timeout)
        return None if timeout is None else is_over

    def stop(self) -> None:
        super().stop()
        self.ended.set()


def live(*queries: Query | str, restarts: Restarts = QUICK) -> LiveQuery:
    """One that starts these in turn; a text is what a start fails with."""
    ahead = iter(queries)

    def start() -> Any:
        found = next(ahead)
        if not isinstance(found, str):
            return found
        raise RuntimeError(found)

    return LiveQuery(start, restarts)


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


def test_a_start_that_fails_is_a_failure_in_the_row(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        query = live(NO_WORKER, Query(NOBODY), Query(None))
        assert query.awaitTermination() is None
    assert query.restart_count == 1
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "the query failed, and is started again in 0.001 s",
        "query 4711 failed, and is started again in 0.002 s",
    ]
    query = live(Query(NOBODY, batches=1), NO_WORKER, Query(None))
    assert query.awaitTermination(60) is True
    with pytest.raises(RuntimeError, match="connect back"):
        live(Query(NOBODY, batches=1), NO_WORKER, NO_WORKER, Query(None)).awaitTermination()
    with pytest.raises(RuntimeError, match="connect back"):
        live(NO_WORKER, NO_WORKER, NO_WORKER, Query(None))
    with pytest.raises(RuntimeError, match="begins at 7"):
        live(GONE, Query(None))
    with pytest.raises(RuntimeError, match="begins at 7"):
        live(Query(NOBODY), GONE, Query(None)).awaitTermination()


def test_a_query_that_is_stopped_while_it_is_started_again_ends() -> None:
    new = Running()
    queries: Any = iter([Query(NOBODY), new])

    def start() -> Any:
        found = next(queries)
        if found is new:
            query.stop()  # by another thread, say
        return found

    query = LiveQuery(start, QUICK)
    assert query.awaitTermination(60) is True
    assert new.is_stopped


def test_several_may_wait_for_a_query_and_one_of_them_starts_it_again() -> None:
    new = Running()
    query = live(Query(NOBODY), new, restarts=Restarts(pause_s=0.05))
    ended: list[object] = []
    waiting = [
        threading.Thread(target=lambda: ended.append(query.awaitTermination(60))) for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    while query.query is not new:
        waiting[0].join(0.01)
    query.stop()
    for thread in waiting:
        thread.join(60)
    assert ended == [True] * 3
    assert query.restart_count == 1


def test_of_several_queries_each_is_started_again_while_somebody_waits_for_any() -> None:
    first = live(Running())
    second = live(Query(NOBODY), NO_WORKER, Query(None))
    assert await_any([first, second]) is second
    assert (first.restart_count, second.restart_count) == (0, 1)
    assert await_any([first], 0.01) is None
    first.stop()
    assert await_any([first], 60) is first
    with pytest.raises(RuntimeError, match="begins at 7"):
        await_any([live(Running()), live(Query(GONE))])
    with pytest.raises(PipelineUsageError, match="no query"):
        await_any([])


def test_pauses_grow_up_to_a_bound_and_go_on_when_somebody_waits_again() -> None:
    bounds = Restarts(pause_s=1, pause_max_s=5)
    assert [bounds.pause_of(n) for n in range(1, 5)] == [1, 2, 4, 5]
    query = live(Query(NOBODY), Query(None), restarts=Restarts(pause_s=60))
    assert [query.awaitTermination(0.01) for _ in range(7)] == [False] * 7
    query = live(Query(NOBODY), Query(None), restarts=Restarts(pause_s=0.1))
    assert query.awaitTermination(0.01) is False
    assert query.awaitTermination(60) is True
    assert query.restart_count == 1
    query = live(Query(NOBODY), Query(None), restarts=Restarts(pause_s=60))
    assert query.awaitTermination(0.01) is False
    query.stop()
    with pytest.raises(RuntimeError, match="nobody answers"):
        query.awaitTermination()
