"""Programs broken on purpose are found out, each by the checker that is there for it; whole ones are not.

The fault, where one is needed, is the one that makes the mistake show for sure. A run of a broken program ends when the
mistake is found, that of a whole one after one round of its fault, or when clients have done so much.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from tests.integration.jepsen.breaking import TIME_LIMIT_S, after_work, is_found, until_found

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BROKEN = Path(__file__).parent / "broken"
PACE = Pace(hold_s=(2.0, 2.5), quiet_s=(0.5, 1.0))
MAINS = {"dledger": "dledger.cli", "dledger-broker": "broker.server.cli"}


@dataclass(frozen=True)
class Case:
    """A mistake, the run that shows it, and what it is found as: checker and kinds of anomalies.

    Without a fault the run of a whole program ends once `done` operations of these kinds have succeeded.
    """

    mistake: str
    workload: str
    nemesis: str
    network: str
    found: dict[str, set[str]]
    done: Mapping[str, int] = field(default_factory=dict)


CASES = [
    Case(
        "ack_before_commit",
        "log-set",
        "partition:leader-peers",
        "proxies",
        {"set-full": {"lost"}},
    ),
    Case(
        "stale_read",
        "log-append",
        "none",
        "none",
        {"linearizable": {"nonlinearizable"}},
        done={"append": 200, "read": 200},
    ),
    Case("vote_forgotten", "log-set", "vote-twice", "none", {"answers": {"answer"}}),
    # Whether somebody had committed the offset before decides which of the two it is.
    Case(
        "offset_rewound",
        "queue",
        "none",
        "none",
        {"offsets": {"rewind", "spurious"}},
        done={"commit": 40, "committed": 40},
    ),
    Case(
        "offset_without_leader",
        "offsets",
        "partition:leader-peers",
        "proxies",
        {"linearizable": {"nonlinearizable"}},
    ),
    Case(
        "duplicate_on_retry",
        "queue",
        "partition:leader-deaf",
        "proxies",
        {"queue-log": {"duplicate"}},
    ),
    # No "lost": what readers have gone past is lost only until somebody reads it, and the run would have ended.
    Case(
        "uncommitted_visible",
        "queue",
        "partition:leader-peers",
        "proxies",
        {"queue-log": {"inconsistent-offset", "aborted-read", "poll-skip", "poll-skip-internal"}},
    ),
    Case(
        "half_visible",
        "transactions",
        "none",
        "none",
        {"transactions": {"half-visible", "rolled-back-visible", "undecided-visible"}},
        done={"txn": 60, "poll": 20},
    ),
    Case(
        "taken_for_another",
        "sends",
        "none",
        "none",
        {"places": {"wrong-queue", "shared-place", "other-message", "other-content"}},
        done={"frames": 150, "poll": 40},
    ),
    Case("timer_early", "delay", "none", "none", {"delay": {"early"}}, done={"send": 60}),
    Case("acknowledged_in_vain", "pop", "none", "none", {"pops": {"acknowledged"}}),
    Case(
        "popped_too_soon",
        "pop",
        "none",
        "none",
        {"pops": {"early"}},
        done={"send": 40, "pop": 80, "ack": 40, "change": 5},
    ),
]


def start_broken(monkeypatch: pytest.MonkeyPatch, folder: Path, mistake: str) -> None:
    """Let members be started through scripts that make a mistake first."""
    whole = processes.program

    def program(name: str) -> str:
        if name not in MAINS:
            return whole(name)
        script = folder / name
        script.write_text(
            f"#!{sys.executable}\n"
            f"import sys\n"
            f"sys.path.insert(0, {str(BROKEN)!r})\n"
            f"import {mistake}\n"
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
    case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch, break_it: BreakerMaker
) -> RunResult:
    monkeypatch.setattr(run, "DIGESTS_S", 0.0)  # marks come every ten seconds: too long for this
    monkeypatch.setattr(run, "WHOLE_S", 15.0)  # a broken group need not come together again
    monkeypatch.setattr(delay, "LEVEL_MS", {1: 1000})
    settings = RunSettings(
        case.workload,
        case.nemesis,
        TIME_LIMIT_S,
        seed=5,
        network=case.network,  # type: ignore[arg-type]
        pace=PACE,
    )
    return execute(settings, folder / "run", break_it=break_it)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mistake)
def test_a_mistake_is_found(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_broken(monkeypatch, tmp_path, case.mistake)
    stop_once_found(monkeypatch)
    result = made(case, tmp_path, monkeypatch, until_found(case.found))
    assert result.valid is False, (result.problems, result.checks)
    assert is_found(result.checks, case.found), result.checks


RUNS = {(case.workload, case.nemesis): case for case in CASES}


@pytest.mark.parametrize("case", RUNS.values(), ids=lambda case: f"{case.workload}-{case.nemesis}")
def test_the_same_run_of_whole_programs_finds_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay, "DELAY_MS", (1000, 2000))
    break_it = after_work(case.done) if case.nemesis == "none" else in_rounds(1)
    result = made(case, tmp_path, monkeypatch, break_it)
    wrong = [one for check in result.checks for one in check.anomalies]
    assert wrong == []
    if case.nemesis != "none":
        assert result.faults[case.nemesis] == 1
    if case.nemesis == "vote-twice":
        told = [
            shaped(op.value, Strike).get("done", "") for op in result.ops if op.f == "vote-twice"
        ]
        assert any("was killed, and did not vote" in text for text in told), told
