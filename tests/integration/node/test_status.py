"""`dledger-admin status` of three groups on three machines, which know a secret."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from broker.admin import survey
from broker.admin.cli import main as dledger_admin
from jepsen.processes import poll
from tests.integration.commands import run_here
from tests.integration.node.test_node import MACHINES, WAIT_S, Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GROUPS = ["broker-a", "broker-b", "broker-c"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("status")
    secret = folder / "secret"
    secret.write_text("of all three\n")
    secret.chmod(0o600)
    cluster = Cluster(folder)
    cluster.file.write_text(f'secret_file = "{secret}"\n{cluster.file.read_text()}')
    try:
        for supervisor in cluster.supervisors.values():
            supervisor.start()
        yield cluster
    finally:
        for machine in MACHINES:
            cluster.run(machine, "stop")
        for supervisor in cluster.supervisors.values():
            supervisor.kill()


@pytest.fixture(autouse=True)
def _patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is dead refuses at once, and the others are given the time that they need."""
    monkeypatch.setattr(survey, "ANSWER_S", WAIT_S)


def status(cluster: Cluster, *options: str) -> tuple[int, dict[str, Any]]:
    ended = run_here(dledger_admin, "status", "-n", cluster.name_servers, "--json", *options)
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}


def states(shown: dict[str, Any], group: str) -> dict[str, str]:
    found = [each for each in shown.get("groups", []) if each["name"] == group]
    return {member["id"]: member["state"] for each in found for member in each["members"]}


def leaders(cluster: Cluster) -> list[str | None]:
    return [group["leader"] for group in status(cluster)[1].get("groups", [])]


def test_one_command_shows_all_groups_and_what_becomes_of_them(cluster: Cluster) -> None:
    assert poll(lambda: status(cluster, "--strict")[0] == 0, WAIT_S), status(cluster)
    _, shown = status(cluster)
    assert [group["name"] for group in shown["groups"]] == GROUPS
    assert poll(lambda: leaders(cluster) == ["n0", "n1", "n2"], WAIT_S), "each machine leads one"
    assert len({member["address"] for each in shown["groups"] for member in each["members"]}) == 9

    # A machine without its supervisor: who dies there stays dead.
    gone = cluster.pids("gamma")
    cluster.supervisors["gamma"].kill()
    for pid in gone.values():
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def is_shown() -> bool:
        nonlocal shown
        code, shown = status(cluster)
        away = {name: states(shown, name).get("n2") for name in GROUPS}
        return code == 0 and set(away.values()) == {"away"}

    assert poll(is_shown, WAIT_S), shown
    assert all(group["led"] for group in shown["groups"])
    assert [bool(each["problem"]) for each in shown["name_servers"]] == [False, False, True]
    assert status(cluster, "--strict")[0] == 1
    cluster.supervisors["gamma"].start()
    assert poll(lambda: status(cluster, "--strict")[0] == 0, WAIT_S), status(cluster)
