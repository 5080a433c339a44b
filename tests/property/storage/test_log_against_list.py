"""Everything that was reported durable survives; nothing else is required; no entry is ever wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_model import LogModel

from dledger.storage import scan, segmented_log, write_batch

SMALL_BATCH_BYTES = 3000


@contextmanager
def small_batches() -> Iterator[None]:
    """Batches of a few entries, so that the reach of a batch matters in a small log."""
    with ExitStack() as stack:
        for module in (scan, segmented_log, write_batch):
            stack.enter_context(patch.object(module, "WRITE_BATCH_BYTES_MAX", SMALL_BATCH_BYTES))
        yield


def step(model: LogModel, random: Random) -> None:
    """One action, drawn."""
    action = random.choices(
        (
            "append",
            "truncate",
            "take",
            "run",
            "finish",
            "flush",
            "crash",
            "kill",
            "close",
            "fault",
            "read",
        ),
        (10, 2, 3, 2, 3, 4, 1.2, 0.6, 0.5, 0.6, 1),
    )[0]
    if action == "append":
        count = random.choice((1, 1, 2, 5, 12))
        model.append([random.choice((0, 1, 30, 200, 460, 700, 2500)) for _ in range(count)])
    elif action == "truncate":
        model.truncate(random.choice((0.0, 0.5, 0.9, random.random())))
    elif action == "crash":
        model.crash()
    elif action == "kill":
        model.reopen()
    elif action == "fault":
        model.flush_with_fault(on_sync=random.random() < 0.5, nth=random.randint(1, 6))
    elif action == "read":
        model.check_reads()
    else:
        getattr(model, action)()


def run(seed: int, steps: int, *, syncs: bool) -> None:
    random = Random(seed)
    with small_batches():
        size = random.choice((600, 2000, 5000, 30_000))
        model = LogModel(random, segment_size_bytes=size, syncs=syncs)
        for _ in range(steps):
            step(model, random)
        model.close()
        model.check_reads()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_synced_survives_and_nothing_is_invented(seed: int, steps: int) -> None:
    run(seed, steps, syncs=True)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_without_syncs_a_crash_leaves_a_start_of_the_log(seed: int, steps: int) -> None:
    run(seed, steps, syncs=False)
