"""A store is marked as one of a restored group, or nothing about it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.errors import ConfigError, StoreLockedError
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, NodeId, Term
from dledger.raft.member_record import MemberRecord, Start
from dledger.storage.hard_state import HardStateStore
from dledger.storage.lock import StoreLock
from dledger.storage.member_file import MemberFile
from dledger.storage.posix import PosixDisk
from dledger.storage.restored import mark_restored

N0, N1 = NodeId("n0"), NodeId("n1")


def make_store(path: Path, *, is_voter: bool = True) -> str:
    disk = PosixDisk(str(path))
    store = HardStateStore.open(disk, last_id=EntryId(NO_TERM, NO_INDEX))
    store.save(HardState(Term(3), N1, is_voter))
    MemberFile.open(disk).save(MemberRecord("g", "n1", "", Start(4, 7), {N0: Start(9, 9)}))
    return str(path)


def record_of(store: str) -> MemberRecord:
    return MemberFile.open(PosixDisk(store)).record


def test_a_copy_becomes_the_store_of_another_member_that_remembers_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    mark_restored(store, group="g", node_id=N0, name="monday")
    assert record_of(store) == MemberRecord("g", "n0", "monday")


@pytest.mark.parametrize("name", ["", "x" * 65, "two\nlines"])
def test_a_restoring_needs_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match="it must have 1 to 64, all printable; nothing was changed"
    ):
        mark_restored(make_store(tmp_path), group="g", node_id=N0, name=name)


def test_a_name_that_was_used_and_a_folder_without_a_store_are_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    mark_restored(store, group="g", node_id=N0, name="monday")
    with pytest.raises(ConfigError, match="restored as monday already"):
        mark_restored(store, group="g", node_id=N0, name="monday")
    with pytest.raises(ConfigError, match="there is no store"):
        mark_restored(str(tmp_path / "nowhere"), group="g", node_id=N0, name="monday")
    assert not (tmp_path / "nowhere").exists()


def test_a_copy_of_who_had_no_vote_is_refused_to_others(tmp_path: Path) -> None:
    store = make_store(tmp_path, is_voter=False)
    with pytest.raises(ConfigError, match="a copy of n1, which had no vote"):
        mark_restored(store, group="g", node_id=N0, name="monday")
    mark_restored(store, group="g", node_id=N1, name="monday")


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with StoreLock(store), pytest.raises(StoreLockedError):
        mark_restored(store, group="g", node_id=N0, name="monday")
    assert record_of(store).node_id == "n1"
