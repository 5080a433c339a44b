"""Edited --peers with real processes: other members than the store's are refused, and nobody is talked apart."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jepsen.processes import poll
from tests.integration.dledger.conftest import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@contextmanager
def other_peers(cluster: Any, peers: str) -> Iterator[None]:
    """Commands within it are given these."""
    before, cluster.peers = cluster.peers, peers
    yield
    cluster.peers = before


def refusal(cluster: Any, node_id: str, peers: str) -> str:
    """Start a node with other peers on its store; what it says when it refuses."""
    with other_peers(cluster, peers):
        store = str(cluster.folder / node_id)
        try:
            ended = cluster.run_apart("server", "--id", node_id, "--store", store)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{node_id} runs with {peers}")
    assert ended.returncode == 2, ended.stderr
    return str(ended.stderr)


def test_a_node_with_edited_peers_does_not_start_and_the_group_stays_whole(cluster: Any) -> None:
    cluster.start_all()
    own, *others = cluster.peers.split(";")
    assert cluster.run("append", "--count", "5", "--data", "whole").returncode == 0
    cluster.kill("n0")
    for peers in (own, f"{own};{others[0]}", f"{cluster.peers};n3-127.0.0.1:1"):
        said = refusal(cluster, "n0", peers)
        assert "belongs to a group of n0, n1, n2" in said
        assert "start with the members of the store, n0, n1, n2" in said
    # Not the file alone says so: the log does, too.
    (cluster.folder / "n0" / "member").unlink()
    assert "by a group of n0, n1, n2" in refusal(cluster, "n0", own)
    cluster.start("n0")
    with cluster.client() as client:
        client.append(b"after", retry_unknown=True)


def test_an_empty_store_with_other_peers_is_refused_by_those_that_it_meets(cluster: Any) -> None:
    cluster.start_all()
    cluster.wait_whole()  # else n2 might have no store yet
    cluster.kill("n2")
    own = cluster.peers.split(";")[2]
    with other_peers(cluster, own):
        command = cluster.command(
            "server", "--id", "n2", "--store", str(cluster.folder / "other"), "-v"
        )
    with (cluster.folder / "n2.log").open("ab") as log:
        cluster.processes["n2"] = subprocess.Popen(command, stderr=log)
    for node_id in ("n0", "n1"):
        wanted = f"{node_id} is configured with the members (n0, n1, n2), n2 with (n2)"
        for log in (node_id, "n2"):
            assert poll(lambda wanted=wanted, log=log: wanted in cluster.log(log), PATIENCE_S)  # type: ignore[misc]
    with cluster.client() as client:
        client.append(b"undisturbed", retry_unknown=True)
    cluster.kill("n2")
    shutil.rmtree(cluster.folder / "n2")
    (cluster.folder / "other").rename(cluster.folder / "n2")
    assert "belongs to a group of n2; --peers" in refusal(cluster, "n2", cluster.peers)
