"""What members say to each other. Every message carries its sender's term.

Answers repeat the term of the request's epoch through `term`, so an answer of an earlier term is
recognised and dropped (Raft paper 5.1). `round` counts the leader's append requests within its
term; the answer repeats it, which serves the lease and read index (thesis 6.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId, Term


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Would you vote for me? `term` is the term that the sender would campaign in (thesis 9.6)."""

    term: Term
    source: NodeId
    last_index: Index
    last_term: Term


@dataclass(frozen=True, slots=True)
class PreVoteResponse:
    """`term` is the asked-for term when granted, else the voter's own term."""

    term: Term
    source: NodeId
    granted: bool


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Vote for me in `term`. `is_transfer`: the leader itself asked for this election (thesis 3.10)."""

    term: Term
    source: NodeId
    last_index: Index
    last_term: Term
    is_transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Sent only after the vote is durable."""

    term: Term
    source: NodeId
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """The leader's entries after `prev_index`; without entries it is the heartbeat."""

    term: Term
    source: NodeId
    prev_index: Index
    prev_term: Term
    entries: tuple[Entry, ...]
    commit_index: Index
    round: int


@dataclass(frozen=True, slots=True)
class AppendResponse:
    """Sent only after the entries that it confirms are durable.

    Attributes:
        success: whether prev_index/prev_term matched.
        match_index: on success the last index known to be equal to the leader's log.
        conflict_index: on failure where the leader should try next: the follower's first index of
            the conflicting term, or its last index + 1 when its log is too short (paper, end of 5.3).
        conflict_term: on failure the follower's term at prev_index; 0 when it has no such entry.
        last_index: the follower's last index.
    """

    term: Term
    source: NodeId
    round: int
    success: bool
    match_index: Index
    conflict_index: Index
    conflict_term: Term
    last_index: Index


@dataclass(frozen=True, slots=True)
class TimeoutNow:
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
