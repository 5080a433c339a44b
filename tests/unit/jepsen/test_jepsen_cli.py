"""`dledger-jepsen` without any process: its command line, its exit codes, judging again."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jepsen.catalogue import (
    UnknownNameError,
    check_machines,
    make_faults,
    nemesis_of,
    network_for,
    workload_entry,
)
from jepsen.checkers.leaders import check_leaders
from jepsen.checkers.results import Anomaly, CheckResult
from jepsen.cli import main, worst
from jepsen.history.ops import OBSERVER, OpLog
from jepsen.nemeses.limits import CgroupError
from jepsen.reports.folder import read_folder, write_folder
from jepsen.run import HISTORY, RunResult, RunSettings, execute
from jepsen.suite import SUITE, chosen
from jepsen.systems.api import NETWORKS

SETTINGS = RunSettings("queue", "none", 5.0, seed=3)
Q = "ChaosA/broker-a/0"


def folder_with(tmp_path: Path, *, received: bool, polls: int = 20) -> Path:
    """A run with one message, as it would be left; it took a millisecond for each step."""
    ticks = itertools.count(step=1_000_000)
    with OpLog(tmp_path / HISTORY, clock_ns=lambda: next(ticks)) as log:
        log.add(0, "invoke", "send", {"key": "m0", "queue": Q})
        log.add(0, "ok", "send", {"key": "m0", "queue": Q, "offset": 0, "uniq": "U0"})
        log.add(1, "invoke", "poll")
        log.add(1, "ok", "poll", {Q: [[0, "m0", "U0"]] if received else []})
        for _ in range(polls):
            log.add(1, "invoke", "poll")
            log.add(1, "ok", "poll", {Q: []})
        log.add(1, "invoke", "drained")
        log.add(1, "ok", "drained", {Q: 1})
        for f in ("commit", "committed"):
            log.add(0, "invoke", f, {"queue": Q, "offset": 1, "group": "g"})
            log.add(0, "ok", f, {"queue": Q, "offset": 1, "group": "g"})
        log.add(OBSERVER, "info", "healed", {"whole": True, "waited_ms": 5})
        for node in ("n0", "n1", "n2"):
            log.add(OBSERVER, "info", "digest", {"index": 4, "digests": {"a": "00"}}, node=node)
    write_folder(RunResult(SETTINGS, log.ops, (), (), {}, tmp_path), keep_stores=True)
    return tmp_path


def test_a_good_history_is_judged_valid_again(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, received=True)
    assert main(["check", str(folder)]) == 0
    summary, ops = read_folder(folder)
    assert (summary.verdict, summary.valid, len(ops)) == ("valid", True, 54)
    assert summary.settings == SETTINGS


def test_a_history_with_a_loss_is_invalid_and_the_page_shows_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, received=False)
    assert main(["check", str(folder)]) == 1
    results = json.loads((folder / "results.json").read_text())
    assert results["valid"] is False
    assert "m0" in results["why"]
    page = (folder / "report.html").read_text()
    assert "Invalid: promises were broken" in page
    assert "lost" in page


def test_a_history_with_too_little_work_is_unknown_and_says_how_much_there_was(
    tmp_path: Path,
) -> None:
    folder = folder_with(tmp_path, received=True, polls=0)
    assert main(["check", str(folder)]) == 2
    results = json.loads((folder / "results.json").read_text())
    assert results["verdict"] == "unknown"
    assert re.match(r"5 of \d+ operations that were asked for were done", results["work"])
    assert "too little was done to prove anything" in results["why"]
    assert results["work"] in (folder / "report.html").read_text()


def test_an_empty_history_is_unknown(tmp_path: Path) -> None:
    with OpLog(tmp_path / HISTORY) as log:
        pass
    write_folder(RunResult(SETTINGS, log.ops, (), (), {}, tmp_path), keep_stores=True)
    assert main(["check", str(tmp_path)]) == 2


def test_a_crash_keeps_a_good_history_from_being_valid(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, received=True)
    summary, ops = read_folder(folder)
    crashed = RunResult(SETTINGS, ops, summary.checks, ("send: KeyError",), {}, folder)
    write_folder(crashed, keep_stores=True)
    assert main(["check", str(folder)]) == 2


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert "holds no run" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "words",
    [
        "run",
        "run --workload nothing",
        "run --workload queue --nemesis meteor",
        "run --workload queue --nemesis kill:moon",
        "run --workload queue --nemesis partition --network none",
        "run --workload queue --time-limit -1",
        "run --workload log-set --system pysyncobj --nemesis partition:halves",
        "run --workload queue --nodes 0",
        "run --workload queue --nodes 33",
        "run --workload queue --nodes three",
        "run --workload queue --nemesis kill:leader,pause,kill:leader",
        "run --workload together --concurrency 2",
        "suite --only nothing-like-this",
        "dance",
    ],
)
def test_wrong_usage_ends_with_2_and_a_sentence(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_breaks_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["run", "--workload", "queue", "--keep", str(folder)]) == 2
        assert "cannot be made" in " ".join(capsys.readouterr().err.split())
        assert main(["check", str(folder)]) == 2
        assert "holds no run" in " ".join(capsys.readouterr().err.split())


def test_what_is_no_history_breaks_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, received=True)
    whole = (folder / HISTORY).read_bytes()
    (folder / HISTORY).write_bytes(whole[:-20])  # cut off in the middle of a line
    assert main(["check", str(folder)]) in (0, 2)
    for garbage in (b"\xff\xfe\n" + whole, b"{}\n" + whole, b"[1, 2]\n", b'{"index": "a"}\n'):
        (folder / HISTORY).write_bytes(garbage)
        assert main(["check", str(folder)]) == 2
        assert "holds no run that can be read" in " ".join(capsys.readouterr().err.split())


def test_a_crash_of_the_harness_breaks_no_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_arguments: object, **_more: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("jepsen.cli.execute", crash)
    assert main(["run", "--workload", "queue", "--keep", str(tmp_path / "run")]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_judging_again_keeps_what_a_command_judged_beside(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, received=True)
    _, ops = read_folder(folder)
    failed = CheckResult("no-failed-sends", False, (Anomaly("failed-send", "m7 ended as fail"),))
    write_folder(RunResult(SETTINGS, ops, [failed], (), {}, folder), keep_stores=True)
    assert main(["check", str(folder)]) == 1
    assert "m7 ended as fail" in read_folder(folder)[0].why


def test_names_of_faults_are_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "jepsen.nemeses.limits.hierarchy", lambda *_: raised(CgroupError("no cgroups"))
    )
    words = [
        "run",
        "--workload",
        "queue",
        "--nemesis",
        "memory:one",
        "--keep",
        str(tmp_path / "run"),
    ]
    assert main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "SKIPPED: memory:one: no cgroups" in said


def raised(error: Exception) -> None:
    raise error


def test_faults_are_written_as_they_are_read() -> None:
    assert nemesis_of(make_faults("kill, pause:leader,,none")) == "kill,pause:leader"
    assert nemesis_of(make_faults("")) == "none"


def test_a_node_alone_has_nobody_to_be_compared_with(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, received=True)
    alone = replace(SETTINGS, nodes=1)
    write_folder(RunResult(alone, read_folder(folder)[1], (), (), {}, folder), keep_stores=True)
    assert main(["check", str(folder)]) == 0


def test_the_list_names_workloads_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "queue" in said
    assert "kill" in said


def test_every_run_of_the_suite_names_what_there_is() -> None:
    for run in SUITE:
        workload_entry(run.workload)
        faults = make_faults(run.nemesis)
        network = network_for(faults, None, groups=run.groups)
        assert network in NETWORKS
        if run.groups > 1:
            check_machines(run.workload, faults, nodes=run.nodes, network=network)
    assert len({run.name for run in SUITE}) == len(SUITE)
    assert [run.name for run in chosen(["delay/kill:leader"])] == ["delay/kill:leader"]


@pytest.mark.parametrize(
    ("workload", "nemesis", "nodes", "why"),
    [
        ("log-set", "kill", 3, "log-set knows one group; with several there are: queue, sends"),
        ("queue", "kill,bit-flip:log", 3, "bit-flip:log: no fault of machines"),
        ("queue", "kill", 4, "4 machines cannot share groups: 1, 3, 5 or 7"),
        ("queue", "half-open", 3, "half-open: no fault of machines"),
    ],
)
def test_what_several_groups_cannot_do_is_said_before_anything_starts(
    workload: str, nemesis: str, nodes: int, why: str, tmp_path: Path
) -> None:
    settings = RunSettings(workload, nemesis, 5.0, nodes=nodes, groups=3)
    with pytest.raises(UnknownNameError, match=why):
        execute(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_supervisors_start_again_is_no_fault_of_nodes_without_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="crash:one: only machines have supervisors"):
        execute(RunSettings("queue", "crash:one", 5.0), tmp_path / "run")
    check_machines("queue", make_faults("crash:one"), nodes=3, network="none")


def test_a_report_from_before_there_were_several_groups_is_read(tmp_path: Path) -> None:
    with OpLog(tmp_path / HISTORY) as log:
        log.add(OBSERVER, "info", "leader", {"term": 1}, node="n0")
    write_folder(RunResult(SETTINGS, log.ops, (), (), {}, tmp_path), keep_stores=True)
    results = tmp_path / "results.json"
    known = json.loads(results.read_bytes())
    del known["settings"]["groups"]
    results.write_text(json.dumps(known))
    summary, ops = read_folder(tmp_path)
    assert summary.settings == SETTINGS
    assert check_leaders(ops).valid is True


def test_links_between_machines_are_namespaces() -> None:
    faults = make_faults("partition:halves")
    assert network_for(faults, None, groups=3) == "namespaces"
    with pytest.raises(UnknownNameError, match="no proxies between machines"):
        check_machines("queue", faults, nodes=3, network="proxies")


def test_the_worst_verdict_is_that_of_the_suite() -> None:
    assert worst([0, 0]) == 0
    assert worst([0, 2]) == 2
    assert worst([0, 2, 1]) == 1
    assert worst([]) == 2
