"""What members send is read in turns: one that sends very much at once holds up neither the loop nor the others."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack

import pytest

from dledger.codec.frame import FrameDecoder, encode_frames
from dledger.codec.rpc import encode_message
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.messages import AppendRequest, PeerMessage, PreVoteResponse
from dledger.runtime.events_log import LimitedLog
from dledger.runtime.handshake import Identity, dial_member
from dledger.runtime.peer_links import FRAMES_PER_READ_MAX, READS_PER_PASS_MAX, PeerLinks
from dledger.runtime.sockets import FrameStream
from tests.unit.runtime.conftest import Group, wait_until

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
COUNT = 10 * FRAMES_PER_READ_MAX
"""All of them fit one read."""


class Bench:
    """A node n0 to which two members speak."""

    def __init__(self, stack: ExitStack) -> None:
        self.links = PeerLinks(N0, group_check=None, outsiders=LimitedLog())
        stack.callback(self.links.close)
        self.far: dict[NodeId, socket.socket] = {}
        self.seen: list[PeerMessage] = []
        self._stack = stack
        for name in (N1, N2):
            self.connect(name)

    def connect(self, name: NodeId) -> None:
        near, self.far[name] = map(self._stack.enter_context, socket.socketpair())
        near.setblocking(False)
        self.links.adopt(name, 1, FrameStream(near, FrameDecoder(blob_bytes_max=1000)))

    def send(self, name: NodeId, *terms: int) -> None:
        messages = (PreVoteResponse(Term(term), name, granted=False) for term in terms)
        data = b"".join(encode_frames(encode_message(each))[0] for each in messages)
        self.far[name].sendall(data)

    def receive(self) -> list[tuple[NodeId, int]]:
        """Return what one pass hands over."""
        before = len(self.seen)
        self.links.receive(self.seen.append)
        return [
            (each.source, each.term)
            for each in self.seen[before:]
            if isinstance(each, PreVoteResponse)
        ]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


def test_a_flood_is_handed_over_in_turns_and_in_order_and_others_have_theirs(bench: Bench) -> None:
    bench.send(N1, *range(COUNT))
    flood: list[int] = []
    while len(flood) < COUNT:
        bench.send(N2, len(flood))
        first = len(flood)
        taken = bench.receive()
        assert (N2, first) in taken
        assert first == 0 or taken[0] == (N2, first), "it does not wait for the flood"
        flood += [term for name, term in taken if name == N1]
        assert 0 < len(flood) - first <= READS_PER_PASS_MAX * FRAMES_PER_READ_MAX
        # No socket tells of what was read, and is not handed over.
        assert bench.links.is_behind or len(flood) == COUNT
    assert flood == list(range(COUNT))
    bench.receive()
    assert not bench.links.is_behind
    assert bench.receive() == []


def test_what_was_sent_before_a_connection_ended_is_handed_over(bench: Bench) -> None:
    bench.send(N1, *range(COUNT))
    bench.far[N1].close()
    taken = []
    while bench.links.has_incoming(N1):
        taken += bench.receive()
    assert taken == [(N1, term) for term in range(COUNT)]
    assert not bench.links.is_behind


def test_who_breaks_the_protocol_in_the_middle_of_a_flood_is_parted_from(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send(N1, *range(FRAMES_PER_READ_MAX))
    foreign = AppendRequest(Term(1), N2, Index(0), Term(0), (), Index(0), 1)
    bench.far[N1].sendall(encode_frames(encode_message(foreign))[0])
    bench.send(N1, *range(COUNT))
    with caplog.at_level(logging.WARNING, "dledger"):
        while bench.links.has_incoming(N1):
            bench.receive()
    assert "peer-broke-protocol" in caplog.text
    assert bench.seen == [
        PreVoteResponse(Term(term), N1, granted=False) for term in range(FRAMES_PER_READ_MAX)
    ]
    assert not bench.links.is_behind


def test_what_a_connection_left_over_goes_with_it(bench: Bench) -> None:
    bench.send(N1, *range(COUNT))
    bench.receive()
    assert bench.links.is_behind
    bench.links.drop(N1)
    assert not bench.links.is_behind
    assert bench.receive() == []


def test_what_a_replaced_connection_left_over_does_not_come_on_the_new_one(bench: Bench) -> None:
    bench.send(N1, *range(COUNT))
    bench.receive()
    assert bench.links.is_behind
    bench.connect(N1)
    assert not bench.links.is_behind
    bench.send(N1, COUNT)
    assert bench.receive() == [(N1, COUNT)]


@pytest.mark.slow
async def test_a_node_to_which_nobody_else_speaks_goes_on_with_a_flood_at_once(
    open_group: Callable[..., AbstractAsyncContextManager[Group]],
) -> None:
    """Nothing else starts a pass here: no socket has anything, and the next deadline is many seconds away."""
    count = 100 * FRAMES_PER_READ_MAX
    async with open_group(size=3, secret=None) as group:
        member = await group.start(
            N0,
            heartbeat_interval_ms=10_000,
            lease_ms=90_000,
            election_timeout_min_ms=100_000,
            election_timeout_max_ms=200_000,
        )
        lease = {"dledger.lease_ms": str(member.config.raft.lease_ms)}
        me = Identity("g", N1, 7, frozenset((N0, N1, NodeId("n2"))), None, lease)
        stream, _ = await dial_member(group.peers[0], me)
        driver = member.server._standing.running
        seen = 0

        def deliver(message: PeerMessage) -> None:
            nonlocal seen
            seen += 1

        driver._deliver = deliver  # type: ignore[method-assign]
        frame = encode_frames(encode_message(PreVoteResponse(Term(0), N1, granted=False)))[0]
        await stream.send(frame * count)
        await wait_until(lambda: seen == count)
        stream.close()
