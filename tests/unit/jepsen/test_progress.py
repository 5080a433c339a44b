from __future__ import annotations

import pytest

from jepsen.history import Event
from jepsen.progress import Progress, failover_gaps_ms, percentile

Q = "broker-a/0"


def at(t_ms: float, kind: str, number: int = -1, producer: str = "ours") -> Event:
    return Event(kind, t_ms, Q, producer, number, number, "g")  # type: ignore[arg-type]  # kinds as given


def test_a_gap_ends_with_the_first_answer_to_a_send_that_began_after_the_kill() -> None:
    events = [
        *(at(0, "send", 0), at(5, "send", 1), at(10, "kill", producer=""), at(12, "ack", 0)),
        *(at(400, "ack", 1), at(401, "send", 2), at(402, "send", 3), at(405, "ack", 2)),
        at(406, "ack", 3),
    ]
    assert failover_gaps_ms(events, "ours") == [395]


def test_other_producers_do_not_end_a_gap() -> None:
    events = [
        *(at(0, "kill", producer=""), at(1, "send", 0, "cpp"), at(2, "ack", 0, "cpp")),
        *(at(3, "send", 0), at(9, "ack", 0)),
    ]
    assert failover_gaps_ms(events, "ours") == [9]


def test_a_gap_that_the_next_kill_or_the_end_cuts_off_is_not_hidden() -> None:
    events = [
        at(0, "kill"),
        at(100, "kill"),
        at(101, "send", 0),
        at(110, "ack", 0),
        at(200, "kill"),
    ]
    assert failover_gaps_ms(events, "ours") == [None, 10, None]


def test_running_totals() -> None:
    events = [at(0, "send", 0), at(1, "ack", 0)]
    progress = Progress(events)
    progress.update()
    assert (progress.sent, progress.acknowledged) == ({"ours": 1}, {"ours": 1})
    assert (progress.missing("g"), progress.received("g")) == (1, 0)
    events += [at(2, "receive", 0), at(3, "kill"), Event("leader", 4, node="n1", term=2)]
    progress.update()
    assert (progress.missing("g"), progress.received("g")) == (0, 1)
    assert (progress.kills, progress.leader, progress.term) == (1, "n1", 2)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 21)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 5)) == (10, 20, 1)
    assert percentile([7.0], 50) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
