"""Whose disks are full: what is told, what is heard, and when that leaves no majority."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dledger.raft.ids import NodeId
from dledger.runtime.full_disks import FULL_ATTRIBUTE, FullDisks

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
FULL = {FULL_ATTRIBUTE: "true"}


@pytest.fixture
def disks() -> FullDisks:
    return FullDisks(N0, (N0, N1, N2))


def test_the_own_disk_is_told_while_it_is_full(disks: FullDisks) -> None:
    assert disks.own_attributes() == {}
    disks.own_changed("no room for 4096 bytes")
    assert disks.own_attributes() == FULL
    assert disks.describe() == "the disk of n0 is full"
    assert not disks.leave_no_majority
    disks.own_changed("")
    assert disks.own_attributes() == {}
    assert disks.describe() == ""


def test_two_of_three_leave_no_majority(disks: FullDisks) -> None:
    disks.leader_changed(None)
    disks.learn(N2, FULL)
    disks.learn(N1, {"service_address": "a:1"})
    assert not disks.leave_no_majority
    disks.learn(N1, FULL)
    assert disks.leave_no_majority
    assert disks.describe() == "the disks of n1 and n2 are full"
    disks.learn(N1, None)
    assert not disks.leave_no_majority


def test_a_learners_disk_leaves_a_majority_however_full(disks: FullDisks) -> None:
    """Of n0, n1, n2 the last two are learners: the group stores what it did, and no learner says otherwise."""
    disks.voters_changed((N0,))
    disks.leader_changed(None)
    disks.learn(N1, FULL)
    disks.learn(N2, FULL)
    assert (disks.leave_no_majority, disks.full, disks.describe()) == (False, [], "")
    learner = FullDisks(N1, (N0,))
    learner.own_changed("no room")
    assert (learner.leave_no_majority, learner.full) == (False, [])
    assert learner.own_attributes() == FULL  # it is shown
    disks.voters_changed((N0, N1))
    disks.learn(N1, FULL)
    assert disks.leave_no_majority


def test_a_group_of_one_has_no_other_disk() -> None:
    alone = FullDisks(N0, (N0,))
    alone.own_changed("no room")
    assert alone.leave_no_majority


def test_what_was_heard_is_forgotten_with_the_reason_to_ask(disks: FullDisks) -> None:
    disks.leader_changed(None)
    disks.learn(N1, FULL)
    disks.learn(N2, FULL)
    disks.leader_changed(N1)
    assert not disks.full
    disks.learn(N2, FULL)  # an answer that comes late
    assert not disks.full


def test_a_leader_keeps_what_it_heard_without_a_majority_when_its_term_ends(
    disks: FullDisks,
) -> None:
    disks.leader_changed(N0)
    disks.majority_judged(is_silent=True)
    assert disks.are_pressing
    disks.learn(N1, FULL)
    disks.learn(N2, FULL)
    assert disks.describe() == "the disks of n1 and n2 are full"
    disks.leader_changed(None)
    assert (disks.leave_no_majority, disks.are_wanted, disks.are_pressing) == (True, True, False)
    disks.leader_changed(N2)
    assert not disks.full


def test_what_a_leader_heard_is_forgotten_once_a_majority_answers(disks: FullDisks) -> None:
    disks.leader_changed(N0)
    disks.majority_judged(is_silent=True)
    disks.learn(N1, FULL)
    disks.learn(N2, FULL)
    disks.majority_judged(is_silent=False)
    assert not disks.full
    disks.learn(N2, FULL)  # an answer that comes late
    disks.majority_judged(is_silent=True)
    assert not disks.full


async def test_the_others_are_asked_without_a_leader_or_room(disks: FullDisks) -> None:
    async def is_wanted() -> bool:
        has_returned = False

        async def wait() -> None:
            nonlocal has_returned
            await disks.wait_wanted()
            has_returned = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return has_returned

    disks.leader_changed(None)
    assert await is_wanted()
    disks.leader_changed(N1)
    assert not await is_wanted()
    disks.own_changed("no room")
    assert await is_wanted()
    disks.own_changed("")
    assert not await is_wanted()
    disks.majority_judged(is_silent=True)
    assert await is_wanted()
    disks.majority_judged(is_silent=False)
    assert not await is_wanted()
