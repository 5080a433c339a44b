"""Who the members are, as one node knows them: what the log says, what it was started with, what others state."""

from __future__ import annotations

import pytest

from dledger import Index, NodeId, Peer
from dledger.codec.members_attribute import (
    MEMBERS_AT_ATTRIBUTE,
    MEMBERS_ATTRIBUTE,
    StatedMembers,
    decode_members,
    encode_members,
)
from dledger.errors import PeerProtocolError
from dledger.raft.configuration import Configuration
from dledger.runtime.group_check import GroupCheck
from dledger.runtime.roster import HISTORY_MAX, STRANGERS_MAX, Roster

N0, N1, N2, N3, N4 = (NodeId(f"n{number}") for number in range(5))
PEERS = tuple(Peer(name, "h", 10 + place) for place, name in enumerate((N0, N1, N2)))
AT = {N3: "h:13", N4: "h:14"}


def roster(name: NodeId = N0) -> Roster:
    return Roster(name, PEERS, joins=False)


def joiner() -> Roster:
    return Roster(N3, (*PEERS, Peer(N3, "h", 13)), joins=True)


def follow(
    known: Roster, voters: tuple[NodeId, ...], index: int, *, committed: bool = True
) -> None:
    addresses = {name: AT[name] for name in voters if name in AT}
    known.change(Configuration(voters, addresses=addresses), Index(index), is_committed=committed)


def check_of(known: Roster) -> GroupCheck:
    return GroupCheck(known, lambda: Index(0), lambda _: None, lease_ms=300)


def refusals(near: Roster, far: Roster) -> list[str]:
    """Why each side would not have the other one, the dialler's reason first."""
    found: list[str | None] = []
    for own, other in ((near, far), (far, near)):
        check, attributes = check_of(own), check_of(other).own_attributes()
        found.append(
            check.why_not(other.node_id, 7, attributes)
            or check.why_stranger(other.node_id, attributes)
        )
    return [each for each in found if each is not None]


def test_a_group_that_never_changed_says_what_it_always_said() -> None:
    assert encode_members(roster().stated()) == {MEMBERS_ATTRIBUTE: '["n0","n1","n2"]'}
    assert decode_members({MEMBERS_ATTRIBUTE: '["n0"]'}) == StatedMembers(frozenset({N0}))
    assert decode_members({}) == StatedMembers(None)


def test_what_is_stated_of_changed_members_comes_through() -> None:
    known = roster()
    follow(known, (N0, N1, N3), 7, committed=False)
    stated = known.stated()
    assert stated == StatedMembers(frozenset({N0, N1, N3}), Index(7), Index(0), "h:10")
    assert not stated.is_committed
    assert decode_members(encode_members(stated)) == stated
    new = joiner().stated()
    assert (new.members, new.is_joining) == (None, True)
    assert decode_members(encode_members(new)) == new


@pytest.mark.parametrize("text", ["", "[1,2]", '["a",2,"h:1"]', "[-1,2,''],", "{}", "null"])
def test_nothing_else_is_understood(text: str) -> None:
    with pytest.raises(PeerProtocolError, match=MEMBERS_AT_ATTRIBUTE):
        decode_members({MEMBERS_AT_ATTRIBUTE: text})


def test_it_connects_to_the_members_of_the_log_and_to_those_of_before_until_that_is_committed() -> (
    None
):
    known = roster()
    assert list(known.contacts()) == [N1, N2]
    follow(known, (N0, N1, N3), 7, committed=False)
    assert known.contacts() == {N1: PEERS[1], N3: Peer(N3, "h", 13), N2: PEERS[2]}
    follow(known, (N0, N1, N3), 7)
    assert list(known.contacts()) == [N1, N3]
    # The entry is cut: the first configuration is in force again, the committed one is what it was.
    other = roster()
    follow(other, (N0, N1, N3), 7, committed=False)
    other.change(Configuration((N0, N1, N2)), Index(0), is_committed=True)
    assert list(other.contacts()) == [N1, N2]


def test_the_own_settings_say_where_a_member_listens_before_the_log_does() -> None:
    known = roster()
    moved = Configuration((N0, N1, N2, N3), addresses={N1: "old:1", N3: "h:13"})
    known.change(moved, Index(4), is_committed=True)
    assert known.peer(N1) == PEERS[1]
    assert known.addresses() == {N0: "h:10", N1: "h:11", N2: "h:12", N3: "h:13"}


def test_who_has_left_connects_to_nobody_until_it_is_added_again() -> None:
    known = roster(N2)
    follow(known, (N0, N1), 5)
    assert (known.has_left, known.is_member, dict(known.contacts())) == (True, False, {})
    known.meet(N0, StatedMembers(frozenset({N0, N1, N2}), Index(9), Index(9), "h:10"))
    assert list(known.contacts()) == [N0]


def test_a_member_that_is_behind_is_one_and_one_that_was_removed_learns_by_whom() -> None:
    now, behind = roster(), roster(N1)
    follow(now, (N0, N1, N3), 7)
    assert refusals(behind, now) == []
    removed = roster(N2)
    (said,) = refusals(removed, now)
    assert said == "'n2' is no member any more: the members are (n0, n1, n3) by entry 7"


def test_who_is_not_added_yet_is_told_so_and_afterwards_taken_by_all() -> None:
    new, old = joiner(), roster()
    (said,) = refusals(new, old)
    assert "'n3' has not been added yet" in said
    assert "the members are (n0, n1, n2)" in said
    leader = roster(N1)
    follow(leader, (N0, N1, N2, N3), 7)
    assert refusals(leader, new) == []
    follow(new, (N0, N1, N2, N3), 7, committed=False)
    # n0 does not have that entry yet: it believes who names a later one, and answers where that one says it is.
    assert refusals(new, old) == []
    old.meet(N3, new.stated())
    assert old.contacts()[N3] == Peer(N3, "h", 13)
    follow(old, (N0, N1, N2, N3), 7)
    assert list(old.contacts()) == [N1, N2, N3]


def test_a_foreign_group_is_refused_by_both_lists() -> None:
    foreign = Roster(N1, (PEERS[1], Peer(N4, "h", 14)), joins=False)
    plain, changed = roster(), roster()
    follow(changed, (N0, N1, N3), 7)
    (one, other) = refusals(foreign, plain)
    for said in (one, other):
        assert "(n0, n1, n2)" in said
        assert "(n1, n4)" in said
    (said,) = refusals(foreign, changed)
    assert "n1 knows the members (n1, n4), by entry 0, which on n0 made them (n0, n1, n2)" in said
    assert "they are (n0, n1, n3) now" in said
    # At one entry two groups have made different members.
    fork = roster(N1)
    follow(fork, (N1, N2), 7)
    assert all("by entry 7" in said for said in refusals(fork, changed))


def test_what_is_not_committed_contradicts_nobody() -> None:
    """A leader that was replaced has changed the members at an entry that another one used otherwise."""
    deposed, member = roster(N1), roster()
    follow(deposed, (N0, N1, N4), 7, committed=False)
    follow(member, (N0, N1, N2, N3), 7)
    assert refusals(deposed, member) == []


def test_who_was_removed_by_what_may_be_undone_is_answered() -> None:
    cutting, lone = roster(), roster(N2)
    follow(cutting, (N0, N1), 5, committed=False)
    assert refusals(lone, cutting) == []


def test_a_joiner_remembers_no_first_members_and_refuses_none_for_them() -> None:
    new, behind = joiner(), roster()
    follow(new, (N0, N1, N3), 9)
    assert new.members_at(Index(0)) is None
    assert refusals(behind, new) == []


def test_a_store_goes_on_with_what_it_remembers() -> None:
    known = roster()
    known.restore(frozenset({N0, N1, N2}), Configuration((N0, N3), addresses=AT), Index(8))
    assert (known.is_changed, list(known.contacts())) == (True, [N3])
    assert known.members_at(Index(0)) == {N0, N1, N2}
    again = Roster(N3, (PEERS[0], Peer(N3, "h", 13)), joins=False)
    again.restore(None, None, Index(0))
    assert again.members_at(Index(0)) is None


def test_a_log_that_has_lost_what_the_store_remembers_to_be_committed_changes_nothing() -> None:
    """The hard state was lost, and with it the notes: the core begins with what it was started with."""
    known = roster()
    known.restore(
        frozenset({N0, N1, N2}), Configuration((N0, N1, N3), (N4,), addresses=AT), Index(8)
    )
    before = known.stated()
    follow(known, (N0, N1, N2), 0)
    follow(known, (N0, N1, N2, N3), 5)
    assert known.stated() == before
    assert list(known.contacts()) == [N1, N3, N4]
    follow(known, (N0, N3), 9, committed=False)
    assert list(known.contacts()) == [N3, N1, N4]


def test_what_is_kept_of_others_is_bounded() -> None:
    known = roster()
    for number in range(STRANGERS_MAX * 2):
        name = NodeId(f"x{number}")
        known.meet(name, StatedMembers(frozenset({name}), Index(9), Index(9), f"h:{100 + number}"))
    assert len(known.contacts()) == 2 + STRANGERS_MAX
    known.meet(N4, StatedMembers(frozenset({N4}), Index(9), Index(9), "no address"))
    assert N4 not in known.contacts()
    for index in range(1, HISTORY_MAX * 2):
        follow(known, (N0, N1, N2), index)
    assert sum(known.members_at(Index(index)) is not None for index in range(HISTORY_MAX * 2)) == (
        HISTORY_MAX
    )
    assert list(known.contacts()) == [N1, N2], "what strangers named is known now to be old"


def test_who_comes_back_elsewhere_is_looked_for_there() -> None:
    known = roster()
    follow(known, (N0, N1), 4)
    back = Configuration((N0, N1), (N2,), addresses={N0: "h:10", N1: "else:1", N2: "new:99"})
    known.change(back, Index(5), is_committed=False)
    assert known.peer(N2) == Peer(N2, "new", 99)
    assert known.peer(N1) == PEERS[1], "who did not move is where the own settings say"
    assert known.contacts()[N2] == Peer(N2, "new", 99)
    follow(known, (N0, N1), 4)  # the entry is cut
    assert known.peer(N2) == PEERS[2]
    known.change(back, Index(6), is_committed=True)
    known.change(back, Index(6), is_committed=True)
    assert known.peer(N2) == Peer(N2, "new", 99)


def test_who_came_back_elsewhere_is_looked_for_there_though_all_of_it_came_at_once() -> None:
    """The log lagged: nothing is known to be committed before the last of the changes is."""
    known = roster()
    follow(known, (N0, N1), 4, committed=False)
    back = Configuration((N0, N1), (N2,), addresses={N0: "h:10", N1: "else:1", N2: "new:99"})
    for is_committed in (False, True, True):
        known.change(back, Index(5), is_committed=is_committed)
        assert known.peer(N2) == Peer(N2, "new", 99)
        assert known.peer(N1) == PEERS[1], "who did not move is where the own settings say"


def test_a_removal_that_was_undone_moves_nobody() -> None:
    known = roster()
    first = Configuration((N0, N1, N2), addresses={N2: "log:1"})
    known.restore(frozenset({N0, N1, N2}), first, Index(3))
    assert known.peer(N2) == PEERS[2], "the own settings say so"
    follow(known, (N0, N1), 4, committed=False)
    known.change(first, Index(3), is_committed=True)
    assert known.peer(N2) == PEERS[2]


def test_a_start_with_settings_that_name_a_member_believes_them() -> None:
    known = roster()
    moved = Configuration((N0, N1, N2), addresses={N1: "old:1"})
    known.restore(frozenset({N0, N1, N2}), moved, Index(9))
    assert known.peer(N1) == PEERS[1]
