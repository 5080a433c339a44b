from jepsen.checkers.availability import check_availability
from tests.unit.jepsen.checkers.histories import History, Q


def test_counts_rates_latencies_and_the_longest_gap() -> None:
    history = History()
    history.send("a", 0)
    history.send("b")
    history.wait(2)
    history.send("c", 1)
    history.add("nemesis", "info", "kill")
    history.do(3, "poll", None, type_="fail")
    history.do(3, "poll", None, {Q: []})
    result = check_availability(history.ops)
    assert result.valid is True
    sends = result.counts["send"]
    assert isinstance(sends, dict)
    assert (sends["ok"], sends["fail"], sends["info"]) == (2, 0, 1)
    assert sends["latency_ms"] == {"p50": 10.0, "p99": 10.0, "p100": 10.0}
    assert sends["longest_gap_s"] == 2.04
    assert sends["rate"] == 1.0


def test_a_kind_that_never_succeeded_leaves_it_unknown() -> None:
    history = History()
    history.send("a", 0)
    history.do(3, "poll", None, type_="fail")
    result = check_availability(history.ops)
    assert result.valid is None
    assert result.why_unknown == "no success of poll"
    assert check_availability(history.ops, optional=("poll",)).valid is True


def test_an_empty_history_is_unknown() -> None:
    assert check_availability([]).valid is None
