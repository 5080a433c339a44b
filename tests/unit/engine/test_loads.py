"""What was read for a member is sent in the term in which it was asked for, and in no other one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dledger.catch_up import EntriesLoad
from dledger.raft.effects import AppendEntries, LoadEntries, SendEntries
from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, Term
from dledger.raft.messages import AppendRequest
from tests.unit.engine.scripted import N1, ScriptedEngine, entry, give, persist, scripted


def sent_after_load(engine: ScriptedEngine, read: Entry) -> tuple[Entry, ...]:
    """Give what was read for a request of term 1; the core sends those entries in its term."""
    term = engine.node.term
    engine.node.effects = [  # type: ignore[attr-defined]
        SendEntries(
            to=N1,
            term=term,
            prev_index=NO_INDEX,
            prev_term=NO_TERM,
            first=Index(1),
            end=Index(2),
            commit_index=NO_INDEX,
            round=1,
            admits=0,
        )
    ]
    want = LoadEntries(N1, Term(1), Index(1), Index(2))
    plan = SimpleNamespace(end_index=Index(2))
    engine.loaded(EntriesLoad(want, plan, (read,)), 0)  # type: ignore[arg-type]  # what is used of it
    ((_, request),) = engine.take_outbox()
    assert isinstance(request, AppendRequest)
    return request.entries


@pytest.mark.parametrize(("term", "is_sent"), [(1, True), (2, False)])
def test_a_load_of_an_earlier_term_is_not_sent(term: int, is_sent: bool) -> None:
    engine = scripted()
    give(engine, AppendEntries((entry(1, body=b"now"),)))
    persist(engine)
    engine.take_outbox()
    engine.node.term = Term(term)  # type: ignore[misc]  # a scripted one
    read = entry(1, body=b"was")
    (sent,) = sent_after_load(engine, read)
    assert (sent.body == b"was") is is_sent
