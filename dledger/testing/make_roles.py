"""Helpers that bring a core into a role by forged messages, for tests of one member alone.

Nothing here checks what the core does; the tests do.
"""

from __future__ import annotations

from dledger.config import RaftConfig
from dledger.raft.effects import Effect, Role, Send, SendEntries
from dledger.raft.events import Received, Tick
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    PreVoteResponse,
    VoteResponse,
)
from dledger.testing.core_group import CoreGroup, CoreMember, Draw
from dledger.testing.script_words import seeded_entries

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")


def make_group(voter_count: int = 3, *, timeout_ms: int = 500) -> CoreGroup:
    """Make a group of new members; every timeout is `timeout_ms`, where the bounds allow it."""
    names = tuple(NodeId(f"n{i}") for i in range(voter_count))

    def draw(_: NodeId) -> Draw:
        return lambda low, high: min(max(low, timeout_ms), high)

    return CoreGroup([RaftConfig(name, names) for name in names], draw)


def seed(
    member: CoreMember, terms: str, *, term: int | None = None, vote: NodeId | None = None
) -> None:
    """Give a member a history: the terms of its entries, its hard state."""
    entries = seeded_entries(terms)
    last_term = entries[-1].term if entries else 0
    member.seed(HardState(Term(last_term if term is None else term), vote), entries)


def receive(member: CoreMember, message: Message) -> list[Effect]:
    """Deliver a forged message, and make durable what it saves."""
    effects = member.step(Received(message))
    member.sync()
    return effects


def sent(effects: list[Effect]) -> list[Message]:
    """Return the messages among the effects."""
    return [effect.message for effect in effects if isinstance(effect, Send)]


def requests(effects: list[Effect]) -> list[SendEntries]:
    """Return the append requests among the effects."""
    return [effect for effect in effects if isinstance(effect, SendEntries)]


def let_time_out(group: CoreGroup, member: CoreMember) -> list[Effect]:
    """Let time pass until the member acts."""
    group.now_ms = max(group.now_ms, member.node.next_deadline_ms())
    effects = member.step(Tick())
    member.sync()
    return effects


def peers(group: CoreGroup, member: CoreMember) -> list[NodeId]:
    """Return the other members."""
    return [name for name in group.members if name != member.name]


def campaign(group: CoreGroup, member: CoreMember) -> list[Effect]:
    """Make a candidate: the others grant its pre-vote, but no vote yet."""
    effects = let_time_out(group, member)
    term = Term(member.node.term + 1)
    for peer in peers(group, member):
        if member.node.role is Role.PRE_CANDIDATE:
            effects = receive(member, PreVoteResponse(term, peer, True))
    assert member.node.role in {Role.CANDIDATE, Role.LEADER}, f"it is a {member.node.role}"
    return effects


def elect(group: CoreGroup, member: CoreMember) -> list[Effect]:
    """Make a leader by forged votes of the others."""
    effects = campaign(group, member)
    for peer in peers(group, member):
        if member.node.role is Role.CANDIDATE:
            effects = receive(member, VoteResponse(member.node.term, peer, True))
    assert member.node.role is Role.LEADER, f"the elected is a {member.node.role}"
    return effects


def append_request(
    source: NodeId, term: int, prev: str, entries: str = "", *, commit: int = 0
) -> AppendRequest:
    """Make a request for a log of equally long entries: `prev` as index@term, `entries` as terms."""
    index, _, prev_term = prev.partition("@")
    log = seeded_entries("1," * int(index) + entries)[int(index) :]
    return AppendRequest(
        Term(term), source, Index(int(index)), Term(int(prev_term)), tuple(log), Index(commit), 1
    )


def success(
    member: CoreMember, source: NodeId, match: int, *, round_: int | None = None
) -> AppendResponse:
    """Make an answer to the latest round (or to `round_`): the logs agree up to `match`."""
    return AppendResponse(
        member.node.term,
        source,
        member.node.last_round if round_ is None else round_,
        True,
        Index(match),
        NO_INDEX,
        NO_TERM,
        Index(match),
    )


def make_role(role: Role, terms: str = "", *, term: int = 0) -> tuple[CoreGroup, CoreMember]:
    """Make a new group whose n0 has that role, and the history of `seed` before."""
    group = make_group()
    member = group.members[N0]
    seed(member, terms, term=term)
    if role is Role.PRE_CANDIDATE:
        let_time_out(group, member)
    elif role is Role.CANDIDATE:
        campaign(group, member)
    elif role is Role.LEADER:
        elect(group, member)
    assert member.node.role is role, f"{member.node.role} was made, not {role}"
    return group, member
