"""The commit rule against a slow and obvious twin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.raft.ids import Index
from dledger.raft.quorum import commit_by_count, majority, reached_by_majority

MATCHES = st.lists(st.integers(0, 30), min_size=1, max_size=9)


def reached_slowly(values: list[int]) -> int:
    """Try every number from the top: how many have reached it?"""
    for candidate in range(max(values), 0, -1):
        if sum(1 for value in values if value >= candidate) > len(values) / 2:
            return candidate
    return 0


@given(MATCHES)
def test_reached_by_majority_counts(values: list[int]) -> None:
    assert reached_by_majority(values) == reached_slowly(values)


@given(MATCHES)
def test_the_order_of_voters_does_not_matter(values: list[int]) -> None:
    assert reached_by_majority(values[::-1]) == reached_by_majority(values)


@given(st.integers(1, 99))
def test_two_majorities_share_a_voter(voter_count: int) -> None:
    assert 2 * majority(voter_count) > voter_count
    assert 2 * (majority(voter_count) - 1) <= voter_count


@given(MATCHES, st.integers(0, 30), st.integers(1, 30))
def test_a_commit_index_is_held_by_a_majority_in_the_own_term(
    matches: list[int], commit_index: int, term_first_index: int
) -> None:
    after = commit_by_count(
        matches, commit_index=Index(commit_index), term_first_index=Index(term_first_index)
    )
    assert after >= commit_index
    if after > commit_index:
        assert after >= term_first_index
        assert after == reached_slowly(matches)
    else:
        held = reached_slowly(matches)
        assert held <= commit_index or held < term_first_index
