"""The parts of the demo that need no processes: its command line, its report, its line for scripts."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from jepsen.checker import check
from jepsen.demo import SECONDS_PER_KILL, read_arguments, summary
from jepsen.history import Event
from jepsen.progress import Progress, failover_gaps_ms
from jepsen.promises import OrderedCounts, Promises, TimerCounts, TransactionCounts
from jepsen.report import live_line, print_report

Q = "broker-a/0"
EVENTS = [
    Event("leader", 0, node="n0", term=1),
    Event("send", 1, Q, "ours", 0),
    Event("ack", 2, Q, "ours", 0, 0),
    Event("kill", 10, node="n0", term=1),
    Event("send", 11, Q, "ours", 1),
    Event("leader", 300, node="n1", term=2),
    Event("ack", 400, Q, "ours", 1, 1),
    Event("restart", 500, node="n0"),
    Event("receive", 600, Q, "ours", 0, 0, "g"),
    Event("note", 700, text="a remark"),
]
NONE = Promises({}, (), ())
ALL = Promises(
    {
        "transactions": TransactionCounts(5, 4, 3, 0, 0, 0),
        "timers": TimerCounts(8, 8, 0, 0, 0, 0, 0, 0, {"p50": 9.5, "p99": 71.0}),
        "ordered": OrderedCounts(20, 20, 0, 0, 0, 0),
    },
    (),
    (),
)


def printed(events: list[Event], promises: Promises = NONE) -> str:
    verdict = check(events, drained=["g"])
    console = Console(width=120, file=io.StringIO(), record=True)
    print_report(console, events, verdict, failover_gaps_ms(events, "ours"), promises)
    return console.export_text()


def test_the_line_for_scripts_has_exactly_the_promised_members() -> None:
    verdict = check(EVENTS, drained=["g"])
    assert json.loads(summary(verdict, failover_gaps_ms(EVENTS, "ours"), NONE)) == {
        "acknowledged": 2,
        "received": 1,
        "lost": 1,
        "duplicated": 0,
        "kills": 1,
        "failover_ms": {"p50": 390, "max": 390},
    }
    assert '"failover_ms":{"p50":null,"max":null}' in summary(check([], drained=[]), [], NONE)


def test_streams_stand_behind_the_members_that_were_promised_first() -> None:
    result = json.loads(summary(check(EVENTS, drained=["g"]), [], ALL))
    assert list(result) == [
        *("acknowledged", "received", "lost", "duplicated", "kills", "failover_ms"),
        *("transactions", "timers", "ordered"),
    ]
    assert result["transactions"]["seen_wrongly"] == 0
    assert result["timers"]["late_ms"] == {"p50": 9.5, "p99": 71.0}
    assert result["ordered"]["violations"] == 0


def test_the_report_names_kills_gaps_and_what_was_broken() -> None:
    text = printed(EVENTS)
    for piece in ("kill -9 n0", "390 ms", "n1 leads", "a remark", "#1", "INVALID"):
        assert piece in text


def test_the_report_of_a_valid_and_of_an_empty_run() -> None:
    received = Event("receive", 700, Q, "ours", 1, 1, "g")
    assert "VALID: nothing acknowledged was lost" in printed([*EVENTS[:9], received])
    assert "UNKNOWN: nothing was acknowledged" in printed([])
    idle = Promises({}, (), ("timers", "ordered"))
    assert "UNKNOWN: nothing of timers, ordered was acknowledged" in printed([], idle)


def test_the_report_counts_every_stream() -> None:
    text = printed(EVENTS, ALL)
    for piece in ("committed 5", "seen wrongly 0", "early 0", "p99 71.0 ms", "violations 0"):
        assert piece in text


def test_the_moving_line() -> None:
    progress = Progress(EVENTS)
    progress.update()
    text = str(live_line(progress, "draining", 1.5))
    assert "n1 in term 2" in text
    assert "acknowledged 2" in text


def test_the_command_line() -> None:
    settings = read_arguments(["--kills", "3", "--no-cpp", "--seed", "7", "--json"])
    assert (settings.kills, settings.with_cpp, settings.seed, settings.as_json) == (
        3,
        False,
        7,
        True,
    )
    assert settings.seconds > 3 * SECONDS_PER_KILL
    assert read_arguments([]).kills == 5
    assert read_arguments([]).with_streams
    assert not read_arguments(["--plain"]).with_streams
    with pytest.raises(SystemExit):
        read_arguments(["--kills", "-1"])
