"""The peer of examples/counter.py: a counter on PySyncObj, as its README has one, with numbers on stdin.

    python -m bench.pysyncobj_counter SELF OTHER OTHER [--journal FOLDER]

Addresses are host:port. Each line is added at this node; what its callback got, and the counter, is printed.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from pysyncobj import SyncObj, SyncObjConf, replicated


class ReplicatedCounter(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """A number that all nodes agree on."""

    def __init__(self, own: str, others: list[str], journal: Path | None) -> None:
        conf = SyncObjConf(journalFile=str(journal / "journal") if journal else None)
        super().__init__(own, others, conf)
        self.value = 0

    @replicated  # type: ignore[untyped-decorator]  # pysyncobj has no types
    def add(self, number: int) -> int:
        """Add one replicated command."""
        self.value += number
        return self.value


def main() -> None:
    """Add what stdin has, line by line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--journal", type=Path)
    options = parser.parse_args()
    counter = ReplicatedCounter(options.addresses[0], options.addresses[1:], options.journal)
    for line in sys.stdin:
        answered = threading.Event()

        def completed(value: object, error: object, answered: threading.Event = answered) -> None:
            print(f"{value} error={error}", flush=True)
            answered.set()

        counter.add(int(line), callback=completed)
        if not answered.wait(10):
            print(f"none in 10 s; the counter here is {counter.value}", flush=True)
    counter.destroy()


if __name__ == "__main__":
    main()
