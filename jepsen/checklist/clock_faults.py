"""Scenarios of rows 31 to 36: what happens to clocks."""

from __future__ import annotations

from typing import Final

import trio

from jepsen.checklist.alarms import Alarms
from jepsen.checklist.stage import Catalogue, Stage
from jepsen.nemeses.clock import SECOND_NS
from jepsen.nemeses.preload import control_of

CLOCK: Final = Catalogue()


async def _no_election(stage: Stage, spec: str, times: int) -> None:
    """Inject the fault several times; wall clocks must not move a term."""
    await stage.progress(20)
    term = await stage.term()
    for _ in range(times):
        async with stage.fault(spec):
            await stage.progress(50)
        await stage.progress(20)
    after = await stage.term()
    stage.expect(after == term, f"no election from wall time (term {term}, then {after})")
    await stage.whole()


@CLOCK.add(31, faults=("clock:jump",))
async def wall_clock_jumps(stage: Stage) -> None:
    """Move one node's clock an hour on or back, four times."""
    await _no_election(stage, "clock:jump", 4)


@CLOCK.add(32, faults=("clock:strobe",))
async def wall_clock_strobes(stage: Stage) -> None:
    """Move one node's clock an hour on and back again, every 100 ms."""
    await _no_election(stage, "clock:strobe", 3)


@CLOCK.add(33, faults=("clock:skew",))
async def skew_then_failover(stage: Stage) -> None:
    """Set clocks minutes apart, and move leadership between them."""
    async with stage.fault("clock:skew"):
        for _ in range(3):
            await stage.progress(30)
            leader = await stage.leader()
            stage.kill(leader)
            await stage.progress(30)
            stage.start(leader)
            await stage.whole()


async def _leads_by_the_time_of_the_others(stage: Stage, spec: str) -> None:
    """Let a node start with a wrong clock, lead and die; what is due meanwhile must come by the true time."""
    await stage.progress(20)
    async with stage.fault(spec):
        await stage.whole()
        wrong = next(name for name in stage.names if control_of(stage.system, name).clocks()[0])
        await stage.make_lead(wrong)
        stage.expect(
            "clock_ahead_ms" in (await stage.statuses())[wrong].attributes,
            f"{wrong} says that its clock is wrong",
        )
        alarms = Alarms(stage)
        async with trio.open_nursery() as nursery:
            await nursery.start(alarms.run)
            stage.expect(stage.system.leader == wrong, f"{wrong} led while messages came due")
            stage.kill(wrong)
            await stage.leader(other_than=wrong)
            stage.start(wrong)
        await stage.whole()
    await stage.whole()


@CLOCK.add(33, faults=("clock:ahead",))
async def leads_with_a_clock_that_is_ahead(stage: Stage) -> None:
    """Start the leader five minutes ahead: nothing may come early."""
    await _leads_by_the_time_of_the_others(stage, "clock:ahead")


@CLOCK.add(33, faults=("clock:behind",))
async def leads_with_a_clock_that_is_behind(stage: Stage) -> None:
    """Start the leader five minutes behind: nothing may come minutes late."""
    await _leads_by_the_time_of_the_others(stage, "clock:behind")


@CLOCK.add(34, faults=("clock:monotonic",))
async def monotonic_clock_jumps(stage: Stage) -> None:
    """Move a member's monotonic clock on by a minute, as a suspend does."""
    for _ in range(4):
        await stage.progress(30)
        async with stage.fault("clock:monotonic"):
            await stage.progress(30)
    await stage.whole()


async def _boots(stage: Stage, spec: str) -> None:
    await stage.progress(30)
    async with stage.fault(spec):
        await stage.progress(50)
        await stage.whole()
        await stage.progress(50)
    await stage.whole()


@CLOCK.add(35, faults=("clock:past",))
async def boots_in_1970(stage: Stage) -> None:
    """Start a node in 1970, as with an empty battery: it must delete nothing."""
    await _boots(stage, "clock:past")


@CLOCK.add(35, faults=("clock:future",))
async def boots_in_2106(stage: Stage) -> None:
    """Start a node beyond the last second of an unsigned 32-bit clock."""
    await _boots(stage, "clock:future")


@CLOCK.add(36, faults=("clock:jump",))
async def leap_seconds(stage: Stage) -> None:
    """Show one second twice on every clock, and later leave one out.

    Summer time is no event here: times are kept in UTC.
    """
    await stage.progress(30)
    term = await stage.term()
    for offset_s in (-1, 0):
        for name in stage.names:
            control_of(stage.system, name).shift_clocks(realtime_ns=offset_s * SECOND_NS)
        stage.note("leap second", f"all clocks are {offset_s} s off")
        await trio.sleep(2.0)
        await stage.progress(50)
    stage.expect(await stage.term() == term, "no election for a leap second")
    await stage.whole()
