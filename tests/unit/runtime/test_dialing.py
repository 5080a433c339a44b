"""Members that go or move while the handshake with them is being saved: their connection is opened nowhere.

And somebody else at a member's address, who ends each attempt in another way.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing

from dledger import NodeId, Peer
from dledger.config import peer_at
from dledger.errors import DLedgerError, PeerProtocolError, UnreachableError
from dledger.raft.configuration import Configuration
from dledger.raft.ids import Index
from dledger.runtime import dialing
from dledger.runtime.dialing import Dialing
from dledger.runtime.events_log import LimitedLog
from dledger.runtime.full_disks import FULL_ATTRIBUTE
from dledger.runtime.handshake import Identity, Remote, dial_member
from dledger.runtime.joining import JoinWatch
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.roster import Roster
from tests.unit.runtime.conftest import wait_until

N0, N1, N2 = (NodeId(f"n{number}") for number in range(3))
OLD, NEW = Peer(N1, "127.0.0.1", 2), Peer(N1, "127.0.0.1", 3)


class Stream:
    """An end of a connection, as `dial_member` returns it."""

    def __init__(self) -> None:
        self.sock, self._far = socket.socketpair()
        self.sock.setblocking(False)

    def close(self) -> None:
        self.sock.close()

    @property
    def is_closed(self) -> bool:
        return self.sock.fileno() < 0

    def end(self) -> None:
        self.sock.close()
        self._far.close()


class Bench:
    """A node that dials n1, and whose saves of handshakes end when the test wants."""

    def __init__(self) -> None:
        self.dialled: list[tuple[Peer, Stream]] = []
        self.saving, self.go_on = trio.Event(), trio.Event()
        self.roster = Roster(N0, (Peer(N0, "127.0.0.1", 1),), joins=False)
        self.links = PeerLinks(N0, group_check=None, outsiders=LimitedLog())
        me = Identity("g", N0, 1, frozenset(), None)
        watch = JoinWatch(self.roster, self.links)
        self.dialing = Dialing(me, self.roster, self.links, join_watch=watch, meet=self.meet)

    async def dial(self, peer: Peer, _me: Identity) -> tuple[Stream, Remote]:
        if peer != OLD:
            await trio.sleep_forever()
        self.dialled.append((peer, Stream()))
        return self.dialled[-1][1], Remote(peer.node_id, 1, {})

    async def meet(self, _node_id: NodeId, _remote: Remote) -> None:
        with trio.CancelScope(shield=True):  # a write to the disk is seen to its end
            self.saving.set()
            await self.go_on.wait()

    def follow(self, members: tuple[NodeId, ...], index: int, **addresses: str) -> None:
        at = {NodeId(name): address for name, address in addresses.items()}
        members_now = Configuration(members, addresses=at)
        self.roster.change(members_now, Index(index), is_committed=True)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench()
    monkeypatch.setattr(dialing, "PARTING_S", 0.01)
    monkeypatch.setattr(dialing, "dial_member", bench.dial)
    bench.follow((N0, N1), 3, n1=OLD.address)
    yield bench
    for _, stream in bench.dialled:
        stream.end()
    bench.links.close()


@pytest.mark.parametrize("moves", [False, True])
async def test_who_goes_or_moves_while_its_handshake_is_saved_is_not_connected(
    bench: Bench, *, moves: bool
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.dialing.run)
        await bench.saving.wait()
        bench.follow((N0, N1) if moves else (N0,), 5, n1=NEW.address)
        places = bench.links._outgoing
        old = places[N1]
        await wait_until(lambda: places.get(N1) is not old)
        bench.go_on.set()
        await wait_until(lambda: bench.dialled[0][1].is_closed)
        assert not bench.links.is_connected(N1)
        assert (N1 in places) is moves
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("leads", [False, True])
async def test_a_leader_without_a_majority_asks_at_once_what_others_ask_later(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    *,
    leads: bool,
) -> None:
    """It is about to lose its term; without a leader an election may go well before anybody need ask."""
    begun_s, asked_s = trio.current_time(), list[float]()

    async def look(peer: Peer) -> Remote:
        asked_s.append(trio.current_time() - begun_s)
        return Remote(peer.node_id, 1, {FULL_ATTRIBUTE: "true"})

    monkeypatch.setattr(bench.dialing, "_look_at", look)
    obstacles = Obstacles(N0, (N0, N1), has_vote=lambda: True, has_begun=lambda: True)
    obstacles.leader_changed(N0 if leads else None)
    obstacles.majority_judged(is_silent=leads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.dialing._keep_asking_for_obstacles, OLD, obstacles)
        await trio.sleep(1.25)
        assert obstacles.full_disks.full == [N1]
        obstacles.leader_changed(N1)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert asked_s == ([0.0] if leads else []) + [0.5, 1.0]


@pytest.mark.parametrize(
    ("reason", "lines_max"),
    [
        (lambda number: ("closed", "reset by the peer")[number % 2], 2),
        (lambda number: f"frame of {number} bytes", dialing.REASONS_MAX),
    ],
)
async def test_attempts_that_end_in_turns_are_logged_no_more_often_than_those_that_end_alike(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reason: Callable[[int], str],
    lines_max: int,
) -> None:
    """As when a member was added at an address at which something else listens."""
    failed_count = 0

    async def fail(_peer: Peer, _me: Identity) -> tuple[Stream, Remote]:
        nonlocal failed_count
        await trio.lowlevel.checkpoint()
        number, failed_count = failed_count, failed_count + 1
        kind: type[DLedgerError] = (PeerProtocolError, UnreachableError)[number % 2]
        raise kind(reason(number))

    monkeypatch.setattr(dialing, "dial_member", fail)
    monkeypatch.setattr(dialing, "REDIAL_MIN_MS", 0)
    monkeypatch.setattr(dialing, "REDIAL_MAX_MS", 0)
    monkeypatch.setattr(dialing, "REPEAT_LINE_S", 1e6)
    caplog.set_level(logging.INFO, logger="dledger")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.dialing.run)
        await wait_until(lambda: failed_count > 40)
        nursery.cancel_scope.cancel()
    lines = [each for each in caplog.messages if each.startswith("peer-not-reached")]
    assert len(lines) == lines_max


@pytest.mark.parametrize(
    "address", ["..:80", "n1..example.com:20911", "a" * 64 + ":80", "\U0001f642:80"]
)
async def test_a_member_at_an_address_that_is_no_name_is_not_reached_and_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    """It comes from the log, so it would end every member, at each of its starts anew."""
    monkeypatch.setattr(dialing, "dial_member", dial_member)
    caplog.set_level(logging.INFO, logger="dledger")
    bench.follow((N0, N2), 5, n2=address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.dialing.run)
        await wait_until(lambda: any("no address" in each for each in caplog.messages))
        nursery.cancel_scope.cancel()
    assert not bench.links.is_connected(N2)


@pytest.mark.parametrize(
    "port", ["0", "65536", "000001" + "0" * 40, "9" * 5000, "-1", "", "\u0661"]
)
def test_a_port_that_is_none_makes_no_member(port: str) -> None:
    assert peer_at(N1, f"host:{port}") is None
