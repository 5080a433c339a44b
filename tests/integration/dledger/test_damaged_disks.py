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


@pytest.fixture(scope="module")
def is_filled() -> list[bool]:
    """Whether it was, once for all tests: each leaves the group with the same bytes on all disks."""
    return []


@pytest.fixture
def filled(group: Any, is_filled: list[bool]) -> Any:
    if is_filled:
        wait_until(lambda: caught_up(group), "all members are back")
        return group
    body = "b" * BODY_BYTES
    assert group.run("append", "--count", str(COUNT), "--data", body).returncode == 0
    # A majority has it. What a node gets after a start is in its memory, and on no disk that is damaged before.
    wait_until(lambda: caught_up(group), "every member has all of it on its disk")
    is_filled.append(True)
    return group


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


def test_damage_found_at_a_start_is_mended_from_the_others(filled: Any) -> None:
    filled.kill("n1")
    for entry in (5, 6, 40):
        flip(data_file(filled, "n1"), place_of(entry))
    filled.start("n1")
    wait_until(lambda: "log-repaired" in filled.log("n1"), "n1 is repaired")
    assert "log-damaged" in filled.log("n1")
    assert_all_equal(filled)


def test_three_damaged_nodes_heal_each_other(filled: Any) -> None:
    for node_id in NODES:
        filled.kill(node_id)
    for entry in range(2, COUNT):
        flip(data_file(filled, NODES[entry % 3]), place_of(entry))
    filled.start_all()
    for node_id in NODES:
        wait_until(lambda n=node_id: "log-repaired" in filled.log(n), f"{node_id} is repaired")  # type: ignore[misc]
    assert filled.run("append", "--data", "goes on").returncode == 0
    assert_all_equal(filled)


def test_a_lost_log_file_and_a_damaged_vote_are_survived(filled: Any) -> None:
    filled.kill("n2")
    data_file(filled, "n2").unlink()
    flip(filled.folder / "n2" / "hard_state", 9)
    filled.start("n2")
    wait_until(lambda: "vote-lost" in filled.log("n2"), "n2 says that it lost its vote")
    assert filled.run("append", "--data", "goes on").returncode == 0
    assert_all_equal(filled)


def test_an_entry_that_is_damaged_while_its_node_runs_is_read_from_another(filled: Any) -> None:
    filled.kill("n1")
    filled.start("n1")
    wait_until(lambda: caught_up(filled), "n1 is back")
    # The first entry of a leader has no body, and that may be any.
    asked = ("get", "--index", "30", "--count", "20", "--json", "--local")
    others = map(json.loads, filled.run(*asked, "n0").stdout.splitlines())
    other = next(each for each in others if each["body"])
    flip(data_file(filled, "n1"), other["position"] + ENTRY_HEADER_BYTES + 100)
    found = filled.run("get", "--index", str(other["index"]), "--local", "n1", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["body"] == "b" * BODY_BYTES
    wait_until(lambda: "entry-repaired" in filled.log("n1"), "n1 says so")
    assert_all_equal(filled)
