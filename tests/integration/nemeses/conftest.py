"""Harmless processes that stand for a system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.ports import free_ports
from jepsen.processes import Process, poll
from jepsen.systems.api import LinkControl

LISTENS = """
import fcntl, os, socket, sys
store = sys.argv[2]
os.makedirs(store, exist_ok=True)
lock = open(os.path.join(store, "lock"), "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("the store is in use", flush=True)
    raise SystemExit(1)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
while True:
    server.accept()[0].close()
"""


class FakeSystem:
    """Three processes that lock a store and listen, under a leader that the test names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = [
            Process(
                f"n{at}",
                [sys.executable, "-S", "-c", LISTENS, str(port), str(folder / f"n{at}")],
                log=folder / f"n{at}.log",
                port=port,
            )
            for at, port in enumerate(free_ports(3))
        ]
        self.links: LinkControl | None = None
        self.leader: str | None = "n1"

    def node(self, name: str) -> Process:
        return next(node for node in self.nodes if node.name == name)

    def store(self, name: str) -> Path:
        return self.folder / name

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        assert poll(lambda: all(node.is_listening() for node in self.nodes), 60)

    def running(self) -> list[str]:
        return [node.name for node in self.nodes if node.pid is not None]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[FakeSystem]:
    made = FakeSystem(tmp_path)
    try:
        made.start()
        yield made
    finally:
        for node in made.nodes:
            node.kill()
