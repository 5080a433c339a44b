"""One member as the leader sees it."""

from __future__ import annotations

from dledger.raft.ids import Index, NodeId
from dledger.raft.progress import Progress, ProgressState
from dledger.raft.slow_disk import SaveTimer


def new_progress(next_index: int = 5) -> Progress:
    return Progress(NodeId("n1"), Index(next_index), 0, SaveTimer(300))


def replicating(match: int, *sent: tuple[int, int]) -> Progress:
    progress = new_progress(match + 1)
    progress.succeeded(Index(match))
    for at_ms, end in sent:
        progress.sent(Index(end), size_bytes=100, now_ms=at_ms)
    return progress


def test_a_probe_waits_after_one_request() -> None:
    progress = new_progress()
    progress.sent(Index(9), size_bytes=100, now_ms=0)
    assert progress.is_waiting
    assert (progress.next_index, len(progress.inflight)) == (5, 0)


def test_a_success_begins_pipelining() -> None:
    progress = new_progress()
    assert progress.succeeded(Index(4))
    assert (progress.state, progress.match_index, progress.next_index) == (
        ProgressState.REPLICATE,
        4,
        5,
    )


def test_an_answer_frees_its_request_and_those_before_it() -> None:
    progress = replicating(4, (2, 7), (3, 9), (4, 12))
    assert (progress.next_index, progress.inflight_bytes) == (12, 300)
    progress.succeeded(Index(8))
    assert [end for end, _, _ in progress.inflight] == [12]
    assert (progress.match_index, progress.inflight_bytes) == (8, 100)


def test_an_answer_that_confirms_nothing_frees_nothing() -> None:
    """A heartbeat's, while the follower still writes: the window is what bounds the memory for it."""
    progress = replicating(4, (2, 7), (3, 9))
    assert not progress.succeeded(Index(4))
    assert (len(progress.inflight), progress.inflight_bytes) == (2, 200)
    assert progress.succeeded(Index(7))
    assert [end for end, _, _ in progress.inflight] == [9]


def test_match_never_goes_back() -> None:
    progress = replicating(4, (2, 7), (3, 9))
    progress.succeeded(Index(8))
    assert not progress.succeeded(Index(6))
    assert progress.match_index == 8
    progress.probe_from(Index(2), last_round=9, is_waiting=False)
    assert (progress.match_index, progress.next_index) == (8, 9)


def test_going_back_to_probe_forgets_what_was_in_flight() -> None:
    progress = replicating(4, (2, 7))
    progress.probe_from(Index(6), last_round=2, is_waiting=True)
    assert (progress.state, progress.next_index, progress.inflight_bytes) == (
        ProgressState.PROBE,
        6,
        0,
    )
    assert not progress.inflight
    assert progress.rejects_after_round == 2


def test_the_view_is_a_frozen_copy() -> None:
    progress = replicating(4, (2, 7))
    view = progress.view(is_learner=True)
    progress.succeeded(Index(6))
    assert (view.match_index, view.next_index, view.inflight_count, view.inflight_bytes) == (
        4,
        7,
        1,
        100,
    )
    assert view.is_learner


def test_a_success_that_comes_late_moves_the_next_index_too() -> None:
    """Sent before a pause, answered after: what it confirms need not be sent again."""
    progress = replicating(4, (2, 9))
    progress.probe_from(Index(5), last_round=2, is_waiting=True)
    progress.succeeded(Index(4))
    assert progress.next_index == 5
    progress.succeeded(Index(8))
    assert (progress.match_index, progress.next_index) == (8, 9)
