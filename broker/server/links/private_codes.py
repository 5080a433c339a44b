"""Requests between the nodes of one group, on a connection to the other's client port.

Ordinary remoting frames with codes that RocketMQ does not use (they do not fit the 16 bits of its
binary header, so no old client can even say them). A connection opens with HELLO; the others are
refused before it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode

LINK_NONCE = "link_nonce"
"""Service attribute of a node: drawn anew by each process, so that a proof is good for one of them."""

SERVICE_ADDRESS = "service_address"
"""Service attribute of a node: host:port of its client port."""

_LABEL = b"dledger broker link"


class PrivateCode(IntEnum):
    """Codes above everything of RocketMQ."""

    HELLO = 50100
    """ext group, node, nonce, proof: the caller is a member of the group, and means the process of that nonce."""
    FORWARD = 50101
    """ext address, TRIED_FIELD, WAITED_FIELD; body: a client's whole request frame. Answer body: the whole answer
    frame."""
    SYNC_CLIENTS = 50102
    """body: the live clients of a node, or that nothing changed. Answer body: the union of all, if it changed."""
    UNION_CHANGED = 50103
    """From the leader, oneway: ask again."""
    ASK_PRODUCER = 50104
    """From the leader, oneway; ext group; body: a frame for any producer of the group that is connected here."""
    DELIVERED = 50106
    """Oneway; ext msgId: as in the answers to sends that were passed on, which find their clients there."""
    READ_POINT = 50107
    """Answer ext READ_POINT_FIELD: a node that has applied this entry has all that was committed when it asked."""

    ASK_CLIENT = 50108
    """From the leader, oneway; ext call, group, clientId; body: a request frame for that consumer, which is connected
    here."""
    CLIENT_ANSWERED = 50109
    """Oneway; ext call; body: the client's answer frame, or ext problem: why there is none."""
    RESET_NOTICE = 50112
    """From the leader, oneway; ext group, topic, timestamp; body: (queue id, offset) pairs that the clients of the
    group which are connected here are told."""


TRIED_FIELD = "tried"
"""Ext field of FORWARD, `true`: an earlier try of the request is of unknown outcome."""
WAITED_FIELD = "waitedMs"
"""Of FORWARD: how long the node held the request for want of a leader; not there if it did not."""
READ_POINT_FIELD = "index"
"""Ext field of the answer to READ_POINT: index of an entry."""

NOT_CARRIED_OUT = 50199
"""Answer to FORWARD, SYNC_CLIENTS and READ_POINT: this node does not lead, nothing was done."""

PERHAPS_CARRIED_OUT = 50197
"""Answer to FORWARD: this node leads no longer, and does not know what becomes of what it began."""

OUTDATED_HELLO = 50198
"""Answer to HELLO: the caller knows the secret, but means an earlier process of this node."""


def link_proof(secret: str | None, *, group: str, node_id: str, nonce: str) -> str:
    """Build the proof that the caller knows the group's secret; it is bound to the process that is called."""
    proof = hmac.new((secret or "").encode(), digestmod=hashlib.sha256)
    for part in (_LABEL, group.encode(), node_id.encode(), nonce.encode()):
        proof.update(len(part).to_bytes(4, "big"))
        proof.update(part)
    return proof.hexdigest()


class HelloRefusal(NamedTuple):
    """A refusal of a HELLO.

    Attributes:
        code: of the answer.
        problem: for people.
    """

    code: int
    problem: str


def refuse_hello(
    ext: Mapping[str, str],
    *,
    accepted: Sequence[str | None],
    group: str,
    is_member: Callable[[str], bool],
    nonce: str,
) -> HelloRefusal | None:
    """Return why a connection's HELLO does not show that a member of the group speaks; None: it does.

    A node that has just started is called by others that know its last process only. Their proof is right
    for that one: they do know the secret, and shall read the new nonce first.

    Args:
        ext: of the request. Older versions do not say which nonce they mean.
        accepted: secrets of the node that is called; None is there where the group has none.
        group: its group.
        is_member: whether a node id is that of one of its members.
        nonce: of its process.

    Raises:
        FieldError: a field is missing.
    """
    node_id = fields.text(ext, "node")
    meant = ext.get("nonce", nonce)
    proof = fields.text(ext, "proof").encode()
    expected = [
        link_proof(secret, group=group, node_id=node_id, nonce=meant).encode()
        for secret in accepted
    ]
    their_group = fields.text(ext, "group")
    problem = None
    if their_group != group:
        problem = f"this is group {group}, not {their_group[:64]}"
    elif not is_member(node_id):
        problem = f"{node_id[:64]} is not a member of group {group}"
    elif not any(hmac.compare_digest(proof, each) for each in expected):
        problem = f"{node_id} does not know the group's secret"
    elif meant != nonce:
        text = f"{node_id} means an earlier process of this node"
        return HelloRefusal(OUTDATED_HELLO, text)
    return None if problem is None else HelloRefusal(ResponseCode.NO_PERMISSION, problem)
