"""The messages between members. Every one carries its sender's term.

Answers repeat the term of their request through `term`, so an answer of an earlier term is
recognised and dropped (Raft paper 5.1). `round` counts the leader's append requests within its
term; the answer repeats it, which serves the lease and read index (thesis 6.4).
"""

from __future__ import annotations

import msgspec

from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, Index, NodeId, Position, Term


class PreVoteRequest(msgspec.Struct, frozen=True, gc=False):
    """Would you vote for me? `term` is the term that the sender would campaign in (thesis 9.6).

    `campaign` numbers the sender's pre-votes; the answer repeats it.
    """

    term: Term
    source: NodeId
    last_index: Index
    last_term: Term
    campaign: int = 0


class PreVoteResponse(msgspec.Struct, frozen=True, gc=False):
    """`term` is the asked-for term when granted, else the voter's own term.

    Attributes:
        new_store: drawn by a member whose store began empty and still is; 0 from all others.
        campaign: of the request.
    """

    term: Term
    source: NodeId
    granted: bool
    new_store: int = 0
    campaign: int = 0


class VoteRequest(msgspec.Struct, frozen=True, gc=False):
    """Vote for me in `term`.

    Attributes:
        is_transfer: the leader itself asked for this election (thesis 3.10).
        new_store: the group is being founded, and the receiver said so of its store; 0 otherwise.
    """

    term: Term
    source: NodeId
    last_index: Index
    last_term: Term
    is_transfer: bool = False
    new_store: int = 0


class VoteResponse(msgspec.Struct, frozen=True, gc=False):
    """Sent only after the vote is durable."""

    term: Term
    source: NodeId
    granted: bool


class AppendRequest(msgspec.Struct, frozen=True, gc=False):
    """The leader's entries after `prev_index`; without entries it is the heartbeat.

    Attributes:
        admits: the number of the receiver's store, which began empty: it holds all that it can ever have
            promised. 0 for nobody; another store of the same member is not meant.
        first_kept: the first entry of the leader's log, where the receiver lacks what comes before it: its log must
            begin there, too, and its state come from a snapshot. The request is a heartbeat then. 0 for everybody else.
        first_position: where that entry begins.
        before_chain_crc: of the entry before it.
        members: the last change of the members that the leader knows to be committed; None: there was none.
    """

    term: Term
    source: NodeId
    prev_index: Index
    prev_term: Term
    entries: tuple[Entry, ...]
    commit_index: Index
    round: int
    admits: int = 0
    first_kept: Index = NO_INDEX
    first_position: Position = Position(0)
    before_chain_crc: int = 0
    members: ConfigurationNote | None = None


class AppendResponse(msgspec.Struct, frozen=True, gc=False):
    """Sent only after the entries that it confirms are durable.

    Attributes:
        success: whether prev_index/prev_term matched.
        match_index: on success the last index known to be equal to the leader's log.
        conflict_index: on failure where the leader should try next: the follower's first index of
            the conflicting term, or its last index + 1 when its log is too short (paper, end of 5.3).
        conflict_term: on failure the follower's term at prev_index; 0 when it has no such entry.
        last_index: the follower's last index.
        store: 0 of a voter; else a number drawn when the store was opened, and the answer counts for
            nothing but the sending of entries.
        may_lead: False while the sender lacks the state before its log, and campaigns for nothing.
    """

    term: Term
    source: NodeId
    round: int
    success: bool
    match_index: Index
    conflict_index: Index
    conflict_term: Term
    last_index: Index
    store: int = 0
    may_lead: bool = True


class TimeoutNow(msgspec.Struct, frozen=True, gc=False):
    """Campaign at once: the leader hands over (thesis 3.10)."""

    term: Term
    source: NodeId


Message = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | TimeoutNow
)


class RepairRequest(msgspec.Struct, frozen=True, gc=False):
    """Give me entries of mine that my disk has lost (docs/adr/0100).

    The last one is named by its chain CRC, which identifies the whole log up to it. So whoever has
    it has the same entries before it, and it does not matter who leads or what is committed.

    Attributes:
        number: of this request among those of the sender; the answer repeats it.
        first_index, last_index: what is lost, both included.
    """

    source: NodeId
    number: int
    first_index: Index
    last_index: Index
    last_chain_crc: int


class RepairAnswer(msgspec.Struct, frozen=True, gc=False):
    """The end of what was asked for, as much as one message bears; or why there is nothing.

    Attributes:
        entries: sealed, without gaps, the last one being the one that was named.
        lacks: the sender's log is whole, its vote never was in doubt, and it does not have that
            entry. False without entries: it cannot tell, or cannot read it now.
        has_forgotten: the sender's log begins after that entry (docs/adr/0180).
    """

    source: NodeId
    number: int
    entries: tuple[Entry, ...]
    lacks: bool
    has_forgotten: bool = False


RepairMessage = RepairRequest | RepairAnswer
"""Between disks, not between roles: no term, no promise."""

PeerMessage = Message | RepairMessage
"""Everything that a member may send to another."""
