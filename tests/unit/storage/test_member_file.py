"""The member's record on disk: it survives everything, and what is lost of it is known to be lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dledger.errors import ConfigError, DiskFailedError, DiskFullError
from dledger.raft.configuration import Configuration
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, NodeId, Term
from dledger.raft.member_record import MemberRecord, Start
from dledger.storage.hard_state import HardStateStore
from dledger.storage.member_file import (
    MEMBER_NAME,
    MemberFile,
    check_log_members,
    check_members,
    check_owner,
)
from dledger.testing.sim_disk import SimDisk

EMPTY = EntryId(NO_TERM, NO_INDEX)
OLD = MemberRecord("g", "n0", "", Start(3, 7), {NodeId("n1"): Start(2, 5)})
NEW = OLD.started(8)


def test_a_crash_at_any_step_of_a_save_leaves_the_old_or_the_new_record() -> None:
    for seed in range(100):
        disk = SimDisk(Random(seed))
        file = MemberFile.open(disk)
        file.save(OLD)
        getattr(disk, ("fail_sync", "fail_write")[seed % 2])(seed // 2 % 6 + 1)
        expected: tuple[MemberRecord, ...] = (NEW,)
        try:
            file.save(NEW)
        except DiskFailedError:
            expected = (OLD, NEW)
            with pytest.raises(DiskFailedError):
                file.save(NEW)
            disk.crash()
        else:
            disk.crash(keep=0.0)
        again = MemberFile.open(disk)
        assert again.record in expected
        assert again.problem is None


def test_a_full_disk_leaves_the_record_as_it_was() -> None:
    disk = SimDisk(Random(0))
    file = MemberFile.open(disk)
    file.save(OLD)
    disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        file.save(NEW)
    assert file.record == OLD
    assert MemberFile.open(disk).record == OLD
    disk.capacity_bytes = None
    file.save(NEW)
    assert MemberFile.open(disk).record == NEW


def test_a_damaged_record_is_none_and_says_why() -> None:
    disk = SimDisk(Random(0))
    MemberFile.open(disk).save(OLD)
    disk.flip_bit(MEMBER_NAME, 9)
    file = MemberFile.open(disk)
    assert file.record == MemberRecord()
    assert file.problem is not None
    assert "member: byte" in file.problem


def test_a_store_of_before_has_no_record_and_is_no_new_store() -> None:
    disk = SimDisk(Random(0))
    assert MemberFile.open(disk).record == MemberRecord()
    HardStateStore.open(disk, last_id=EMPTY).save(HardState(Term(1), None))
    assert MemberFile.open(disk).record == MemberRecord(restoration="")


@pytest.mark.parametrize(("group", "node_id"), [("g", "n1"), ("h", "n0")])
def test_the_store_of_another_member_is_refused_with_what_to_do(group: str, node_id: str) -> None:
    check_owner(OLD, group="g", node_id="n0", store_path="/data")
    check_owner(MemberRecord(), group=group, node_id=node_id, store_path="/data")
    with pytest.raises(ConfigError, match=r"/data belongs to member n0 of group g.*empty folder"):
        check_owner(OLD, group=group, node_id=node_id, store_path="/data")


MEMBERS = frozenset({NodeId("n0"), NodeId("n1"), NodeId("n2")})


def test_other_members_than_those_of_the_store_are_refused_with_what_to_do() -> None:
    known = replace(OLD, members=MEMBERS)
    check_members(known, MEMBERS, "data/n0")
    for given in ({"n0"}, {"n0", "n1"}, {"n0", "n1", "n3"}, {"n0", "n1", "n2", "n3"}):
        with pytest.raises(ConfigError) as refused:
            check_members(known, frozenset(map(NodeId, given)), "data/n0")
        said = str(refused.value)
        assert "data/n0 belongs to a group of n0, n1, n2" in said
        assert f"--peers (dLegerPeers) names {', '.join(sorted(given))}" in said
        assert "`dledger members`" in said
        assert "start with the members of the store, n0, n1, n2" in said


def test_a_store_of_a_changed_group_takes_the_peers_of_its_first_start_and_those_of_now() -> None:
    now = Configuration((NodeId("n1"), NodeId("n3")), (NodeId("n4"),))
    known = replace(OLD, members=MEMBERS, configuration=now, configuration_index=Index(9))
    for given in ({"n0", "n1", "n2"}, {"n1", "n3", "n4"}, {"n0", "n1", "n3", "n4"}):
        check_members(known, frozenset(map(NodeId, given)), "data/n0")
    for given in ({"n0"}, {"n0", "n1"}, {"n0", "n1", "n2", "n3"}, {"n1", "n3"}):
        with pytest.raises(ConfigError) as refused:
            check_members(known, frozenset(map(NodeId, given)), "data/n0")
        said = str(refused.value)
        assert "data/n0 belongs to a group of n1, n3; learners n4, by entry 9" in said
        assert "first started with n0, n1, n2" in said
        assert f"names {', '.join(sorted(given))}" in said


def test_a_store_of_before_knows_those_that_it_has_met() -> None:
    check_members(OLD, MEMBERS, "data/n0")
    check_members(OLD, frozenset({NodeId("n0"), NodeId("n1")}), "data/n0")
    with pytest.raises(ConfigError, match="in which it has met n1"):
        check_members(OLD, frozenset({NodeId("n0")}), "data/n0")
    check_members(MemberRecord(), frozenset({NodeId("n0")}), "data/n0")


def test_a_log_that_others_continued_is_refused() -> None:
    check_log_members(MEMBERS, EntryId(Term(4), Index(7)), MEMBERS, "data/n0")
    with pytest.raises(ConfigError, match="with entry 7 of term 4, by a group of n0; --peers"):
        check_log_members(frozenset({NodeId("n0")}), EntryId(Term(4), Index(7)), MEMBERS, "data/n0")
