"""A follower's way for the one next entry, held against the ordinary one: the same effects, the same state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.config import RaftConfig
from dledger.errors import DLedgerError
from dledger.raft import follower
from dledger.raft.effects import Effect
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import Event, Persisted, Received, Tick
from dledger.raft.hard_state import HardState
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.messages import AppendRequest
from dledger.raft.node import RaftNode

NAMES = (NodeId("n0"), NodeId("n1"), NodeId("n2"))
KINDS = (EntryKind.NORMAL, EntryKind.NORMAL, EntryKind.NORMAL, EntryKind.NOOP)


class OrdinaryNode(RaftNode):
    """A node that takes each request the ordinary way."""

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follower, "append_next", lambda *_: None)
            return super().step(event, now_ms)


def make_node(kind: type[RaftNode]) -> RaftNode:
    config = RaftConfig(NAMES[2], NAMES)
    state = HardState(Term(1), None, is_voter=True)
    return kind(config, state, LogLayout(), draw=lambda low, _high: low, now_ms=0)


def outcome(node: RaftNode, event: Event, now_ms: int) -> object:
    try:
        return node.step(event, now_ms)
    except DLedgerError as error:
        return type(error), str(error)


def state_of(node: RaftNode) -> dict[str, object]:
    core = node._core
    kept = {
        name: getattr(core, name)
        for name in core.__slots__
        if name not in {"log", "configurations", "draw", "first_in_memory"}
    }
    log = core.log
    return kept | {
        "runs": log.runs(),
        "columns": log.columns(log.first_index, Index(log.last_index + 1)),
        "end": log.end_position,
    }


@st.composite
def near_requests(draw: st.DrawFn) -> tuple[int, ...]:
    """Numbers that are nearly always those of a lone next entry."""
    usual = st.sampled_from([0] * 12 + [1, -1, 2])
    return tuple(draw(usual) for _ in range(9))


@given(st.lists(st.tuples(near_requests(), st.integers(0, 400), st.integers(0, 3)), max_size=24))
def test_the_next_entry_is_taken_as_any_other(
    steps: list[tuple[tuple[int, ...], int, int]],
) -> None:
    quick, ordinary = make_node(RaftNode), make_node(OrdinaryNode)
    now_ms, term = 0, 1
    for number, (off, later_ms, then) in enumerate(steps, 1):
        now_ms += later_ms
        log = quick._core.log
        term = max(1, term + (off[0] == 1))
        count = 1 + off[1] if off[1] >= 0 else 0
        entries: list[Entry] = []
        index, position = log.last_index + 1 + off[2], log.end_position + off[3]
        for _ in range(count):
            kind = KINDS[number % 4] if off[4] else EntryKind.NORMAL
            body = b"x" * number
            entry = Entry(
                Index(index), Term(max(1, term + min(off[5], 0))), Position(position), kind, body
            )
            entries.append(entry)
            index, position = index + 1, entry.end_position
        request = AppendRequest(
            Term(term - (off[0] == -1)),
            NAMES[1] if off[6] == 1 else NAMES[0],
            Index(max(0, log.last_index + off[2])),
            Term(max(0, log.last_term + off[7])),
            tuple(entries),
            Index(max(0, log.last_index - 1 + off[8])),
            number,
            admits=off[8] == 2,
        )
        told: list[Event] = [Received(request)]
        if then == 1:
            told.append(Persisted(EntryId(log.last_term, log.last_index)))
        elif then == 2:
            told.append(Tick())
        for event in told:
            assert outcome(quick, event, now_ms) == outcome(ordinary, event, now_ms)
            assert state_of(quick) == state_of(ordinary)


def test_one_sender_goes_the_quick_way() -> None:
    node = make_node(RaftNode)
    first = Entry(Index(1), Term(1), Position(0), EntryKind.NORMAL, b"first")
    request = AppendRequest(Term(1), NAMES[0], Index(0), Term(0), (first,), Index(0), 1)
    assert follower.append_next(node._core, request, 1) is None  # nobody leads yet
    node.step(Received(request), 1)
    second = Entry(Index(2), Term(1), first.end_position, EntryKind.NORMAL, b"second")
    request = AppendRequest(Term(1), NAMES[0], Index(1), Term(1), (second,), Index(1), 2)
    effects = follower.append_next(node._core, request, 2)
    assert effects is not None
    assert [type(effect).__name__ for effect in effects] == ["AppendEntries", "Send", "Commit"]
