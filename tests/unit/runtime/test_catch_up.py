"""A leader reads old entries for members that lack them beside its loop, no faster than it may."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from types import SimpleNamespace

import pytest
import trio

from dledger.catch_up import EntriesLoad
from dledger.raft.effects import LoadEntries
from dledger.raft.ids import Index, NodeId, Term
from dledger.runtime.catch_up import CatchUpReads, LogGrowth
from dledger.runtime.clock import now_s
from dledger.storage.log_reader import CheckPlan
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk
from tests.unit.runtime.conftest import Group, Member, wait_until
from tests.unit.runtime.refusals import RefusedReads

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
MIB = 1024 * 1024
S = 60.0


class Layout:
    end_position = 0


def load_of(size_bytes: int, to: str = "n1") -> EntriesLoad:
    want = LoadEntries(NodeId(to), Term(1), Index(1), Index(2))
    return EntriesLoad(want, SimpleNamespace(size_bytes=size_bytes))  # type: ignore[arg-type]


def catch_up(
    bytes_per_s: int, is_waited_for: Callable[[NodeId], bool] = lambda _member: False
) -> tuple[CatchUpReads, Layout]:
    layout = Layout()
    made = CatchUpReads(layout, lambda _load: None, is_waited_for)  # type: ignore[arg-type]  # what is used of it
    made.bytes_per_s = bytes_per_s
    made._growth = LogGrowth(0, 0.0)
    return made, layout


def wait_of(made: CatchUpReads, load: EntriesLoad, at_s: float) -> float:
    """Return for how long a read waits that comes now, and let it begin."""
    wait_s = made._wait_s(load, at_s)
    made._owe(load)
    return wait_s


def test_a_member_gets_no_more_than_the_rate_and_what_was_not_used_is_lost() -> None:
    made, _ = catch_up(4 * MIB)
    waits = [wait_of(made, load_of(MIB), 10.0) for _ in range(4)]
    assert waits == [0.0, 0.25, 0.5, 0.75]
    assert wait_of(made, load_of(MIB), 20.0) == 0.0
    assert wait_of(made, load_of(MIB), 20.0) == 0.25


def test_it_is_half_the_rate_while_somebody_sends_and_all_of_it_once_nobody_does() -> None:
    """Whoever sends shares processors and disk with the member that catches up; once nobody does, it may hurry."""
    made, layout = catch_up(4 * MIB)
    layout.end_position = 1024
    waits = [wait_of(made, load_of(MIB), 10.0) for _ in range(4)]
    assert waits == [0.0, 0.5, 1.0, 1.5], "the log grew in the second before"
    assert made._wait_s(load_of(MIB), 10.5) == 1.5
    assert made._wait_s(load_of(MIB), 11.0) == 0.25, "it has not grown since"


def test_each_member_has_a_rate_of_its_own() -> None:
    made, _ = catch_up(4 * MIB)
    wait_of(made, load_of(MIB, "n1"), 10.0)
    assert wait_of(made, load_of(MIB, "n2"), 10.0) == 0.0
    assert wait_of(made, load_of(MIB, "n1"), 10.0) == 0.25


def test_who_is_waited_for_is_not_held_down_nor_is_anybody_without_a_rate() -> None:
    made, _ = catch_up(4 * MIB, {NodeId("n1")}.__contains__)
    assert [wait_of(made, load_of(MIB), 10.0) for _ in range(3)] == [0.0] * 3
    assert [wait_of(made, load_of(MIB, "n2"), 10.0) for _ in range(3)] == [0.0, 0.25, 0.5]
    made.bytes_per_s = 0
    assert [wait_of(made, load_of(MIB), 10.0) for _ in range(3)] == [0.0] * 3


def test_a_member_is_sent_twice_as_much_as_the_log_grows_by_or_it_would_never_arrive() -> None:
    made, layout = catch_up(4 * MIB)
    layout.end_position = 80 * MIB
    assert wait_of(made, load_of(MIB), 10.0) == 0.0
    assert wait_of(made, load_of(MIB), 10.0) == 1 / 16, "the log grew by 8 MiB/s"
    layout.end_position = 81 * MIB
    wait_of(made, load_of(MIB), 12.0)
    assert wait_of(made, load_of(MIB), 12.0) == 0.5, "and then by half of one"


def test_the_wait_ends_when_the_log_grows_or_the_group_waits_for_the_member() -> None:
    waited_for: set[NodeId] = set()
    made, layout = catch_up(1024, waited_for.__contains__)
    wait_of(made, load_of(MIB), 10.0)
    assert made._wait_s(load_of(MIB), 10.0) == 1024
    assert made._wait_s(load_of(MIB), 11.0) == 1023
    layout.end_position = 4 * MIB
    assert made._wait_s(load_of(MIB), 15.0) == 0.0, "the log grew by 1 MiB/s"
    wait_of(made, load_of(64 * MIB), 15.0)
    assert made._wait_s(load_of(MIB), 15.0) > 10
    waited_for.add(NodeId("n1"))
    assert made._wait_s(load_of(MIB), 15.0) == 0.0


def applied(member: Member) -> int:
    return member.machine.applied_index


async def fill(leader: Member, *, count: int, size: int) -> None:
    for number in range(count):
        await leader.server.appender.append(bytes([number]) * size, timeout_s=S)


async def group_with_one_away(group: Group, **settings: int) -> tuple[Member, str]:
    """Return a leader without a cache, and the follower that was down while it got 2 MiB."""
    await group.start_all(
        cache_bytes_max=0, entries_bytes_max=64 * 1024, segment_size_bytes=600_000, **settings
    )
    leader = await group.leader()
    away = await group.follower()
    await away.stop()
    await fill(leader, count=100, size=20_000)
    return leader, away.server.node_id


@pytest.mark.slow
async def test_old_entries_are_read_in_a_thread_and_new_ones_confirmed_meanwhile(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: set[str] = set()
    may_read = threading.Event()
    run = EntriesLoad.run

    async with open_group() as group:
        leader, away = await group_with_one_away(group)

        def run_later(load: EntriesLoad) -> None:
            # The other follower is to confirm meanwhile, also where it has fallen back.
            if load.want.to == away:
                readers.add(threading.current_thread().name)
                assert may_read.wait(S)
            run(load)

        monkeypatch.setattr(EntriesLoad, "run", run_later)
        again = await group.start(away)
        await wait_until(lambda: bool(readers))
        entry_id = await leader.server.appender.append(b"new", timeout_s=S)
        assert applied(again) < 100
        may_read.set()
        await wait_until(lambda: applied(again) >= entry_id.index)
        assert again.machine.bodies == leader.machine.bodies
        assert threading.main_thread().name not in readers
        seen = leader.server.status.statistics()
        assert seen.catch_up_reads > 20
        assert seen.catch_up_read_bytes > 1_900_000
        assert again.server.status.statistics().catch_up_reads == 0, "who reads them counts them"


@pytest.mark.slow
async def test_what_the_disk_gives_damaged_in_the_thread_is_mended_and_sent(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_plan: CheckPlan) -> None:
        raise OSError(errno.EIO, "simulated")

    monkeypatch.setattr(CheckPlan, "read", fail)
    async with open_group() as group:
        leader, away = await group_with_one_away(group)
        again = await group.start(away)
        await wait_until(lambda: applied(again) >= applied(leader) > 100)
        assert again.machine.bodies == leader.machine.bodies


@pytest.mark.slow
async def test_what_cannot_be_read_now_is_read_later_and_is_not_damaged(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group() as group:
        leader, away = await group_with_one_away(group)
        reads = RefusedReads(monkeypatch, 5)
        term = leader.server.status.statistics().term
        again = await group.start(away)
        await wait_until(lambda: applied(again) >= applied(leader) > 100)
        assert again.machine.bodies == leader.machine.bodies
        assert leader.server.status.statistics().term == term
    assert reads.counts["CheckPlan refused"] == 5
    assert "entries-not-read" in caplog.text
    assert "entry-damaged" not in caplog.text


@pytest.mark.slow
async def test_a_member_that_lacks_much_comes_no_faster_than_the_rate(
    open_group: OpenGroup,
) -> None:
    async with open_group() as group:
        leader, away = await group_with_one_away(group)
        driver = leader.server._standing.driver
        assert driver is not None
        driver.catch_up.bytes_per_s = 4 * MIB
        began_s = trio.current_time()
        again = await group.start(away)
        await wait_until(lambda: applied(again) >= applied(leader))
        assert trio.current_time() - began_s >= 0.4, "2 MB at 4 MiB/s"


@pytest.mark.slow
async def test_a_member_that_waits_for_its_turn_is_woken_when_the_group_needs_it(
    open_group: OpenGroup,
) -> None:
    async with open_group() as group:
        leader, away = await group_with_one_away(group)
        driver = leader.server._standing.driver
        assert driver is not None
        driver.catch_up.bytes_per_s = 1024
        driver.catch_up._growth = LogGrowth(driver.engine.log.layout.end_position, now_s())
        again = await group.start(away)
        await wait_until(lambda: driver.catch_up.load_count >= 1)
        third = next(each for each in group.members.values() if each not in (leader, again))
        await third.stop()
        # At 1 KiB/s the first of its requests alone would have taken a minute.
        await leader.server.appender.append(b"new", timeout_s=S)
        assert applied(again) >= 100


def test_a_load_ends_with_its_segment() -> None:
    disk = SimDisk(Random(1))
    log = SegmentedLog.open(disk, segment_size_bytes=5000, cache_bytes_max=0)
    entries = log.append(new_entries(log, 1, [1000] * 10))
    flush(log)
    assert log.first_in_memory() == 11
    load = EntriesLoad.planned(log, LoadEntries(NodeId("n1"), Term(1), Index(3), Index(9)))
    load.run()
    assert load.entries == entries[2 : load.plan.end_index - 1]
    assert 3 < load.plan.end_index < 9
    disk.fail_read()
    load = EntriesLoad.planned(log, LoadEntries(NodeId("n1"), Term(1), Index(1), Index(3)))
    load.run()
    assert load.entries == ()
