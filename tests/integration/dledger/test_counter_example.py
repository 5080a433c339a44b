"""examples/counter.py: three processes agree on a number, through the death of all of them; its snapshots go round."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from dledger import EntryKind, Index, LogConfig, LogServer, SnapshotMachine, Term
from dledger.cli import main as dledger_command
from dledger.raft.entry import Entry
from dledger.raft.ids import Position
from jepsen.ports import free_ports
from jepsen.processes import poll
from tests.integration.commands import run_here
from tests.integration.dledger.conftest import PATIENCE_S

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[3] / "examples/counter.py"
LINES_MAX = 40


def load() -> Any:
    spec = importlib.util.spec_from_file_location("counter_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Terminals:
    """The three terminals of its docstring."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._peers = ";".join(f"n{n}-127.0.0.1:{port}" for n, port in enumerate(free_ports(3)))
        self.nodes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        self.nodes = [
            subprocess.Popen(
                [sys.executable, str(EXAMPLE), f"n{n}", self._peers],
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(3)
        ]
        # What is typed in waits for ten seconds: on a busy machine the nodes start for longer.
        assert poll(self._is_led, PATIENCE_S)

    def _is_led(self) -> bool:
        """Whether all are there, and somebody leads."""
        told = run_here(dledger_command, "status", "--peers", self._peers, "--json").stdout
        members = json.loads(told)["members"]
        return all(each["answers"] for each in members) and any(
            each["is_serving"] for each in members
        )

    def add(self, node: int, number: int) -> int:
        process = self.nodes[node]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def kill(self) -> None:
        for process in self.nodes:
            process.kill()
            process.communicate()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    made.start()
    yield made
    made.kill()


def test_three_nodes_add_and_nothing_is_forgotten(terminals: Terminals) -> None:
    assert [terminals.add(node, number) for node, number in enumerate((5, 7, -2))] == [5, 12, 10]
    terminals.kill()
    terminals.start()
    assert terminals.add(2, 1) == 11
    assert terminals.add(0, 0) == 11


def test_it_ends_with_its_input(terminals: Terminals) -> None:
    terminals.add(0, 1)
    for process in terminals.nodes:
        process.communicate(timeout=PATIENCE_S)
    assert [process.returncode for process in terminals.nodes] == [0, 0, 0]


def test_it_is_short() -> None:
    lines = [line for line in EXAMPLE.read_text().split("\n") if line.strip()]
    assert len(lines) < LINES_MAX


def test_its_state_comes_back_from_a_snapshot() -> None:
    module = load()
    counter = module.Counter()
    assert isinstance(counter, SnapshotMachine)
    bodies = (b"40", b"2")
    entries = [
        Entry(Index(n), Term(1), Position(100 * n), EntryKind.NORMAL, body)
        for n, body in enumerate(bodies, 1)
    ]
    counter.apply(entries)
    chunks = counter.snapshot()
    counter.apply([Entry(Index(3), Term(1), Position(300), EntryKind.NORMAL, b"1")])
    other = module.Counter()
    other.restore(chunks)
    assert (other.value, other.applied_index) == (42, 2)


async def test_a_restart_begins_with_the_snapshot(tmp_path: Path) -> None:
    module = load()
    (port,) = free_ports(1)
    config = LogConfig.for_member("n0", f"n0-127.0.0.1:{port}", str(tmp_path / "n0"))
    for begins_with in (0, 3):
        counter = module.Counter()
        server = LogServer(config, counter)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                assert counter.value == begins_with
                await server.forwarder.append(b"3", timeout_s=PATIENCE_S)
                assert server.reader.snapshotter is not None
                assert await server.reader.snapshotter.take()
                nursery.cancel_scope.cancel()
