"""Programs broken on purpose are found out, each by the checker that is there for it; whole ones are not.

Each run is short: the fault, where one is needed, is the one that makes the mistake show for sure.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from jepsen import log_system, processes, run
from jepsen.nemeses.schedule import Pace
from jepsen.run import RunResult, RunSettings, execute
from jepsen.workloads import delay

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BROKEN = Path(__file__).parent / "broken"
PACE = Pace(hold_s=(2.0, 2.5), quiet_s=(0.5, 1.0))
MAINS = {"dledger": "dledger.cli", "dledger-broker": "broker.server.cli"}


@dataclass(frozen=True)
class Case:
    """A mistake, the run that shows it, and what it is found as: checker and kinds of anomalies."""

    mistake: str
    workload: str
    nemesis: str
    network: str
    found: dict[str, set[str]]
    time_limit_s: float = 5.0


CASES = [
    Case(
        "ack_before_commit",
        "log-set",
        "partition:leader-peers",
        "proxies",
        {"set-full": {"lost"}},
    ),
    Case("stale_read", "log-append", "none", "none", {"linearizable": {"nonlinearizable"}}, 3.0),
    Case("vote_forgotten", "log-set", "vote-twice", "none", {"answers": {"answer"}}, 13.0),
    # Whether somebody had committed the offset before decides which of the two it is.
    Case("offset_rewound", "queue", "none", "none", {"offsets": {"rewind", "spurious"}}),
    Case(
        "duplicate_on_retry",
        "queue",
        "partition:leader-deaf",
        "proxies",
        {"queue-log": {"duplicate"}},
    ),
    Case(
        "uncommitted_visible",
        "queue",
        "partition:leader-peers",
        "proxies",
        {"queue-log": {"inconsistent-offset", "aborted-read", "poll-skip", "lost"}},
    ),
    Case(
        "half_visible",
        "transactions",
        "none",
        "none",
        {"transactions": {"half-visible", "rolled-back-visible", "undecided-visible"}},
    ),
    Case("timer_early", "delay", "none", "none", {"delay": {"early"}}, 4.0),
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


def made(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    monkeypatch.setattr(run, "DIGESTS_S", 0.0)  # marks come every ten seconds: too long for this
    monkeypatch.setattr(run, "WHOLE_S", 15.0)  # a broken group need not come together again
    monkeypatch.setattr(delay, "DELAY_MS", (1000, 2000))
    monkeypatch.setattr(delay, "LEVEL_MS", {1: 1000})
    settings = RunSettings(
        case.workload,
        case.nemesis,
        case.time_limit_s,
        seed=5,
        network=case.network,  # type: ignore[arg-type]
        pace=PACE,
    )
    return execute(settings, folder / "run")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mistake)
def test_a_mistake_is_found(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_broken(monkeypatch, tmp_path, case.mistake)
    result = made(case, tmp_path, monkeypatch)
    assert result.valid is False, (result.problems, result.checks)
    by_checker = {check.name: {one.kind for one in check.anomalies} for check in result.checks}
    for checker, kinds in case.found.items():
        assert by_checker[checker] & kinds, by_checker


RUNS = {(case.workload, case.nemesis): case for case in CASES}


@pytest.mark.parametrize("case", RUNS.values(), ids=lambda case: f"{case.workload}-{case.nemesis}")
def test_the_same_run_of_whole_programs_finds_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = made(case, tmp_path, monkeypatch)
    wrong = [one for check in result.checks for one in check.anomalies]
    assert wrong == []
    if case.nemesis != "none":
        assert result.faults[case.nemesis] >= 1
    if case.nemesis == "vote-twice":
        told = [op.value.get("done", "") for op in result.ops if op.f == "vote-twice"]
        assert any("was killed, and did not vote" in text for text in told), told
