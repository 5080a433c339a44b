"""The field types that headers on the wire are checked against, and how headers are decoded.

A header is one msgpack array whose first element names its kind. msgspec checks every field while
it decodes: kind, number of fields, types (a bool is no integer), ranges, lengths, UTF-8, nothing
beyond the end. What comes out needs no further look.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from dledger.errors import PeerProtocolError

Decoded = TypeVar("Decoded")

NUMBER_MAX: Final = 2**63 - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""A term, an index, a position or a count."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""A node or a group."""

OptionalName = Annotated[str, msgspec.Meta(max_length=64)]
"""A node, or empty for none."""

Text = Annotated[str, msgspec.Meta(max_length=4096)]
"""A reason or an address, for people."""

Nonce = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Proof = Annotated[bytes, msgspec.Meta(max_length=32)]
"""HMAC-SHA256, or empty where no secret is used."""

Attributes = Annotated[
    dict[
        Annotated[str, msgspec.Meta(min_length=1, max_length=64)],
        Annotated[str, msgspec.Meta(max_length=1024)],
    ],
    msgspec.Meta(max_length=32),
]
"""A member's description of itself."""

encode_header = msgspec.msgpack.Encoder().encode
"""A header value as msgpack."""


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all headers: an array on the wire, unknown fields are refused."""


UNDECODABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""The errors that msgspec raises for bytes that are not what they should be."""


def decode_with(decoder: msgspec.msgpack.Decoder[Decoded], header: bytes, what: str) -> Decoded:
    """Decode a header; `what` names it in the error.

    Raises:
        PeerProtocolError: it is none of the kinds that the decoder knows, or a field does not fit.
    """
    try:
        return decoder.decode(header)
    except UNDECODABLE as error:
        raise PeerProtocolError(f"{what}: {error}") from error
