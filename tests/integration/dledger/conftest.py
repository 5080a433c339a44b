"""Real processes of the `dledger` command on free loopback ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger import SyncClient
from dledger.cli import main as dledger_command
from jepsen.ports import free_ports
from jepsen.processes import poll
from tests.integration.commands import Ended, run_here

PATIENCE_S = 120
"""Nothing takes that long, on whatever machine; a test that waits for more has failed."""

NODES = ("n0", "n1", "n2")


class Cluster:
    """Three members; any of them may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.peers = ";".join(
            f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(3))
        )
        self.folder = folder
        self.secret_file = folder / "secret"
        self.secret_file.write_text("geheim\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, name: str, *options: str) -> list[str]:
        return [
            *(sys.executable, "-m", "dledger", name, "--peers", self.peers),
            *("--secret-file", str(self.secret_file), *options),
        ]

    def run(self, name: str, *options: str) -> Ended:
        """Run a command to its end, in this process: a start of Python may take ten seconds."""
        if name == "append" and "--timeout" not in options:
            # Again when a leader changes meanwhile: how often that happens is a matter of the machine.
            options = (*options, "--timeout", str(PATIENCE_S), "--retry-unknown")
        if name == "get" and "--timeout" not in options:
            options = (*options, "--timeout", str(PATIENCE_S))
        _, _, _, *words = self.command(name, *options)
        return run_here(dledger_command, *words)

    def run_apart(self, name: str, *options: str, stdin: bytes | None = None) -> Ended:
        """Run a command to its end, in a process of its own."""
        ended = subprocess.run(
            self.command(name, *options),
            capture_output=True,
            timeout=PATIENCE_S,
            input=stdin,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def start(self, node_id: str, *options: str) -> subprocess.Popen[bytes]:
        command = self.command(
            "server", "--id", node_id, "--store", str(self.folder / node_id), "-v", *options
        )
        with (self.folder / f"{node_id}.log").open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        self.processes[node_id] = process
        return process

    def start_all(self) -> None:
        for node_id in NODES:
            self.start(node_id)

    def kill(self, node_id: str) -> None:
        process = self.processes.pop(node_id)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)

    def log(self, node_id: str) -> str:
        return (self.folder / f"{node_id}.log").read_text()

    def client(self) -> SyncClient:
        return SyncClient(self.peers, secret="geheim", timeout_s=PATIENCE_S)

    def status(self) -> dict[str, dict[str, object]]:
        result = self.run("status", "--json")
        return {member["id"]: member for member in json.loads(result.stdout)["members"]}

    def wait_whole(self) -> None:
        """Wait until every member runs and hears all others."""

        def is_whole() -> bool:
            return all(each.get("hears") == list(NODES) for each in self.status().values())

        assert poll(is_whole, PATIENCE_S), self.status()

    def leader_id(self) -> str:
        """Who serves; an append has just shown that somebody does."""
        with self.client() as client:
            client.append(b"is anybody there?", retry_unknown=True)
        serving: list[str] = []

        def is_one() -> bool:
            serving[:] = [name for name, seen in self.status().items() if seen.get("is_serving")]
            return len(serving) == 1

        assert poll(is_one, PATIENCE_S), serving
        return serving[0]

    def stop_all(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A group for all tests of a module that leave it able to go on."""
    os.environ.pop("DLEDGER_SECRET", None)
    cluster = Cluster(tmp_path_factory.mktemp("standing"))
    yield cluster
    cluster.stop_all()


@pytest.fixture
def group(standing: Cluster) -> Cluster:
    """That group with all members running, whomever a test before has killed, and with logs that say nothing yet."""
    for node_id in NODES:
        if node_id not in standing.processes:
            standing.start(node_id)
        os.truncate(standing.folder / f"{node_id}.log", 0)
    return standing


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    os.environ.pop("DLEDGER_SECRET", None)
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop_all()
