"""Short seeded runs in every test run, and every seed that ever failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.testing.sim import replay_command
from dledger.testing.simulation import SimResult, Verdict, run_seed

SEEDS_FILE = Path(__file__).parent / "seeds.txt"
SWEEP_FIRST, SWEEP_COUNT = 1000, 60


def remembered_seeds() -> list[int]:
    lines = SEEDS_FILE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def check(result: SimResult) -> None:
    told = f"{result.problem}\nreplay: {replay_command(result.seed, wire=False)}"
    assert result.verdict is Verdict.FINE, told


@pytest.mark.parametrize("seed", remembered_seeds())
def test_a_seed_that_once_failed_is_fine(seed: int) -> None:
    check(run_seed(seed))


@pytest.mark.slow
def test_a_short_sweep_is_fine_and_gets_something_done() -> None:
    results = [run_seed(seed) for seed in range(SWEEP_FIRST, SWEEP_FIRST + SWEEP_COUNT)]
    for result in results:
        check(result)
    assert sum(result.calls.acknowledged for result in results) > 5 * SWEEP_COUNT
    assert sum(result.calls.reads for result in results) > 5 * SWEEP_COUNT
    assert sum(result.fault_count for result in results) > 5 * SWEEP_COUNT
    assert sum(result.leader_count for result in results) > 2 * SWEEP_COUNT
    assert all(result.committed_count > 0 for result in results)


@pytest.mark.slow
def test_all_messages_may_pass_through_the_wire() -> None:
    for seed in range(1, 15):
        check(run_seed(seed, wire=True))
