"""The plan of a batch: everything once, few tasks of about one size, the same plan for the same batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.client.queues import MessageQueue
from pipeline.ranges import QueueRange, pack, plan, ranges_between, split

QUEUES = st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b"]), st.integers(0, 60))
SIZES = st.dictionaries(
    QUEUES, st.tuples(st.integers(0, 10**12), st.integers(0, 5000)), max_size=40
)


@given(SIZES, st.integers(1, 8), st.none() | st.integers(1, 50))
def test_a_plan_covers_everything_once_and_is_always_the_same(
    sizes: dict[MessageQueue, tuple[int, int]], bins: int, parts: int | None
) -> None:
    start = {queue: first for queue, (first, _) in sizes.items()}
    end = {queue: first + size for queue, (first, size) in sizes.items()}
    planned = plan(start, end, bins_max=bins, parts_min=parts)
    assert planned == plan(
        dict(reversed(start.items())), dict(reversed(end.items())), bins_max=bins, parts_min=parts
    )
    assert all(planned)
    assert len(planned) <= max(bins, parts or 0)
    pieces = sorted(piece for each in planned for piece in each)
    at = dict(start)
    for piece in pieces:
        assert piece.start == at[piece.queue]
        assert piece.end > piece.start
        at[piece.queue] = piece.end
    assert at == end


def test_queues_are_packed_by_size() -> None:
    queues = [MessageQueue("T", "a", number) for number in range(5)]
    ranges = [
        QueueRange(queue, 0, size) for queue, size in zip(queues, (90, 50, 30, 9, 1), strict=True)
    ]
    assert [[len(one) for one in each] for each in pack(ranges, 2)] == [[90], [50, 30, 9, 1]]
    assert pack([], 3) == []


def test_ranges_are_split_only_when_more_parts_are_wanted() -> None:
    whole = ranges_between({MessageQueue("T", "a", 0): 10}, {MessageQueue("T", "a", 0): 110})
    assert split(whole, 1) == whole
    assert [(one.start, one.end) for one in split(whole, 4)] == [
        (10, 35),
        (35, 60),
        (60, 85),
        (85, 110),
    ]
    assert len(split([QueueRange(MessageQueue("T", "a", 0), 0, 2)], 5)) == 2
