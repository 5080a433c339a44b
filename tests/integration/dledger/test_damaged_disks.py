"""Real processes whose files were damaged while they were down, or while they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.raft.entry import ENTRY_HEADER_BYTES
from jepsen.processes import poll
from tests.integration.dledger.conftest import NODES, PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.integration]

BODY_BYTES = 500
COUNT = 120


def wait_until(condition: Callable[[], bool], what: str) -> None:
    assert poll(condition, PATIENCE_S), what


def filled(cluster: Any) -> None:
    cluster.start_all()
    body = "b" * BODY_BYTES
    assert cluster.run("append", "--count", str(COUNT), "--data", body).returncode == 0
    # A majority has it. What a node gets after a start is in its memory, and on no disk that is damaged before.
    wait_until(lambda: caught_up(cluster), "every member has all of it on its disk")


def data_file(cluster: Any, node_id: str) -> Path:
    data = Path(cluster.folder) / node_id / "data"
    return sorted(data.iterdir())[-1]


def flip(path: Path, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ 8]))


def place_of(entry: int) -> int:
    """A byte in the body of an entry; the first one is the no-op of the first term."""
    return ENTRY_HEADER_BYTES + (entry - 2) * (ENTRY_HEADER_BYTES + BODY_BYTES) + 100


def caught_up(cluster: Any) -> bool:
    members = cluster.status()
    indexes = {member.get("commit_index") for member in members.values()}
    return len(indexes) == 1 and None not in indexes and indexes != {0}


def assert_all_equal(cluster: Any) -> None:
    """Every member holds the same bytes of what was committed."""
    wait_until(lambda: caught_up(cluster), "all members at the same commit index")
    end = place_of(COUNT + 2) - 100
    contents = {
        node_id: data_file(cluster, node_id).read_bytes()[:end] for node_id in cluster.processes
    }
    assert len(set(contents.values())) == 1
    assert len(next(iter(contents.values()))) == end


def test_damage_found_at_a_start_is_mended_from_the_others(cluster: Any) -> None:
    filled(cluster)
    cluster.kill("n1")
    for entry in (5, 6, 40):
        flip(data_file(cluster, "n1"), place_of(entry))
    cluster.start("n1")
    wait_until(lambda: "log-repaired" in cluster.log("n1"), "n1 is repaired")
    assert "log-damaged" in cluster.log("n1")
    assert_all_equal(cluster)


def test_three_damaged_nodes_heal_each_other(cluster: Any) -> None:
    filled(cluster)
    for node_id in NODES:
        cluster.kill(node_id)
    for entry in range(2, COUNT):
        flip(data_file(cluster, NODES[entry % 3]), place_of(entry))
    cluster.start_all()
    for node_id in NODES:
        wait_until(lambda n=node_id: "log-repaired" in cluster.log(n), f"{node_id} is repaired")  # type: ignore[misc]
    assert cluster.run("append", "--data", "goes on").returncode == 0
    assert_all_equal(cluster)


def test_a_lost_log_file_and_a_damaged_vote_are_survived(cluster: Any) -> None:
    filled(cluster)
    cluster.kill("n2")
    data_file(cluster, "n2").unlink()
    flip(cluster.folder / "n2" / "hard_state", 9)
    cluster.start("n2")
    wait_until(lambda: "vote-lost" in cluster.log("n2"), "n2 says that it lost its vote")
    assert cluster.run("append", "--data", "goes on").returncode == 0
    assert_all_equal(cluster)


def test_an_entry_that_is_damaged_while_its_node_runs_is_read_from_another(cluster: Any) -> None:
    filled(cluster)
    cluster.kill("n1")
    cluster.start("n1")
    wait_until(lambda: caught_up(cluster), "n1 is back")
    # The first entry of a leader has no body, and that may be any.
    asked = ("get", "--index", "30", "--count", "20", "--json", "--local")
    others = map(json.loads, cluster.run(*asked, "n0").stdout.splitlines())
    other = next(each for each in others if each["body"])
    flip(data_file(cluster, "n1"), other["position"] + ENTRY_HEADER_BYTES + 100)
    found = cluster.run("get", "--index", str(other["index"]), "--local", "n1", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["body"] == "b" * BODY_BYTES
    wait_until(lambda: "entry-repaired" in cluster.log("n1"), "n1 says so")
    assert_all_equal(cluster)
