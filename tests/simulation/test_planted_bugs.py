"""The simulator is tested with engines that are broken on purpose: it must find each of them.

A simulator that passes everything proves nothing. Classic mistakes are planted through the engine's
seams; each must be found within a bounded number of seeds, and by the check that it breaks. The same
seeds find nothing in the engine as it is. What only a bent run finds is looked for in runs of that purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count as counted
from itertools import islice
from typing import Any

import pytest

from dledger.engine import Engine, PersistJob
from dledger.raft.events import Persisted
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index
from dledger.raft.node import RaftNode
from dledger.raft.quorum import reached_by_majority
from dledger.raft.reads import WaitingReads
from dledger.storage.hard_state import HardStateStore
from dledger.testing.sim_disk import SimFile
from dledger.testing.sim_settings import Purpose, purpose_of
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


class VotesWithANewStore(HardStateStore):
    """An empty store is taken for one that has promised nothing."""

    @classmethod
    def open(cls, *args: Any, **kwargs: Any) -> HardStateStore:
        made = super().open(*args, **kwargs)
        made.is_new = False
        return made


class TrustsNewStores(Engine):
    """Lets a member vote at once whose disk was lost (docs/adr/0061)."""

    store_type = VotesWithANewStore


class Promiseless(RaftNode):
    """Forgets at a restart that it may have promised a leader to support nobody else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._core.contact_ms -= 1_000_000


class ForgetsItsPromise(Engine):
    node_type = Promiseless


def seeds_of(purpose: Purpose, count: int) -> list[int]:
    """The first seeds that are bent to a purpose."""
    return list(islice((seed for seed in counted(1) if purpose_of(seed) is purpose), count))


def first_finding(engine_type: type[Engine], seeds: Iterable[int]) -> str:
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
def test_a_new_store_that_votes_is_found() -> None:
    problem = first_finding(TrustsNewStores, seeds_of(Purpose.DISKS, 40))
    assert "without the" in problem


@pytest.mark.slow
def test_a_promise_that_a_restart_ends_is_found() -> None:
    problem = first_finding(ForgetsItsPromise, seeds_of(Purpose.LEASES, 60))
    assert "has a lease" in problem


@pytest.mark.slow
def test_a_read_that_a_round_of_before_confirms_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = WaitingReads.add

    def add_too_early(self: WaitingReads, token: int, *, index: Index, after_round: int) -> None:
        add(self, token, index=index, after_round=max(0, after_round - 1))

    monkeypatch.setattr(WaitingReads, "add", add_too_early)
    problem = first_finding(Engine, seeds_of(Purpose.LEASES, 60))
    assert "a read is answered" in problem


@pytest.mark.slow
def test_a_failed_sync_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync

    def sync_quietly(self: SimFile) -> None:
        with suppress(OSError):
            sync(self)

    monkeypatch.setattr(SimFile, "sync", sync_quietly)
    results = [run_seed(seed) for seed in seeds_of(Purpose.DISKS, 30)]
    found = [result.problem for result in results if result.verdict is not Verdict.FINE]
    assert any("had confirmed" in problem for problem in found)


@pytest.mark.slow
def test_the_engine_as_it_is_passes_the_same_seeds() -> None:
    assert first_finding(Engine, range(1, 60)) == ""
