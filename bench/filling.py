"""A log of a given size, through the broker's own protocol: what a measurement begins with."""

from __future__ import annotations

from typing import Final

from bench.loadgen import batch_template, run_load
from bench.real_group import BATCH_COUNT, BODY_BYTES, QUEUE_COUNT
from jepsen.processes import Process

RECORD_BYTES: Final = BODY_BYTES + 150
"""Of one message in the log, nearly."""


def fill(leader: Process, topic: str, mib: int) -> int:
    """Send batches until the log has grown by so many MiB at least; return how many messages were sent.

    Raises:
        RuntimeError: a batch was refused.
    """
    templates = [
        batch_template(topic, queue, b"x" * BODY_BYTES, BATCH_COUNT) for queue in range(QUEUE_COUNT)
    ]
    wanted = -(-(mib << 20) // RECORD_BYTES)  # rounded up
    written = 0
    while written < wanted:
        result = run_load(
            ("127.0.0.1", leader.port),
            lambda number: templates[number % QUEUE_COUNT].frame(number),
            in_flight=16,
            seconds=min(2.0, mib / 100),
        )
        if result.refused:
            raise RuntimeError(f"{result.refused} batches were refused")
        written += result.requests * BATCH_COUNT
    return written


def mib_of(messages: int) -> float:
    """Return how much of the log so many messages take."""
    return messages * RECORD_BYTES / (1 << 20)
