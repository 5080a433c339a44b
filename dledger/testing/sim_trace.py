"""The trace of a run: one line per event with fixed columns, and a digest of all of them.

    time  node role term  what
    1042  n1   F    t3    <- n0 append prev=4@2 +2 commit=4 r17

docs/testing.md explains how to read it. The digest makes two runs comparable without keeping them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import assert_never

from dledger.engine import Engine
from dledger.raft.effects import (
    Committed,
    Failed,
    News,
    Outcome,
    ReadAt,
    Role,
    RoleChanged,
    TransferDone,
)
from dledger.raft.ids import NodeId
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    PeerMessage,
    PreVoteRequest,
    PreVoteResponse,
    RepairAnswer,
    RepairRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

ROLE_LETTERS = {
    Role.FOLLOWER: "F",
    Role.PRE_CANDIDATE: "P",
    Role.CANDIDATE: "C",
    Role.LEADER: "L",
    Role.LEARNER: "O",
}


class Trace:
    """Collects the lines of one run."""

    __slots__ = ("_digest", "_write")

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._digest = hashlib.sha256()

    def line(self, now_ms: int, node_id: NodeId | str, engine: Engine | None, text: str) -> None:
        """Add a line about a member (its role and term as they are now), or about the world."""
        role, term = (
            ("-", "-")
            if engine is None
            else (ROLE_LETTERS[engine.node.role], f"t{engine.node.term}")
        )
        row = f"{now_ms:>6}  {node_id:<4} {role:<4} {term:<4}  {text}"
        self._digest.update(row.encode())
        if self._write is not None:
            self._write(row)

    def digest(self) -> str:
        """The digest of every line so far."""
        return self._digest.hexdigest()


def describe_message(message: PeerMessage) -> str:
    """A message in a few words."""
    match message:
        case AppendRequest():
            return (
                f"append t{message.term} prev={message.prev_index}@{message.prev_term} "
                f"+{len(message.entries)} commit={message.commit_index} r{message.round}"
            )
        case AppendResponse(success=True):
            return f"append-ok t{message.term} match={message.match_index} r{message.round}"
        case AppendResponse():
            return (
                f"append-no t{message.term} conflict={message.conflict_index}@{message.conflict_term} "
                f"r{message.round}"
            )
        case PreVoteRequest():
            return f"pre-vote? t{message.term} last={message.last_index}@{message.last_term}"
        case PreVoteResponse():
            return f"pre-vote! t{message.term} {'yes' if message.granted else 'no'}"
        case VoteRequest():
            hurry = " transfer" if message.is_transfer else ""
            return f"vote? t{message.term} last={message.last_index}@{message.last_term}{hurry}"
        case VoteResponse():
            return f"vote! t{message.term} {'yes' if message.granted else 'no'}"
        case TimeoutNow():
            return f"timeout-now t{message.term}"
        case RepairRequest():
            return f"repair? {message.first_index}..{message.last_index} #{message.number}"
        case RepairAnswer():
            lacks = " lacks it" if message.lacks else ""
            return f"repair! +{len(message.entries)}{lacks} #{message.number}"
        case _:
            assert_never(message)


def describe_news(news: News) -> str:
    """What a member has to tell, in a few words."""
    if isinstance(news, RoleChanged):
        return f"is {news.role.value} of term {news.term}, follows {news.leader_id or 'nobody'}"
    return f"gives way to {news.target}: slow disk, {news.own_ms} ms, others {news.others_ms} ms"


def describe_outcome(outcome: Outcome) -> str:
    """An outcome in a few words."""
    match outcome:
        case Committed():
            return f"committed {outcome.first}..{outcome.last}"
        case ReadAt():
            return f"read at {outcome.index}"
        case TransferDone():
            return f"transferred to {outcome.target}"
        case Failed():
            return f"{'refused' if outcome.error.definite else 'unknown'}: {outcome.error.code}"
        case _:
            assert_never(outcome)
