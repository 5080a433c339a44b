"""The role machine as a table: the role that follows each role, by cause.

The table is the law: `RaftNode` changes its role only through `next_role`, and a change that is not
a row is a bug of ours. docs/protocol.md prints it. A learner is a follower that never asks for votes: what
makes it one stands in the configuration, not here.
"""

from __future__ import annotations

from enum import Enum

from dledger.raft.effects import Role


class Cause(Enum):
    """The cause of a change of role; the value is the sentence that the documentation prints."""

    ELECTION_TIMEOUT = "heard no leader, or won no election, for the election timeout"
    TIMEOUT_NOW = "the leader hands over (TimeoutNow)"
    PRE_VOTE_WON = "a majority would vote for it"
    VOTE_WON = "a majority voted for it"
    LEADER_HEARD = "an append request of its own or a higher term"
    HIGHER_TERM = "another message of a higher term"
    MAJORITY_LOST = "no majority answered for the longest election timeout (check quorum)"
    REMOVED = "it is committed that the group has removed it"
    STEP_DOWN = "its runtime says so (disk failed or full, shutdown)"


TRANSITIONS: dict[tuple[Role, Cause], Role] = {
    (Role.FOLLOWER, Cause.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.FOLLOWER, Cause.TIMEOUT_NOW): Role.CANDIDATE,
    (Role.FOLLOWER, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.FOLLOWER, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.FOLLOWER, Cause.STEP_DOWN): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Cause.PRE_VOTE_WON): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Cause.VOTE_WON): Role.LEADER,
    (Role.PRE_CANDIDATE, Cause.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Cause.STEP_DOWN): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.VOTE_WON): Role.LEADER,
    (Role.CANDIDATE, Cause.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.STEP_DOWN): Role.FOLLOWER,
    (Role.LEADER, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.LEADER, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.LEADER, Cause.MAJORITY_LOST): Role.FOLLOWER,
    (Role.LEADER, Cause.REMOVED): Role.FOLLOWER,
    (Role.LEADER, Cause.STEP_DOWN): Role.FOLLOWER,
}


def next_role(role: Role, cause: Cause) -> Role:
    """Return the role that follows; a pair without a row is a bug of ours."""
    assert (role, cause) in TRANSITIONS, f"a {role.value} cannot change because {cause.value}"
    return TRANSITIONS[role, cause]


def role_table() -> str:
    """Return the table as Markdown, for docs/protocol.md."""
    rows = ["| role | when | becomes |", "|---|---|---|"]
    rows += [
        f"| {role.value} | {cause.value} | {after.value} |"
        for (role, cause), after in TRANSITIONS.items()
    ]
    return "\n".join(rows)
