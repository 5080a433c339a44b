"""Three machines on loopback, each with its `dledger-node`: processes die, supervisors die, all stops in order."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.admin.ask import NobodyAnsweredError, addresses_of_group, ask_all
from broker.node.cli import main as node_command
from broker.node.config import PORT_STEP
from broker.node.supervisor import BROKERS_STOP_S_MAX
from dledger_mq import Message
from dledger_mq.blocking import Admin, Producer
from jepsen.ports import free_port_rows
from jepsen.processes import Process, poll
from tests.integration.commands import Ended, run_here

pytestmark = pytest.mark.integration

MACHINES = {"alpha": "127.0.0.1", "beta": "127.0.0.2", "gamma": "127.0.0.3"}
WAIT_S = 240.0


def runs(pid: int) -> bool:
    """True for a process that has not ended; one that nobody has waited for yet has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


class Cluster:
    """Supervisors, one for each machine, and what they say.

    Args:
        machines: their names and hosts.
        head: settings before the first section of node.toml.
        more: settings after the last, [broker].
    """

    def __init__(
        self,
        folder: Path,
        *,
        machines: Mapping[str, str] = MACHINES,
        head: str = "",
        more: str = "",
    ) -> None:
        self.folder = folder
        self.machines = dict(machines)
        self.file = folder / "node.toml"
        self.namesrv_port, broker, member = free_port_rows(3, length=len(machines), step=PORT_STEP)
        hosts = "".join(f'{name} = "{host}"\n' for name, host in machines.items())
        self.file.write_text(
            f"{head}[machines]\n{hosts}[ports]\nnamesrv = {self.namesrv_port}\nbroker = {broker}\nmember = {member}\n"
            f"[broker]\nmappedFileSizeCommitLog = 16777216\n{more}"
        )
        self.broker_ports = [broker + PORT_STEP * place for place in range(len(MACHINES))]
        self.supervisors = {
            name: Process(
                name,
                self.command(name),
                log=folder / f"{name}.log",
                port=self.namesrv_port,
                host=host,
            )
            for name, host in machines.items()
        }

    @property
    def name_servers(self) -> str:
        return ";".join(f"{host}:{self.namesrv_port}" for host in self.machines.values())

    def command(self, machine: str, *action: str) -> list[str]:
        command = (sys.executable, "-m", "broker.node.cli", "-c", str(self.file))
        return [*command, "--machine", machine, *action]

    def run(self, machine: str, *action: str) -> Ended:
        """Run a command to its end; in this process, unless it is a supervisor."""
        if action:
            _, _, _, *words = self.command(machine, *action)
            return run_here(node_command, *words)
        ended = subprocess.run(
            self.command(machine),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def status(self, machine: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(machine, "--json", "status").stdout)
        return found

    def pids(self, machine: str) -> dict[str, int | None]:
        """The processes that the supervisor of a machine has noted, by name."""
        path = self.folder / "data" / machine / "node.json"
        try:
            children = json.loads(path.read_bytes())["children"]
        except FileNotFoundError:
            return {}
        return {child["name"]: child["pid"] for child in children}

    def is_known(self, group: str) -> bool:
        """True once the first name server knows the leader of a group."""
        first = self.name_servers.split(";")[:1]
        try:
            (leader, *_) = trio.run(ask_all, trio.run(addresses_of_group, first, group))
        except NobodyAnsweredError:
            return False
        return leader.table.get("raftRole") == "leader"

    def send(self, producer: Producer, count: int, topic: str = "Orders") -> set[str]:
        """Send messages; the groups that took them."""
        sent = [producer.send(Message(topic, f"order {n}".encode())) for n in range(count)]
        return {result.queue.broker_name for result in sent}


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Run all machines; at the end they are stopped in order."""
    try:
        for supervisor in cluster.supervisors.values():
            supervisor.start()
        yield cluster
    finally:
        for machine in cluster.machines:
            cluster.run(machine, "stop")
        for supervisor in cluster.supervisors.values():
            supervisor.kill()


@contextmanager
def one_machine(folder: Path) -> Iterator[tuple[Cluster, Process]]:
    """A cluster of which one machine runs, with all of its processes, and that machine's supervisor."""
    cluster = Cluster(folder)
    alpha = cluster.supervisors["alpha"]
    alpha.start()
    try:
        assert poll(
            lambda: sum(pid is not None for pid in cluster.pids("alpha").values()) == 4, WAIT_S
        )
        yield cluster, alpha
    finally:
        cluster.run("alpha", "stop")
        alpha.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(Cluster(tmp_path_factory.mktemp("node"))) as cluster:
        yield cluster


def test_all_groups_take_messages_and_every_machine_says_that_all_of_it_runs(
    cluster: Cluster,
) -> None:
    groups = {"broker-a", "broker-b", "broker-c"}
    assert poll(lambda: all(cluster.is_known(group) for group in groups), WAIT_S)
    with Admin(cluster.name_servers, timeout_s=WAIT_S) as admin:
        admin.create_topic("Orders", queues=4)
    with Producer(cluster.name_servers, group="p", timeout_s=WAIT_S) as producer:
        assert poll(lambda: cluster.send(producer, 12) == groups, WAIT_S)  # an election may be on
    for machine in MACHINES:
        status = cluster.status(machine)
        assert status["supervisor"] == cluster.supervisors[machine].pid
        assert [child["name"] for child in status["children"]] == [
            *("namesrv", "broker-a", "broker-b", "broker-c")
        ]
        assert all(child["pid"] for child in status["children"])
        assert cluster.run(machine, "status").returncode == 0


def test_a_process_that_is_killed_is_back_and_the_others_never_noticed(cluster: Cluster) -> None:
    assert poll(lambda: all(cluster.pids("alpha").values()), WAIT_S)
    before = cluster.pids("alpha")
    victim = before["broker-a"]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert poll(lambda: cluster.pids("alpha")["broker-a"] not in (victim, None), WAIT_S)
    after = cluster.pids("alpha")
    assert {name: after[name] for name in after if name != "broker-a"} == {
        name: before[name] for name in before if name != "broker-a"
    }
    (row,) = [one for one in cluster.status("alpha")["children"] if one["name"] == "broker-a"]
    assert (row["restarts"], row["last_end"]) == (1, "was ended by SIGKILL")


def test_a_supervisor_that_is_killed_costs_nothing_and_the_next_one_takes_over(
    cluster: Cluster,
) -> None:
    assert poll(lambda: all(cluster.pids("beta").values()), WAIT_S)
    before = cluster.pids("beta")
    supervisor = cluster.supervisors["beta"]
    supervisor.kill()
    orphaned = cluster.status("beta")
    assert orphaned["supervisor"] is None
    assert {child["name"]: child["pid"] for child in orphaned["children"]} == before
    assert cluster.run("beta", "status").returncode == 1
    supervisor.start()
    assert poll(lambda: cluster.status("beta")["supervisor"] == supervisor.pid, WAIT_S)
    assert cluster.pids("beta") == before
    # And it does for them what the first one did.
    victim = before["namesrv"]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert poll(lambda: cluster.pids("beta")["namesrv"] not in (victim, None), WAIT_S)


def test_a_machine_has_one_supervisor(cluster: Cluster) -> None:
    assert poll(lambda: cluster.status("gamma")["supervisor"] is not None, WAIT_S)
    second = cluster.run("gamma")
    assert second.returncode == 1
    assert f"the store is in use by process {cluster.supervisors['gamma'].pid}" in second.stderr


def test_what_a_killed_supervisor_left_can_be_stopped_and_what_runs_not_is_said(
    cluster: Cluster,
) -> None:
    assert poll(lambda: all(cluster.pids("gamma").values()), WAIT_S)
    pids = cluster.pids("gamma")
    cluster.supervisors["gamma"].kill()
    stopped = cluster.run("gamma", "stop")
    assert (stopped.returncode, "machine gamma is stopped" in stopped.stderr) == (0, True), stopped
    assert [name for name, pid in pids.items() if pid and runs(pid)] == []
    again = cluster.run("gamma", "status")
    assert (again.returncode, "machine gamma is not running" in again.stdout) == (1, True), again
    assert cluster.run("gamma", "stop").returncode == 0


def test_one_that_cannot_start_is_tried_again_and_keeps_nobody_from_running(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    alpha = cluster.supervisors["alpha"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((MACHINES["alpha"], cluster.namesrv_port))
        taken.listen()
        alpha.start()
        try:
            assert poll(lambda: "namesrv ended with status 1" in alpha.log.read_text(), WAIT_S)
            assert poll(
                lambda: any(
                    why in alpha.log.read_text() for why in ("cannot be listened on", "in use")
                ),
                WAIT_S,
            )
            assert poll(
                lambda: all(
                    pid for name, pid in cluster.pids("alpha").items() if name != "namesrv"
                ),
                WAIT_S,
            )
            taken.close()
            assert poll(lambda: cluster.pids("alpha")["namesrv"] is not None, WAIT_S)
        finally:
            cluster.run("alpha", "stop")
            alpha.kill()


def test_a_disk_that_takes_nothing_stops_nobody_and_no_process_is_lost(tmp_path: Path) -> None:
    with one_machine(tmp_path) as (cluster, alpha):
        in_the_way = tmp_path / "data" / "alpha" / "node.new"
        in_the_way.mkdir()
        kept = cluster.pids("alpha")
        victim = kept["broker-a"]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        assert poll(lambda: "broker-a was ended by SIGKILL" in alpha.log.read_text(), WAIT_S)

        def running() -> dict[str, int]:
            return {child["name"]: child["pid"] for child in cluster.status("alpha")["children"]}

        assert poll(lambda: running()["broker-a"] not in (victim, None), WAIT_S)
        assert cluster.pids("alpha") == kept, "the file could not be written"
        assert alpha.log.read_text().count("node.json cannot be written: Is a directory") == 1
        now = running()
        alpha.kill()
        in_the_way.rmdir()
        alpha.start()
        assert poll(lambda: cluster.pids("alpha") == now, WAIT_S), "all of them were found"


def test_what_a_killed_supervisor_has_left_of_a_group_that_is_gone_is_stopped(
    tmp_path: Path,
) -> None:
    with one_machine(tmp_path) as (cluster, alpha):
        before = cluster.pids("alpha")
        gone = before["broker-c"]
        assert gone is not None
        alpha.kill()
        text = cluster.file.read_text()
        cluster.file.write_text(f'groups = ["broker-a", "broker-b"]\n{text}traceOn = false\n')
        alpha.start()
        assert poll(lambda: not runs(gone), WAIT_S)
        assert poll(lambda: "namesrv runs already" in alpha.log.read_text(), WAIT_S)
        said = alpha.log.read_text()
        assert f"broker-c is no longer among the groups: process {gone} is to stop" in said
        note = "; what has changed in its settings counts from its next start"
        assert f"broker-a runs already, process {before['broker-a']}{note}\n" in said
        assert f"namesrv runs already, process {before['namesrv']}\n" in said
        left = {name: pid for name, pid in before.items() if name != "broker-c"}

        def running() -> dict[str, int]:
            return {child["name"]: child["pid"] for child in cluster.status("alpha")["children"]}

        assert poll(lambda: running() == left, WAIT_S), running()


def test_logs_that_take_nothing_keep_nobody_from_running(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    logs = tmp_path / "data" / "alpha" / "logs"
    logs.mkdir(parents=True)
    for name in ("namesrv", "broker-a", "broker-b", "broker-c"):
        (logs / f"{name}.log").symlink_to("/dev/full")
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(cluster.command("alpha"), stdout=full, stderr=full) as supervisor,
    ):
        try:
            ports = [cluster.namesrv_port, *cluster.broker_ports]
            servers = [Process("", [], log=logs, port=port) for port in ports]
            assert poll(lambda: all(server.is_listening() for server in servers), WAIT_S)
            first = cluster.pids("alpha")
            victim = first["broker-a"]
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            assert poll(lambda: cluster.pids("alpha")["broker-a"] not in (victim, None), WAIT_S)
            second = cluster.pids("alpha")
            assert {name for name in first if first[name] != second[name]} == {"broker-a"}
            assert supervisor.poll() is None
        finally:
            assert cluster.run("alpha", "stop").returncode == 0


def test_the_address_of_another_machine_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s\n")
    cluster = Cluster(tmp_path, head='secret_file = "secret"\n')
    cluster.file.write_text(cluster.file.read_text().replace("127.0.0.", "198.51.100."))
    refused = cluster.run("alpha")
    assert refused.returncode == 1
    assert (
        "machine alpha has the address 198.51.100.1, which is not one of this computer's"
        in refused.stderr
    )
    assert not (tmp_path / "data").exists()
    assert cluster.run("alpha", "check").returncode == 0


def test_a_second_signal_ends_all_soon_and_the_supervisor_after_its_children(
    tmp_path: Path,
) -> None:
    with one_machine(tmp_path) as (cluster, alpha):
        log = tmp_path / "data" / "alpha" / "logs" / "broker-b.log"
        assert poll(lambda: "is ready" in log.read_text(), WAIT_S), "it takes signals"
        pids = cluster.pids("alpha")
        deaf = pids["broker-b"]
        assert deaf is not None
        os.kill(deaf, signal.SIGSTOP)
        alpha.send_signal(signal.SIGTERM)
        assert poll(
            lambda: not any(pids[one] and runs(pids[one]) for one in ("broker-a", "broker-c")),
            WAIT_S,
        )
        alpha.send_signal(signal.SIGTERM)
        assert poll(lambda: alpha.pid is None, 2 * WAIT_S)
        assert alpha.exit_status == 0
        waited = re.search(r"broker-b did not stop within (\d+) s", alpha.log.read_text())
        assert waited is not None
        assert int(waited[1]) < BROKERS_STOP_S_MAX, "the second signal asked for haste"
        assert [name for name, pid in pids.items() if pid and runs(pid)] == []


def test_a_wrong_file_is_told_before_anything_starts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, more="listenPort = 1\n")
    refused = cluster.run("alpha")
    assert refused.returncode == 2
    assert "node.toml: [broker] listenPort: leave it out" in refused.stderr
    assert not (tmp_path / "data").exists()
    missing = subprocess.run(
        [sys.executable, "-m", "broker.node.cli", "-c", str(tmp_path / "none.toml")],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (missing.returncode, "cannot be read: No such file" in missing.stderr) == (2, True)
