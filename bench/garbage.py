"""How long do collections of Python's objects stop a leader, and what do they cost a send?

    python -m bench.garbage [--topics 10000] [--messages 30000] [--threshold 700,10,10]

One broker as in `bench.sends`, 1 024 sends in flight, with few queues or with 8 for each of many topics. What it has
once it is ready is frozen, as a broker's process does. The time of a collection is processor time of its thread.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from rich.console import Console
from rich.table import Table

from bench.calls import make_group
from bench.many_queues import ShippedState, filled_with
from bench.sends import Sender, SendLoad, measure

LOAD = SendLoad(1, 1024)


class Pauses:
    """The collections since it was made, by generation, in milliseconds."""

    def __init__(self) -> None:
        self.by_generation: dict[int, list[float]] = {}
        self._began_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        now_s = time.thread_time()
        if phase == "start":
            self._began_s = now_s
            return
        took_ms = 1000 * (now_s - self._began_s)
        self.by_generation.setdefault(info["generation"], []).append(took_ms)

    def close(self) -> None:
        """Note no more."""
        gc.callbacks.remove(self._note)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="bench.garbage", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--topics", type=int, default=0, help="of 8 queues each (default: none)")
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--threshold", help="for gc.set_threshold (default: Python's own)")
    options = parser.parse_args()
    cluster, client = make_group(ShippedState)
    if options.topics:
        filled_with(client, options.topics, 0)
    sender = Sender(cluster)
    measure(sender, LOAD, 4 * LOAD.messages)
    gc.collect()
    gc.freeze()
    if options.threshold:
        gc.set_threshold(*map(int, options.threshold.split(",")))
    pauses = Pauses()
    try:
        cost_us = measure(sender, LOAD, options.messages)
    finally:
        pauses.close()
    table = Table("generation", "collections", "median ms", "longest ms", "us a message")
    for generation, took_ms in sorted(pauses.by_generation.items()):
        table.add_row(
            str(generation),
            str(len(took_ms)),
            f"{statistics.median(took_ms):.2f}",
            f"{max(took_ms):.2f}",
            f"{1000 * sum(took_ms) / options.messages:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(f"a message: {cost_us:.2f} us, what the simulator takes included")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
