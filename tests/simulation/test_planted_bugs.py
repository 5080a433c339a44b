"""The simulator is tested with engines that are broken on purpose: it must find each of them.

A simulator that passes everything proves nothing. Three classic mistakes are planted through the
engine's seams; each must be found within a bounded number of seeds, and by the check that it breaks.
The first seeds of the range find nothing in the engine as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from dledger.engine import Engine, PersistJob
from dledger.raft.events import Persisted
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index
from dledger.raft.node import RaftNode
from dledger.raft.quorum import reached_by_majority
from dledger.storage.hard_state import HardStateStore
from dledger.testing.simulation import Verdict, run_seed


class AcksBeforeSync(Engine):
    """Confirms what it has only in memory: the classic of lost acknowledged data."""

    def begin_persist(self) -> PersistJob | None:
        job = super().begin_persist()
        if job is None:
            return None
        self._outbox += self._held.release(job.save_count)
        if self.log.last_id.index:
            for effect in self.node.step(Persisted(self.log.last_id), 0):
                self._carry_out(effect)
        return job


def commit_any_term(matches: Sequence[int], *, commit_index: Index, term_start: Index) -> Index:
    return Index(max(commit_index, reached_by_majority(matches)))


class CommitsOldTerms(Engine):
    """Commits entries of earlier terms by counting them (figure 8 of the Raft paper)."""

    node_type = partial(RaftNode, commit_rule=commit_any_term)


class ForgetfulStore(HardStateStore):
    def save(self, state: HardState) -> None:
        super().save(HardState(state.term, None))


class ForgetsItsVote(Engine):
    """Keeps its vote in memory only, so it may vote twice in a term."""

    store_type = ForgetfulStore


def first_finding(engine_type: type[Engine], seeds: range) -> str:
    """What the simulator says about the first seed that it finds wrong."""
    for seed in seeds:
        result = run_seed(seed, engine_type=engine_type)
        if result.verdict is Verdict.WRONG:
            return result.problem
        assert result.verdict is Verdict.FINE, f"seed {seed}: {result.problem}"
    return ""


@pytest.mark.slow
def test_an_ack_before_the_sync_is_found() -> None:
    problem = first_finding(AcksBeforeSync, range(1, 100))
    assert "crash" in problem or "without" in problem or "lease" in problem


@pytest.mark.slow
def test_a_commit_of_an_earlier_term_by_count_is_found() -> None:
    problem = first_finding(CommitsOldTerms, range(1, 600))
    assert "without the" in problem or "removes entry" in problem


@pytest.mark.slow
def test_a_vote_that_is_not_persisted_is_found() -> None:
    problem = first_finding(ForgetsItsVote, range(1, 20))
    assert "voted for" in problem or "two leaders" in problem


@pytest.mark.slow
def test_the_engine_as_it_is_passes_the_same_seeds() -> None:
    assert first_finding(Engine, range(1, 60)) == ""
