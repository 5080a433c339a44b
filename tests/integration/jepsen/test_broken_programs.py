"""Programs broken on purpose are found out, each by the checker that is there for it; whole ones are not.

The fault, where one is needed, is the one that makes the mistake show for sure. A run of a broken program ends when the
mistake is found, that of a whole one after one round of its fault, or when clients have done so much. Mistakes that
touch different things and need the same run share it. Whole programs of the other runs are in `test_log_runs.py` and
`test_message_runs.py`, where they do as much, and are killed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from jepsen import processes, run
from jepsen.generators import SECOND_NS
from jepsen.history.values import Strike, shaped
from jepsen.measure import in_rounds
from jepsen.nemeses.schedule import Pace
from jepsen.run import BreakerMaker, RunResult, RunSettings, execute
from jepsen.systems import log as log_system
from jepsen.workloads import delay, pop, transactions
from tests.integration.jepsen.breaking import (
    TIME_LIMIT_S,
    Finding,
    after_work,
    is_found,
    until_found,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BROKEN = Path(__file__).parent / "broken"
PACE = Pace(hold_s=(2.0, 2.5), quiet_s=(0.5, 1.0))
MAINS = {"dledger": "dledger.cli", "dledger-broker": "broker.server.cli"}


@dataclass(frozen=True)
class Case:
    """Mistakes, the run that shows them, and what each is found as: checker and kinds of anomalies."""

    mistakes: tuple[str, ...]
    workload: str
    nemesis: str
    network: str
    found: tuple[Finding, ...]


def finding(checker: str, *kinds: str) -> Finding:
    return checker, frozenset(kinds)


CASES = [
    Case(
        ("ack_before_commit",),
        "log-set",
        "partition:leader-peers",
        "proxies",
        (finding("set-full", "lost"),),
    ),
    Case(
        ("stale_read",),
        "log-append",
        "none",
        "none",
        (finding("linearizable", "nonlinearizable"),),
    ),
    Case(("vote_forgotten",), "log-set", "vote-twice", "none", (finding("answers", "answer"),)),
    Case(
        ("offset_without_leader",),
        "offsets",
        "partition:leader-peers",
        "proxies",
        (finding("linearizable", "nonlinearizable"),),
    ),
    # Whether somebody had committed the offset before decides which of the two it is.
    Case(
        ("duplicate_on_retry", "offset_rewound"),
        "queue",
        "partition:leader-deaf",
        "proxies",
        (finding("queue-log", "duplicate"), finding("offsets", "rewind", "spurious")),
    ),
    # No "lost": what readers have gone past is lost only until somebody reads it, and the run would have ended.
    Case(
        ("uncommitted_visible",),
        "queue",
        "partition:leader-peers",
        "proxies",
        (
            finding(
                "queue-log",
                "inconsistent-offset",
                "aborted-read",
                "poll-skip",
                "poll-skip-internal",
            ),
        ),
    ),
    Case(
        ("half_visible",),
        "transactions",
        "none",
        "none",
        (finding("transactions", "half-visible", "rolled-back-visible", "undecided-visible"),),
    ),
    Case(
        ("taken_for_another",),
        "sends",
        "none",
        "none",
        (finding("places", "wrong-queue", "shared-place", "other-message", "other-content"),),
    ),
    Case(("timer_early",), "delay", "none", "none", (finding("delay", "early"),)),
    Case(
        ("acknowledged_in_vain", "popped_too_soon"),
        "pop",
        "none",
        "none",
        (finding("pops", "acknowledged"), finding("pops", "early")),
    ),
]


def start_broken(monkeypatch: pytest.MonkeyPatch, folder: Path, *mistakes: str) -> None:
    """Let members be started through scripts that make mistakes first."""
    whole = processes.program

    def program(name: str) -> str:
        if name not in MAINS:
            return whole(name)
        script = folder / name
        script.write_text(
            f"#!{sys.executable}\n"
            f"import sys\n"
            f"sys.path.insert(0, {str(BROKEN)!r})\n"
            f"import {', '.join(mistakes)}\n"
            f"from {MAINS[name]} import main\n"
            f"sys.exit(main())\n"
        )
        script.chmod(0o755)
        return str(script)

    monkeypatch.setattr(processes, "program", program)
    monkeypatch.setattr(log_system, "program", program)


def stop_once_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the final reads of a run wait for nothing that is owed: the mistake is found by then, and may withhold it."""
    for workload in (delay, transactions):
        monkeypatch.setattr(workload, "SETTLE_NS", SECOND_NS)
    monkeypatch.setattr(pop, "FINAL_TIMEOUT_NS", SECOND_NS)


def made(
    workload: str,
    nemesis: str,
    network: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    break_it: BreakerMaker,
) -> RunResult:
    monkeypatch.setattr(run, "DIGESTS_S", 0.0)  # marks come every ten seconds: too long for this
    monkeypatch.setattr(run, "WHOLE_S", 15.0)  # a broken group need not come together again
    monkeypatch.setattr(delay, "LEVEL_MS", {1: 1000})
    settings = RunSettings(
        workload,
        nemesis,
        TIME_LIMIT_S,
        seed=5,
        network=network,  # type: ignore[arg-type]
        pace=PACE,
    )
    return execute(settings, folder / "run", break_it=break_it)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.mistakes))
def test_a_mistake_is_found(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_broken(monkeypatch, tmp_path, *case.mistakes)
    stop_once_found(monkeypatch)
    break_it = until_found(*case.found)
    result = made(case.workload, case.nemesis, case.network, tmp_path, monkeypatch, break_it)
    assert result.valid is False, (result.problems, result.checks)
    assert is_found(result.checks, case.found), result.checks


RUNS: list[tuple[str, str, str, dict[str, int]]] = [
    ("log-set", "partition:leader-peers", "proxies", {}),
    ("log-set", "vote-twice", "none", {}),
    ("offsets", "partition:leader-peers", "proxies", {}),
    ("delay", "none", "none", {"send": 60}),
]
"""Workload, fault, network, and so many operations that succeed, after which a run without a fault ends."""


@pytest.mark.parametrize(("workload", "nemesis", "network", "done"), RUNS)
def test_the_same_run_of_whole_programs_finds_nothing(
    workload: str,
    nemesis: str,
    network: str,
    done: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay, "DELAY_MS", (1000, 2000))
    break_it = after_work(done) if nemesis == "none" else in_rounds(1)
    result = made(workload, nemesis, network, tmp_path, monkeypatch, break_it)
    wrong = [one for check in result.checks for one in check.anomalies]
    assert wrong == []
    if nemesis != "none":
        assert result.faults[nemesis] == 1
    if nemesis == "vote-twice":
        told = [
            shaped(op.value, Strike).get("done", "") for op in result.ops if op.f == "vote-twice"
        ]
        assert any("was killed, and did not vote" in text for text in told), told
