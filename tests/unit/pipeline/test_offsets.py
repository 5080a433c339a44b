"""Arithmetic of offsets: one text for equal offsets, limits that add up, losses that are named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.client.queues import MessageQueue
from pipeline.errors import PipelineUsageError
from pipeline.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    Offsets,
    from_form,
    limited,
    loss_at_end,
    loss_at_start,
    reached,
    resolved,
    to_form,
    within,
)

A = MessageQueue("T", "broker-a", 0)
B = MessageQueue("T", "broker-a", 1)
TEN = MessageQueue("T", "broker-a", 10)
QUEUES = st.builds(
    MessageQueue,
    st.sampled_from(["T", "Orders", "%RETRY%g"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 20),
)
BACKLOGS = st.dictionaries(
    QUEUES, st.tuples(st.integers(0, 2**40), st.integers(0, 1000)), max_size=9
)


@given(st.dictionaries(QUEUES, st.integers(0, 2**63 - 1)))
def test_equal_offsets_have_one_text_whatever_their_order(offsets: Offsets) -> None:
    text = json.dumps(to_form(offsets))
    assert json.dumps(to_form(dict(reversed(offsets.items())))) == text
    assert from_form(json.loads(text), "it") == offsets
    assert json.dumps(to_form(from_form(json.loads(text), "it"))) == text


def test_queue_ids_sort_as_numbers() -> None:
    assert list(to_form({TEN: 1, B: 2})["T"]["broker-a"]) == ["1", "10"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([], "it: [] is not an object"),
        ({"T": 5}, "it, topic T: 5 is not an object"),
        ({"T": {"b": {"x": 5}}}, "topic T, broker b, queue x: a queue id is a number"),
        ({"T": {"b": {"0": "5"}}}, "topic T, broker b, queue 0: the offset '5' is not a whole"),
        ({"T": {"b": {"0": True}}}, "the offset True is not a whole"),
        ({"T": {"b": {"0": -1}}}, "the offset -1 is not 0 or more"),
        ({"T": {"b": {"0": 1, "00": 1}}}, "the queue is named twice"),
        ({"T": {"b": {"0": 2**63}}}, "is not 0 or more"),
    ],
)
def test_what_is_no_offset_is_refused_with_its_place(value: object, place: str) -> None:
    with pytest.raises(PipelineUsageError) as caught:
        from_form(value, "it")
    assert place in str(caught.value)


def test_marks_are_taken_where_they_are_allowed() -> None:
    marked = from_form({"T": {"broker-a": {"0": -1, "1": -2}}}, "it", frozenset({LATEST, EARLIEST}))
    assert resolved(marked, {A: Bounds(3, 9), B: Bounds(4, 8)}, "it") == {A: 9, B: 4}


def test_offsets_must_name_the_queues_that_exist_and_no_others() -> None:
    with pytest.raises(PipelineUsageError, match="leaves out T@broker-a/1"):
        resolved({A: 1}, {A: Bounds(0, 1), B: Bounds(0, 1)}, "it")
    with pytest.raises(PipelineUsageError, match="do not exist: T@broker-a/1"):
        resolved({A: 1, B: 1}, {A: Bounds(0, 1)}, "it")


def test_losses_are_named_queue_by_queue() -> None:
    bounds = {A: Bounds(10, 20), B: Bounds(0, 5)}
    assert not loss_at_start({A: 10, B: 5}, bounds)
    loss = str(loss_at_start({A: 9, B: 6, TEN: 1}, bounds))
    assert "T@broker-a/0 begins at 10, 9 was next" in loss
    assert "T@broker-a/1 ends at 5, 6 was next" in loss
    assert "T@broker-a/10 is gone, 1 was next" in loss
    assert "before its start 12" in str(loss_at_end({A: 12}, {A: 11}, bounds))
    assert "it ends at 20" in str(loss_at_end({A: 12}, {A: 21}, bounds))
    assert within({A: 9, B: 6, TEN: 1}, bounds) == {A: 10, B: 5}


def test_a_stream_never_goes_back_and_forgets_no_queue() -> None:
    assert reached({A: 7, B: 3}, {A: Bounds(0, 5), TEN: Bounds(2, 4)}) == {A: 7, B: 3, TEN: 4}


@given(BACKLOGS, st.integers(1, 3000))
def test_limits_are_used_up_and_every_backlog_moves(
    backlogs: dict[MessageQueue, tuple[int, int]], most: int
) -> None:
    start = {queue: first for queue, (first, _) in backlogs.items()}
    end = {queue: first + size for queue, (first, size) in backlogs.items()}
    found = limited(start, end, most)
    shares = {queue: found[queue] - start[queue] for queue in end}
    sizes = {queue: size for queue, (_, size) in backlogs.items()}
    waiting = sum(size > 0 for size in sizes.values())
    assert sum(shares.values()) == min(sum(sizes.values()), max(most, waiting))
    for queue, size in sizes.items():
        assert min(size, 1) <= shares[queue] <= size
    assert found == limited(dict(reversed(start.items())), dict(reversed(end.items())), most)


def test_limits_follow_the_backlog() -> None:
    assert limited({A: 0, B: 100}, {A: 300, B: 200}, 40) == {A: 30, B: 110}
