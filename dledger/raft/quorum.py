"""Majorities: the highest value that most members have reached, and the rule of commitment.

Pure functions of small sequences, one number for each voter. A majority of n voters is n // 2 + 1:
the n-th part of them that any two elections must share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from dledger.raft.ids import Index

Reached = TypeVar("Reached", bound=int)
"""An index, a round or a time in ms: anything that only grows."""


def majority(voter_count: int) -> int:
    """Return how many of the voters any decision needs."""
    return voter_count // 2 + 1


def reached_by_majority(values: Sequence[Reached]) -> Reached:
    """Return the highest value that a majority has reached: one value for each voter, in any order."""
    assert values, "a group has at least one voter"
    return sorted(values)[(len(values) - 1) // 2]


class CommitRule(Protocol):
    """Decides how far the log is committed. The simulator can plant a wrong one."""

    def __call__(
        self, matches: Sequence[Index], *, commit_index: Index, term_first_index: Index
    ) -> Index:
        """Return the new commit index, never below `commit_index`.

        Args:
            matches: for each voter the last index durably equal to the leader's log.
            commit_index: how far it is committed already.
            term_first_index: index of the first entry of the leader's own term.
        """
        ...


def commit_by_count(
    matches: Sequence[Index], *, commit_index: Index, term_first_index: Index
) -> Index:
    """Commit what a majority holds, if that is an entry of the leader's own term.

    Entries of earlier terms are committed with it, never by counting them: figure 8 of the paper
    shows one on a majority that a later leader still overwrites.

    Source: Raft paper 5.3 and 5.4.2.
    """
    held = reached_by_majority(matches)
    if held < term_first_index or held <= commit_index:
        return commit_index
    return held
