"""Whether a leader counts a member: the table, and what a member that lost its promises goes through."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.raft.admission import RULINGS, Admission, AdmissionState, Ruling, Sign, ruling
from dledger.raft.ids import Index

COUNTED, NO_VOTE, GONE_BACK = (
    AdmissionState.COUNTED,
    AdmissionState.NO_VOTE,
    AdmissionState.GONE_BACK,
)
IMPOSSIBLE = {
    (COUNTED, Sign.CAUGHT_UP),
    (NO_VOTE, Sign.CAUGHT_UP),
    (NO_VOTE, Sign.SHORT_LOG),
    (GONE_BACK, Sign.SHORT_LOG),
}


def test_every_pair_has_a_row_or_cannot_be() -> None:
    assert set(product(AdmissionState, Sign)) - set(RULINGS) == IMPOSSIBLE
    for pair in IMPOSSIBLE:
        with pytest.raises(AssertionError, match="cannot be seen so"):
            ruling(*pair)


@pytest.mark.parametrize(("pair", "follows"), RULINGS.items())
def test_what_is_void_takes_the_vote_and_what_says_nothing_changes_nothing(
    pair: tuple[AdmissionState, Sign], follows: Ruling
) -> None:
    state, sign = pair
    if follows.is_void:
        assert follows.after is not COUNTED
        assert follows.is_taken
    if not follows.is_taken:
        assert follows.after is state
    assert sign is not Sign.OTHER_STORE or follows == Ruling(NO_VOTE, is_void=True)


def lost(store: int = 5, *, last_round: int = 10) -> Admission:
    """A member whose store began empty; its number was heard when `last_round` was the latest request."""
    admission = Admission()
    assert admission.take_answer(last_round, store, last_round=last_round).is_void
    return admission


def test_a_voter_that_answers_is_taken_at_its_word() -> None:
    admission = Admission()
    assert admission.take_answer(1, 0, last_round=1) == Ruling(COUNTED)
    assert not admission.needs_entry
    assert admission.admits(match_index=Index(9), commit_index=Index(9)) == 0


def test_a_lost_store_is_admitted_by_its_number_after_an_entry_of_the_others() -> None:
    admission = lost(store=5, last_round=10)
    assert not admission.is_counted
    assert admission.needs_entry
    admission.rejoin_index = Index(7)
    assert not admission.needs_entry
    assert (
        admission.admits(match_index=Index(6), commit_index=Index(9)) == 0
    )  # it does not hold the entry
    assert (
        admission.admits(match_index=Index(7), commit_index=Index(6)) == 0
    )  # the others have not committed it
    assert admission.admits(match_index=Index(7), commit_index=Index(7)) == 5
    admission.count_again(match_index=Index(7), commit_index=Index(7))
    assert not admission.is_counted, "it has to be told first"
    assert admission.take_answer(11, 0, last_round=12) == Ruling(COUNTED)


def test_what_the_lost_store_had_answered_says_nothing() -> None:
    admission = lost(last_round=10)
    assert not admission.take_answer(10, 0, last_round=12).is_taken
    assert not admission.is_counted
    assert admission.take_answer(11, 0, last_round=12).is_taken


def test_what_it_answered_before_it_was_admitted_says_nothing_afterwards() -> None:
    admission = lost(store=5)
    admission.take_answer(11, 0, last_round=11)
    assert admission.take_answer(11, 5, last_round=12) == Ruling(COUNTED, is_taken=False)


def test_a_store_that_is_lost_again_begins_again() -> None:
    admission = lost(store=5)
    admission.rejoin_index = Index(7)
    assert admission.take_answer(12, 6, last_round=12).is_void
    assert admission.needs_entry
    assert admission.store == 6


def test_a_late_number_of_a_store_before_does_no_harm_for_long() -> None:
    admission = lost(store=5, last_round=10)
    admission.take_answer(11, 0, last_round=11)
    assert admission.take_answer(9, 4, last_round=12).is_void
    assert admission.take_answer(13, 0, last_round=13) == Ruling(COUNTED)


def test_a_log_that_is_shorter_than_what_was_confirmed_is_a_loss_only_after_that_was_heard() -> (
    None
):
    admission = Admission()
    admission.confirmed_round = 4
    assert not admission.shows_loss(4, last_index=Index(3), match_index=Index(6)), (
        "rejected before it had the entries"
    )
    assert not admission.shows_loss(5, last_index=Index(6), match_index=Index(6)), (
        "it has all of them"
    )
    assert admission.shows_loss(5, last_index=Index(5), match_index=Index(6))
    admission.went_back(last_round=5)
    assert (admission.state, admission.needs_entry) == (GONE_BACK, True)
    assert not admission.shows_loss(5, last_index=Index(5), match_index=Index(6)), "that is known"


def test_who_went_back_is_counted_again_without_being_told() -> None:
    admission = Admission()
    admission.went_back(last_round=5)
    assert not admission.take_answer(5, 0, last_round=6).is_taken
    assert admission.take_answer(6, 0, last_round=6) == Ruling(GONE_BACK)
    admission.rejoin_index = Index(7)
    admission.count_again(match_index=Index(6), commit_index=Index(9))
    admission.count_again(match_index=Index(9), commit_index=Index(6))
    assert not admission.is_counted
    assert admission.admits(match_index=Index(7), commit_index=Index(7)) == 0, (
        "it has no number to be told"
    )
    admission.count_again(match_index=Index(7), commit_index=Index(7))
    assert admission.is_counted


def test_a_late_answer_from_before_it_was_admitted_says_nothing_of_a_log_that_went_back_since() -> (
    None
):
    admission = lost(store=5, last_round=10)
    admission.take_answer(11, 0, last_round=11)
    admission.went_back(last_round=12)
    assert not admission.take_answer(10, 5, last_round=13).is_taken
    assert admission.state is GONE_BACK


ANSWERS = st.tuples(st.integers(1, 12), st.sampled_from([0, 0, 0, 5, 6]))


@given(st.lists(ANSWERS, max_size=20))
def test_whoever_lost_its_vote_counts_only_by_an_answer_to_a_later_request(
    answers: list[tuple[int, int]],
) -> None:
    admission = Admission()
    last_round = loss_round = 0
    was_lost = False
    for round_, store in answers:
        last_round = max(last_round, round_)
        was_counted = admission.is_counted
        follows = admission.take_answer(round_, store, last_round=last_round)
        if follows.is_void:
            was_lost, loss_round = True, last_round
        if admission.is_counted and not was_counted:
            assert store == 0
            assert round_ > loss_round
        assert was_lost or admission.is_counted
        assert follows.after is admission.state
