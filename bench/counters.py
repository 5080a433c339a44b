"""The counter of examples/counter.py and PySyncObj's, through the same troubles: `python -m bench.counters`.

Three nodes each. All add at once, the nodes are killed (kill -9) one after another and started again, then all
of them at once. What the programs said is held against the counter: it must have all that was acknowledged, and
not more than that and what was left open.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jepsen.ports import free_ports

ADDS = 60
PAUSE_S = 0.05
SETTLE_S = 3.0
ANSWER_S = 15.0
Command = Callable[[int], list[str]]


@dataclass
class Node:
    """One node's process and its latest printed number."""

    command: list[str]
    folder: Path
    acknowledged: int = 0
    open: int = 0
    last: str = ""

    def start(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            self.command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def add(self, number: int) -> str:
        """Add at this node; return its answer, empty when it was killed meanwhile."""
        assert self.process.stdin is not None, f"{self.process.args!r} has no pipe for stdin"
        assert self.process.stdout is not None, f"{self.process.args!r} has no pipe for stdout"
        try:
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
            self.last = self.process.stdout.readline().strip()
        except OSError:
            self.last = ""
        return self.last

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait()

    def add_ones(self) -> None:
        """Add 1 repeatedly, at another node once this one was killed."""
        for _ in range(ADDS):
            said = self.add(1)
            is_done = said.split(" ")[0].isdigit() and ("error" not in said or said.endswith("=0"))
            self.acknowledged += is_done
            self.open += not is_done
            time.sleep(PAUSE_S if said else SETTLE_S)


def run(name: str, command: Command) -> None:
    """Put one counter through it, and print a line."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = [Node(command(number), Path(folder)) for number in range(3)]
        for node in nodes:
            node.start()
        time.sleep(SETTLE_S)
        threads = [threading.Thread(target=node.add_ones) for node in nodes]
        for thread in threads:
            thread.start()
        for node in nodes:
            time.sleep(1)
            node.kill()
            node.start()
            time.sleep(SETTLE_S)
        for thread in threads:
            thread.join()
        time.sleep(SETTLE_S)
        values = [node.add(0) for node in nodes]
        for node in nodes:
            node.kill()
        for node in nodes:
            node.start()
        time.sleep(SETTLE_S)
        after = nodes[0].add(0)
        for node in nodes:
            node.kill()
    acknowledged, left_open = (
        sum(node.acknowledged for node in nodes),
        sum(node.open for node in nodes),
    )
    print(
        f"{name:<24} acknowledged {acknowledged}, open {left_open}; counter {values}; after kill -9 of all: {after}"
    )


def main() -> None:
    """Run both counters, and the peer's with its journal."""
    python = sys.executable
    root = Path(__file__).parents[1]
    ports = free_ports(3)
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]

    def ours(number: int) -> list[str]:
        return [python, str(root / "examples/counter.py"), f"n{number}", peers]

    def theirs(number: int, *more: str) -> list[str]:
        others = [address for address in addresses if address != addresses[number]]
        program = str(root / "bench/pysyncobj_counter.py")
        return [python, program, addresses[number], *others, *more]

    run("dledger", ours)
    run("pysyncobj", theirs)
    with tempfile.TemporaryDirectory() as folder:
        journals = [Path(folder) / str(number) for number in range(3)]
        for journal in journals:
            journal.mkdir()
        run("pysyncobj, journal", lambda number: theirs(number, "--journal", str(journals[number])))


if __name__ == "__main__":
    main()
