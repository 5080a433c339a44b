"""The rules of transactions, due times and order against hand-written histories, good and bad."""

from __future__ import annotations

import math

import msgspec
import pytest

from jepsen.checker import check
from jepsen.history import Event
from jepsen.progress import Progress
from jepsen.promises import (
    LATE_MS,
    SETTLE_MS,
    STALL_MS,
    STREAMS,
    OrderedCounts,
    Promises,
    judge,
    judge_ordered,
    judge_timers,
    judge_transactions,
    outages_ms,
    overdue_ms,
)

QT, Q0 = "Demo-transactions/broker-a/0", "broker-a/0"


def begun(key: str) -> Event:
    return Event("send", 0, key=key, stream="transactions")


def decided(key: str, state: str) -> Event:
    return Event("decided", 1, key=key, text=state, stream="transactions")


def confirmed(key: str, state: str) -> Event:
    return Event("ack", 2, key=key, text=state, stream="transactions")


def seen(key: str, offset: int, queue: str = QT) -> Event:
    return Event("receive", 3, queue, offset=offset, key=key, stream="transactions")


COMMITTED = [begun("a"), decided("a", "COMMIT")]
ROLLED_BACK = [begun("b"), decided("b", "ROLLBACK")]
GOOD_TRANSACTIONS = {
    "committed, confirmed, seen": [*COMMITTED, confirmed("a", "COMMIT"), seen("a", 0)],
    "committed by a check": [
        *(*COMMITTED, Event("checked", 2, key="a", stream="transactions"), seen("a", 0)),
    ],
    "rolled back": [*ROLLED_BACK, confirmed("b", "ROLLBACK")],
    "never decided, never seen": [begun("c")],
    "one offset handed out again": [*COMMITTED, seen("a", 0), seen("a", 0)],
}
BAD_TRANSACTIONS = {
    "transaction lost": {"committed and gone": COMMITTED},
    "transaction seen wrongly": {
        "rolled back and seen": [*ROLLED_BACK, seen("b", 0)],
        "seen without a decision": [begun("c"), seen("c", 0)],
        "never sent": [seen("d", 0)],
        "committed twice": [*COMMITTED, seen("a", 0), seen("a", 1)],
        "committed twice, into two queues": [*COMMITTED, seen("a", 0), seen("a", 0, "other")],
        "confirmed as the opposite": [*ROLLED_BACK, confirmed("b", "COMMIT")],
    },
}


@pytest.mark.parametrize("name", GOOD_TRANSACTIONS)
def test_good_transactions(name: str) -> None:
    _, anomalies = judge_transactions(GOOD_TRANSACTIONS[name])
    assert anomalies == []


@pytest.mark.parametrize(
    ("rule", "name"), [(rule, name) for rule, cases in BAD_TRANSACTIONS.items() for name in cases]
)
def test_bad_transactions(rule: str, name: str) -> None:
    _, anomalies = judge_transactions(BAD_TRANSACTIONS[rule][name])
    assert [anomaly.check for anomaly in anomalies] == [rule]


def test_transactions_are_counted() -> None:
    checked = Event("checked", 2, key="a", stream="transactions")
    events = [*COMMITTED, *ROLLED_BACK, begun("c"), checked, seen("a", 4), seen("a", 4)]
    counts, _ = judge_transactions([*events, seen("b", 5)])
    assert msgspec.to_builtins(counts) == {
        "committed": 1,
        "rolled_back": 1,
        "checks": 1,
        "lost": 0,
        "seen_wrongly": 1,
        "delivered_twice": 1,
    }


def timer(kind: str, t_ms: float, *, due_ms: float = -1, offset: int = -1) -> Event:
    return Event(
        kind,  # type: ignore[arg-type]  # the kinds used are kinds
        t_ms,
        "Demo-timers/broker-a/0" if offset >= 0 else "",
        producer="timers",
        number=7,
        offset=offset,
        stream="timers",
        due_ms=due_ms,
    )


SENT, ACKED = timer("send", 0, due_ms=1000), timer("ack", 20, due_ms=1020)
GOOD_TIMERS = {
    "in time": [SENT, ACKED, timer("receive", 1000, offset=0)],
    "at the last moment": [SENT, ACKED, timer("receive", 1020 + LATE_MS, offset=0)],
    "unknown, and never came": [SENT, timer("unknown", 20)],
    "unknown, and came whenever": [
        *(SENT, timer("unknown", 20), timer("receive", 90_000, offset=0)),
    ],
    "refused": [SENT, timer("refused", 20)],
    "one offset handed out again": [
        *(SENT, ACKED, timer("receive", 1010, offset=0), timer("receive", 1011, offset=0)),
    ],
}
BAD_TIMERS = {
    "timer early": [SENT, ACKED, timer("receive", 990, offset=0)],
    "timer late": [SENT, ACKED, timer("receive", 1021 + LATE_MS, offset=0)],
    "timer twice": [
        *(SENT, ACKED, timer("receive", 1010, offset=0), timer("receive", 1011, offset=1)),
    ],
    "timer lost": [SENT, ACKED],
    "timer unexpected": [timer("receive", 1010, offset=0)],
}


@pytest.mark.parametrize("name", GOOD_TIMERS)
def test_good_timers(name: str) -> None:
    assert judge_timers(GOOD_TIMERS[name], [])[1] == []


@pytest.mark.parametrize("name", BAD_TIMERS)
def test_bad_timers(name: str) -> None:
    assert [anomaly.check for anomaly in judge_timers(BAD_TIMERS[name], [])[1]] == [name]


def test_an_unknown_timer_may_not_be_early_or_stand_twice_either() -> None:
    unknown = [SENT, timer("unknown", 20)]
    early = [*unknown, timer("receive", 900, offset=0)]
    twice = [*unknown, timer("receive", 1100, offset=0), timer("receive", 1100, offset=1)]
    assert [a.check for a in judge_timers(early, [])[1]] == ["timer early"]
    assert [a.check for a in judge_timers(twice, [])[1]] == ["timer twice"]


def test_a_refused_timer_must_not_come() -> None:
    events = [SENT, timer("refused", 20), timer("receive", 1010, offset=0)]
    assert [a.check for a in judge_timers(events, [])[1]] == ["timer unexpected"]


def test_a_failover_between_due_time_and_arrival_is_not_held_against_a_timer() -> None:
    """Only that long: the clock goes on SETTLE_MS after the new leader answers."""
    outages = [(900.0, 2500.0)]
    in_time = [SENT, ACKED, timer("receive", 2500 + SETTLE_MS + LATE_MS, offset=0)]
    late = [SENT, ACKED, timer("receive", 2501 + SETTLE_MS + LATE_MS, offset=0)]
    early = [SENT, ACKED, timer("receive", 950, offset=0)]
    assert judge_timers(in_time, outages)[1] == []
    assert [a.check for a in judge_timers(late, outages)[1]] == ["timer late"]
    assert [a.check for a in judge_timers(early, outages)[1]] == ["timer early"]


def test_an_outage_long_before_or_after_excuses_nothing() -> None:
    came = 1000 + LATE_MS + 500
    assert overdue_ms(1000, came, [(-9000.0, -8000.0), (1000 + LATE_MS + 1, 9e9)]) == LATE_MS + 500
    assert overdue_ms(1000, came, [(900.0, math.inf)]) == -math.inf
    assert overdue_ms(1000, 1010, [(1011.0, 1400.0)]) == 10


def test_timers_are_counted_and_their_lateness_is_that_of_quiet_times() -> None:
    exact = [SENT, timer("ack", 20, due_ms=1000), timer("receive", 1010, offset=0)]
    assert msgspec.to_builtins(judge_timers(exact, [])[0]) == {
        "acknowledged": 1,
        "received": 1,
        "lost": 0,
        "early": 0,
        "twice": 0,
        "late": 0,
        "excused": 0,
        "delivered_twice": 0,
        "late_ms": {"p50": 10.0, "p99": 10.0},
    }
    assert judge_timers(exact, [(1011.0, 1400.0)])[0].late_ms == {"p50": 10.0, "p99": 10.0}
    unmeasured = {"p50": None, "p99": None}
    assert judge_timers(exact, [(1005.0, 1400.0)])[0].late_ms == unmeasured
    assert judge_timers(GOOD_TIMERS["in time"], [])[0].late_ms == unmeasured


def keyed(kind: str, number: int, offset: int = -1, *, key: str = "") -> Event:
    return Event(
        kind,  # type: ignore[arg-type]  # the kinds used are kinds
        0,
        Q0,
        "key1",
        number,
        offset,
        "g" if kind in ("receive", "committed") else "",
        key,
        stream="ordered",
    )


ORDERED = [keyed("send", 0), keyed("ack", 0, 0), keyed("send", 1), keyed("ack", 1, 1)]
BAD_ORDERED = {
    "ordered lost": [*ORDERED, keyed("receive", 1, 1)],
    "ordered offsets": [*ORDERED, keyed("receive", 1, 1), keyed("receive", 0, 0)],
    "ordered order": [*ORDERED, keyed("receive", 1, 1), keyed("receive", 0, 2)],
    "ordered unexpected": [
        *(*ORDERED, keyed("receive", 0, 0), keyed("receive", 1, 1), keyed("receive", 9, 2)),
    ],
    "ordered rewind": [
        *(*ORDERED, keyed("receive", 0, 0), keyed("receive", 1, 1)),
        *(keyed("committed", -1, 2), keyed("committed", -1, 1)),
    ],
    "ordered twice": [
        *(*ORDERED, keyed("receive", 0, 0, key="U"), keyed("receive", 0, 1, key="U")),
        keyed("receive", 1, 2),
    ],
}


def test_a_good_ordered_stream() -> None:
    counts, anomalies = judge_ordered(
        [*ORDERED, keyed("receive", 0, 0), keyed("receive", 1, 1)], "g"
    )
    assert anomalies == []
    assert counts == OrderedCounts(2, 2, 0, 0, 0, 0)


@pytest.mark.parametrize("name", BAD_ORDERED)
def test_bad_ordered_streams(name: str) -> None:
    counts, anomalies = judge_ordered(BAD_ORDERED[name], "g")
    assert name in {anomaly.check for anomaly in anomalies}
    assert counts.lost + counts.twice + counts.violations + counts.rewinds or "unexpected" in name


def test_outages_last_from_the_kill_to_the_next_answer() -> None:
    events = [
        *(Event("kill", 10), Event("send", 11, Q0, "p", 0), Event("ack", 30, Q0, "p", 0, 0)),
        *(Event("kill", 50), Event("kill", 90)),
    ]
    assert outages_ms(events, "p") == [(10, 30), (50, math.inf)]


def test_sends_that_wait_long_are_outages_too() -> None:
    events = [
        *(Event("send", 0, Q0, "p", 0), Event("send", 5, Q0, "q", 0), Event("send", 9, Q0, "p", 1)),
        *(Event("ack", STALL_MS, Q0, "p", 0, 0), Event("ack", STALL_MS + 10, Q0, "p", 1, 1)),
        *(Event("ack", 9000, Q0, "q", 0, 2), Event("kill", STALL_MS + 20)),
    ]
    assert outages_ms(events, "p") == [(9, STALL_MS + 10), (STALL_MS + 20, math.inf)]


def test_what_an_outage_excused_is_counted() -> None:
    events = [SENT, ACKED, timer("receive", 3000, offset=0)]
    counts, anomalies = judge_timers(events, [(1500.0, 2900.0)])
    assert (counts.late, counts.excused, anomalies) == (0, 1, [])
    assert judge_timers(events, [])[0].excused == 0


def everything() -> list[Event]:
    plain = [
        *(Event("send", 0, Q0, "p", 0), Event("ack", 1, Q0, "p", 0, 0)),
        Event("receive", 2, Q0, "p", 0, 0, "plain"),
    ]
    good = [*GOOD_TRANSACTIONS["committed, confirmed, seen"], *GOOD_TIMERS["in time"]]
    return [*plain, *good, *ORDERED, keyed("receive", 0, 0), keyed("receive", 1, 1)]


def judged(events: list[Event], streams: tuple[str, ...] = STREAMS) -> Promises:
    return judge(events, streams=streams, ordered_group="g", probe="p")


def test_streams_do_not_disturb_each_other_nor_the_plain_messages() -> None:
    events = everything()
    verdict, promises = check(events, drained=["plain"]), judged(events)
    assert (verdict.total("acknowledged"), verdict.total("received")) == (1, 1)
    assert list(promises.counts) == list(STREAMS)
    assert promises.added_to(verdict).valid is True
    progress = Progress(events)
    progress.update()
    assert sum(progress.sent.values()) == progress.missing("nobody") == 1


def test_a_broken_stream_makes_the_run_invalid() -> None:
    events = [*everything(), seen("never", 9)]
    verdict = judged(events).added_to(check(events, drained=["plain"]))
    assert verdict.valid is False
    assert [anomaly.check for anomaly in verdict.anomalies] == ["transaction seen wrongly"]
    assert judged(events).added_to(check([], drained=[])).valid is False


def test_a_stream_that_did_nothing_proves_nothing() -> None:
    events = [event for event in everything() if event.stream != "timers"]
    verdict = check(events, drained=["plain"])
    assert judged(events).idle == ("timers",)
    assert judged(events).added_to(verdict).valid is None
    without = judged(events, ("transactions", "ordered"))
    assert without.added_to(verdict).valid is True
    assert list(without.counts) == ["transactions", "ordered"]
