"""Requests between the nodes of one group, on a connection to the other's client port.

Ordinary remoting frames with codes that RocketMQ does not use (they do not fit the 16 bits of its
binary header, so no old client can even say them). A connection opens with HELLO; the others are
refused before it.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum

LINK_NONCE = "link_nonce"
"""Service attribute of a node: drawn anew by each process, so that a proof is good for one of them."""

SERVICE_ADDRESS = "service_address"
"""Service attribute of a node: host:port of its client port."""

_LABEL = b"dledger broker link"


class PrivateCode(IntEnum):
    """Codes above everything of RocketMQ."""

    HELLO = 50100
    """ext group, node, proof: the caller is a member of the group."""
    FORWARD = 50101
    """ext address; body: a client's whole request frame. Answer body: the whole answer frame."""
    SYNC_CLIENTS = 50102
    """body: the live clients of a node, or that nothing changed. Answer body: the union of all, if it changed."""
    UNION_CHANGED = 50103
    """From the leader, oneway: ask again."""
    ASK_PRODUCER = 50104
    """From the leader, oneway; ext group; body: a frame for any producer of the group that is connected here."""
    NOT_DELIVERED = 50105
    """Oneway; ext msgId: as in the answer to a send, which came when its client was gone."""


NOT_CARRIED_OUT = 50199
"""Answer to FORWARD and SYNC_CLIENTS: this node does not lead, nothing was done."""


def link_proof(secret: str | None, *, group: str, node_id: str, nonce: str) -> str:
    """Shows that the caller knows the group's secret; bound to the process that it calls."""
    proof = hmac.new((secret or "").encode(), digestmod=hashlib.sha256)
    for part in (_LABEL, group.encode(), node_id.encode(), nonce.encode()):
        proof.update(len(part).to_bytes(4, "big"))
        proof.update(part)
    return proof.hexdigest()
