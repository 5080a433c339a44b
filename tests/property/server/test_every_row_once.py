"""Jobs that repeat batches until they are through, leaders that die at any point: every row is stored once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.store.state import BrokerState
from tests.unit.server.row_bench import RowBench, result_of
from tests.unit.server.test_repeated_sends import Origin

pytestmark = pytest.mark.slow

some_rows = st.lists(st.integers(0, 5), min_size=1, max_size=4)


class EveryRowOnce(RuleBasedStateMachine):
    """The leader of `RowBench`, and a job whose attempts overlap: late ones of old batches too."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = RowBench()
        self.batch = 0
        self.asked: list[tuple[int, list[int], Origin]] = []

    def submit(self, batch: int, rows: list[int]) -> None:
        origin = self.bench.rows(f"{batch} s", *(100 * batch + row for row in rows))
        self.asked.append((batch, rows, origin))

    @rule(rows=some_rows)
    def send(self, rows: list[int]) -> None:
        self.submit(self.batch, rows)

    @rule(rows=some_rows, back=st.integers(1, 2))
    def send_late(self, rows: list[int], back: int) -> None:
        """An attempt that nobody waits for any more, of a batch that is over or never was."""
        self.submit(max(0, self.batch - back), rows)

    @rule()
    def go_on(self) -> None:
        self.batch += 1

    @rule()
    def commit(self) -> None:
        self.bench.commit()

    @rule()
    def propose(self) -> None:
        self.bench.commits.flush()

    @rule()
    def bring_held(self) -> None:
        self.bench.bring_held()

    @rule(survives=st.integers(0, 2))
    def fail_over(self, survives: int) -> None:
        self.bench.fail_over(survives)

    @rule()
    def take_a_snapshot(self) -> None:
        """The node's state is written down and read again; nothing may be lost that way."""
        copy = BrokerState()
        copy.restore(self.bench.state.snapshot())
        assert copy.digests() == self.bench.state.digests()
        assert copy.sinks.dump() == self.bench.state.sinks.dump()

    @invariant()
    def no_row_is_stored_twice_and_what_was_answered_is_there(self) -> None:
        bodies = self.bench.bodies()
        assert len(set(bodies)) == len(bodies)
        newest: int = max((int(body) // 100 for body in bodies), default=-1)
        for batch, rows, origin in self.asked:
            if origin.sent and origin.answers()[0].code == 0:
                marks = result_of(origin)
                for row, mark in zip(rows, marks, strict=True):
                    is_there = b"%d" % (100 * batch + row) in bodies
                    assert is_there or (mark == "0" and batch < newest)
        assert self.bench.state.refusals.count == 0, self.bench.state.refusals.newest

    def teardown(self) -> None:
        """In the end the last batch goes through, and every row of it stands once."""
        self.bench.fail_over()
        self.bench.bring_held()
        self.bench.commit()
        self.bench.bring_held()
        self.bench.commit()
        self.submit(self.batch + 1, [0, 1, 2, 3, 4, 5])
        self.bench.commit()
        assert result_of(self.asked[-1][2]) == "111111"
        self.no_row_is_stored_twice_and_what_was_answered_is_there()


TestEveryRowOnce = EveryRowOnce.TestCase
TestEveryRowOnce.settings = settings(max_examples=150, stateful_step_count=30)
