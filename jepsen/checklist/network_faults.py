"""Scenarios of rows 15 to 30: what happens to links and connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import trio

from jepsen.checklist.stage import Catalogue, SkippedError, Stage
from jepsen.systems.api import CLIENTS, CUT, WHOLE, LinkControl, Shape

STEP_DOWN_S: Final = 3.0  # an election takes a second at most; three on a busy machine
FLOOD: Final = 10_000
NETWORK: Final = Catalogue()


def links(stage: Stage) -> LinkControl:
    """Return the links of the system, which scenarios with a network have."""
    assert stage.system.links is not None, "a scenario of links needs a network"
    return stage.system.links


@contextmanager
def shaped(stage: Stage, pairs: list[tuple[str, str]], shape: Shape, what: str) -> Iterator[None]:
    """Treat these directed links so within the block."""
    stage.note("link", f"{what}: {', '.join(f'{a}->{b}' for a, b in pairs)}")
    for source, target in pairs:
        links(stage).shape(source, target, shape)
    try:
        yield
    finally:
        for source, target in pairs:
            links(stage).shape(source, target, WHOLE)
        stage.note("heal", what)


def both_ways(one: str, others: list[str]) -> list[tuple[str, str]]:
    """Return both directions between one end and others."""
    return [link for other in others for link in ((one, other), (other, one))]


def among(names: list[str]) -> list[tuple[str, str]]:
    """Return all directed links between members."""
    return [(one, other) for one in names for other in names if one != other]


@NETWORK.add(15, network="proxies")
async def leader_isolated(stage: Stage) -> None:
    """Cut the leader off in both directions: it must not go on leading."""
    for _ in range(3):
        leader = await stage.leader()
        cut = both_ways(leader, [*stage.others(leader), CLIENTS])
        with shaped(stage, cut, CUT, "leader isolated"):
            await stage.leader(other_than=leader)

            async def has_stepped_down(old: str = leader) -> bool:
                status = (await stage.statuses()).get(old)
                return status is not None and not status.is_serving

            stage.expect(
                await stage.until_true(has_stepped_down, STEP_DOWN_S * 2),
                f"{leader} steps down when it hears nobody",
            )
            await stage.progress(50)
        await stage.progress(20)
        await stage.whole()


@NETWORK.add(16, network="proxies")
async def follower_isolated_and_back(stage: Stage) -> None:
    """Cut a follower off and let it back: the group must not have to elect."""
    leader = await stage.leader()
    term = await stage.term()
    victim = stage.others(leader)[0]
    with shaped(stage, both_ways(victim, [*stage.others(victim), CLIENTS]), CUT, "isolated"):
        await stage.lets_run(5.0)
        await stage.progress(50)
    await stage.whole()
    await stage.progress(50)
    after = await stage.term()
    stage.expect(after == term, f"no election on its return (term {term}, then {after})")


@NETWORK.add(17, network="proxies")
async def one_way_cut(stage: Stage) -> None:
    """Cut the link from the leader to one follower; the leader still hears it."""
    leader = await stage.leader()
    term = await stage.term()
    deaf = stage.others(leader)[0]
    with shaped(stage, [(leader, deaf)], CUT, "deaf"):
        await stage.progress(50)
        await stage.lets_run(10.0)
        await stage.progress(50)
    await stage.whole()
    grown = await stage.term() - term
    stage.expect(grown <= 6, f"no endless elections in ten seconds (terms grew by {grown})")


@NETWORK.add(18, nodes=5, network="proxies")
async def bridge_of_five(stage: Stage) -> None:
    """Cut two sides of two from each other, with one node that hears all."""
    await stage.progress(20)
    left, right = stage.names[:2], stage.names[3:]
    cut = [link for one in left for link in both_ways(one, right)]
    with shaped(stage, cut, CUT, "bridge"):
        await stage.progress(100, timeout_s=60)
    await stage.whole()


@NETWORK.add(18, nodes=5, network="proxies")
async def ring_of_five(stage: Stage) -> None:
    """Let each node hear its two neighbours only: every one has a majority, no two the same."""
    await stage.progress(20)
    names = stage.names
    cut = [(names[at], names[(at + distance) % 5]) for at in range(5) for distance in (2, 3)]
    with shaped(stage, cut, CUT, "ring"):
        await stage.progress(100, timeout_s=60)
    await stage.whole()


@NETWORK.add(19, network="proxies")
async def clients_see_the_minority(stage: Stage) -> None:
    """Let clients reach only one isolated node: nothing may be acknowledged, and sends must be refused."""
    leader = await stage.leader()
    rest = stage.others(leader)
    cut = (
        both_ways(leader, rest) + [(CLIENTS, name) for name in rest] + [(n, CLIENTS) for n in rest]
    )
    with shaped(stage, cut, CUT, "clients see only the old leader"):
        await stage.leader(other_than=leader)
        begun_ns = stage.log.now_ns()
        await stage.until(lambda: len(stage.ends(since_ns=begun_ns)) >= 3, 60.0)
        ends = stage.ends(since_ns=begun_ns)
        stage.expect(bool(ends), "clients get an answer or give up in bounded time")
        stage.expect(all(op.type != "ok" for op in ends), "a minority acknowledges nothing")
    await stage.progress(20, timeout_s=60)
    await stage.whole()


@NETWORK.add(20, network="proxies")
async def members_deaf_clients_everywhere(stage: Stage) -> None:
    """Cut all links between members while clients reach all: nobody may acknowledge anything."""
    await stage.progress(20)
    with shaped(stage, among(stage.names), CUT, "members do not hear each other"):
        await stage.lets_run(STEP_DOWN_S)
        begun_ns = stage.log.now_ns()
        await stage.lets_run(5.0)
        acknowledged = stage.acknowledged(begun_ns)
        stage.expect(acknowledged == 0, f"nobody acknowledges alone ({acknowledged} were)")
    await stage.progress(20)
    await stage.whole()


@NETWORK.add(21, network="proxies")
async def flapping_link(stage: Stage) -> None:
    """Cut and heal a follower's links every 100 ms for ten seconds."""
    leader = await stage.leader()
    victim = stage.others(leader)[0]
    term = await stage.term()
    for _ in range(50):
        with shaped(stage, both_ways(victim, stage.others(victim)), CUT, "down"):
            await trio.sleep(0.1)
        await trio.sleep(0.1)
    await stage.progress(20)
    await stage.whole()
    grown = await stage.term() - term
    stage.expect(grown <= 10, f"terms grow slowly (by {grown} in fifty flaps)")


@NETWORK.add(22, network="proxies")
async def delay_with_jitter(stage: Stage) -> None:
    """Delay links between members by 50, then up to 250 ms: slower, never stalled."""
    for delay_ms, jitter_ms in ((50, 20), (100, 150)):
        shape = Shape(delay_ms=delay_ms, jitter_ms=jitter_ms)
        with shaped(stage, among(stage.names), shape, f"{delay_ms}+{jitter_ms} ms"):
            await stage.progress(50, timeout_s=60)
    await stage.progress(50)
    await stage.whole()


@NETWORK.add(23, network="proxies")
async def loss(stage: Stage) -> None:
    """Lose 1, 10 and 30 % of the frames between members; nothing may stall afterwards."""
    for share in (0.01, 0.1, 0.3):
        with shaped(stage, among(stage.names), Shape(lose=share), f"loss {share:.0%}"):
            await stage.lets_run(5.0)
        await stage.progress(30)
    await stage.whole()


@NETWORK.add(24, network="proxies")
async def duplicated_reordered_replayed(stage: Stage) -> None:
    """Send frames twice, in another order, and again long after they were sent."""
    shape = Shape(duplicate=0.2, reorder=0.2)
    with shaped(stage, among(stage.names), shape, "duplicated and reordered"):
        await stage.progress(100, timeout_s=60)
        for source, target in among(stage.names):
            links(stage).replay(source, target, 50)
        await stage.progress(50, timeout_s=60)
    for source, target in among(stage.names):
        links(stage).replay(source, target, 50)
    await stage.progress(50)
    await stage.whole()


@NETWORK.add(25, network="proxies")
async def corrupted_in_flight(stage: Stage) -> None:
    """Flip a bit in one frame of twenty: its checksum refuses it, and the connection starts anew."""
    with shaped(stage, among(stage.names), Shape(corrupt=0.05), "corrupted"):
        await stage.lets_run(8.0)
    await stage.progress(50)
    await stage.whole()


@NETWORK.add(26, network="proxies", rate=300.0)
async def narrow_links(stage: Stage) -> None:
    """Limit links between members to 1 Mbit/s: data waits, heartbeats must not starve."""
    term = await stage.term()
    with shaped(stage, among(stage.names), Shape(bytes_per_s=125_000), "1 Mbit/s"):
        await stage.progress(200, timeout_s=60)
        await stage.lets_run(8.0)
    grown = await stage.term() - term
    stage.expect(grown <= 2, f"heartbeats get through (terms grew by {grown})")
    await stage.progress(50)
    await stage.whole()


@NETWORK.add(27, network="proxies")
async def half_open(stage: Stage) -> None:
    """Keep the leader's connections open and carry nothing: heartbeats must notice, not TCP."""
    leader = await stage.leader()
    pairs = both_ways(leader, stage.others(leader))
    with shaped(stage, pairs, Shape(flow="stall"), "half-open"):
        await stage.leader(other_than=leader)
        await stage.progress(50, timeout_s=60)
    await stage.progress(20)
    await stage.whole()


@NETWORK.add(28, network="namespaces", faults=("mtu",))
async def small_packets(stage: Stage) -> None:
    """Limit real packets in network namespaces to 600 bytes: everything must still pass."""
    async with stage.fault("mtu"):
        await stage.progress(100, timeout_s=60)
    await stage.progress(50)
    await stage.whole()


@NETWORK.add(15, network="namespaces", faults=("partition:leader",))
async def leader_isolated_in_its_namespace(stage: Stage) -> None:
    """Isolate the leader with real packets: TCP hears nothing either."""
    for _ in range(2):
        leader = await stage.leader()
        async with stage.fault("partition:leader"):
            await stage.leader(other_than=leader)
            await stage.progress(50, timeout_s=60)
        await stage.progress(20)
        await stage.whole()


@NETWORK.add(29)
async def client_that_does_not_read(stage: Stage) -> None:
    """Ask for everything and read nothing, as one client: only it may be cut off."""
    from jepsen.checklist.rude_clients import ask_and_never_read

    leader = await stage.leader()
    await stage.progress(100)
    before = stage.memory_mib(leader)
    port = stage.system.node(leader).port
    asked = await trio.to_thread.run_sync(ask_and_never_read, port, 20.0)
    grown = stage.memory_mib(leader) - before
    stage.note("slow reader", f"{asked} requests asked, none read; memory grew by {grown:.0f} MiB")
    stage.expect(grown < 200, f"the leader's memory stays flat (grew by {grown:.0f} MiB)")
    stage.expect(await stage.leader() == leader, "the leader stays")
    await stage.progress(50)


@NETWORK.add(30)
async def flood_of_idle_connections(stage: Stage) -> None:
    """Open thousands of connections that say nothing: members and other clients must not notice."""
    leader = await stage.leader()
    term = await stage.term()
    address = ("127.0.0.1", stage.system.node(leader).port)
    with ExitStack() as stack:
        opened = 0
        for _ in range(FLOOD):
            try:
                stack.enter_context(socket.create_connection(address, timeout=2.0))
            except OSError as error:
                stage.note("flood", f"no more after {opened}: {error}")
                break
            opened += 1
            if opened % 200 == 0:
                await trio.lowlevel.checkpoint()
        if opened < 100:
            raise SkippedError(f"this process may only open {opened} connections")
        stage.note("flood", f"{opened} idle connections")
        await stage.progress(50)
    stage.expect(await stage.term() == term, "no election in a flood of clients")
    await stage.progress(50)
    await stage.whole()
