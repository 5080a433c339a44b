"""A machine joins the groups of another one, and takes its place: node.toml, `check`, and the orders to the groups."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_mq import Message
from dledger_mq.blocking import Admin, Producer
from jepsen.processes import Process, poll
from tests.integration.node.test_node import WAIT_S, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def admin(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `dledger-admin`."""
    command = [sys.executable, "-m", "broker.admin.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def members_of(*where: str) -> dict[str, str]:
    """The group's members, id to kind."""
    listed = admin("members", "list", *where, "--timeout", "200", "--json")
    assert listed.returncode == 0, listed.stderr
    return {each["id"]: each["kind"] for each in json.loads(listed.stdout)["members"]}


def is_refused(cause: str, *where: str) -> bool:
    """Whether a list of the members is refused, and why; on a busy machine the time may be over before."""
    refused = admin("members", "list", *where)
    assert refused.returncode == 1, refused.stderr
    return cause in refused.stderr


def write_secrets(folder: Path) -> tuple[str, str]:
    """The files of the group's secret, and of another one."""
    for name, text in (("secret", "geheim\n"), ("wrong", "falsch\n")):
        (folder / name).write_text(text)
    return str(folder / "secret"), str(folder / "wrong")


def test_a_second_machine_joins_with_the_secret_and_takes_the_place_of_the_first(
    tmp_path: Path,
) -> None:
    secret, wrong = write_secrets(tmp_path)
    head = 'secret_file = "secret"\n'
    cluster = Cluster(tmp_path, machines={"alpha": "127.0.0.1"}, head=head)
    alpha = cluster.supervisors["alpha"]
    beta = Process(
        "beta",
        cluster.command("beta"),
        log=tmp_path / "beta.log",
        port=cluster.namesrv_port,
        host="127.0.0.2",
    )
    try:
        alpha.start()
        assert poll(lambda: cluster.is_known("broker-a"), WAIT_S)
        with Admin(cluster.name_servers, timeout_s=WAIT_S) as creating:
            creating.create_topic("Orders", queues=4)
        with Producer(cluster.name_servers, group="p", timeout_s=WAIT_S) as producer:
            assert cluster.send(producer, 3) == {"broker-a"}
        text = cluster.file.read_text()
        cluster.file.write_text(f'{text}[joined]\nbeta = "127.0.0.2"\n')
        (order,) = json.loads(cluster.run("beta", "--json", "check").stdout)["changes"]
        beta.start()
        where: tuple[str, ...] = ("-n", cluster.name_servers, "-g", "broker-a")
        # It begins no group of its own, whatever comes of it.
        for words, cause in (
            (("--secret-file", wrong), "the client does not know the secret"),
            ((), "asks for the group's secret, none is configured"),
        ):
            assert poll(lambda: is_refused(cause, *where, *words), WAIT_S)  # noqa: B023
        where = (*where, "--secret-file", secret)
        assert members_of(*where) == {"n0": "voter"}
        added = admin(*shlex.split(order)[1:], "--timeout", "200")
        assert added.returncode == 0, added.stderr
        assert members_of(*where) == {"n0": "voter", "n1": "voter"}
        # The first one leaves.
        removed = admin("members", "remove", "n0", *where, "--timeout", "200")
        assert removed.returncode == 0, removed.stderr
        assert cluster.run("alpha", "stop").returncode == 0
        cluster.file.write_text(f'left = ["alpha"]\n{cluster.file.read_text()}')
        again = cluster.run("alpha")
        assert (again.returncode, "machine alpha has left" in again.stderr) == (1, True)
        servers = f"127.0.0.2:{cluster.namesrv_port}"
        with Producer(servers, group="p", timeout_s=WAIT_S) as producer:
            assert producer.send(Message("Orders", b"on beta")).queue.broker_name == "broker-a"
        # What it was told of the first one at its first start is no matter later.
        assert cluster.run("beta", "stop").returncode == 0
        beta.kill()
        beta.start()
        beta_only = ("-n", servers, "-g", "broker-a", "--secret-file", secret)
        assert poll(lambda: admin("members", "list", *beta_only).returncode == 0, WAIT_S)
        assert members_of(*beta_only) == {"n1": "voter"}
    finally:
        for machine, supervisor in (("beta", beta), ("alpha", alpha)):
            cluster.run(machine, "stop")
            supervisor.kill()
