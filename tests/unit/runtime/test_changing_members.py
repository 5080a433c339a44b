"""Members that come and go while the group runs: connections, handshakes, stores and clients follow the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dledger import (
    Client,
    ConfigError,
    LogConfig,
    LogServer,
    NodeId,
    Peer,
    RefusedError,
    Role,
    TransferFailedError,
    UsageError,
)
from dledger.codec.frame import encode_frame
from dledger.codec.hello import Refused
from dledger.codec.member_record import decode_member_record
from dledger.codec.wire_types import encode_header
from dledger.config import RaftConfig
from dledger.raft.configuration import ChangeKind, Configuration, MemberChange
from dledger.raft.effects import MembersChanged, MembersCommitted
from dledger.raft.ids import Index
from dledger.storage.member_file import MEMBER_NAME
from jepsen.ports import free_ports
from tests.unit.runtime.conftest import PATIENCE_S, BodiesMachine, Group, Member, wait_until

pytestmark = pytest.mark.slow

N0, N1, N2, N3 = (NodeId(f"n{number}") for number in range(4))
S = 60.0
OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]


def new_peer(name: NodeId) -> Peer:
    return Peer(name, "127.0.0.1", next(iter(free_ports(1))))


def joining_config(group: Group, peer: Peer, known: tuple[Peer, ...]) -> LogConfig:
    """What a node is started with that joins the group which it finds by these members."""
    config = group.config(peer.node_id)
    voters = tuple(each.node_id for each in known)
    raft = replace(config.raft, voters=voters, joins=True)
    return replace(config, peers=(*known, peer), raft=raft)


async def start_with(group: Group, config: LogConfig) -> Member:
    member = Member(config, None, None)
    group.members[config.raft.node_id] = member
    await group._nursery.start(member.run)
    return member


def test_changes_that_come_at_once_are_followed_one_after_the_other(tmp_path: Path) -> None:
    """A log that lagged brings them together: one that was removed in between is back elsewhere."""
    peers = tuple(Peer(name, "127.0.0.1", 10 + place) for place, name in enumerate((N0, N1, N2)))
    raft = RaftConfig(N0, (N0, N1, N2))
    config = LogConfig(group="g", peers=peers, store_path=str(tmp_path), raft=raft)
    server = LogServer(config, BodiesMachine())
    without = Configuration((N0, N1))
    back = Configuration((N0, N1), (N2,), addresses={N2: "127.0.0.1:99"})
    node = SimpleNamespace(
        configuration=back, configuration_index=5, is_configuration_committed=True
    )
    engine: Any = SimpleNamespace(node=node)
    for news in (
        MembersChanged(without, Index(4)),
        MembersChanged(back, Index(5)),
        MembersCommitted(back, Index(5)),
    ):
        server._follow_changes(engine, news)
    assert server.roster.peer(N2) == Peer(N2, "127.0.0.1", 99)
    assert server.roster.committed == back


def add(peer: Peer, *, is_joining: bool = True) -> MemberChange:
    return MemberChange(ChangeKind.ADD, peer.node_id, is_joining, {peer.node_id: peer.address})


def remove(name: NodeId) -> MemberChange:
    return MemberChange(ChangeKind.REMOVE, name)


def client_of(group: Group, peers: tuple[Peer, ...]) -> Client:
    return Client(peers, group="g", secret=group.secret, timeout_s=S)


async def wait_voter(group: Group, name: NodeId) -> None:
    """Wait until all that run know that it is committed that this one votes."""
    rosters = [member.server.roster for member in group.members.values()]
    await wait_until(lambda: all(name in roster.committed.voters for roster in rosters))


async def grow(group: Group, client: Client, name: NodeId, known: tuple[Peer, ...]) -> Peer:
    """Start a node that joins, and wait until it votes."""
    peer = new_peer(name)
    await start_with(group, joining_config(group, peer, known))
    await client.change_members(add(peer))
    await wait_voter(group, name)
    return peer


async def wait_removed(member: Member) -> str:
    """Wait until a node knows that it is no member any more; what it says."""
    name, status = member.server.node_id, member.server.status
    await wait_until(lambda: "removed" in status.attributes(name).get("membership", ""))
    return status.attributes(name)["membership"]


async def test_one_node_grows_to_three_and_any_two_of_them_go_on(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0")
        async with client_of(group, group.peers) as client:
            first = await client.append(b"alone")
            n1 = await grow(group, client, N1, group.peers)
            n2 = await grow(group, client, N2, (*group.peers, n1))
            seen = await client.members()
            assert (seen.voters, seen.learners, seen.is_committed) == (["n0", "n1", "n2"], [], True)
            assert seen.addresses == {each.node_id: each.address for each in (*group.peers, n1, n2)}
            last = await client.append(b"three")
            await group.wait_applied(last.index)
            with pytest.raises(TransferFailedError, match="cannot be handed to n3: n0 leads"):
                await client.transfer(N3)
            assert await client.transfer(N2) == N2, "it was added after the client was set up"
            await group.members.pop(N0).stop()
        async with client_of(group, (n1, n2)) as client:
            assert [each.body for each in await client.get(first.index)] == [b"alone"]
            await client.append(b"two", retry_unknown=True)
        # The store knows the others: started as at first, alone, it waits for them and does not lead by itself.
        again = await group.start("n0")
        await wait_until(lambda: again.machine.bodies[-1:] == [b"two"])
        assert not again.server.is_leader or len(again.server.roster.in_force.voters) == 3


async def test_a_group_shrinks_to_one_and_who_was_removed_learns_it_and_stays_quiet(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        leader = await group.leader()
        others = [each for each in group.members if each != leader.server.node_id]
        async with client_of(group, group.peers) as client:
            for name in others:
                await client.change_members(remove(name))
            term = leader.server.term
            for name in others:
                await wait_removed(group.members[name])
            await client.append(b"alone")
            roles = [group.members[name].server for name in others]
            # They have waited in vain for a leader, and asked; nobody was disturbed.
            await wait_until(lambda: all(each.role is Role.PRE_CANDIDATE for each in roles))
            await client.append(b"undisturbed")
            assert (leader.server.is_serving, leader.server.term) == (True, term)
            await wait_until(lambda: not leader.server.status.peers_connected())


async def test_the_leader_is_removed_and_another_one_leads(open_group: OpenGroup) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        leader = await group.leader()
        name = leader.server.node_id
        async with client_of(group, group.peers) as client:
            seen = await client.change_members(remove(name))
            assert name not in seen.voters
            await wait_until(lambda: leader.server.leader_id != name)
            await client.append(b"without it", retry_unknown=True)
            assert (await client.members()).leader_id != name
            await wait_removed(leader)


async def test_a_dead_member_is_replaced_and_comes_back_as_a_stranger(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        dead = await group.follower()
        name = dead.server.node_id
        await dead.stop()
        del group.members[name]
        alive = tuple(peer for peer in group.peers if peer.node_id != name)
        async with client_of(group, alive) as client:
            n3 = await grow(group, client, N3, alive)
            await client.change_members(remove(name))
            last = await client.append(b"three again")
            await group.wait_applied(last.index)
            # With another one down, the new one is needed: it counts.
            leader_id = (await client.members()).leader_id
            victim = next(each for each in alive if each.node_id != leader_id)
            await group.members.pop(victim.node_id).stop()
            await client.append(b"by the new one", retry_unknown=True)
        said = await wait_removed(await group.start(name))
        assert n3.node_id in said


async def test_who_was_removed_is_added_again_with_the_store_that_it_has(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        follower = await group.follower()
        name = follower.server.node_id
        peer = next(each for each in group.peers if each.node_id == name)
        async with client_of(group, group.peers) as client:
            await client.change_members(remove(name))
            await wait_removed(follower)
            await client.append(b"without it")
            await client.change_members(add(peer))
            await wait_voter(group, name)
            last = await client.append(b"with it")
            await group.wait_applied(last.index)
            assert "membership" not in follower.server.status.attributes(name)


async def test_a_learner_follows_and_is_never_counted(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0")
        async with client_of(group, group.peers) as client:
            peer = new_peer(N1)
            await start_with(group, joining_config(group, peer, group.peers))
            await client.change_members(add(peer, is_joining=False))
            last = await client.append(b"followed")
            await group.wait_applied(last.index)
            learner = group.members[N1]
            assert learner.server.status.attributes(N1)["membership"] == "learner"
            seen = await client.members()
            assert (seen.voters, seen.learners) == (["n0"], ["n1"])
            await group.members.pop(N1).stop()
            await client.append(b"without it")
            with trio.fail_after(PATIENCE_S):
                while N1 not in (await client.members()).silent:
                    await trio.lowlevel.checkpoint()

            async def why_not_promoted() -> str:
                """Ask the leader itself: a client asks again until its time is over."""
                server = group.members[N0].server
                with pytest.raises(RefusedError) as refused:
                    await server.change_members(MemberChange(ChangeKind.PROMOTE, N1), timeout_s=S)
                return str(refused.value)

            with trio.fail_after(PATIENCE_S):
                while await why_not_promoted() != "n1 does not answer":
                    await trio.lowlevel.checkpoint()


async def test_the_members_are_kept_in_the_store_and_other_peers_are_refused(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0")
        async with client_of(group, group.peers) as client:
            n1 = await grow(group, client, N1, group.peers)
        store = Path(group.config("n1").store_path)

        def is_kept() -> bool:
            kept = decode_member_record((store / MEMBER_NAME).read_bytes()).configuration
            return kept is not None and N1 in kept.voters

        await wait_until(is_kept)
        joined = group.members.pop(N1)
        await joined.stop()
        other = new_peer(N3)
        raft = replace(joined.config.raft, voters=(N3,))
        with pytest.raises((ConfigError, RuntimeError)):
            await start_with(group, replace(joined.config, peers=(n1, other), raft=raft))
        said = str(group.members.pop(N1).failure)
        assert "belongs to a group of n0, n1, by entry" in said
        assert "--peers (dLegerPeers) names n1, n3, neither of them" in said
        # With those of now, without saying that it joins.
        now = replace(joined.config, raft=replace(joined.config.raft, joins=False, voters=(N0, N1)))
        again = await start_with(group, now)
        async with client_of(group, group.peers) as client:
            last = await client.append(b"back")
            await wait_until(lambda: again.machine.applied_index >= last.index)


async def test_a_member_from_the_beginning_may_be_started_as_if_it_joined(
    open_group: OpenGroup,
) -> None:
    """`--join` in all command lines of a group that has begun changes nothing, also not for a store that was lost."""
    async with open_group(size=3) as group:
        await group.start_all()
        leader = await group.leader()
        await leader.server.appender.append(b"before", timeout_s=S)
        for member in list(group.members.values()):
            await member.stop()
        group.members.clear()
        shutil.rmtree(group.config("n2").store_path)
        for own in group.peers:
            others = tuple(each for each in group.peers if each is not own)
            await start_with(group, joining_config(group, own, others))
        leader = await group.leader()
        last = await leader.server.appender.append(b"after", timeout_s=S)
        await group.wait_applied(last.index)
        for member in group.members.values():
            assert sorted(member.server.roster.in_force.voters) == [N0, N1, N2]
        await wait_until(lambda: group.members[N2].server.is_voter)
        await group.members.pop(N0).stop()
        await (await group.leader()).server.appender.append(b"by two", timeout_s=S)


async def test_who_cannot_be_reached_is_not_added(open_group: OpenGroup) -> None:
    async with open_group(size=1) as group:
        await group.start("n0")
        async with client_of(group, group.peers) as client:
            with pytest.raises(UsageError, match="no address is named for n1"):
                await client.change_members(MemberChange(ChangeKind.ADD, N1))
            with pytest.raises(UsageError, match="is the address of n0, not of n1"):
                await client.change_members(
                    MemberChange(ChangeKind.ADD, N1, False, {N1: group.peers[0].address})
                )
            with pytest.raises(
                UsageError, match=r"n0 is a voter at .*: to move it, remove n0, then"
            ):
                await client.change_members(add(new_peer(N0)))
            group.members[N0].server.why_not_added = lambda name: f"{name} is not wanted"
            with pytest.raises(UsageError, match="n1 is not wanted"):
                await client.change_members(add(new_peer(N1)))
            assert (await client.members()).index == 0


async def test_a_leader_believes_nobody_who_takes_the_place_of_one_member(
    open_group: OpenGroup,
) -> None:
    """The refusal `stranger` comes before the other side shows that it knows the group's secret."""
    async with open_group(size=3) as group:
        await group.start_all()
        leader, gone = await group.leader(), await group.follower()
        name = gone.server.node_id
        peer = next(peer for peer in group.peers if peer.node_id == name)
        await gone.stop()
        del group.members[name]
        servers = [member.server for member in group.members.values()]

        async def refuse(stream: trio.SocketStream) -> None:
            refusal = encode_frame(encode_header(Refused("stranger", "who are you")))
            with suppress(
                trio.BrokenResourceError
            ):  # who dials has gone meanwhile, and comes again
                await stream.receive_some(65536)
                await stream.send_all(refusal)
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, refuse, peer.port)
            await wait_until(lambda: all(each.roster.refusal for each in servers))
            nursery.cancel_scope.cancel()
        assert leader.server.is_serving
        for each in servers:
            assert each.is_accepted
            assert not each.status.attributes(each.node_id).get("membership")


async def test_a_member_that_moves_is_removed_and_added_where_it_is(open_group: OpenGroup) -> None:
    async with open_group(size=3) as group:
        await group.start_all()
        gone = await group.follower()
        name = gone.server.node_id
        await gone.stop()
        del group.members[name]
        others = tuple(peer for peer in group.peers if peer.node_id != name)
        moved = new_peer(name)
        async with client_of(group, others) as client:
            await client.change_members(remove(name))
            config = replace(
                joining_config(group, moved, others), store_path=f"{gone.config.store_path}2"
            )
            back = await start_with(group, config)
            await client.change_members(add(moved))
            await wait_voter(group, name)
            last = await client.append(b"at its new place")
            await wait_until(lambda: back.machine.applied_index >= last.index)


@pytest.mark.parametrize("secret", [None, "s"])
async def test_a_founder_that_begins_anew_beside_its_group_stops(
    open_group: OpenGroup, secret: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no way to know, started as when it founded the group, until another member speaks to it."""
    async with open_group(size=1, secret=secret) as group:
        await group.start("n0")
        async with client_of(group, group.peers) as client:
            n1 = await grow(group, client, N1, group.peers)
            n2 = await grow(group, client, N2, (*group.peers, n1))
            last = await client.append(b"three")
            await group.wait_applied(last.index)
        founder = group.members.pop(N0)
        await founder.stop()
        joined = [group.members.pop(name) for name in (N1, N2)]
        for member in joined:
            await member.stop()
        shutil.rmtree(Path(founder.config.store_path))
        await group.start("n0")
        async with client_of(group, group.peers) as client:
            await client.append(b"lost")  # nobody can tell it yet
        await group.members.pop(N0).stop()
        await group.start("n0")  # so that it counts as many starts as the others remember, and more
        for member in joined:
            await start_with(group, member.config)
        again = group.members[N0].server
        await wait_until(lambda: not again.is_serving and not again.is_voter)
        assert "which n0 does not have, though by its own store it is alone" in caplog.text
        async with client_of(group, (n1, n2)) as client:
            await client.append(b"the group goes on", retry_unknown=True)
        assert not again.is_serving


async def test_a_member_starts_again_in_the_term_in_which_one_was_removed(
    open_group: OpenGroup,
) -> None:
    """The last term began with an entry that names more members than the store knows of now."""
    async with open_group(size=3) as group:
        await group.start_all()
        leader = await group.leader()
        gone, stays = (name for name in group.members if name != leader.server.node_id)
        record = Path(group.config(stays).store_path) / MEMBER_NAME
        async with client_of(group, group.peers) as client:
            seen = await client.change_members(remove(gone))
            await group.members.pop(gone).stop()
            await wait_until(
                lambda: decode_member_record(record.read_bytes()).configuration_index == seen.index
            )
            await group.members.pop(stays).stop()
            again = await group.start(stays)
            await client.append(b"both", retry_unknown=True)
            await wait_until(lambda: again.machine.bodies[-1:] == [b"both"])
