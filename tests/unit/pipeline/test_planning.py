"""The ends of batches and streams, against brokers that are a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from dledger_mq.client.queues import MessageQueue
from pipeline.errors import DataLossError, InconclusiveError, PipelineUsageError
from pipeline.offsets import Bounds, OffsetsForm
from pipeline.planning import INITIAL_FILE, JoinedView, StreamOffsets, batch_offsets, divided
from pipeline.ranges import QueueRange
from pipeline.source_options import SourceOptions, Use, matching, read_source_options

A = MessageQueue("T", "b", 0)
B = MessageQueue("T", "b", 1)
LEAST = {"nameServer": "127.0.0.1:9876", "topic": "T"}


class TableView:
    """Brokers whose queues are what the test says."""

    def __init__(self, bounds: dict[MessageQueue, Bounds]) -> None:
        self.table = bounds
        self.times: dict[MessageQueue, int] = {}
        self.stored: list[dict[MessageQueue, int]] = []
        self.takes_offsets = True
        self.away: dict[MessageQueue, Bounds] = {}
        self.is_led = True

    def bounds(self, *, may_miss: bool = False) -> dict[MessageQueue, Bounds]:
        return dict(self.table)

    def look_for(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        if not self.is_led:
            raise InconclusiveError("no leader")
        return {queue: self.away[queue] for queue in queues if queue in self.away}

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        return {queue: self.times[queue] for queue in queues}

    def try_commit(self, offsets: Mapping[MessageQueue, int]) -> bool:
        self.stored.append(dict(offsets))
        return self.takes_offsets


def options(use: Use, **more: object) -> SourceOptions:
    given = LEAST | {name: str(value) for name, value in more.items()}
    return read_source_options({n: text for n, text in given.items() if text != "None"}, use)


def form(**offsets: int) -> OffsetsForm:
    return {"T": {"b": {name[1:]: offset for name, offset in offsets.items()}}}


@pytest.fixture
def view() -> TableView:
    return TableView({A: Bounds(10, 20), B: Bounds(0, 5)})


def test_a_batch_is_everything_that_is_committed(view: TableView) -> None:
    assert batch_offsets(options("batch"), view) == ({A: 10, B: 0}, {A: 20, B: 5})


def test_a_batch_between_offsets(view: TableView) -> None:
    wanted = options(
        "batch",
        startingOffsets=json.dumps(form(q0=12, q1=-2)),
        endingOffsets=json.dumps(form(q0=15, q1=-1)),
    )
    assert batch_offsets(wanted, view) == ({A: 12, B: 0}, {A: 15, B: 5})


@pytest.mark.parametrize(
    ("start", "end", "text", "left"),
    [
        (form(q0=9, q1=0), None, "T@b/0 begins at 10, 9 was next", ({A: 10, B: 0}, {A: 20, B: 5})),
        (form(q0=10, q1=6), None, "T@b/1 ends at 5, 6 was next", ({A: 10, B: 5}, {A: 20, B: 5})),
        (None, form(q0=21, q1=5), "T@b/0 is to be read to 21", ({A: 10, B: 0}, {A: 20, B: 5})),
        (
            form(q0=15, q1=0),
            form(q0=14, q1=5),
            "before its start 15",
            ({A: 15, B: 0}, {A: 15, B: 5}),
        ),
    ],
)
def test_offsets_out_of_range_are_data_loss_or_cut(
    view: TableView,
    start: OffsetsForm | None,
    end: OffsetsForm | None,
    text: str,
    left: tuple[dict[MessageQueue, int], dict[MessageQueue, int]],
) -> None:
    given = {"startingOffsets": start, "endingOffsets": end}
    more = {name: json.dumps(value) for name, value in given.items() if value}
    with pytest.raises(DataLossError) as caught:
        batch_offsets(options("batch", **more), view)
    assert text in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    assert batch_offsets(options("batch", failOnDataLoss="false", **more), view) == left


def test_times(view: TableView) -> None:
    view.times = {A: 13, B: 5}
    with pytest.raises(
        PipelineUsageError, match="option startingTimestamp: T@b/1 have no message stored at 7 ms"
    ):
        batch_offsets(options("batch", startingTimestamp=7), view)
    late = options("batch", startingTimestamp=7, startingOffsetsByTimestampStrategy="latest")
    assert batch_offsets(late, view) == ({A: 13, B: 5}, {A: 20, B: 5})
    assert batch_offsets(options("batch", endingTimestamp=7), view) == (
        {A: 10, B: 0},
        {A: 13, B: 5},
    )


def test_times_of_queues(view: TableView) -> None:
    view.times = {A: 13, B: 5}
    starting = json.dumps(form(q0=7, q1=9))
    with pytest.raises(
        PipelineUsageError,
        match="option startingOffsetsByTimestamp: T@b/1 have no message stored at 9",
    ):
        batch_offsets(options("batch", startingOffsetsByTimestamp=starting), view)
    both = options(
        "batch",
        startingOffsetsByTimestamp=starting,
        startingOffsetsByTimestampStrategy="latest",
        endingOffsetsByTimestamp=starting,
        startingOffsets=json.dumps(form(q0=0, q1=0)),
    )
    assert batch_offsets(both, view) == ({A: 13, B: 5}, {A: 13, B: 5}), "times before offsets"
    some = options("batch", endingOffsetsByTimestamp=json.dumps(form(q0=7)))
    with pytest.raises(PipelineUsageError, match=r"endingOffsetsByTimestamp .* leaves out T@b/1"):
        batch_offsets(some, view)


def test_of_assigned_queues_nothing_else_is_read(view: TableView) -> None:
    wanted = options("stream", topic=None, assign='{"T": {"b": [1]}}', startingOffsets="earliest")
    narrow = TableView({B: view.table[B]})
    stream = StreamOffsets(wanted, narrow)
    assert stream.initial() == form(q1=0)
    assert stream.latest(form(q1=0), None) == form(q1=5)
    with pytest.raises(DataLossError, match="stands in T@b/0, which option assign leaves out"):
        stream.latest(form(q0=12, q1=0), None)
    batch = options("batch", topic=None, assign='{"T": [1]}')
    both = JoinedView(batch, narrow, lambda group: TablePast({A: Bounds(0, 9), B: Bounds(0, 2)}))
    assert both.bounds() == {B: Bounds(0, 5)}
    nowhere = options("batch", topic=None, assign='{"T": [1, 7]}')
    with pytest.raises(PipelineUsageError, match="T@any broker/7 is neither"):
        JoinedView(nowhere, narrow, lambda group: TablePast({})).bounds()


def test_a_stream_reads_what_is_new(view: TableView) -> None:
    stream = StreamOffsets(options("stream"), view)
    start = stream.initial()
    assert start == form(q0=20, q1=5)
    assert stream.latest(start, None) == start
    view.table[A] = Bounds(10, 30)
    assert stream.latest(start, None) == form(q0=30, q1=5)
    assert stream.newest() == form(q0=30, q1=5)


def test_the_checkpoint_of_another_query_is_refused(view: TableView) -> None:
    stream = StreamOffsets(options("stream", commitGroup="g"), view)
    other = {"Other": {"b": {"0": 7}}, "T": {"b": {"0": 12, "1": 0}}}
    with pytest.raises(DataLossError, match="stands in topic Other, and the query reads topic T"):
        stream.latest(other, None)
    assert view.stored == [], "nothing of it is shown as done"
    ahead = StreamOffsets(options("stream", failOnDataLoss="false"), view).latest(other, None)
    assert ahead == {"Other": {"b": {"0": 7}}, "T": {"b": {"0": 20, "1": 5}}}


def test_the_initial_offset_is_settled_once(view: TableView, tmp_path: Path) -> None:
    kept = options("stream", metadataPath=tmp_path / "meta")
    first = StreamOffsets(kept, view).initial()
    view.table[A] = Bounds(10, 99)
    assert StreamOffsets(kept, view).initial() == first
    unkept = StreamOffsets(options("stream"), view)
    again = unkept.initial()
    view.table[A] = Bounds(10, 100)
    assert unkept.initial() == again != first


@pytest.mark.parametrize(
    "more",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": '{"T":{"b":{"0":12,"1":0}}}'},
        {"startingTimestamp": 5},
        {"startingOffsetsByTimestamp": '{"T":{"b":{"0":12,"1":0}}}'},
        {"topic": "T,U"},
        {"topic": None, "topicPattern": "T"},
        {"topic": None, "assign": '{"T":[0,1]}'},
    ],
)
def test_two_queries_do_not_share_where_they_began(
    view: TableView, tmp_path: Path, more: dict[str, object]
) -> None:
    view.times = {A: 12, B: 0}
    kept = options("stream", metadataPath=tmp_path)
    first = StreamOffsets(kept, view).initial()
    other = options("stream", metadataPath=tmp_path, **more)
    with pytest.raises(
        PipelineUsageError, match=r"this one has .*: give it a metadataPath of its own"
    ):
        StreamOffsets(other, view).initial()
    assert StreamOffsets(kept, view).initial() == first
    (tmp_path / INITIAL_FILE).unlink()
    begun = StreamOffsets(other, view).initial()
    assert StreamOffsets(other, view).initial() == begun, "and it is the same after JSON"


def test_a_file_of_an_older_version_does_not_say_what_was_asked_for(
    view: TableView, tmp_path: Path
) -> None:
    offsets = '{"T": {"b": {"0": 12, "1": 0}}}'
    (tmp_path / INITIAL_FILE).write_text(f'{{"version": 1, "offsets": {offsets}}}')
    kept = options("stream", metadataPath=tmp_path)
    assert StreamOffsets(kept, view).initial() == json.loads(offsets)


def test_a_damaged_initial_file_is_named(view: TableView, tmp_path: Path) -> None:
    (tmp_path / INITIAL_FILE).write_text('{"version": 1, "offsets": {"T": 5}}')
    with pytest.raises(InconclusiveError, match=r"initial-offsets\.json"):
        StreamOffsets(options("stream", metadataPath=tmp_path), view).initial()


def test_limits_hold_for_each_batch(view: TableView) -> None:
    stream = StreamOffsets(options("stream", startingOffsets="earliest"), view)
    start, sizes = stream.initial(), []
    while (end := stream.latest(start, 6)) != start:
        sizes.append(
            sum(end["T"]["b"][queue] - start["T"]["b"][queue] for queue in start["T"]["b"])
        )
        start = end
    assert sizes == [6, 6, 3]


def test_what_is_gone_fails_the_stream_with_its_name(view: TableView) -> None:
    stream = StreamOffsets(options("stream"), view)
    with pytest.raises(DataLossError, match="T@b/0 begins at 10, 9 was next"):
        stream.latest(form(q0=9, q1=0), None)
    with pytest.raises(DataLossError, match="T@b/7 is gone, 4 was next"):
        stream.latest(form(q0=20, q1=5, q7=4), None)
    tolerant = StreamOffsets(options("stream", failOnDataLoss="false"), view)
    assert tolerant.latest(form(q0=9, q1=7, q7=4), None) == form(q0=20, q1=7, q7=4)


def test_a_queue_that_is_not_seen_is_looked_for_before_it_counts_as_gone(view: TableView) -> None:
    stream = StreamOffsets(options("stream"), view)
    start = form(q0=15, q1=0)
    view.away[A] = view.table.pop(A)
    assert stream.latest(start, None) == form(q0=20, q1=5)
    view.is_led = False
    with pytest.raises(InconclusiveError, match="no leader"):
        stream.latest(start, None)
    tolerant = StreamOffsets(options("stream", failOnDataLoss="false"), view)
    assert tolerant.latest(start, None) == form(q0=15, q1=5), "it keeps its place"
    del view.table[B]
    with pytest.raises(InconclusiveError, match="no leader"):
        tolerant.latest(start, None)


def test_available_now_reads_a_queue_that_was_away_when_it_began_to_look(view: TableView) -> None:
    stream = StreamOffsets(options("stream"), view)
    back = view.table.pop(A)
    stream.freeze()
    view.table |= {A: back, B: Bounds(0, 9)}
    assert stream.latest(form(q0=15, q1=0), None) == form(q0=20, q1=5)
    view.table[A] = Bounds(10, 30)
    assert stream.latest(form(q0=20, q1=5), None) == form(q0=20, q1=5)


def test_a_new_queue_is_noted_first_and_read_from_its_earliest_offset(view: TableView) -> None:
    stream = StreamOffsets(options("stream"), view)
    start = {"T": {"b": {"1": 5}}}
    noted = stream.latest(start, None)
    assert noted == form(q0=10, q1=5)
    assert stream.latest(noted, None) == form(q0=20, q1=5)


def test_available_now_ends_where_it_began_to_look(view: TableView) -> None:
    stream = StreamOffsets(options("stream", minOffsetsPerTrigger=1000), view)
    stream.freeze()
    view.table |= {A: Bounds(10, 50), MessageQueue("T", "b", 2): Bounds(0, 9)}
    assert stream.latest(form(q0=15, q1=0), None) == form(q0=20, q1=5)
    assert stream.latest(form(q0=20, q1=5), None) == form(q0=20, q1=5)
    assert stream.latest(form(q0=30, q1=5), None) == form(q0=30, q1=5)


def test_a_trigger_waits_for_enough_but_not_for_ever(view: TableView) -> None:
    now = [100.0]
    stream = StreamOffsets(
        options("stream", minOffsetsPerTrigger=20, maxTriggerDelay="10s"), view, lambda: now[0]
    )
    start = form(q0=15, q1=0)
    assert stream.latest(start, None) == start
    now[0] += 9.9
    assert stream.latest(start, None) == start
    now[0] += 0.2
    assert stream.latest(start, None) == form(q0=20, q1=5)
    view.table[A] = Bounds(10, 60)
    assert stream.latest(start, None) == form(q0=60, q1=5)


def test_what_is_done_is_shown_under_the_commit_group(view: TableView) -> None:
    stream = StreamOffsets(options("stream", commitGroup="spark"), view)
    stream.latest(form(q0=15, q1=0), None)
    stream.latest(form(q0=15, q1=0), None)
    view.takes_offsets = False
    stream.latest(form(q0=16, q1=0), None)
    stream.latest(form(q0=16, q1=0), None)
    assert view.stored == [{A: 15, B: 0}, {A: 16, B: 0}, {A: 16, B: 0}]


class TablePast:
    """An archive that holds what the test says."""

    def __init__(self, bounds: dict[MessageQueue, Bounds]) -> None:
        self.bounds = bounds
        self.times: dict[MessageQueue, int] = {}

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        return {queue: self.times[queue] for queue in queues if queue in self.times}


def test_an_archive_and_the_brokers_are_one_range(view: TableView) -> None:
    past = TablePast({A: Bounds(2, 14), B: Bounds(0, 5)})
    view_of_both = JoinedView(options("batch"), view, lambda group: past)
    start, end = batch_offsets(options("batch"), view_of_both)
    assert (start, end) == ({A: 2, B: 0}, {A: 20, B: 5})
    archived, live = divided(start, end, view_of_both.past)
    assert archived == [QueueRange(A, 2, 14), QueueRange(B, 0, 5)]
    assert live == {A: 14, B: 5}
    assert divided({A: 15, B: 0}, {A: 20, B: 3}, past.bounds) == (
        [QueueRange(B, 0, 3)],
        {A: 15, B: 3},
    )
    past.times, view.times = {A: 7}, {A: 10, B: 5}
    late = options("batch", startingTimestamp=9, startingOffsetsByTimestampStrategy="latest")
    assert batch_offsets(late, view_of_both)[0] == {A: 7, B: 5}


@pytest.mark.parametrize(
    ("has", "text"),
    [
        (Bounds(0, 9), "T@b/0: the archive ends before 9, the queue begins at 10"),
        (Bounds(0, 21), "T@b/0: the archive goes on to 21, the queue ends at 20"),
    ],
)
def test_holes_and_other_archives_are_named(view: TableView, has: Bounds, text: str) -> None:
    both = JoinedView(options("batch"), view, lambda group: TablePast({A: has}))
    with pytest.raises(DataLossError) as caught:
        both.bounds()
    assert text in str(caught.value)


def test_a_queue_that_neither_has_whole_is_named(view: TableView) -> None:
    both = JoinedView(options("batch"), view, lambda group: TablePast({}))
    with pytest.raises(DataLossError) as caught:
        both.bounds()
    assert "T@b/0: it begins at 10, and the archive has nothing of it" in str(caught.value)
    assert "T@b/1" not in str(caught.value), "a queue that begins at 0 is whole"
    going_on = options("batch", failOnDataLoss="false")
    assert JoinedView(going_on, view, lambda group: TablePast({})).bounds() == view.table


def test_a_topic_may_be_in_the_archive_only(view: TableView) -> None:
    old = MessageQueue("Old", "b", 0)
    wanted = options("batch", topic="T,Old")
    past = {A: Bounds(0, 10), old: Bounds(0, 3)}
    both = JoinedView(wanted, view, lambda group: TablePast(past))
    assert both.bounds() == {A: Bounds(0, 20), B: Bounds(0, 5), old: Bounds(0, 3)}
    asked: list[str | None] = []

    def opened(group: str | None) -> TablePast:
        asked.append(group)
        return TablePast(past)

    JoinedView(wanted, view, opened).bounds()
    assert asked == ["b"], "one group serves the topics, so the archive is its log"
    JoinedView(options("batch", topic="Old"), TableView({}), opened).bounds()
    assert asked == ["b", ""], "no group does; the archive need not say whose log it was"
    nowhere = JoinedView(options("batch", topic="T,Odl"), view, lambda group: TablePast({}))
    with pytest.raises(PipelineUsageError, match="topic Odl exists neither"):
        nowhere.bounds()


def test_patterns_match_whole_names_and_pass_over_the_systems_topics() -> None:
    topics = ("Orders", "OrdersOld", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_dledger_offsets")
    assert matching("Orders", topics) == ("Orders",)
    assert matching(".*", topics) == ("Orders", "OrdersOld")
    assert matching("%DLQ%.*", topics) == ("%DLQ%g",)
