"""Clients that retry until they are answered, leaders that die at any point: every send is stored once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger import LeadershipLostError
from dledger.raft.entry import EntryKind
from dledger_mq.message.record import decode_records
from tests.unit.server.test_repeated_sends import Bench, Origin

pytestmark = pytest.mark.slow


@dataclass
class Wanted:
    """What one client wants stored: once for each time that it meant to.

    A send on purpose counts when first and second were answered in one term; else it may pass for a retry.

    Attributes:
        keys: one, or those of a batch.
        least, most: how often it must, and may, be stored once it is answered.
        is_on_purpose: the send that goes on now was begun after an answer of the same term.
        term: of the last answer.
    """

    keys: list[str]
    least: int = 1
    most: int = 1
    tries: list[Origin] = field(default_factory=list)
    is_answered: bool = False
    is_on_purpose: bool = False
    term: int = 0


class EverySendOnce(RuleBasedStateMachine):
    """The leader of `Bench`, with clients."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.wanted: list[Wanted] = []
        self.next_key = 0

    def submit(self, one: Wanted) -> None:
        items = [(key, key.encode()) for key in one.keys]
        if len(items) == 1:
            one.tries.append(self.bench.send(items[0][0], items[0][1]))
        else:
            one.tries.append(self.bench.send(None, items=items))

    def look(self) -> None:
        """Clients read their answers; only a connection that stands brings one."""
        for one in self.wanted:
            codes = [origin.answers()[0].code for origin in one.tries if origin.sent]
            live = [origin for origin in one.tries if not origin.is_closed and origin.sent]
            assert set(codes) <= {0, 1}
            if not one.is_answered and any(origin.answers()[0].code == 0 for origin in live):
                one.is_answered = True
                one.least += one.is_on_purpose and one.term == self.bench.log.term
                one.is_on_purpose = False
                one.term = self.bench.log.term
                one.tries.clear()

    @rule(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        keys = [f"{self.next_key + step}" for step in range(count)]
        self.next_key += count
        self.wanted.append(Wanted(keys))
        self.submit(self.wanted[-1])

    @precondition(lambda self: any(not one.is_answered for one in self.wanted))
    @rule(data=st.data(), closes=st.booleans())
    def try_again(self, data: st.DataObject, *, closes: bool) -> None:
        """Over another connection; the first one may live on."""
        one = data.draw(st.sampled_from([one for one in self.wanted if not one.is_answered]))
        if closes:
            for origin in one.tries:
                origin.is_closed = True
        self.submit(one)
        self.look()

    @precondition(lambda self: any(one.is_answered for one in self.wanted))
    @rule(data=st.data())
    def send_on_purpose(self, data: st.DataObject) -> None:
        """The same message once more, after an answer."""
        one = data.draw(st.sampled_from([one for one in self.wanted if one.is_answered]))
        if one.term == self.bench.log.term:
            one.is_on_purpose = True
            one.most += 1
        one.is_answered = False
        self.submit(one)
        self.look()

    @rule()
    def commit(self) -> None:
        self.bench.commit()
        self.look()

    @rule()
    def propose(self) -> None:
        self.bench.commits.flush()

    @rule(survives=st.integers(0, 2))
    def fail_over(self, survives: int) -> None:
        """The leader dies: of what was proposed the first entries survive; all connections break."""
        bench = self.bench
        proposed = [entry for entry, _ in bench.log._open]
        kept = proposed[:survives]
        del bench.log.entries[len(bench.log.entries) - len(proposed) + len(kept) :]
        for one in self.wanted:
            for origin in one.tries:
                origin.is_closed = True
        bench.commits.lost(LeadershipLostError("gone"))  # type: ignore[arg-type]  # told as unknown
        bench.log.lose(LeadershipLostError("gone"))
        bench.state.apply(kept)
        bench.new_term()

    @invariant()
    def every_send_is_stored_as_often_as_it_was_meant(self) -> None:
        counts: dict[bytes, int] = {}
        for entry in self.bench.log.entries:
            if entry.kind is EntryKind.NORMAL and entry.index <= self.bench.state.applied_index:
                for record in decode_records(entry.body):
                    counts[record.body] = counts.get(record.body, 0) + 1
        for one in self.wanted:
            for key in one.keys:
                stored = counts.get(key.encode(), 0)
                assert stored <= one.most, f"{key} was stored {stored} times"
                assert stored >= one.least or not one.is_answered, f"{key}: answered, not stored"


TestEverySendOnce = EverySendOnce.TestCase
TestEverySendOnce.settings = settings(max_examples=100, stateful_step_count=30)
