"""What both sides say before they trust each other (docs/formats/rpc.md, handshake).

The dialer opens with `Hello`, the acceptor answers `Challenge`, the dialer shows with `ProofOfSecret`
that it knows the group's secret, and only then does the acceptor answer `Welcome` with its own
proof: who merely dials learns nothing that helps to guess the secret. `Refused` may take the place
of any answer of the acceptor. None of these has a blob.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dledger.codec.wire_types import (
    Attributes,
    Header,
    Name,
    Nonce,
    Number,
    OptionalName,
    Proof,
    Text,
    decode_with,
)

PROTOCOL_VERSION: Final = 1

HELLO_FRAME_BYTES_MAX: Final = 48 * 1024
"""Largest frame before a side is trusted: a hello with the most and longest attributes fits."""

RefusalCode = Literal["version", "group", "member", "secret", "busy", "duplicate", "stranger"]
"""`stranger`: the dialer is none of the members, or none any more. Sent only by a group whose members were changed,
and to who states that it joins: versions before know neither."""


class Hello(Header, frozen=True, tag="hello"):
    """The dialer's greeting: its name, and the one that it means to reach.

    Attributes:
        process: drawn anew by every process; distinguishes a reconnect from a second process that
            uses the same id.
        node_id: the member that dials; empty for a client.
        target_id: whom the dialer expects at this address; empty when any member will do.
    """

    version: Number
    role: Literal["peer", "client"]
    group: Name
    node_id: OptionalName
    process: Number
    target_id: OptionalName
    nonce: Nonce
    attributes: Attributes


class Challenge(Header, frozen=True, tag="challenge"):
    """The acceptor's greeting: its name. `secret_needed`: this group has a secret."""

    version: Number
    node_id: Name
    process: Number
    nonce: Nonce
    secret_needed: bool
    attributes: Attributes


class ProofOfSecret(Header, frozen=True, tag="proof"):
    """The dialer's proof over both openings; empty where there is no secret."""

    proof: Proof


class Welcome(Header, frozen=True, tag="welcome"):
    """The acceptor's own proof; the connection is open."""

    proof: Proof


class Refused(Header, frozen=True, tag="refused"):
    """The acceptor closes. `code` is stable, `reason` is for people."""

    code: RefusalCode
    reason: Text


FromDialer = Hello | ProofOfSecret
FromAcceptor = Challenge | Welcome | Refused

_DIALER: msgspec.msgpack.Decoder[FromDialer] = msgspec.msgpack.Decoder(FromDialer)
_ACCEPTOR: msgspec.msgpack.Decoder[FromAcceptor] = msgspec.msgpack.Decoder(FromAcceptor)


def decode_from_dialer(header: bytes) -> FromDialer:
    """Decode a message of a dialer.

    Raises:
        PeerProtocolError: it is something else.
    """
    return decode_with(_DIALER, header, "handshake")


def decode_from_acceptor(header: bytes) -> FromAcceptor:
    """Decode a message of an acceptor.

    Raises:
        PeerProtocolError: it is something else.
    """
    return decode_with(_ACCEPTOR, header, "handshake")
