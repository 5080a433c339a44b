"""Who has no vote: what is told, what is heard, and when that is the end of a group."""

from __future__ import annotations

import logging

import pytest

from dledger.raft.ids import NodeId
from dledger.runtime.lost_votes import REPORT_COUNT_MIN, VOTE_ATTRIBUTE, LostVotes

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
LOST = {VOTE_ATTRIBUTE: "true"}


def votes(*, has_vote: bool = True, has_begun: bool = True) -> LostVotes:
    return LostVotes(N0, (N0, N1, N2), has_vote=lambda: has_vote, has_begun=lambda: has_begun)


def learn_for_long(known: LostVotes, *members: NodeId) -> None:
    for _ in range(REPORT_COUNT_MIN):
        for member in members:
            known.learn(member, LOST)


def test_the_own_vote_is_told_while_it_is_lost() -> None:
    assert votes().own_attributes() == {}
    assert votes(has_vote=False).own_attributes() == LOST


def test_two_of_three_are_the_end_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    known = votes()
    known.leader_changed(None)
    with caplog.at_level(logging.ERROR, "dledger"):
        learn_for_long(known, N1)
        assert known.problem == ""
        learn_for_long(known, N2)
        learn_for_long(known, N1, N2)
    assert "the stores of n1 and n2 were lost" in known.problem
    assert "docs/restoring.md" in known.problem
    assert caplog.text.count("majority-lost") == 1


def test_the_own_one_counts() -> None:
    known = votes(has_vote=False)
    learn_for_long(known, N2)
    assert "the stores of n0 and n2 were lost" in known.problem


def test_a_member_that_is_heard_no_more_or_has_its_vote_again_is_not_lost() -> None:
    answers: tuple[dict[str, str] | None, ...] = (None, {})
    for answer in answers:
        known = votes()
        learn_for_long(known, N1, N2)
        known.learn(N1, answer)
        assert known.problem == ""
        known.learn(N1, LOST)
        assert known.problem == "", "it has to say it for as long again"


def test_a_leader_ends_it_and_answers_that_come_late_say_nothing() -> None:
    known = votes()
    learn_for_long(known, N1, N2)
    known.leader_changed(N1)
    assert known.problem == ""
    learn_for_long(known, N1, N2)
    assert known.problem == ""


def test_a_group_that_is_being_founded_has_lost_nothing() -> None:
    known = votes(has_vote=False, has_begun=False)
    learn_for_long(known, N1, N2)
    assert known.problem == ""
