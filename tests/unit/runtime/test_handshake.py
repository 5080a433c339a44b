"""Who is let in, who is not, and what each side is told."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from dledger.codec.frame import FrameDecoder, encode_frame
from dledger.codec.hello import (
    PROTOCOL_VERSION,
    Challenge,
    Hello,
    ProofOfSecret,
    Refused,
    Welcome,
    decode_from_acceptor,
)
from dledger.codec.wire_types import encode_header
from dledger.errors import DLedgerError, HandshakeRefusedError, PeerProtocolError
from dledger.group_secret import GroupSecret
from dledger.raft.ids import NodeId
from dledger.runtime.clock import now_ms
from dledger.runtime.handshake import Identity, Remote, accept, dial, opening_decoder
from dledger.runtime.peer_clocks import ClockReading
from dledger.runtime.sockets import FrameStream

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
MEMBERS = frozenset({N0, N1, N2})
SECRET = GroupSecret("secret")
DIALER = Identity("g", N1, 11, MEMBERS, SECRET, {"service_address": "a:1"})
ACCEPTOR = Identity("g", N0, 10, MEMBERS, SECRET, {"service_address": "b:2"})
CLIENT = Identity("g", None, 12, MEMBERS, SECRET)


@asynccontextmanager
async def stream_pair() -> AsyncIterator[tuple[FrameStream, FrameStream]]:
    own, other = socket.socketpair()
    own.setblocking(False)
    other.setblocking(False)
    streams = FrameStream(own, opening_decoder()), FrameStream(other, opening_decoder())
    with trio.fail_after(60):
        yield streams
    for stream in streams:
        stream.close()


async def shake(
    dialer: Identity,
    acceptor: Identity,
    target: NodeId | None = N0,
    duplicate: str | None = None,
) -> tuple[Remote | DLedgerError, Remote | DLedgerError]:
    """What the dialer, and what the acceptor, comes out with."""
    results: dict[str, Remote | DLedgerError] = {}
    async with stream_pair() as (near, far), trio.open_nursery() as nursery:

        async def run_dialer() -> None:
            try:
                results["dialer"] = await dial(near, dialer, target)
            except DLedgerError as error:
                results["dialer"] = error
                near.sock.shutdown(socket.SHUT_WR)

        async def run_acceptor() -> None:
            try:
                results["acceptor"] = await accept(far, acceptor, lambda _, __: duplicate)
            except DLedgerError as error:
                results["acceptor"] = error

        nursery.start_soon(run_dialer)
        nursery.start_soon(run_acceptor)
    return results["dialer"], results["acceptor"]


async def test_members_learn_who_the_other_is() -> None:
    at_dialer, at_acceptor = await shake(DIALER, ACCEPTOR)
    assert at_dialer == Remote(N0, 10, {"service_address": "b:2"})
    assert at_acceptor == Remote(N1, 11, {"service_address": "a:1"})


async def test_a_client_is_nobody_in_particular() -> None:
    _, at_acceptor = await shake(CLIENT, ACCEPTOR)
    assert at_acceptor == Remote(None, 12, {})
    _, anywhere = await shake(CLIENT, ACCEPTOR, target=None)
    assert anywhere == at_acceptor


async def test_without_a_secret_nobody_needs_one() -> None:
    at_dialer, at_acceptor = await shake(
        replace(DIALER, secret=None), replace(ACCEPTOR, secret=None)
    )
    assert isinstance(at_dialer, Remote)
    assert isinstance(at_acceptor, Remote)


async def test_a_secret_changes_member_by_member() -> None:
    """Old and new are known to all before the first one shows the new one; then the old one goes."""
    old, both = GroupSecret("old"), GroupSecret("old", "new")
    turned, new = GroupSecret("new", "old"), GroupSecret("new")
    for one, other in ((old, both), (both, turned), (turned, new)):
        for near, far in ((one, other), (other, one), (one, one)):
            at_dialer, at_acceptor = await shake(
                replace(DIALER, secret=near), replace(ACCEPTOR, secret=far)
            )
            assert isinstance(at_dialer, Remote), at_dialer
            assert isinstance(at_acceptor, Remote), at_acceptor
    for near, far in ((old, new), (new, old), (old, turned)):
        at_dialer, _ = await shake(replace(DIALER, secret=near), replace(ACCEPTOR, secret=far))
        assert isinstance(at_dialer, Remote) == (far is turned)


async def test_a_secret_that_changes_counts_for_who_comes_then() -> None:
    secret = GroupSecret("old")
    acceptor = replace(ACCEPTOR, secret=secret)
    secret.change(("new",))
    at_dialer, _ = await shake(replace(DIALER, secret=GroupSecret("new")), acceptor)
    assert isinstance(at_dialer, Remote)
    at_dialer, _ = await shake(replace(DIALER, secret=GroupSecret("old")), acceptor)
    assert isinstance(at_dialer, HandshakeRefusedError)


@pytest.mark.parametrize(
    ("dialer", "acceptor", "kind"),
    [
        (replace(DIALER, secret=GroupSecret("guess")), ACCEPTOR, "secret"),
        (replace(DIALER, secret=None), ACCEPTOR, "secret"),
        (DIALER, replace(ACCEPTOR, secret=None), "secret"),
        (replace(CLIENT, secret=GroupSecret("guess")), ACCEPTOR, "secret"),
        (replace(DIALER, group="other"), ACCEPTOR, "group"),
        (replace(CLIENT, group="other"), ACCEPTOR, "group"),
        (replace(DIALER, node_id=NodeId("n9")), ACCEPTOR, "member"),
        (replace(DIALER, node_id=N0), ACCEPTOR, "duplicate"),
        (DIALER, replace(ACCEPTOR, node_id=N2), "member"),
    ],
)
async def test_who_does_not_fit_is_refused_with_the_reason(
    dialer: Identity, acceptor: Identity, kind: str
) -> None:
    at_dialer, at_acceptor = await shake(dialer, acceptor)
    assert isinstance(at_dialer, HandshakeRefusedError)
    assert at_dialer.kind == kind
    assert isinstance(at_acceptor, DLedgerError)


async def test_a_second_process_with_an_id_is_told_so() -> None:
    at_dialer, _ = await shake(DIALER, ACCEPTOR, duplicate="another process is connected as n1")
    assert isinstance(at_dialer, HandshakeRefusedError)
    assert "another process is connected as n1" in str(at_dialer)


async def test_another_version_is_refused() -> None:
    async with stream_pair() as (near, far), trio.open_nursery() as nursery:

        async def expect_refusal() -> None:
            with pytest.raises(HandshakeRefusedError):
                await accept(far, ACCEPTOR, lambda _, __: None)

        nursery.start_soon(expect_refusal)
        hello = Hello(PROTOCOL_VERSION + 1, "peer", "g", "n1", 1, "n0", bytes(32), {})
        await near.send(encode_frame(encode_header(hello)))
        said = decode_from_acceptor(await near.receive_one())
        assert isinstance(said, Refused)
        assert said.code == "version"


async def test_the_acceptor_shows_no_proof_to_who_has_shown_none() -> None:
    """Else anybody could take a proof home and guess the secret at leisure."""
    async with stream_pair() as (near, far), trio.open_nursery() as nursery:

        async def expect_refusal() -> None:
            with pytest.raises(HandshakeRefusedError):
                await accept(far, ACCEPTOR, lambda _, __: None)

        nursery.start_soon(expect_refusal)
        hello = Hello(PROTOCOL_VERSION, "peer", "g", "n1", 1, "n0", bytes(32), {})
        await near.send(encode_frame(encode_header(hello)))
        assert isinstance(decode_from_acceptor(await near.receive_one()), Challenge)
        await near.send(encode_frame(encode_header(ProofOfSecret(bytes(32)))))
        assert isinstance(decode_from_acceptor(await near.receive_one()), Refused)


async def test_a_proof_cannot_be_reflected() -> None:
    """An acceptor that only repeats the dialer's own proof does not know the secret."""
    async with stream_pair() as (near, far), trio.open_nursery() as nursery:

        async def expect_refusal() -> None:
            with pytest.raises(HandshakeRefusedError, match="does not know the secret"):
                await dial(near, DIALER, N0)

        nursery.start_soon(expect_refusal)
        await far.receive_one()
        challenge = Challenge(PROTOCOL_VERSION, "n0", 1, bytes(32), True, {})
        await far.send(encode_frame(encode_header(challenge)))
        proof = await far.receive_one()
        stolen = Welcome(proof[-32:])
        await far.send(encode_frame(encode_header(stolen)))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(12),
        encode_frame(b"\xc1"),
        encode_frame(encode_header(ProofOfSecret(bytes(32)))),
        encode_frame(encode_header(Welcome(b""))),
        encode_frame(b"x" * 60_000),
        encode_frame(
            encode_header(Hello(PROTOCOL_VERSION, "client", "g", "", 1, "", bytes(32), {}))
        )
        * 2,
    ],
)
async def test_garbage_is_a_broken_protocol(said: bytes) -> None:
    async with stream_pair() as (near, far):
        near.send_soon(said)
        with pytest.raises(PeerProtocolError):
            await accept(far, ACCEPTOR, lambda _, __: None)


async def test_an_end_within_the_handshake_is_noticed() -> None:
    async with stream_pair() as (near, far):
        near.close()
        with pytest.raises(PeerProtocolError, match="closed"):
            await accept(far, ACCEPTOR, lambda _, __: None)


def test_a_stranger_cannot_make_us_hold_much() -> None:
    decoder: FrameDecoder = opening_decoder()
    with pytest.raises(PeerProtocolError):
        decoder.feed((49 * 1024).to_bytes(4, "big"))


class WallClock:
    """A member's wall clock that stands still."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def settled_ms(self) -> int | None:
        return 1_700_000_000_007

    def learn(self, node_id: NodeId, reading: ClockReading) -> None:
        raise AssertionError("the transport tells, not the handshake")


async def test_the_dialer_learns_the_acceptors_clock_where_both_compare_theirs() -> None:
    with_clock = replace(ACCEPTOR, clock=WallClock())
    before_ms = now_ms()
    dialer, acceptor = await shake(replace(DIALER, clock=WallClock()), with_clock)
    assert isinstance(dialer, Remote)
    assert isinstance(acceptor, Remote)
    assert dialer.clock is not None
    assert dialer.clock.wall_ms == 1_700_000_000_000
    assert dialer.clock.settled_ms == 1_700_000_000_007
    assert before_ms <= dialer.clock.asked_ms <= dialer.clock.answered_ms <= now_ms()
    assert acceptor.clock is None, "what the dialer said has no bound on its age"
    assert acceptor.attributes["service_address"] == "a:1"


async def test_a_member_that_tells_no_clock_is_let_in_as_ever() -> None:
    dialer, acceptor = await shake(replace(DIALER, clock=WallClock()), ACCEPTOR)
    assert isinstance(dialer, Remote)
    assert isinstance(acceptor, Remote)
    assert dialer.clock is None
    dialer, _ = await shake(CLIENT, replace(ACCEPTOR, clock=WallClock()))
    assert isinstance(dialer, Remote)


async def test_a_stream_that_was_closed_before_its_reader_began_is_closed_for_it() -> None:
    async with stream_pair() as (near, _):
        near.close()
        with pytest.raises(trio.ClosedResourceError):
            await near.receive()
