"""Members that come back with older copies of their stores, over loopback and real files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from dledger import ConfigError
from dledger.raft.member_record import Start
from dledger.storage.member_file import MEMBER_NAME, MemberFile
from dledger.storage.posix import PosixDisk
from dledger.storage.restored import mark_restored
from tests.unit.runtime.conftest import Group, Member, wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
S = 60.0


async def append(group: Group, count: int = 5) -> None:
    leader = await group.leader()
    for number in range(count):
        entry_id = await leader.server.appender.append(b"%d" % number, timeout_s=S)
    await group.wait_applied(entry_id.index)


async def follower(group: Group) -> Member:
    leader = await group.leader()
    return next(each for each in group.members.values() if each is not leader)


def keep_copy(member: Member, name: str = "copy") -> Path:
    store = Path(member.config.store_path)
    return Path(shutil.copytree(store, store.parent / name))


def put_back(copy: Path, member: Member) -> None:
    shutil.rmtree(member.config.store_path)
    shutil.copytree(copy, member.config.store_path)


def lose_record(member: Member) -> None:
    Path(member.config.store_path, MEMBER_NAME).unlink()


def starts(member: Member) -> int:
    return MemberFile.open(PosixDisk(member.config.store_path)).record.start.count


async def test_an_old_copy_in_another_term_gives_up_its_vote_and_gets_it_back(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        await append(group)
        victim = await follower(group)
        await victim.stop()
        copy = keep_copy(victim)
        victim = await group.start(victim.server.node_id)
        await append(group)
        await victim.stop()
        put_back(copy, victim)
        old_leader = await group.leader()
        (third,) = (each for each in group.members.values() if each not in (victim, old_leader))
        await old_leader.server.transfer(third.server.node_id, timeout_s=S)
        await wait_until(lambda: not old_leader.server.is_leader)
        with caplog.at_level(logging.WARNING, "dledger"):
            victim = await group.start(victim.server.node_id)
            await wait_until(lambda: "store-is-old" in caplog.text)
            await append(group)
            # It has overtaken what the others remember; that is saved once no other record is.
            await wait_until(lambda: victim.server.is_voter and starts(victim) > 2)
        assert "peer-store-is-old" in caplog.text
        assert "store" not in victim.server.status.attributes(victim.server.node_id)
        bodies = (await group.leader()).machine.bodies
        assert len(bodies) == 15
        assert victim.machine.bodies == bodies
        assert starts(victim) == 3
        caplog.clear()
        await victim.stop()
        victim = await group.start(victim.server.node_id)
        with caplog.at_level(logging.WARNING, "dledger"):
            await wait_until(lambda: len(victim.server.status.peers_connected()) == 2)
            await append(group)
        assert "store-is-old" not in caplog.text
        assert victim.server.is_voter


async def test_an_old_copy_that_was_killed_before_it_gave_up_its_vote_gives_it_up_at_the_next_start(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Started once more, its count passes what the others remember: only its own record can still say it."""
    async with open_group(size=3) as group:
        await group.start_all()
        await append(group)
        victim = await follower(group)
        await victim.stop()
        disk = PosixDisk(victim.config.store_path)
        file = MemberFile.open(disk)
        file.save(replace(file.record, missed=Start(file.record.start.count, 1)))
        with caplog.at_level(logging.WARNING, "dledger"):
            victim = await group.start(victim.server.node_id)
            await wait_until(lambda: "store-is-old" in caplog.text)
            await append(group)
            await wait_until(lambda: victim.server.is_voter)
            await wait_until(lambda: not MemberFile.open(disk).record.missed.count)
        assert "heard of start 1 of this store" in caplog.text


async def test_members_that_start_again_and_again_and_a_wiped_one_are_no_old_copies(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dledger"):
        async with open_group(size=3) as group:
            await group.start_all()
            await append(group)
            for _ in range(2):
                for name in list(group.members):
                    await group.members[name].stop()
                    await group.start(name)
                    await append(group)
            victim = await follower(group)
            await victim.stop()
            shutil.rmtree(victim.config.store_path)
            victim = await group.start(victim.server.node_id)
            await append(group)
            await wait_until(lambda: victim.server.is_voter)
            await wait_until(lambda: starts(victim) == 4)
    lines = [each.getMessage() for each in caplog.records]
    assert not [each for each in lines if each.startswith("store-is-old")]


async def test_a_member_of_before_leaves_the_record_alone_and_a_store_without_one_is_taken(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        await append(group)
        victim = await follower(group)
        await victim.stop()
        lose_record(victim)
        # What the others remember of it is ahead: as after a wiping it waits to be admitted.
        victim = await group.start(victim.server.node_id)
        await append(group)
        await wait_until(lambda: victim.server.is_voter and starts(victim) == 2)


async def test_a_store_of_another_member_is_refused(open_group: OpenGroup) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        await append(group)
        victim, leader = await follower(group), await group.leader()
        for each in (victim, leader):
            await each.stop()
        put_back(Path(leader.config.store_path), victim)
        with trio.fail_after(S), pytest.raises((ConfigError, RuntimeError)):
            await group.start(victim.server.node_id)
        failure = group.members[victim.server.node_id].failure
        assert isinstance(failure, ConfigError)
        assert f"belongs to member {leader.server.node_id} of group g" in str(failure)


def make_all(copy: Path, group: Group, name: str) -> None:
    for member in group.members.values():
        put_back(copy, member)
        mark_restored(member.config.store_path, group="g", node_id=member.server.node_id, name=name)


async def test_all_members_from_one_copy_say_that_a_new_incarnation_has_begun(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        await append(group)
        leader = await group.leader()
        straggler = await follower(group)
        for each in group.members.values():
            await each.stop()
        copy = keep_copy(leader)
        before = keep_copy(straggler, "straggler")
        make_all(copy, group, "monday")
        with caplog.at_level(logging.WARNING, "dledger"):
            await group.start_all()
            await append(group)
        assert caplog.text.count("new-incarnation") == 3
        for each in group.members.values():
            own = each.server.status.attributes(each.server.node_id)
            assert own["incarnation"] == "monday"
            assert each.server.is_voter
        # A store from before does not mix with them.
        straggler = group.members.pop(straggler.server.node_id)
        await straggler.stop()
        put_back(before, straggler)
        with caplog.at_level(logging.WARNING, "dledger"):
            straggler = await group.start(straggler.server.node_id)
            await wait_until(lambda: "stores from before and after a restoring" in caplog.text)
        assert straggler.server.status.peers_connected() == []
        # An empty one does.
        group.members.pop(straggler.server.node_id)
        await straggler.stop()
        shutil.rmtree(straggler.config.store_path)
        straggler = await group.start(straggler.server.node_id)
        await append(group)
        await wait_until(lambda: straggler.server.is_voter)
        assert (
            straggler.server.status.attributes(straggler.server.node_id)["incarnation"] == "monday"
        )
