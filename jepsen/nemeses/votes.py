"""A member is asked for its vote twice in one term, with its death in between.

A vote must be durable before it is sent: whoever forgets it may elect two leaders in one term. No client sees that
directly, and the real group gives it seconds in a thousand runs; so the fault asks itself. It takes the place of the
other members: it stops them, speaks the members' protocol to the one that is left, and listens where they would.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from dledger import Client, NodeId, Peer, PeerProtocolError, StatusAnswer, Term, parse_peers
from dledger.codec.frame import FRAME_BYTES_MAX, encode_frame
from dledger.codec.rpc import decode_message, encode_message
from dledger.errors import DLedgerError
from dledger.raft.ids import EntryId, Index
from dledger.raft.messages import VoteRequest, VoteResponse
from dledger.runtime.handshake import Identity, accept, dial_member, opening_decoder
from dledger.runtime.sockets import FrameStream, listen
from jepsen.nemeses.api import NothingStruckError, PromiseBrokenError
from jepsen.nemeses.process import Down, is_serving
from jepsen.processes import Process
from jepsen.systems.api import System

GRANT_S: Final = 3.0
GRANT_ATTEMPTS: Final = 4
REFUSAL_S: Final = 3.0
"""Longer than the time after a start in which a member binds itself to a leader that may live."""

ASK_INTERVAL_S: Final = 0.1
STATUS_TIMEOUT_S: Final = 5.0
BLOB_BYTES_MAX: Final = 64 * 1024 * 1024


class VoteTwice(Down):
    """One member votes, is killed, starts, and is asked by another candidate in the same term."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Have a member vote, kill and start it, and ask for its vote again as another candidate.

        Raises:
            NothingStruckError: there are too few members, or the voter never voted, or cannot be asked again.
            PromiseBrokenError: it voted twice.
        """
        names = [node.name for node in system.nodes]
        if len(names) < 3:
            raise NothingStruckError("two candidates and a voter are needed")
        chance.shuffle(names)
        voter, first, second = names[:3]
        node = system.node(voter)
        for name in names[1:]:
            system.node(name).kill()
        if node.pid is None:
            node.start()
            await is_serving(node)
        group, peers = _membership(node)
        for _ in range(GRANT_ATTEMPTS):
            # It may have voted for itself in the term after this one, while the others were dying.
            term, last = await _status(group, peers, voter)
            term = Term(term + 1)
            if await _ask(
                group, peers, between=(first, voter), claim=(term, last), timeout_s=GRANT_S
            ):
                break
        else:
            raise NothingStruckError(f"{voter} never voted for {first}")
        node.kill()
        node.start()
        if not await is_serving(node):  # who cannot be asked has refused nothing
            raise NothingStruckError(f"{voter} voted, was killed, and did not listen again")
        story = f"{voter} voted for {first} in term {term}, was killed,"
        if await _ask(
            group, peers, between=(second, voter), claim=(term, last), timeout_s=REFUSAL_S
        ):
            raise PromiseBrokenError(f"{story} and voted for {second} in the same term")
        return f"{story} and did not vote for {second}"


def _membership(node: Process) -> tuple[str, Sequence[Peer]]:
    """Return the group's name and members' real addresses, as the member's command line has them."""
    words = node.command
    group = words[words.index("--group") + 1]
    peers = parse_peers(words[words.index("--peers") + 1])
    # Links put other addresses in front of the others; they listen on the loopback address itself.
    return group, tuple(Peer(peer.node_id, "127.0.0.1", peer.port) for peer in peers)


async def _status(group: str, peers: Sequence[Peer], voter: str) -> tuple[Term, EntryId]:
    """Return the voter's term, and a place that no log of that term is beyond."""
    own = tuple(peer for peer in peers if peer.node_id == voter)
    async with Client(own, group=group, timeout_s=STATUS_TIMEOUT_S) as client:
        answer = (await client.status())[NodeId(voter)]
    if not isinstance(answer, StatusAnswer):
        raise answer
    return Term(answer.term), EntryId(Term(answer.term), Index(answer.last_index))


async def _ask(
    group: str,
    peers: Sequence[Peer],
    *,
    between: tuple[str, str],
    claim: tuple[Term, EntryId],
    timeout_s: float,
) -> bool:
    """Ask again and again, as a candidate, until the voter grants its vote; False when it does not in time.

    Args:
        group: its name.
        peers: all members.
        between: the candidate and the voter.
        claim: the term, and where the candidate's log ends.
        timeout_s: how long to ask.
    """
    candidate, voter = NodeId(between[0]), NodeId(between[1])
    by_id = {peer.node_id: peer for peer in peers}
    me = Identity(group, candidate, random.getrandbits(48), frozenset(by_id), None)
    term, last = claim
    request = VoteRequest(term, candidate, last.index, last.term)
    granted = trio.Event()
    with trio.move_on_after(timeout_s):
        async with _listening(me, by_id[candidate].port, term, granted) as nursery:
            stream = await _dial(by_id[voter], me)
            try:
                nursery.start_soon(_repeat, stream, encode_frame(encode_message(request)))
                await granted.wait()
            finally:
                stream.close()
    return granted.is_set()


async def _dial(voter: Peer, me: Identity) -> FrameStream:
    """Connect as the member; while the dead one's connection is not forgotten, it is refused."""
    while True:
        try:
            stream, _ = await dial_member(voter, me)
        except DLedgerError:
            await trio.sleep(ASK_INTERVAL_S)
        else:
            return stream


async def _repeat(stream: FrameStream, frame: bytes) -> None:
    while True:
        await stream.send(frame)
        await trio.sleep(ASK_INTERVAL_S)


@asynccontextmanager
async def _listening(
    me: Identity, port: int, term: Term, granted: trio.Event
) -> AsyncIterator[trio.Nursery]:
    """Listen where the candidate would be: members answer on connections that they dial."""
    listener = await listen("127.0.0.1", port)
    try:
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                while True:
                    await trio.lowlevel.wait_readable(listener)
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    nursery.start_soon(
                        _wait_for_vote, FrameStream(sock, opening_decoder()), me, term, granted
                    )

            nursery.start_soon(serve)
            yield nursery
            nursery.cancel_scope.cancel()
    finally:
        listener.close()


async def _wait_for_vote(
    stream: FrameStream, me: Identity, term: Term, granted: trio.Event
) -> None:
    """Read the voter's answers until it grants its vote."""
    try:
        await accept(stream, me, lambda _node_id, _process: None)
        stream.decoder.raise_bounds(frame_bytes_max=FRAME_BYTES_MAX, blob_bytes_max=BLOB_BYTES_MAX)
        while frames := await stream.receive():
            for frame in frames:
                message = decode_message(frame.header, *frame.pieces)
                if isinstance(message, VoteResponse) and message.granted and message.term == term:
                    granted.set()
    except (OSError, PeerProtocolError, DLedgerError):
        return  # it dials again
    finally:
        stream.close()
