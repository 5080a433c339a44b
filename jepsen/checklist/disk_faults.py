"""Scenarios of rows 37 to 52: what happens to disks and to what is stored."""

from __future__ import annotations

from typing import Final

from dledger import EntryDamagedError, NodeId, RefusedError
from jepsen.checklist.stage import Catalogue, Stage

DISK: Final = Catalogue()

OLD_ENTRY: Final = 2
"""One that every member has applied long ago."""

READ_WAIT_S: Final = 30.0

HANDS_OVER_S: Final = 10.0
"""A leader is sure of its slow disk after some 3 s, and a hand-over takes less than one."""


async def _strikes(stage: Stage, spec: str, *, times: int = 1, goes_on: bool = True) -> None:
    """Inject and cure a fault under load; with `goes_on` the others must work meanwhile."""
    for _ in range(times):
        await stage.progress(50)
        async with stage.fault(spec):
            await stage.until_met(spec)
            if goes_on:
                await stage.progress(50, timeout_s=60)
            else:
                await stage.lets_run(4.0)
        await stage.progress(50, timeout_s=60)
        await stage.whole()


async def _mends(stage: Stage, spec: str, *, times: int = 1) -> None:
    """Damage a store; its node must come back with it, from its peers, and not as an empty one."""
    for _ in range(times):
        await stage.progress(100)
        async with stage.fault(spec):
            await stage.progress(50, timeout_s=60)
        stage.expect("wiped" not in stage.cured, f"nobody has to wipe a store ({stage.cured})")
        stage.expect("refuses" not in stage.cured, f"nobody refuses for ever ({stage.cured})")
        await stage.whole()
        await stage.progress(50)


@DISK.add(37, faults=("disk-full:leader",))
async def leader_disk_full(stage: Stage) -> None:
    """Fill the leader's disk: it hands over, and takes part again when there is room."""
    await _strikes(stage, "disk-full:leader", times=2)


@DISK.add(38, faults=("disk-full:one",))
async def one_disk_full(stage: Stage) -> None:
    """Fill any one disk: hardly anybody may notice."""
    await _strikes(stage, "disk-full:one", times=2)


@DISK.add(38, faults=("disk-full:all",), rate=1500.0)
async def all_disks_full(stage: Stage) -> None:
    """Fill all disks: once the room in the segments is used up, nothing may be acknowledged."""
    await stage.progress(50)
    async with stage.fault("disk-full:all"):

        def is_refusing() -> bool:
            return any(op.type != "ok" for op in stage.ends()[-5:])

        stage.expect(
            await stage.until(is_refusing, 60.0), "sends are refused when no disk has room"
        )
        await stage.lets_run(1.0)
        begun_ns = stage.log.now_ns()
        await stage.lets_run(4.0)
        acknowledged = stage.acknowledged(begun_ns)
        stage.expect(acknowledged == 0, f"nothing is acknowledged without room ({acknowledged})")
    await stage.progress(50, timeout_s=60)
    await stage.whole()


@DISK.add(39, faults=("disk-full:vote",))
async def full_at_the_vote(stage: Stage) -> None:
    """Fill the disk when a vote is saved: a vote that cannot be saved is not given."""
    await _strikes(stage, "disk-full:vote", goes_on=False)


@DISK.add(39, faults=("disk-full:segment",), rate=500.0)
async def full_at_a_segment(stage: Stage) -> None:
    """Leave no room for the next segment."""
    await _strikes(stage, "disk-full:segment")


@DISK.add(39, faults=("disk-full:index",))
async def full_at_the_index(stage: Stage) -> None:
    """Leave no room for the index: it is derived, and can wait."""
    await _strikes(stage, "disk-full:index")


@DISK.add(40, faults=("fsync-fail:leader",))
async def sync_fails_on_the_leader(stage: Stage) -> None:
    """Fail the leader's syncs: it never acknowledges what it could not sync, and another one leads."""
    for _ in range(2):
        await stage.progress(50)
        leader = await stage.leader()
        async with stage.fault("fsync-fail:leader"):
            await stage.leader(other_than=leader)
            await stage.progress(50, timeout_s=60)
        await stage.whole()


@DISK.add(40, faults=("fsync-fail:one",))
async def sync_fails_on_one(stage: Stage) -> None:
    """Fail the syncs of any one member: it fences itself."""
    await _strikes(stage, "fsync-fail:one", times=2)


@DISK.add(41, faults=("read-fail:one",))
async def reads_fail(stage: Stage) -> None:
    """Fail reads of committed entries on one node; peers have them."""
    for _ in range(2):
        await stage.progress(50)
        stage.kill(*stage.names)  # memory holds no entry then
        stage.start(*stage.names)
        await stage.whole()
        await stage.progress(20)
        async with (
            stage.client(timeout_s=READ_WAIT_S) as client,
            stage.fault("read-fail:one"),
        ):
            for name in stage.names:  # one of them cannot read what it is asked for
                try:
                    await client.get(OLD_ENTRY, local=NodeId(name))
                except RefusedError as error:
                    is_named = isinstance(error, EntryDamagedError)
                    stage.expect(is_named, f"a refusal names the damaged entry ({error})")
            await stage.until_met("read-fail:one")
            await stage.progress(50, timeout_s=60)
        await stage.progress(50, timeout_s=60)
        await stage.whole()


@DISK.add(41, faults=("read-broken:leader",))
async def the_leader_reads_nothing_and_nobody_helps_for_a_while(stage: Stage) -> None:
    """Fail the leader's reads while no peer can help: it refuses and hands over, and no process ends."""
    await stage.progress(100)
    stage.kill(*stage.names)  # memory holds no entry then
    stage.start(*stage.names)
    await stage.whole()
    await stage.progress(20)
    leader = await stage.leader()
    others = stage.others(leader)
    pids = {name: stage.system.node(name).pid for name in stage.names}
    async with (
        stage.client(timeout_s=READ_WAIT_S) as client,
        stage.fault("read-broken:leader"),
    ):
        stage.pause(*others)
        try:
            await client.get(OLD_ENTRY, local=NodeId(leader))
        except RefusedError as error:
            is_named = isinstance(error, EntryDamagedError)
            stage.expect(is_named, f"the refusal names the damaged entry ({error})")
        else:
            stage.expect(False, "an entry that cannot be read was given")
        stage.resume(*others)
        try:
            await client.get(OLD_ENTRY)
        except RefusedError as error:
            stage.expect(False, f"somebody leads who can read an old entry ({error})")
        await stage.progress(50, timeout_s=60)
    ended = [name for name in stage.names if stage.system.node(name).pid != pids[name]]
    stage.expect(not ended, f"no process ends ({', '.join(ended)})")
    await stage.progress(50)
    await stage.whole()


@DISK.add(42, faults=("fsync-slow:leader",))
async def slow_syncs_on_the_leader(stage: Stage) -> None:
    """Slow the leader's syncs to half a second and more: it hands over to one with a good disk."""
    slow = await stage.leader()
    await stage.progress(50)
    async with stage.fault("fsync-slow:leader"):
        begun_ns = stage.log.now_ns()
        has_handed_over = await stage.until(
            lambda: stage.system.leader not in {None, slow}, HANDS_OVER_S
        )
        took_s = (stage.log.now_ns() - begun_ns) / 1e9
        stage.note("slow disk", f"{stage.system.leader} leads after {took_s:.1f} s")
        stage.expect(has_handed_over, f"{slow} hands over within {HANDS_OVER_S:g} s")
        await stage.progress(500, timeout_s=30)

        async def is_reported() -> bool:
            status = (await stage.statuses()).get(slow)
            return status is not None and "disk" in status.attributes

        stage.expect(
            await stage.until_true(is_reported, 10.0), f"{slow} reports that its disk is slow"
        )
        stage.expect(stage.system.leader != slow, f"{slow} leads again with its slow disk")
    await stage.progress(50)
    await stage.whole()


@DISK.add(43, faults=("lost-unsynced:one",))
async def one_loses_what_was_not_synced(stage: Stage) -> None:
    """Cut the power of one node."""
    await _strikes(stage, "lost-unsynced:one", times=4)


@DISK.add(43, faults=("lost-unsynced:leader",))
async def the_leader_loses_what_was_not_synced(stage: Stage) -> None:
    """Cut the power of the leader."""
    await _strikes(stage, "lost-unsynced:leader", times=4)


@DISK.add(44, faults=("lost-unsynced:all",), rate=500.0)
async def all_lose_what_was_not_synced(stage: Stage) -> None:
    """Cut the power of all nodes, five times: what was acknowledged must be there."""
    await _strikes(stage, "lost-unsynced:all", times=5, goes_on=False)


@DISK.add(44, faults=("torn-unsynced:all",), rate=500.0)
async def all_tear_what_was_not_synced(stage: Stage) -> None:
    """Cut the power of all nodes, with any sectors of the last writes on disk."""
    await _strikes(stage, "torn-unsynced:all", times=5, goes_on=False)


@DISK.add(45, faults=("torn-tail",))
async def torn_tail(stage: Stage) -> None:
    """Cut the last entry in two: nothing before it may be lost."""
    await _mends(stage, "torn-tail", times=3)


@DISK.add(46, faults=("bit-flip:log",))
async def bit_flip_while_stopped(stage: Stage) -> None:
    """Flip a bit of a committed entry while its node is stopped."""
    await _mends(stage, "bit-flip:log", times=3)


@DISK.add(46, faults=("bit-flip:log-running",))
async def bit_flip_while_running(stage: Stage) -> None:
    """Flip a bit of a committed entry below a running node, which reads it sooner or later."""
    await _mends(stage, "bit-flip:log-running", times=2)
    victim = await stage.leader()
    stage.kill(victim)
    stage.start(victim)
    await stage.whole()


@DISK.add(47, faults=("damage-all",))
async def damage_on_all(stage: Stage) -> None:
    """Damage every replica, each in other entries: together they have everything."""
    await stage.progress(300)
    async with stage.fault("damage-all"):
        await stage.lets_run(1.0)
    stage.expect("wiped" not in stage.cured, f"nobody has to wipe a store ({stage.cured})")
    stage.expect("refuses" not in stage.cured, f"nobody refuses for ever ({stage.cured})")
    await stage.progress(50, timeout_s=60)
    await stage.whole()


@DISK.add(48, faults=("bit-flip:vote",))
async def bit_flip_in_the_vote(stage: Stage) -> None:
    """Flip a bit of the vote: a member that cannot know whom it voted for may not vote until that is safe."""
    await _mends(stage, "bit-flip:vote", times=2)


@DISK.add(48, faults=("bit-flip:index",))
async def bit_flip_in_the_index(stage: Stage) -> None:
    """Flip a bit of the index: it must be made again from the log."""
    await _mends(stage, "bit-flip:index", times=2)


@DISK.add(48, faults=("bit-flip:derived",))
async def bit_flip_in_a_queue(stage: Stage) -> None:
    """Flip a bit of a consume queue: what is derived must be made again."""
    await _mends(stage, "bit-flip:derived", times=2)


@DISK.add(48, faults=("bit-flip:snapshot",))
async def bit_flip_in_a_snapshot(stage: Stage) -> None:
    """Flip a bit of a snapshot: it must not be believed."""
    await _mends(stage, "bit-flip:snapshot")


@DISK.add(49, faults=("segment:lost",), rate=500.0)
async def segment_deleted(stage: Stage) -> None:
    """Delete a segment: its entries must come from the others."""
    await _mends(stage, "segment:lost")


@DISK.add(49, faults=("segment:old",), rate=500.0)
async def segment_replaced_by_an_older_copy(stage: Stage) -> None:
    """Replace a segment by a copy that is some seconds old: it must not count as the whole log."""
    await _mends(stage, "segment:old")


@DISK.add(50, faults=("wipe",))
async def store_wiped(stage: Stage) -> None:
    """Start a node with its id and an empty disk."""
    await _strikes(stage, "wipe", times=2)


@DISK.add(51, faults=("misdirected",))
async def misdirected_write(stage: Stage) -> None:
    """Write a part of the log where another part belongs."""
    await _mends(stage, "misdirected", times=2)


@DISK.add(52, faults=("read-only:leader",))
async def read_only_leader(stage: Stage) -> None:
    """Make the leader's file system read-only: it must fence itself."""
    leader = await stage.leader()
    async with stage.fault("read-only:leader"):
        await stage.leader(other_than=leader)
        await stage.progress(50, timeout_s=60)
    await stage.progress(50)
    await stage.whole()
