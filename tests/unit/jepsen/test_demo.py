"""The parts of the demo that need no processes: its command line, its report, its line for scripts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from jepsen import demo
from jepsen.catalogue import workload_entry
from jepsen.checkers.groups import check_groups
from jepsen.checkers.results import Anomaly, CheckResult
from jepsen.clients import cpp
from jepsen.demo import (
    PARTS,
    SECONDS_PER_KILL,
    WORKERS,
    in_time,
    opening,
    pace_of,
    read_arguments,
    run_settings,
    story_of,
)
from jepsen.generators import Share
from jepsen.history.ops import FIRST_LISTENER, NEMESIS, OBSERVER, Op
from jepsen.reports.by_group import kill_costs
from jepsen.reports.demo import ClientTally, line_for_scripts, print_report, tallies
from jepsen.run import RunResult, RunSettings
from jepsen.workloads.side_by_side import SideBySide, shares
from tests.unit.jepsen.checkers.histories import History, Q

ALL = shares(PARTS, WORKERS)
QUEUE: Share = ALL["queue"]


def outer(number: int, part: str = "queue") -> int:
    return ALL[part].outer(number)


def plain_history() -> History:
    """Two clients send; one message stands twice, one was handed out again, one is lost."""
    history = History()
    history.add(OBSERVER, "info", "leader", {"term": 1}, "n0")
    history.do(outer(FIRST_LISTENER), "join", {"group": "chaos-cpp"})
    history.send("m0", 0, process=outer(0), uniq="A")
    cpp = {"key": "cpp0", "queue": Q, "client": "cpp"}
    history.do(outer(7), "send", cpp, {**cpp, "offset": 2})
    history.do(outer(7), "send", {**cpp, "key": "cpp1"}, type_="info")
    history.add(NEMESIS, "info", "kill:leader", {"do": "inject"})
    history.add(NEMESIS, "info", "kill:leader", {"do": "inject", "done": "killed n0"})
    history.wait(0.4)
    history.add(OBSERVER, "info", "leader", {"term": 2}, "n1")
    history.send("m1", 3, process=outer(1), uniq="D")
    history.add(NEMESIS, "info", "kill:leader", {"do": "cure", "done": "started n0", "took_ms": 9})
    history.add(OBSERVER, "info", "note", "a [remark]")
    history.poll([0, "m0", "A"], [1, "cpp0", "B"], [2, "cpp0", "C"], process=outer(2))
    for offset, key, uniq in ((0, "m0", "A"), (0, "m0", "A"), (1, "cpp0", "B"), (2, "cpp0", "C")):
        rows = {Q: [[offset, key, uniq]]}
        history.add(outer(FIRST_LISTENER), "ok", "receive", rows)
    history.drained(4, process=outer(2))
    # Another part's messages are none of these.
    history.send("key0-0", 0, process=outer(0, "ordered"), queue="ChaosOrdered/b/0")
    return history


def settings(workload: str = "together-cpp") -> RunSettings:
    return RunSettings(workload, "kill:leader", 20.0, seed=7, workers=WORKERS)


def result_of(history: History, workload: str = "together-cpp") -> RunResult:
    both = workload_entry(workload).make(WORKERS)
    checks = [check(history.ops) for check in both.checkers()]
    return RunResult(settings(workload), history.ops, checks, (), {"kill:leader": 1}, Path("x"))


def printed(result: RunResult) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    print_report(console, story_of(result), result)
    return console.export_text()


def checked(name: str, kinds: str = "", **counts: object) -> CheckResult:
    anomalies = tuple(Anomaly(kind, f"{kind} happened") for kind in kinds.split())
    return CheckResult(name, not anomalies, anomalies, dict(counts))


STREAMS = [
    checked("queue/total-queue"),
    checked("transactions/transactions", committed=5, rolled_back=4, checks=3),
    checked("transactions/queue-log", redelivered=0),
    checked(
        "delay/delay",
        acknowledged=8,
        received=8,
        lost=0,
        early=0,
        duplicate=0,
        excused=0,
        late_ms={"p50": 9.5, "p99": 71.0},
    ),
    checked("delay/in-time", excused=2),
    checked("ordered/ordered", acknowledged=20, processed=20),
    checked("ordered/total-queue", lost=0),
    checked("ordered/queue-log", duplicate=0),
    checked("ordered/offsets", reads=7, rewinds=0),
    checked("sends/places", compared=29),
    checked("sends/total-queue", acknowledged=30, lost=0),
    checked("sends/queue-log", duplicate=0),
    checked("replicas", replicas=3, last_index=99),
]


def with_streams(*checks: CheckResult) -> RunResult:
    names = {check.name for check in checks}
    rest = [check for check in STREAMS if check.name not in names]
    return RunResult(settings(), plain_history().ops, [*rest, *checks], (), {}, Path("x"))


def test_messages_are_counted_by_the_client_that_sent_them() -> None:
    found = tallies(story_of(result_of(plain_history())))
    assert found == {
        "cpp": ClientTally(
            sent=2, acknowledged=1, unknown=1, received=1, stored_twice=1, rekeyed=1
        ),
        "ours": ClientTally(sent=2, acknowledged=2, received=1, lost=1, delivered_twice=1),
    }


def test_the_line_for_scripts_has_exactly_the_promised_members() -> None:
    assert json.loads(line_for_scripts(story_of(with_streams()))) == {
        "acknowledged": 3,
        "received": 2,
        "lost": 0,
        "duplicated": 2,
        "kills": 1,
        "failover_ms": {"p50": 440, "max": 440},
        "transactions": {
            "committed": 5,
            "rolled_back": 4,
            "checks": 3,
            "lost": 0,
            "seen_wrongly": 0,
            "delivered_twice": 0,
        },
        "timers": {
            "acknowledged": 8,
            "received": 8,
            "lost": 0,
            "early": 0,
            "twice": 0,
            "late": 0,
            "excused": 2,
            "delivered_twice": 0,
            "late_ms": {"p50": 9.5, "p99": 71.0},
        },
        "ordered": {
            "acknowledged": 20,
            "received": 20,
            "lost": 0,
            "twice": 0,
            "violations": 0,
            "rewinds": 0,
        },
        "sends": {"acknowledged": 30, "compared": 29, "wrong": 0, "lost": 0, "twice": 0},
    }


def test_what_is_broken_is_counted_where_it_belongs() -> None:
    broken = with_streams(
        checked(
            "transactions/transactions",
            "lost duplicate contradiction",
            committed=5,
            rolled_back=4,
            checks=3,
        ),
        checked("delay/in-time", "late"),
        checked("ordered/ordered", "overtaken gap", acknowledged=20, processed=19),
        checked("ordered/offsets", "rewind", reads=7, rewinds=1),
    )
    line = json.loads(line_for_scripts(story_of(broken)))
    assert (line["transactions"]["lost"], line["transactions"]["seen_wrongly"]) == (1, 2)
    assert line["timers"]["late"] == 1
    assert (line["ordered"]["violations"], line["ordered"]["rewinds"]) == (2, 1)
    text = printed(broken)
    for piece in ("late (delay/in-time)", "offsets of consumer groups: asked 7 times, back 1"):
        assert piece in text
    assert "INVALID: 7 promises were broken" in text


def test_plain_messages_stand_alone_where_nothing_runs_beside_them() -> None:
    history = History()
    history.send("m0", 0, process=5)
    history.poll([0, "m0"])
    line = json.loads(line_for_scripts(story_of(result_of(history, "queue"))))
    assert list(line) == [
        *("acknowledged", "received", "lost", "duplicated", "kills", "failover_ms"),
    ]
    assert line["failover_ms"] == {"p50": None, "max": None}


def test_the_report_names_kills_gaps_and_what_was_broken() -> None:
    text = printed(result_of(plain_history()))
    pieces = ("kill -9 n0", "440 ms", "n1 leads", "n0 started again", "a [remark]", "m1", "INVALID")
    for piece in pieces:
        assert piece in text


def several_groups() -> RunResult:
    """n1 leads two of three groups and dies; one of them is quiet for 0.4 s, the other groups go on."""
    history = History()
    for group, node in (("a", "n0"), ("b", "n1"), ("c", "n1")):
        history.add(OBSERVER, "info", "leader", {"term": 1, "group": group}, node)
    history.add(OBSERVER, "info", "phase", "breaking")
    for number, group in enumerate("abc"):
        history.send(f"m{number}", 0, queue=f"T/{group}/0", process=outer(number))
    history.add(NEMESIS, "info", "kill:leader", {"do": "inject"})
    history.add(NEMESIS, "info", "kill:leader", {"do": "inject", "done": "killed n1"})
    history.send("m3", 1, queue="T/a/0", process=outer(0))
    history.add(OBSERVER, "info", "leader", {"term": 2, "group": "c"}, "n0")
    history.send("m4", 1, queue="T/c/0", process=outer(0))
    history.wait(0.2)
    history.send("m5", 2, queue="T/a/0", process=outer(0))
    history.wait(0.15)
    history.add(OBSERVER, "info", "leader", {"term": 2, "group": "b"}, "n2")
    history.add(OBSERVER, "info", "leader", {"term": 2, "group": "b"}, "n2")
    history.send("m6", 1, queue="T/b/0", process=outer(1))
    history.add(NEMESIS, "info", "kill:leader", {"do": "cure", "done": "started n1", "took_ms": 9})
    history.add(OBSERVER, "info", "phase", "healing")
    run = RunSettings("together", "kill:leader", 20.0, workers=WORKERS, groups=3)
    checks = [check_groups(history.ops, groups=3), checked("queue/total-queue")]
    return RunResult(run, history.ops, checks, (), {"kill:leader": 1}, Path("x"))


def test_what_a_kill_cost_is_said_of_all_and_of_the_groups_that_lost_their_leader() -> None:
    (cost,) = kill_costs(several_groups().ops)
    assert (cost.machines, cost.groups) == (("n1",), ("b", "c"))
    assert (round(cost.pause_ms), round(cost.group_pause_ms or 0)) == (220, 470)
    line = json.loads(line_for_scripts(story_of(several_groups())))
    assert (line["pause_ms"], line["group_pause_ms"]) == ([220], [470])
    assert line["groups"]["b"] == {"acknowledged": 2, "read": 0, "lost": 0}


def test_a_group_of_which_nothing_was_acknowledged_again_was_quiet_until_the_end() -> None:
    ops = [op for op in several_groups().ops if "m6" not in str(op.value)]
    (cost,) = kill_costs([msgspec.structs.replace(op, index=at) for at, op in enumerate(ops)])
    assert round(cost.group_pause_ms or 0) == 490


def test_without_a_kill_several_groups_are_reported_all_the_same() -> None:
    calm = several_groups()
    ops = [op for op in calm.ops if op.process != NEMESIS]
    ops = [msgspec.structs.replace(op, index=at) for at, op in enumerate(ops)]
    text = printed(RunResult(calm.settings, ops, calm.checks, (), {}, Path("x")))
    assert kill_costs(ops) == []
    assert "writes by the machine that led" in text
    assert "VALID" in text


def test_the_report_of_several_groups_names_machines_and_groups() -> None:
    text = printed(several_groups())
    for piece in (
        "n1 leads b",
        "kill -9 n1 (led b, c)",
        "220 ms; there: 470 ms",
        "writes by the machine that led: n0 57 %, n1 29 %, n2 14 %",
        "1 kill; longest time without an acknowledged send: p50 220 ms, max 220 ms",
        "the same within a group that lost its leader: p50 470 ms, max 470 ms",
    ):
        assert piece in text
    assert text.count("n2 leads b") == 1
    rows = [line.split() for line in text.splitlines() if line.startswith("│ b ")]
    assert rows == [["│", "b", "│", "n1", "n2", "│", "2", "│", "29", "%", "│", "0", "│"]]


def test_the_report_of_a_valid_run_counts_every_stream() -> None:
    text = printed(with_streams())
    for piece in (
        "VALID: nothing acknowledged was lost",
        "every transaction, due time and key kept its promise",
        "committed 5",
        "seen wrongly 0",
        "p99 71.0 ms after the due time",
        "violations 0",
        "back 0",
        "replicas: 3 equal at index 99",
    ):
        assert piece in text


def test_the_report_of_a_run_that_proves_nothing_says_why() -> None:
    nothing = RunResult(settings(), (), (), ("while starting: no leader",), {}, Path("x"))
    assert "UNKNOWN: the run proves nothing: while starting: no leader" in printed(nothing)
    idle = CheckResult("delay/delay", None, why_unknown="nothing was acknowledged")
    unproved = RunResult(settings("queue"), (), (idle,), (), {}, Path("x"))
    assert "delay/delay: nothing was acknowledged" in printed(unproved)


def test_lateness_is_judged_by_what_the_delay_part_saw() -> None:
    history = History()
    due = {"key": "d0", "queue": Q, "due_ns": 10**9}
    history.do(outer(0, "delay"), "send", due, due)
    history.wait(3)
    history.poll(process=outer(0, "queue"))
    history.poll([0, "d0"], process=outer(1, "delay"))
    check = in_time(settings())
    assert (check(history.ops).name, check(history.ops).valid) == ("delay/in-time", True)
    late = History()
    late.do(outer(0, "delay"), "send", due, due)
    late.wait(3)
    late.poll(process=outer(0, "delay"))
    late.poll([0, "d0"], process=outer(1, "delay"))
    assert [one.kind for one in check(late.ops).anomalies] == ["late"]
    assert check([]).valid is None


@pytest.mark.parametrize("name", ["together", "together-cpp"])
def test_the_demo_knows_who_does_what_in_its_run(name: str) -> None:
    made = workload_entry(name).make(WORKERS)
    assert isinstance(made, SideBySide)
    assert made.shares == ALL


def test_the_command_line() -> None:
    read = read_arguments(["--kills", "3", "--no-cpp", "--seed", "7", "--json"])
    assert (read.kills, read.with_cpp, read.seed, read.as_json) == (3, False, 7, True)
    assert read.seconds > 3 * SECONDS_PER_KILL
    assert read_arguments([]).kills == 5
    assert read_arguments([]).with_streams
    assert not read_arguments(["--plain"]).with_streams
    with pytest.raises(SystemExit):
        read_arguments(["--kills", "-1"])


def test_how_many_groups_the_machines_share_is_said_in_the_command() -> None:
    run = run_settings(read_arguments(["--seed", "7"]), has_cpp=True)
    assert (run.groups, run.rate) == (3, 100.0)
    assert run.command == "python -m jepsen.demo --kills 5 --seconds 27 --seed 7"
    assert "3 machines" in opening(run)
    assert "each of 3 groups" in opening(run)
    alone = run_settings(read_arguments(["--seed", "7", "--groups", "1"]), has_cpp=True)
    assert (alone.groups, alone.rate) == (1, 400.0)
    assert alone.command == "python -m jepsen.demo --kills 5 --seconds 22 --seed 7 --groups 1"
    with pytest.raises(SystemExit):
        read_arguments(["--groups", "0"])


def test_which_run_is_made() -> None:
    names = {
        (plain, cpp): run_settings(
            read_arguments(["--plain"] if plain else []), has_cpp=cpp
        ).workload
        for plain in (False, True)
        for cpp in (False, True)
    }
    assert names == {
        (False, False): "together",
        (False, True): "together-cpp",
        (True, False): "queue",
        (True, True): "queue-cpp",
    }
    quiet = run_settings(read_arguments(["--kills", "0", "--seconds", "3"]), has_cpp=False)
    assert (quiet.nemesis, quiet.time_limit_s) == ("none", 3.0)
    pace = pace_of(5, 22.0)
    assert pace.hold_s == (1.0, 1.0)
    assert 5 * (pace.hold_s[1] + pace.quiet_s[1]) == pytest.approx(20.0)


def test_without_the_cpp_client_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "sigterm_as_interrupt", lambda: None)
    monkeypatch.setattr(cpp, "install", lambda say: bool(say("it does not install")))
    made: list[RunSettings] = []

    def demonstrate(_settings: object, run: RunSettings, _console: Console) -> int:
        made.append(run)
        return 0

    monkeypatch.setattr(demo, "demonstrate", demonstrate)
    assert demo.main([]) == 0
    said = capsys.readouterr().out
    assert "it does not install" in said
    assert "without the C++ client" in said
    assert made[0].workload == "together"


def test_a_folder_that_holds_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "sigterm_as_interrupt", lambda: None)
    (tmp_path / "nodes").mkdir()
    assert demo.main(["--no-cpp", "--keep", str(tmp_path)]) == 2
    assert "holds a run already" in " ".join(capsys.readouterr().out.split())


def test_a_crash_of_the_demo_breaks_no_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crashes(*_: object) -> int:
        raise OSError("no space left for the report")

    monkeypatch.setattr(demo, "sigterm_as_interrupt", lambda: None)
    monkeypatch.setattr(demo, "demonstrate", crashes)
    with pytest.raises(SystemExit) as ended:
        demo.main(["--no-cpp"])
    assert ended.value.code == 2
    said = capsys.readouterr().out
    assert "no space left for the report" in said
    assert "proves nothing" in said


def test_an_op_is_needed_for_nothing() -> None:
    assert tallies(story_of(RunResult(settings(), list[Op](), (), (), {}, Path("x")))) == {}
