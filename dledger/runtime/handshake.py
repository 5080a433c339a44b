"""The handshake: version, group, membership and the group's secret, checked on both sides.

The conversation stands in codec/hello.py. With a secret each side proves that it knows it by an
HMAC-SHA256 over both openings (ids, roles, nonces and attributes included), with a label for the
side, so that a proof can neither be reflected nor used elsewhere. The dialer proves first; while the
secret changes, an acceptor believes the old and the new one, and answers with what it was shown. This
authenticates; it does not encrypt, and it does not protect the bytes that follow from somebody who
can change packets on the way (docs/formats/rpc.md says what to do there).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

import trio

from dledger.codec.frame import FrameDecoder, encode_frame
from dledger.codec.hello import (
    HELLO_FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    Challenge,
    Hello,
    ProofOfSecret,
    RefusalCode,
    Refused,
    Welcome,
    decode_from_acceptor,
    decode_from_dialer,
)
from dledger.codec.wire_types import encode_header
from dledger.config import Peer
from dledger.errors import HandshakeRefusedError, PeerProtocolError, UnreachableError
from dledger.group_secret import GroupSecret
from dledger.member_tls import MemberTls
from dledger.raft.ids import NodeId
from dledger.runtime.clock import draw_process_number, now_ms
from dledger.runtime.group_check import GroupCheck
from dledger.runtime.member_sockets import connect_member
from dledger.runtime.obstacles import Obstacles
from dledger.runtime.peer_clocks import ClockReading, ClockWatch, clock_attributes, reading_of
from dledger.runtime.sockets import CONNECT_TIMEOUT_S, FrameStream
from dledger.runtime.store_identity import StoreIdentity

HANDSHAKE_TIMEOUT_S: Final = 3.0
"""Longer than three round trips anywhere on earth; whoever says nothing is dropped then."""

_DIALER_LABEL: Final = b"dledger dialer"
_ACCEPTOR_LABEL: Final = b"dledger acceptor"


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts that this side reports of itself.

    Attributes:
        node_id: None for a client.
        process: drawn anew by every process.
        members: ids of the whole group, of a side without `group_check`, which knows them better.
        clock: the wall clock that it shows; None: it shows none.
        store_identity: the facts of a member's store, and the check of others' stores against them.
        obstacles: what keeps it from helping a leader; None: it reports none.
        group_check: the facts of its group, likewise.
        tls: encrypts its connections; None: they are plain text.
    """

    group: str
    node_id: NodeId | None
    process: int
    members: frozenset[NodeId]
    secret: GroupSecret | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    clock: ClockWatch | None = None
    store_identity: StoreIdentity | None = None
    obstacles: Obstacles | None = None
    group_check: GroupCheck | None = None
    tls: MemberTls | None = None

    @classmethod
    def of_client(
        cls,
        group: str,
        members: frozenset[NodeId],
        secret: GroupSecret | str | None,
        tls: MemberTls | None = None,
    ) -> Identity:
        """Build the identity of a log client of a group."""
        return cls(
            group=group,
            node_id=None,
            process=draw_process_number(),
            members=members,
            secret=GroupSecret.of(secret or None),
            tls=tls,
        )

    def own_attributes(self, target: str) -> dict[str, str]:
        """Return the attributes of this moment, for a member or, where `target` is empty, for anybody."""
        own = dict(self.attributes)
        if self.clock is not None:
            own.update(clock_attributes(self.clock))
        if self.store_identity is not None and target:
            own.update(self.store_identity.own_attributes(target))
        if self.obstacles is not None:
            own.update(self.obstacles.own_attributes())
        if self.group_check is not None and target:
            own.update(self.group_check.own_attributes())
        return own

    def why_foreign(self, node_id: str, process: int, attributes: Mapping[str, str]) -> str | None:
        """Return why the two members' stores do not belong to one group; None if they do.

        Raises:
            PeerProtocolError: what the other says of its store is not to be understood.
        """
        reason = None
        if self.store_identity is not None:
            reason = self.store_identity.why_foreign(node_id, attributes)
        if reason is None and self.group_check is not None:
            reason = self.group_check.why_not(node_id, process, attributes)
        return reason

    def why_stranger(
        self, node_id: str, attributes: Mapping[str, str]
    ) -> tuple[RefusalCode, str] | None:
        """Return why a node is none of the group's members, as code and text; None if it may be one.

        Raises:
            PeerProtocolError: what it says of the members is not to be understood.
        """
        check = self.group_check
        if check is None:
            is_known = node_id in self.members
            return (
                None
                if is_known
                else ("member", f"{node_id!r} is no member of group {self.group!r}")
            )
        reason = check.why_stranger(node_id, attributes)
        if reason is None:
            return None
        if check.may_say_stranger(attributes):
            return "stranger", reason
        return "member", f"{node_id!r} is no member of group {self.group!r}"


@dataclass(frozen=True, slots=True)
class Remote:
    """The other side of a connection; `node_id` is None for a client.

    Attributes:
        clock: a reading of its wall clock, where this side has dialled and the other one shows it.
    """

    node_id: NodeId | None
    process: int
    attributes: Mapping[str, str]
    clock: ClockReading | None = None


def opening_decoder() -> FrameDecoder:
    """Return a decoder for a connection on which nobody is trusted yet."""
    return FrameDecoder(frame_bytes_max=HELLO_FRAME_BYTES_MAX, blob_bytes_max=0)


def _prove(secret: str | None, *, label: bytes, hello: bytes, challenge: bytes) -> bytes:
    """Return the HMAC over label, dialer's and acceptor's opening. Each has its length in front."""
    if secret is None:
        return b""
    proof = hmac.new(secret.encode(), digestmod=hashlib.sha256)
    for part in (label, hello, challenge):
        proof.update(len(part).to_bytes(4, "big"))
        proof.update(part)
    return proof.digest()


async def dial_member(
    peer: Peer, me: Identity, *, timeout_s: float = HANDSHAKE_TIMEOUT_S
) -> tuple[FrameStream, Remote]:
    """Connect to a member and shake hands.

    Args:
        peer: whom to reach.
        me: this side.
        timeout_s: for the handshake.

    Raises:
        UnreachableError: nobody answers there in time.
        HandshakeRefusedError: one side turned the other away.
        PeerProtocolError: who answers there does not speak this protocol.
    """
    try:
        with trio.fail_after(timeout_s + CONNECT_TIMEOUT_S):
            stream = FrameStream(await connect_member(peer, me.tls), opening_decoder())
    except trio.TooSlowError:
        raise UnreachableError(f"{peer}: TLS handshake timeout") from None
    except OSError as error:
        raise UnreachableError(f"{peer}: {error.strerror or error}") from error
    try:
        with trio.fail_after(timeout_s):
            return stream, await dial(stream, me, peer.node_id)
    except trio.TooSlowError:
        stream.close()
        raise UnreachableError(f"{peer}: handshake timeout") from None
    except OSError as error:
        stream.close()
        raise UnreachableError(f"{peer}: {error.strerror or error}") from error
    except BaseException:
        stream.close()
        raise


async def dial(stream: FrameStream, me: Identity, target: NodeId | None) -> Remote:
    """Shake hands as the dialer. The decoder's bounds stay; raise them for what follows.

    Args:
        stream: a fresh connection with an `opening_decoder`.
        me: this side.
        target: the member that should be there.

    Raises:
        HandshakeRefusedError: one side turned the other away.
        PeerProtocolError: the other side does not speak this protocol.
        OSError: the connection broke.
    """
    role: Literal["peer", "client"] = "client" if me.node_id is None else "peer"
    hello = encode_header(
        Hello(
            version=PROTOCOL_VERSION,
            role=role,
            group=me.group,
            node_id=me.node_id or "",
            process=me.process,
            target_id=target or "",
            nonce=secrets.token_bytes(32),
            attributes=me.own_attributes(target or ""),
        )
    )
    asked_ms = now_ms()
    await stream.send(encode_frame(hello))
    opening = await stream.receive_one()
    answered_ms = now_ms()
    challenge = _not_refused(decode_from_acceptor(opening))
    if not isinstance(challenge, Challenge):
        raise PeerProtocolError("a welcome came where a challenge was due")
    _check_acceptor(challenge, me, target)
    secret = None if me.secret is None else me.secret.shown  # the same for both proofs
    proof = ProofOfSecret(_prove(secret, label=_DIALER_LABEL, hello=hello, challenge=opening))
    await stream.send(encode_frame(encode_header(proof)))
    welcome = _not_refused(decode_from_acceptor(await stream.receive_one()))
    if not isinstance(welcome, Welcome):
        raise PeerProtocolError("a second challenge came where a welcome was due")
    expected = _prove(secret, label=_ACCEPTOR_LABEL, hello=hello, challenge=opening)
    if not hmac.compare_digest(welcome.proof, expected):
        raise HandshakeRefusedError("secret", f"{challenge.node_id} does not know the secret")
    clock = reading_of(challenge.attributes, asked_ms=asked_ms, answered_ms=answered_ms)
    return Remote(NodeId(challenge.node_id), challenge.process, challenge.attributes, clock)


def _not_refused(said: Challenge | Welcome | Refused) -> Challenge | Welcome:
    if isinstance(said, Refused):
        raise HandshakeRefusedError(said.code, f"refused: {said.reason}")
    return said


def _check_acceptor(challenge: Challenge, me: Identity, target: NodeId | None) -> None:
    """Refuse an acceptor that is not the member that we meant to reach."""
    if challenge.version != PROTOCOL_VERSION:
        raise HandshakeRefusedError(
            "version",
            f"{challenge.node_id} speaks protocol {challenge.version}, this side {PROTOCOL_VERSION}",
        )
    if target is not None and challenge.node_id != target:
        raise HandshakeRefusedError(
            "member", f"{challenge.node_id} answers at the address of {target}: check the peers"
        )
    if me.secret is None and challenge.secret_needed:
        raise HandshakeRefusedError(
            "secret", f"{challenge.node_id} asks for the group's secret, none is configured"
        )
    if me.secret is not None and not challenge.secret_needed:
        raise HandshakeRefusedError(
            "secret", f"{challenge.node_id} has no secret configured, this side has"
        )
    reason = me.why_foreign(challenge.node_id, challenge.process, challenge.attributes)
    if reason is not None:
        raise HandshakeRefusedError("group", reason)


async def accept(
    stream: FrameStream,
    me: Identity,
    check_duplicate: Callable[[NodeId, int], str | None],
) -> Remote:
    """Shake hands as the acceptor. The decoder's bounds stay; raise them for what follows.

    Args:
        stream: a fresh connection with an `opening_decoder`.
        me: this side, a member.
        check_duplicate: why a member with this id and process cannot be taken now; None: it can.

    Raises:
        HandshakeRefusedError: the dialer was turned away, and got the reason.
        PeerProtocolError: the dialer does not speak this protocol.
        OSError: the connection broke.
    """
    opening = await stream.receive_one()
    hello = decode_from_dialer(opening)
    if not isinstance(hello, Hello):
        raise PeerProtocolError("a proof came where a hello was due")
    await _check_dialer(stream, hello, me)
    challenge = encode_header(_challenge_to(hello, me))
    await stream.send(encode_frame(challenge))
    answer = decode_from_dialer(await stream.receive_one())
    if not isinstance(answer, ProofOfSecret):
        raise PeerProtocolError("a second hello came where a proof was due")
    proven = [
        secret
        for secret in (me.secret.accepted if me.secret is not None else (None,))
        if hmac.compare_digest(
            answer.proof,
            _prove(secret, label=_DIALER_LABEL, hello=opening, challenge=challenge),
        )
    ]
    if not proven:
        await _refuse(stream, "secret", f"{hello.node_id or 'the client'} does not know the secret")
    node_id = NodeId(hello.node_id) if hello.role == "peer" else None
    if node_id is not None and (reason := check_duplicate(node_id, hello.process)):
        await _refuse(stream, "duplicate", reason)
    welcome = Welcome(_prove(proven[0], label=_ACCEPTOR_LABEL, hello=opening, challenge=challenge))
    await stream.send(encode_frame(encode_header(welcome)))
    return Remote(node_id, hello.process, hello.attributes)


def _challenge_to(hello: Hello, me: Identity) -> Challenge:
    """Return what a dialer has to answer; it is another one each time."""
    assert me.node_id is not None, "a client accepts nobody"
    return Challenge(
        version=PROTOCOL_VERSION,
        node_id=me.node_id,
        process=me.process,
        nonce=secrets.token_bytes(32),
        secret_needed=me.secret is not None,
        attributes=me.own_attributes(hello.node_id),
    )


async def _refuse(stream: FrameStream, code: RefusalCode, reason: str) -> NoReturn:
    """Send the dialer the reason, and end."""
    await stream.send(encode_frame(encode_header(Refused(code, reason))))
    raise HandshakeRefusedError(code, reason)


async def _check_dialer(stream: FrameStream, hello: Hello, me: Identity) -> None:
    """Refuse a dialer of another group or member, or who is none of the members: that reason names those of now."""
    if hello.version != PROTOCOL_VERSION:
        await _refuse(
            stream,
            "version",
            f"this member speaks protocol {PROTOCOL_VERSION}, not {hello.version}",
        )
    if hello.group != me.group:
        await _refuse(stream, "group", f"this is not group {hello.group!r}")
    if hello.target_id and hello.target_id != me.node_id:
        await _refuse(stream, "member", f"this is {me.node_id}, not {hello.target_id}")
    if hello.role == "client":
        if hello.node_id:
            await _refuse(stream, "member", "a client has no member's id")
        return
    if hello.node_id == me.node_id:
        await _refuse(
            stream, "duplicate", f"{hello.node_id} is the id of this very member: two run with it"
        )
    if (reason := me.why_foreign(hello.node_id, hello.process, hello.attributes)) is not None:
        await _refuse(stream, "group", reason)
    if (why_none := me.why_stranger(hello.node_id, hello.attributes)) is not None:
        await _refuse(stream, *why_none)
