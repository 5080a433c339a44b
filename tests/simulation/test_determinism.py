"""A seed decides everything: the same run again, in other processes with other hash seeds too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from broker.testing.broker_simulation import run_broker_seed
from dledger.testing.sim_trace import Trace
from dledger.testing.simulation import SimResult, run_seed
from tests.stages import needs_compiled, stage

SEED = 12  # five members and many kinds of faults
SENDS_SEED = 20  # of brokers: many sends, and transactions
PRINT_DIGEST = (
    "from dledger.testing.sim_trace import Trace;"
    "from {module} import {run};"
    "result = {run}({seed}, trace=Trace());"
    "print(result.digest, sorted(result.work.items()))"
)


def digest(seed: int) -> str:
    return run_seed(seed, trace=Trace()).digest


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_seed, run_broker_seed])
def test_a_seed_gives_one_trace_under_any_hash_seed(run: Callable[..., SimResult]) -> None:
    result = run(SEED, trace=Trace())  # under the hash seed of this process, which is drawn
    digests = {f"{result.digest} {sorted(result.work.items())}"}
    program = PRINT_DIGEST.format(run=run.__name__, module=run.__module__, seed=SEED)
    for hash_seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=190,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.slow
@needs_compiled
@pytest.mark.parametrize("seed", [SEED, SENDS_SEED])
def test_a_seed_gives_one_trace_with_and_without_compiled_code(seed: int) -> None:
    digests = set()
    for is_compiled in (True, False):
        with stage(is_compiled=is_compiled):
            result = run_broker_seed(seed, trace=Trace())
            digests.add((result.digest, tuple(sorted(result.work.items()))))
    assert len(digests) == 1


def test_another_seed_gives_another_trace() -> None:
    assert digest(2) != digest(3)


def test_a_trace_changes_nothing() -> None:
    with_trace, without = run_seed(4, trace=Trace()), run_seed(4)
    assert (with_trace.step_count, with_trace.virtual_ms, with_trace.calls) == (
        without.step_count,
        without.virtual_ms,
        without.calls,
    )
