"""How a broker shows a name server that a registration (103) is its own, and what it hears of rivals.

Without a secret the name server asks back: the registration carries a token that its sender drew for the connection,
and the name server asks at the address that is claimed whether somebody there made it. With the group's secret the
name server draws a nonce for the connection, and every registration is signed over it. RocketMQ's own brokers and
name servers neither send nor read any of this.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

TOKEN_FIELD: Final = "raftToken"  # noqa: S105  the name of a field
"""Ext field of a registration, and of the question: drawn by the broker for one connection."""

NONCE_FIELD: Final = "raftNonce"
"""Ext field of a refusal: registrations on this connection must be signed over it."""

PROOF_FIELD: Final = "raftProof"
"""Ext field of a registration: its signature."""

RIVAL_FIELD: Final = "raftRival"
"""Ext field of an answer: the address of another group's broker that registers under the same broker name."""

INDEX_FIELD: Final = "index"
CHAIN_FIELD: Final = "chainCrc"
"""Ext fields of the question and of its answer: an entry, and what names the log up to it, if it is kept."""

MEMBER_FIELD: Final = "raftMember"
"""Ext field of the question, an address, and of its answer, `true` or `false`: whether a member of the group of who is
asked serves clients there. Without an answer it cannot say."""

ASK_REGISTRANT: Final = 50110
"""From a name server to a broker; ext token, index, member, each if it is asked for. Answer 0: the registration is
mine."""

REGISTER_AGAIN: Final = 50111
"""From a name server, oneway, on the connection of a registration: another registration is wanted."""

_TOKEN: Final = re.compile(r"[0-9a-f]{32}")
_LABEL: Final = b"dledger broker registration"


def is_token(text: str | None) -> bool:
    """Return whether a text is what our brokers draw: 32 hexadecimal digits. Nothing else is passed on to anybody."""
    return text is not None and _TOKEN.fullmatch(text) is not None


def registration_proof(secret: str, nonce: str, ext: Mapping[str, str], body: bytes) -> str:
    """Return the signature of a registration: over all its fields but the signature, its body, and the nonce."""
    proof = hmac.new(secret.encode(), digestmod=hashlib.sha256)
    signed = sorted((name, value) for name, value in ext.items() if name != PROOF_FIELD)
    texts = [text.encode() for pair in signed for text in pair]
    for part in (_LABEL, nonce.encode(), *texts, body):
        proof.update(len(part).to_bytes(4, "big"))
        proof.update(part)
    return proof.hexdigest()
