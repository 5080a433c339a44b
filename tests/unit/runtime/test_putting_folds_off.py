"""Entries that come one after the other: a follower folds several together, and nobody waits for that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from dledger import Index
from dledger.runtime import driver as driver_module
from dledger.runtime.driver import Driver
from tests.unit.runtime.conftest import PATIENCE_S, Group, Member, wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]

COUNT = 40
FOR_EVER_MS = 1 << 40


def driver_of(member: Member) -> Driver:
    driver = member.server._standing.driver
    assert driver is not None
    return driver


async def test_a_follower_folds_together_what_comes_in_a_row_and_the_leader_each_at_once(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "FOLD_PAUSE_MS", FOR_EVER_MS)
    async with open_group(size=3, secret=None) as group:
        await group.start_all(heartbeat_interval_ms=100)
        leader = await group.leader()
        followers = [each for each in group.members.values() if each is not leader]
        for number in range(COUNT):
            entry_id = await leader.server.appender.append(b"%d" % number, timeout_s=PATIENCE_S)
            assert leader.machine.applied_index >= entry_id.index
        # Nothing more is sent to be written: the next heartbeat has them folded.
        await group.wait_applied(entry_id.index)
        for follower in followers:
            assert follower.machine.bodies == leader.machine.bodies
            assert max(follower.machine.chunk_sizes) > 1


async def test_a_fold_is_put_off_by_a_follower_only_and_not_while_somebody_waits(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "FOLD_PAUSE_MS", FOR_EVER_MS)
    async with open_group(size=3, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        entry_id = await leader.server.appender.append(b"1", timeout_s=PATIENCE_S)
        await group.wait_applied(entry_id.index)
        driver, other = (
            driver_of(leader),
            next(driver_of(each) for each in group.members.values() if each is not leader),
        )
        assert not driver._puts_off_fold(driver._folded_ms)
        assert other._puts_off_fold(other._folded_ms)
        assert not other._puts_off_fold(other._folded_ms + FOR_EVER_MS)
        awaited = Index(entry_id.index + 1)
        other.expect_applied(awaited)
        assert not other._puts_off_fold(other._folded_ms)
        entry_id = await leader.server.appender.append(b"2", timeout_s=PATIENCE_S)
        assert entry_id.index == awaited
        await wait_until(lambda: other.applied_index >= awaited)
        assert other._puts_off_fold(other._folded_ms), "nobody waits any more"


async def test_what_comes_in_bulk_is_not_put_off(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "FOLD_PAUSE_MS", FOR_EVER_MS)
    async with open_group(size=3, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        entry_id = await leader.server.appender.append(b"1", timeout_s=PATIENCE_S)
        await group.wait_applied(entry_id.index)
        follower = next(driver_of(each) for each in group.members.values() if each is not leader)
        assert follower._puts_off_fold(follower._folded_ms)
        monkeypatch.setattr(driver_module, "FOLD_LATER_BYTES_MAX", -1)
        assert not follower._puts_off_fold(follower._folded_ms)
