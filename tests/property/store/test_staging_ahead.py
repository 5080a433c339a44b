"""Staging ahead of a fold that lags: whatever is withdrawn, lost or deleted, the fold never disagrees."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.store.control import DeleteTopic
from broker.store.parse import parse_records
from broker.store.staging import StagedEntry, Staging
from broker.store.state import BrokerState
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import EntryId, Index, Position, Term
from tests.unit.store.lone_broker import BORN, HOST, START_MS

pytestmark = pytest.mark.slow

topics = st.sampled_from(["A", "B", "SCHEDULE_TOPIC_XXXX"])


class StagingAhead(RuleBasedStateMachine):
    """A leader whose proposals are applied later, or lost with its leadership."""

    def __init__(self) -> None:
        super().__init__()
        self.state = BrokerState()
        self.staging = Staging(self.state, HOST)
        self.in_flight: list[Entry] = []
        self.applied = 0
        self.end = 0
        self.term = 1

    @rule(topic=topics, queue_id=st.integers(0, 1))
    def stage(self, topic: str, queue_id: int) -> None:
        self.staging.stage(topic.encode(), queue_id, b"x", b"", born_timestamp_ms=0, born_host=BORN)

    @rule(topic=topics)
    def stage_delete(self, topic: str) -> None:
        self.staging.stage_control(DeleteTopic(topic), START_MS)

    def build(self) -> StagedEntry:
        return self.staging.build_entry(self.end, START_MS)

    @precondition(lambda self: self.staging.staged_count)
    @rule()
    def propose(self) -> None:
        staged = self.build()
        entry_id = EntryId(Term(self.term), Index(self.applied + len(self.in_flight) + 1))
        entry = Entry(
            entry_id.index, entry_id.term, Position(self.end), EntryKind.NORMAL, staged.body
        )
        assert parse_records(staged.body, self.end + ENTRY_HEADER_BYTES) == staged.records
        self.staging.proposed(staged, entry_id)
        self.in_flight.append(entry)
        self.end = entry.end_position

    @precondition(lambda self: self.staging.staged_count)
    @rule()
    def withdraw(self) -> None:
        self.staging.withdraw(self.build())

    @precondition(lambda self: self.in_flight)
    @rule()
    def apply_one(self) -> None:
        self.state.apply([self.in_flight.pop(0)])
        self.applied += 1

    @rule(kept=st.integers(0, 3))
    def lose_leadership(self, kept: int) -> None:
        """Some of what was in flight survives; the next term begins when all of it is applied."""
        self.staging.discard()
        for entry in self.in_flight[:kept]:
            self.state.apply([entry])
            self.applied += 1
            self.end = entry.end_position
        if kept < len(self.in_flight):
            self.end = self.in_flight[kept].position
        self.in_flight.clear()
        self.term += 1

    @invariant()
    def the_fold_never_disagrees(self) -> None:
        assert self.state.refusals.alarm_count == 0


TestStagingAhead = StagingAhead.TestCase
