"""Engines that are broken on purpose, to test that the simulator finds out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dledger.engine import Engine, PersistJob
from dledger.raft.events import Persisted
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index
from dledger.raft.node import RaftNode
from dledger.raft.quorum import reached_by_majority
from dledger.storage.hard_state import HardStateStore


class AckBeforeSync(Engine):
    """Confirms what it has only written down in memory: the classic of lost acknowledged data."""

    def begin_persist(self) -> PersistJob | None:
        job = super().begin_persist()
        if job is not None:
            self._outbox += self._held.release(job.save_count)
            last = self.log.last_id
            if last.index:
                for effect in self.node.step(Persisted(last), self._planted_now_ms):
                    self._carry_out(effect)
        return job

    _planted_now_ms = 0


def commit_any_term(matches: Sequence[int], *, commit_index: Index, term_start: Index) -> Index:
    """Counts entries of earlier terms (the mistake of figure 8 of the Raft paper)."""
    return Index(max(commit_index, reached_by_majority(matches)))


class CommitsOldTerms(Engine):
    """Commits entries of earlier terms by counting them."""

    node_type = partial(RaftNode, commit_rule=commit_any_term)


class _ForgetfulStore(HardStateStore):
    """Saves the term but never the vote."""

    def save(self, hard_state: HardState) -> None:
        super().save(HardState(hard_state.term, None))


class ForgetsItsVote(Engine):
    """Votes in memory only, so it may vote twice in a term."""

    store_type = _ForgetfulStore
