"""What a member promises: terms never decrease, and each has one vote."""

from __future__ import annotations

import pytest

from dledger.raft.hard_state import HardState
from dledger.raft.ids import NodeId, Term

N0, N1 = NodeId("n0"), NodeId("n1")


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        ((1, N0), (2, None), True),
        ((1, N0), (2, N1), True),
        ((1, None), (1, N1), True),
        ((1, N0), (1, N0), True),
        ((1, N0), (1, N1), False),
        ((1, N0), (1, None), False),
        ((2, None), (1, None), False),
    ],
)
def test_what_may_follow(
    before: tuple[int, NodeId | None], after: tuple[int, NodeId | None], may: bool
) -> None:
    old, new = (HardState(Term(term), vote) for term, vote in (before, after))
    assert new.may_follow(old) is may
    lost = HardState(new.term, new.vote, is_voter=False)
    assert lost.may_follow(old) is may
