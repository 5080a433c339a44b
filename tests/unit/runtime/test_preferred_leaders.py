"""A preferred leader without a vote is named once, with the reason, and again when that changes."""

from __future__ import annotations

import logging

import pytest

from dledger import NodeId, Peer
from dledger.raft.configuration import Configuration
from dledger.raft.ids import Index
from dledger.runtime.preferred_leaders import PreferredLeaders
from dledger.runtime.roster import Roster

N0, N1, N3 = NodeId("n0"), NodeId("n1"), NodeId("n3")
PEERS = tuple(Peer(name, "127.0.0.1", 1 + place) for place, name in enumerate((N0, N1)))


def test_each_change_of_a_preferred_leaders_standing_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dledger")
    roster = Roster(N0, PEERS, joins=False)
    preferred = PreferredLeaders((N3, N1), roster)
    told: list[str] = []
    for index, members in enumerate(
        (
            Configuration((N0, N1), ()),
            Configuration((N0, N1), (N3,), frozenset({N3})),
            Configuration((N0, N1), (N3,)),
            Configuration((N0, N1, N3), ()),
            Configuration((N0, N3), ()),
            Configuration((N0,), ()),
        )
    ):
        roster.change(members, Index(index), is_committed=False)
        caplog.clear()
        preferred.look()
        preferred.look()
        told.append(" | ".join(each.getMessage() for each in caplog.records))
    assert [each.split()[:3] for each in told[:4]] == [
        ["preferred-leader-has-no-vote", "node=n0", "preferred=n3"],
        ["preferred-leader-has-no-vote", "node=n0", "preferred=n3"],
        ["preferred-leader-has-no-vote", "node=n0", "preferred=n3"],
        ["preferred-leader-votes", "node=n0", "preferred=n3"],
    ]
    assert "none of the members (n0, n1)" in told[0]
    assert "which it does by itself" in told[1]
    assert "once it is promoted" in told[2]
    assert "preferred=n1" in told[4]
    assert "preferred=n3 reason='it is none of the members (n0)" in told[5]


def test_who_knows_no_members_yet_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    PreferredLeaders((N3,), Roster(N0, PEERS, joins=True)).look()
    assert caplog.records == []
