"""Scenarios of rows 1 to 14: what happens to processes."""

from __future__ import annotations

from itertools import permutations
from typing import Final

import trio

from jepsen.checklist.stage import Catalogue, Stage

FIRST_SUCCESS_S: Final = 2.0
SLACK: Final = 3.0
"""A busy machine is slower than the promise; a scenario condemns only what is far beyond it."""

PROCESS: Final = Catalogue()


@PROCESS.add(1, rate=20.0)
async def leader_killed_idle(stage: Stage) -> None:
    """Kill the leader while hardly anything happens."""
    leader = await stage.leader()
    stage.kill(leader)
    took_s = await stage.progress(1)
    stage.expect(took_s < FIRST_SUCCESS_S * SLACK, f"first success after {took_s:.2f} s")
    stage.start(leader)
    await stage.whole()


@PROCESS.add(2, rate=2000.0)
async def leaders_killed_under_load(stage: Stage) -> None:
    """Kill ten leaders in a row; `dledger-jepsen failover --rounds 50` measures the gaps."""
    for _ in range(10):
        leader = await stage.leader()
        stage.kill(leader)
        await stage.progress(50)
        stage.start(leader)
        await stage.whole()


@PROCESS.add(3)
async def follower_killed(stage: Stage) -> None:
    """Kill a follower: nobody may notice."""
    leader = await stage.leader()
    await stage.progress(20)
    begun_ns = stage.log.now_ns()
    follower = stage.others(leader)[0]
    stage.kill(follower)
    await stage.progress(100)
    stage.start(follower)
    await stage.whole()
    bad = [op for op in stage.ends(since_ns=begun_ns) if op.type != "ok"]
    stage.expect(not bad, f"no send fails while a follower dies ({len(bad)} did: {bad[:1]})")


@PROCESS.add(4)
async def two_of_three_killed(stage: Stage) -> None:
    """Kill two of three: nothing is acknowledged, and sends are refused in bounded time."""
    leader = await stage.leader()
    dead = stage.others(leader)
    stage.kill(*dead)
    # What was on its way may still be answered: a lease of the leader does not acknowledge writes.
    await stage.lets_run(1.0)
    begun_ns = stage.log.now_ns()
    await stage.until(lambda: len(stage.ends(since_ns=begun_ns)) >= 5, 30.0)
    ends = stage.ends(since_ns=begun_ns)
    stage.expect(len(ends) >= 5, "sends end although nobody leads")
    stage.expect(all(op.type != "ok" for op in ends), "nothing is acknowledged by a minority")
    stage.expect(all(op.error for op in ends if op.type != "ok"), "each refusal has a reason")
    stage.start(*dead)
    await stage.progress(150)
    await stage.whole()


@PROCESS.add(5)
async def all_killed_restarted_in_every_order(stage: Stage) -> None:
    """Kill all at once, then start them in each of the six orders."""
    for order in permutations(stage.names):
        await stage.progress(30)
        stage.kill(*stage.names)
        for name in order:
            stage.start(name)
            await trio.sleep(stage.chance.uniform(0.0, 0.4))
    await stage.progress(30)
    await stage.whole()


@PROCESS.add(6)
async def winner_of_an_election_killed(stage: Stage) -> None:
    """Kill whoever wins an election as soon as it is seen to lead."""
    for _ in range(5):
        first = await stage.leader()
        stage.kill(first)
        second = await stage.leader(other_than=first)
        stage.kill(second)
        stage.start(first)
        await stage.leader(other_than=second)
        stage.start(second)
        await stage.progress(20)
        await stage.whole()


@PROCESS.add(7)
async def killed_during_recovery(stage: Stage) -> None:
    """Kill a node twenty times between the start of its process and a second later."""
    victim = stage.others(await stage.leader())[0]
    stage.kill(victim)
    for _ in range(20):
        stage.start(victim)
        await trio.sleep(stage.chance.uniform(0.0, 1.0))
        stage.kill(victim)
    stage.start(victim)
    await stage.progress(20)
    await stage.whole()


@PROCESS.add(8)
async def crash_loop_of_one_node(stage: Stage) -> None:
    """Kill a node every second: the others must not be disturbed."""
    leader = await stage.leader()
    victim = stage.others(leader)[0]
    await stage.progress(20)
    term = await stage.term()
    for _ in range(15):
        stage.kill(victim)
        stage.start(victim)
        await trio.sleep(1.0)
    stage.expect(await stage.leader() == leader, "the leader stays")
    after = await stage.term()
    stage.expect(after == term, f"the term stays at {term} (is {after})")
    await stage.progress(20)
    await stage.whole()


@PROCESS.add(9)
async def leader_paused(stage: Stage) -> None:
    """Pause the leader through its successor's election: it must not acknowledge when it wakes."""
    for _ in range(3):
        leader = await stage.leader()
        stage.pause(leader)
        await stage.leader(other_than=leader)
        await stage.progress(50)
        stage.resume(leader)
        await stage.progress(50)
        await stage.whole()


@PROCESS.add(10, rate=1000.0)
async def follower_paused_for_long(stage: Stage) -> None:
    """Pause a follower for long: the leader keeps a bounded amount for it, and it catches up."""
    leader = await stage.leader()
    victim = stage.others(leader)[0]
    await stage.progress(100)
    before = stage.memory_mib(leader)
    stage.pause(victim)
    await stage.lets_run(30.0)
    grown = stage.memory_mib(leader) - before
    stage.expect(grown < 256, f"the leader's memory is bounded (grew by {grown:.0f} MiB)")
    stage.resume(victim)
    await stage.whole()


@PROCESS.add(11)
async def whole_group_paused(stage: Stage) -> None:
    """Pause the whole group, as a suspended machine: everybody's timers are over at once."""
    await stage.progress(20)
    for _ in range(3):
        term = await stage.term()
        stage.pause(*stage.names)
        await stage.lets_run(3.0)
        stage.resume(*stage.names)
        await stage.progress(20)
        await stage.whole()
        grown = await stage.term() - term
        stage.expect(grown <= 5, f"a few elections at most (terms grew by {grown})")


@PROCESS.add(12)
async def leader_stopped_in_order(stage: Stage) -> None:
    """Stop the leader with SIGTERM: leadership moves first, and no send fails."""
    await stage.progress(50)
    begun_ns = stage.log.now_ns()
    for _ in range(4):
        leader = await stage.leader()
        stage.note("term", leader)
        status = await trio.to_thread.run_sync(stage.system.node(leader).stop)
        stage.expect(status == 0, f"{leader} stops in order (status {status})")
        await stage.progress(30)
        stage.start(leader)
        await stage.whole()
    bad = [op for op in stage.ends(since_ns=begun_ns) if op.type != "ok"]
    stage.expect(not bad, f"no send fails ({len(bad)} did, first: {[op.error for op in bad[:1]]})")
