"""The drawings of a report come from the history alone."""

from __future__ import annotations

from jepsen.history.ops import NEMESIS, OBSERVER, Op, OpType
from jepsen.history.phases import phase_spans, span_of
from jepsen.measure import check_no_failed_sends, gaps_ms, times_of
from jepsen.reports.svg import Axis, lanes_chart, latency_chart, rate_chart
from jepsen.reports.timeline import (
    Gap,
    Leadership,
    Point,
    Span,
    fault_spans,
    gaps,
    leaderships,
    per_bucket,
    points,
)

MS = 1_000_000


class History:
    """Writes operations at moments in ms."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, ms: float, process: int | str, type_: OpType, f: str, value: object = None) -> Op:
        node = "n0" if f == "leader" else ""
        op = Op(len(self.ops), round(ms * MS), process, type_, f, value, node=node)
        self.ops.append(op)
        return op

    def send(self, process: int, begin_ms: float, end_ms: float, type_: OpType = "ok") -> None:
        """A send without anything in between."""
        self.add(begin_ms, process, "invoke", "send", {"key": f"m{len(self.ops)}"})
        self.add(end_ms, process, type_, "send")

    def kill(self, ms: float) -> None:
        self.add(ms, NEMESIS, "info", "kill", {"do": "inject"})
        self.add(ms + 1, NEMESIS, "info", "kill", {"do": "inject", "done": "killed n0"})


def test_a_fault_lasts_until_its_cure() -> None:
    history = History()
    history.kill(100)
    history.add(300, NEMESIS, "info", "kill", {"do": "cure", "done": "started n0", "took_ms": 9})
    history.kill(500)
    history.add(900, OBSERVER, "info", "note")
    assert fault_spans(history.ops) == [
        Span("kill", 100 * MS, 300 * MS, "killed n0", "started n0"),
        Span("kill", 500 * MS, 900 * MS, "killed n0", ""),
    ]


def test_a_leadership_ends_where_nobody_was_seen_to_lead() -> None:
    history = History()
    history.add(0, OBSERVER, "info", "leader", {"term": 1})
    history.add(400, OBSERVER, "info", "leaderless", {"term": 1})
    history.add(900, OBSERVER, "info", "leader", {"term": 2})
    history.add(1000, 0, "invoke", "send")
    assert [
        (lead.term, lead.start_ns // MS, lead.end_ns // MS) for lead in leaderships(history.ops)
    ] == [
        (1, 0, 400),
        (2, 900, 1000),
    ]


def test_each_group_has_its_own_leaderships() -> None:
    history = History()
    for ms, f, group in ((0, "leader", "a"), (100, "leader", "b"), (400, "leaderless", "a")):
        history.add(ms, OBSERVER, "info", f, {"term": 1, "group": group})
    history.add(900, OBSERVER, "info", "leader", {"term": 2, "group": "a"})
    assert [
        (lead.group, lead.term, lead.start_ns // MS, lead.end_ns // MS)
        for lead in leaderships(history.ops)
    ] == [("a", 1, 0, 400), ("b", 1, 100, 900), ("a", 2, 900, 900)]


def test_a_leadership_ends_where_the_next_one_was_seen() -> None:
    history = History()
    for ms, term in ((10, 1), (50, 2)):
        history.add(ms, OBSERVER, "info", "leader", {"term": term})
    history.add(80, OBSERVER, "info", "note")
    assert leaderships(history.ops) == [
        Leadership("n0", 1, 10 * MS, 50 * MS),
        Leadership("n0", 2, 50 * MS, 80 * MS),
    ]


def test_latencies_and_what_stands_alone() -> None:
    history = History()
    history.send(0, 10, 12)
    history.add(13, 7, "ok", "receive", {})
    history.add(20, 1, "invoke", "send", {"key": "x"})
    history.add(50, OBSERVER, "info", "note")
    assert points(history.ops) == [
        Point(10 * MS, 2 * MS, "ok"),
        Point(20 * MS, 30 * MS, "info"),
    ]


def test_ends_are_counted_by_the_bucket() -> None:
    history = History()
    history.send(0, 0, 5)
    history.send(0, 6, 15, "fail")
    history.send(1, 16, 25)
    assert per_bucket(history.ops, 10 * MS) == {"ok": [1, 0, 1], "fail": [0, 1, 0], "info": [0] * 3}


def test_the_longest_gap_comes_first() -> None:
    history = History()
    for begin, end in ((0, 10), (11, 60), (61, 65), (66, 300)):
        history.send(0, begin, end)
    assert gaps(history.ops, 20 * MS) == [Gap(65 * MS, 300 * MS), Gap(10 * MS, 60 * MS)]


def test_phases() -> None:
    history = History()
    for ms, phase in ((5, "breaking"), (50, "healing"), (60, "reading")):
        history.add(ms, OBSERVER, "info", "phase", phase)
    assert phase_spans(history.ops)[0] == ("breaking", 5 * MS, 50 * MS)
    assert span_of(history.ops, "healing") == (50 * MS, 60 * MS)
    assert span_of([], "breaking") == (0, 0)


def test_a_gap_counts_to_the_first_send_that_began_after_the_strike() -> None:
    history = History()
    history.add(90, 1, "invoke", "send", {"key": "early"})
    history.kill(100)
    history.add(110, 1, "ok", "send")
    history.send(0, 120, 400, "info")
    history.send(0, 410, 450)
    history.kill(1000)
    history.send(0, 1010, 1090)
    history.kill(2000)
    assert gaps_ms(history.ops) == [350.0, 90.0, None]
    times = times_of(history.ops)
    assert (times.rounds, times.overcome, times.p50_ms, times.worst_ms) == (3, 2, 90, 350)
    assert (times.sends, times.failed_sends) == (4, 1)
    assert check_no_failed_sends(history.ops).valid is False
    assert times_of([]).worst_ms is None


def test_what_struck_nothing_is_no_round() -> None:
    history = History()
    history.kill(100)
    history.send(0, 110, 150)
    history.add(200, NEMESIS, "info", "kill", {"do": "inject"})
    history.add(201, NEMESIS, "info", "kill", {"do": "inject", "done": "", "missing": "nobody"})
    history.send(0, 210, 220)
    assert gaps_ms(history.ops) == [50.0]


def test_charts_hold_every_kind_of_thing_and_escape_names() -> None:
    axis = Axis(10_000 * MS)
    spans = [Span("<kill>", 1000 * MS, 2000 * MS, 'killed "n0"', "")]
    lanes = lanes_chart(axis, spans, [Leadership("n0", 7, 0, 9000 * MS)])
    assert "&lt;kill&gt;" in lanes
    assert "<kill>" not in lanes
    assert "never cured" in lanes
    found = latency_chart(axis, [Point(0, MS, "ok"), Point(5, 0, "info")], spans)
    assert found.count('class="point') == 3
    rates = rate_chart(
        axis,
        {"ok": [5, 0], "fail": [1, 1], "info": [0, 0]},
        bucket_ns=1000 * MS,
        spans=spans,
        until_ns=0,
    )
    assert rates.count('class="bar') == 3


def test_points_at_one_place_are_drawn_once() -> None:
    axis = Axis(10_000 * MS)
    many = [Point(0, MS, "ok")] * 5000
    assert len(latency_chart(axis, many, [])) < 5000
