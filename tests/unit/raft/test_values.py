"""What the core takes and gives are values: the same fields are the same thing, and nobody changes one."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from dledger.raft.effects import Commit, Effect, News, Outcome, Send, Waits
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import Event, Received, Tick
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.messages import Message, RepairMessage, TimeoutNow

ID = EntryId(Term(2), Index(7))
TIMEOUT = TimeoutNow(Term(2), NodeId("n1"))
VALUES: list[tuple[Any, Any]] = [
    (ID, EntryId(Term(2), Index(7))),
    (Tick(), Tick()),
    (Received(TIMEOUT), Received(TimeoutNow(Term(2), NodeId("n1")))),
    (Send(NodeId("n1"), TIMEOUT), Send(NodeId("n1"), TIMEOUT, Waits.ALL)),
    (
        Entry(Index(1), Term(1), Position(0), EntryKind.NORMAL, b"x"),
        Entry(Index(1), Term(1), Position(0), EntryKind.NORMAL, b"x", header=b""),
    ),
]


@pytest.mark.parametrize(("one", "same"), VALUES)
def test_the_same_fields_are_the_same_value(one: Any, same: Any) -> None:
    assert one == same
    assert hash(one) == hash(same)
    assert repr(one) == repr(same)
    assert len({one, same}) == 1


def test_another_type_with_the_same_fields_is_another_value() -> None:
    assert Commit(Index(3)) != Tick()
    assert EntryId(Term(3), Index(3)) != (3, 3)


def test_entries_are_ordered_by_term_before_index() -> None:
    assert EntryId(Term(1), Index(9)) < ID < EntryId(Term(2), Index(8))
    assert f"{ID}" == "7@2"
    assert repr(ID) == "EntryId(term=2, index=7)"


@pytest.mark.parametrize(
    "kind",
    [Entry, EntryId]
    + [
        kind
        for union in (Event, Effect, Outcome, News, Message, RepairMessage)
        for kind in get_args(union)
    ],
)
def test_no_field_can_be_set(kind: type[Any]) -> None:
    assert kind.__struct_config__.frozen, f"{kind.__name__} can be changed"


def test_setting_a_field_is_refused() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        ID.index = Index(8)  # type: ignore[misc]
