"""One wrong clock is outvoted, whatever the delays; of two that differ nobody knows."""

from __future__ import annotations

import random

import pytest

from broker.server.watches.group_time import PeerClock, agreed_ms, starting_ms
from dledger.runtime.peer_clocks import ClockReading, reading_of

TRUE = 1_700_000_000_000
"""What a right wall clock is ahead of the steady one."""

WRONG = 300_000
AT = 5_000


def read(
    error_ms: int = 0,
    *,
    there_ms: int = 1,
    back_ms: int = 1,
    at_ms: int = AT,
    settled_error_ms: int | None = None,
) -> PeerClock:
    """A member's clock, `error_ms` ahead of the true time, asked at `at_ms`, and what the member went by."""
    true_ms = at_ms + there_ms + TRUE
    settled_ms = None if settled_error_ms is None else true_ms + settled_error_ms
    reading = ClockReading(true_ms + error_ms, at_ms, at_ms + there_ms + back_ms, settled_ms)
    return PeerClock.of(reading)


@pytest.mark.parametrize("wrong_ms", [WRONG, -WRONG, -TRUE, 4_000_000_000_000])
def test_one_wrong_clock_of_three_is_outvoted(wrong_ms: int) -> None:
    agreed = agreed_ms(TRUE + wrong_ms, [read(), read()], member_count=3, now_ms=AT)
    assert -3 <= agreed - TRUE <= 0, "never early"
    for peers in ([read(wrong_ms), read()], [read(), read(wrong_ms)]):
        assert agreed_ms(TRUE, peers, member_count=3, now_ms=AT) == TRUE, "the others follow nobody"


def test_two_of_three_that_are_wrong_together_win() -> None:
    agreed = agreed_ms(TRUE, [read(WRONG), read(WRONG)], member_count=3, now_ms=AT)
    assert abs(agreed - TRUE - WRONG) <= 3


def test_of_three_that_all_differ_the_middle_one_is_taken() -> None:
    for own, one, two in ((0, -WRONG, WRONG), (WRONG, 0, -WRONG), (-WRONG, WRONG, 0)):
        agreed = agreed_ms(TRUE + own, [read(one), read(two)], member_count=3, now_ms=AT)
        assert abs(agreed - TRUE) <= 3


def test_with_one_peer_silent_the_own_clock_is_kept() -> None:
    for wrong_ms in (0, WRONG, -WRONG):
        assert agreed_ms(TRUE + wrong_ms, [read()], member_count=3, now_ms=AT) == TRUE + wrong_ms
        assert agreed_ms(TRUE + wrong_ms, [], member_count=3, now_ms=AT) == TRUE + wrong_ms
    assert agreed_ms(TRUE + WRONG, [], member_count=1, now_ms=AT) == TRUE + WRONG


def test_five_members() -> None:
    own = TRUE + WRONG
    assert agreed_ms(own, [read()], member_count=5, now_ms=AT) == own, "two of five are no majority"
    for peers in (
        [read(), read()],
        [read(), read(), read(WRONG)],
        [read(), read(), read(), read(WRONG)],
        [read(), read(), read(), read(-WRONG)],
        [read(), read(), read(-WRONG), read(WRONG)],
    ):
        if len(peers) == 3:
            assert agreed_ms(own, peers, member_count=5, now_ms=AT) == own, "two against two"
        else:
            assert abs(agreed_ms(own, peers, member_count=5, now_ms=AT) - TRUE) <= 3


@pytest.mark.parametrize(("there_ms", "back_ms"), [(0, 800), (800, 0), (400, 400)])
def test_a_slow_way_makes_no_clock_wrong(there_ms: int, back_ms: int) -> None:
    peers = [read(there_ms=there_ms, back_ms=back_ms) for _ in range(2)]
    assert agreed_ms(TRUE, peers, member_count=3, now_ms=AT + 800) == TRUE
    for wrong_ms in (WRONG, -WRONG):
        assert (
            -802 <= agreed_ms(TRUE + wrong_ms, peers, member_count=3, now_ms=AT + 800) - TRUE <= 0
        )


def test_the_right_time_of_most_is_never_surpassed_by_more_than_nobody_can_see() -> None:
    """Any delays, and two wrong clocks of five."""
    chance = random.Random(33)
    for _ in range(2_000):
        errors = [chance.randint(-WRONG, WRONG) for _ in range(chance.randint(0, 1))]
        peers = [
            read(error, there_ms=chance.randint(0, 300), back_ms=chance.randint(0, 300))
            for error in [*errors, 0, 0, 0, 0][:4]
        ]
        own = TRUE + chance.choice([0, chance.randint(-600, 600), chance.randint(-WRONG, WRONG)])
        agreed = agreed_ms(own, peers, member_count=5, now_ms=AT + 600)
        assert abs(agreed - TRUE) <= 602
        assert agreed <= TRUE or agreed == own, "early only by what no message could show"


def test_an_old_reading_contradicts_less_and_less_and_does_not_drift() -> None:
    peers = [read(), read()]
    hour, week = 3_600_000, 7 * 86_400_000
    assert agreed_ms(TRUE + 1_000, peers, member_count=3, now_ms=AT) < TRUE + 10
    assert agreed_ms(TRUE + 1_000, peers, member_count=3, now_ms=AT + hour) == TRUE + 1_000
    once = agreed_ms(TRUE + WRONG, peers, member_count=3, now_ms=AT)
    assert agreed_ms(TRUE + WRONG, peers, member_count=3, now_ms=AT + hour) == once
    assert agreed_ms(TRUE + WRONG, peers, member_count=3, now_ms=AT + week) == TRUE + WRONG


def test_the_narrower_reading_stays_until_it_is_contradicted() -> None:
    good, slow = read(), read(there_ms=900, at_ms=AT + 100)
    assert good.or_newer(slow) == good
    assert slow.or_newer(read(at_ms=AT + 2_000)).at_ms == AT + 2_002
    set_since = read(10_000, there_ms=900, at_ms=AT + 100)
    assert good.or_newer(set_since) is set_since
    fresh = read(at_ms=AT + 60_000)
    assert good.or_newer(fresh) is fresh, "drift has made the old one wide"


def test_what_a_member_goes_by_is_always_the_newer_one() -> None:
    good = read()
    slow = read(there_ms=900, at_ms=AT + 100, settled_error_ms=5)
    both = good.or_newer(slow)
    assert (both.low_ms, both.high_ms, both.at_ms) == (good.low_ms, good.high_ms, good.at_ms)
    assert both.settled_ms == slow.settled_ms
    assert both.or_newer(read(there_ms=900, at_ms=AT + 200)).settled_ms is None, "started again"


def test_two_of_three_that_are_near_each_other_settle_where_to_begin() -> None:
    for near_ms in (0, 700, -700):
        assert starting_ms(TRUE, [read(near_ms)], member_count=3, now_ms=AT) == (TRUE, True)
        assert starting_ms(TRUE, [read(near_ms), read(WRONG)], member_count=3, now_ms=AT) == (
            TRUE,
            True,
        )
    for wrong_ms in (WRONG, -WRONG):
        began_ms, is_settled = starting_ms(
            TRUE + wrong_ms, [read(), read(600)], member_count=3, now_ms=AT
        )
        assert is_settled
        assert -3 <= began_ms - TRUE <= 0
    assert starting_ms(TRUE + WRONG, [], member_count=1, now_ms=AT) == (TRUE + WRONG, True)


def test_of_two_that_differ_the_one_is_believed_that_knew_the_third() -> None:
    for wrong_ms in (WRONG, -WRONG):
        began_ms, is_settled = starting_ms(
            TRUE + wrong_ms, [read(0, settled_error_ms=0)], member_count=3, now_ms=AT
        )
        assert is_settled
        assert -3 <= began_ms - TRUE <= 0
        began_ms, is_settled = starting_ms(
            TRUE, [read(wrong_ms, settled_error_ms=0)], member_count=3, now_ms=AT
        )
        assert is_settled, "its own clock is wrong by now, what it goes by is not"
        assert -3 <= began_ms - TRUE <= 0


def test_nobody_begins_ahead_of_most_members_whatever_it_cannot_read() -> None:
    """Any clocks of three, four and five members, one or two of them wrong; no member tells what it goes by."""
    chance = random.Random(1130)
    settled_count = 0
    for _ in range(3_000):
        member_count = chance.choice([3, 4, 5])
        wrong_count = (member_count - 1) // 2
        errors = [chance.randint(-WRONG, WRONG) for _ in range(wrong_count)]
        errors += [0] * (member_count - wrong_count)
        chance.shuffle(errors)
        heard = errors[1 : chance.randint(member_count // 2 + 1, member_count)]
        peers = [read(error, there_ms=chance.randint(0, 300), at_ms=AT) for error in heard]
        began_ms, is_settled = starting_ms(
            TRUE + errors[0], peers, member_count=member_count, now_ms=AT + 300
        )
        assert began_ms - TRUE <= 1_000 + 302, "at most by how near two clocks may be"
        if len(heard) == member_count - 1:
            assert is_settled
            assert abs(began_ms - TRUE) <= 1_000 + 302
        settled_count += is_settled
    assert 1_000 < settled_count < 3_000


def test_without_a_majority_the_own_clock_is_kept_and_nothing_is_settled() -> None:
    assert starting_ms(TRUE + WRONG, [], member_count=3, now_ms=AT) == (TRUE + WRONG, False)
    assert starting_ms(TRUE + WRONG, [read()], member_count=5, now_ms=AT) == (TRUE + WRONG, False)


def test_what_members_report_is_a_time_or_nothing() -> None:
    told = {"wall_clock_ms": "1700000000000"}
    assert reading_of(told, asked_ms=3, answered_ms=5) == ClockReading(TRUE, 3, 5, None)
    settled = {**told, "settled_clock_ms": "1700000000001"}
    assert reading_of(settled, asked_ms=3, answered_ms=5) == ClockReading(TRUE, 3, 5, TRUE + 1)
    for text in ("", "-1", "1e9", "1_000", "٣", "9" * 19, "now"):
        assert reading_of({"wall_clock_ms": text}, asked_ms=3, answered_ms=5) is None
        assert reading_of(
            {**told, "settled_clock_ms": text}, asked_ms=3, answered_ms=5
        ) == reading_of(told, asked_ms=3, answered_ms=5)
    assert reading_of({}, asked_ms=3, answered_ms=5) is None
