"""Short seeded runs in every test run, every seed that ever failed, and fresh seeds for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.testing.sim import BROKER_SIMULATOR
from dledger.testing import sim
from dledger.testing.sim_command import KEPT_IN, Simulator, run_command, run_one
from dledger.testing.sim_failures import FAILURES_FILE
from dledger.testing.sim_tally import Tally
from dledger.testing.simulation import SimResult, SimVerdict
from tests.conftest import SEEDS

SEEDS_FILE = Path(__file__).parent / "seeds.txt"
FRESH_SECONDS = 10
"""Of a core that is shared with tests beside it."""
FAILURES = Path(__file__).parents[2] / FAILURES_FILE
"""Outlives the run, whatever became of its output."""

BROKER_SEEDS = range(4, 14)
"""Runs of few steps, in which everything that brokers do comes."""

SIMULATORS = {"log": sim.LOG_SIMULATOR, "broker": BROKER_SIMULATOR}


def remembered_seeds() -> list[tuple[str, int]]:
    lines = SEEDS_FILE.read_text().splitlines()
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return [(row[0], int(row[1])) for row in rows]


def check(result: SimResult, simulator: Simulator, options: str = "") -> None:
    replay = simulator.replay_command(result.seed, options=options)
    assert result.verdict is SimVerdict.FINE, f"{result.problem}\nreplay: {replay}"


@pytest.mark.parametrize(("name", "seed"), remembered_seeds())
def test_a_seed_that_once_failed_is_fine(name: str, seed: int) -> None:
    kind, _, draws = name.partition("-")
    simulator = SIMULATORS[kind]
    check(run_one(simulator, seed, draws=int(draws)), simulator, f" --draws {draws}")


@pytest.mark.slow
def test_brokers_do_everything_in_a_short_sweep() -> None:
    tally = Tally()
    for seed in BROKER_SEEDS:
        result = run_one(BROKER_SIMULATOR, seed)
        check(result, BROKER_SIMULATOR)
        tally.add(result)
    done = tally.summary(1.0)
    for name in (
        "acknowledged",
        "delivered_by_level",
        "delivered_by_time",
        "recalled",
        "transactions_committed",
        "transactions_rolled_back",
        "checks",
        "pulled",
        "offsets_committed",
        "offsets_read",
        "locks_granted",
        "locks_answered",
        "given_back",
        "snapshots_taken",
    ):
        assert done.get(name, 0) > 0, name
    for name in ("snapshot-restored", "served-from-parts", "handed-over"):
        assert tally.reached[name] > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMULATORS)
def test_fresh_seeds_are_fine(
    name: str,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    """Other seeds every time: one that fails is a bug, and its command is in the output, the summary and a file."""
    command = ["--seconds", str(FRESH_SECONDS), "--processes", "1", "--failures", str(FAILURES)]
    code = run_command(SIMULATORS[name], command)
    told = capsys.readouterr().out
    first, *rest = told.splitlines()
    record_property(SEEDS, first)
    for line in rest:
        if "replay:" in line or KEPT_IN in line:
            record_property(SEEDS, line)
    assert code == 0, told
