"""The simulator is tested with engines that are broken on purpose: it must find each of them.

A simulator that passes everything proves nothing. Classic mistakes are planted through the engine's
seams; each must be found within a bounded number of seeds, and by the check that it breaks. The same
seeds find nothing in the engine as it is. What only a bent run finds is looked for in runs of that purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count as counted
from itertools import islice
from typing import Any

import pytest

from dledger.engine import Engine, PersistJob
from dledger.held_sends import HeldSends
from dledger.raft.effects import Effect, ReadAt, Resolve, TransferDone, Waits
from dledger.raft.events import Event, Persisted, Propose, ReadRequested, Received, StoodStill, Tick
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, NodeId
from dledger.raft.leader import Leader
from dledger.raft.node import RaftNode
from dledger.raft.quorum import reached_by_majority
from dledger.raft.reads import WaitingReads
from dledger.raft.transfer import Handover
from dledger.storage.hard_state import HardStateStore
from dledger.testing.sim_disk import SimFile
from dledger.testing.sim_draws import purpose_of
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_purposes import Purpose
from dledger.testing.sim_standstill import Standstills
from dledger.testing.simulation import SimVerdict, run_seed
from tests.simulation.searches import lately_first

send_timeout_now = Handover._send_timeout_now
refusal = Leader._refusal


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


def commit_any_term(
    matches: Sequence[int], *, commit_index: Index, term_first_index: Index
) -> Index:
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


def lease_of(leader: Leader, since_ms: int | None, now_ms: int, length_ms: int) -> bool:
    """What `Leader.has_lease` says, with another begin and length."""
    if not leader.is_ready or leader.handover.has_given_up_lease:
        return False
    return not leader.replication.peers or (since_ms is not None and now_ms < since_ms + length_ms)


def lease_since_heard(self: Leader, now_ms: int) -> bool:
    """Counted from when a majority's answers were heard, not from when they were asked for."""
    lease_ms = self._core.config.lease_ms * 9 // 10
    is_confirmed = self.replication.confirmed_round() > 0
    since_ms = self.replication.answered_by_majority_ms() if is_confirmed else None
    return lease_of(self, since_ms, now_ms, lease_ms)


def lease_without_margin(self: Leader, now_ms: int) -> bool:
    """As long as the followers' promises, as if all clocks ran alike."""
    since_ms = self.replication.rounds.sent_ms(self.replication.confirmed_round())
    return lease_of(self, since_ms, now_ms, self._core.config.lease_ms)


def read_without_lease(self: Leader, event: ReadRequested) -> None:
    """Leads, as far as it knows, and answers."""
    self._core.emit(Resolve(event.token, ReadAt(self._core.commit_index)))


def lease_that_stands_still(self: Leader, length_ms: int) -> None:
    """Time in which the leader did not run is let off its lease, too, as if nobody else had run."""
    self.replication.stood_still(length_ms)
    clock = self.replication.rounds
    clock._sent_ms = [sent_ms + length_ms for sent_ms in clock._sent_ms]


class VotesEarly(RaftNode):
    """Takes its promise for over when half of it is."""

    def _is_bound(self) -> bool:
        core = self._core
        if self._leader is not None:
            return super()._is_bound()
        return core.now_ms - core.contact_ms < core.config.lease_ms // 2


class EngineThatVotesEarly(Engine):
    node_type = VotesEarly


class BlamesOthers(RaftNode):
    """Takes the time in which it stood still for others' silence."""

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        return [] if isinstance(event, StoodStill) else super().step(event, now_ms)


class EngineThatBlamesOthers(Engine):
    node_type = BlamesOthers


def hold_everything(self: HeldSends, waits: Waits) -> bool:
    """Answers to heartbeats wait for the disk, as all others do."""
    return waits is Waits.NOTHING or self.save_count == self.durable_count


def tick_first(self: Standstills, node: SimNode, life: int) -> None:
    """A driver that looks at deadlines before it reads its sockets, and does not know that it stood still."""
    if node.still_since_ms is None or node.paused_until_ms > self._cluster.now_ms:
        return
    node.still_since_ms = None
    self._cluster.step(node, Tick())
    for message in self._take(node):
        self._cluster.step(node, Received(message))


def send_and_keep_lease(self: Handover, transfer: Any) -> None:
    """Ask the target to campaign, and go on answering reads by a lease that others need not respect any more."""
    send_timeout_now(self, transfer)
    self.has_given_up_lease = False


def send_at_once(self: Handover) -> None:
    """Ask the target to campaign without waiting until it has everything and all of it is committed."""
    transfer = self._transfer
    if transfer is not None and not transfer.is_sent:
        self._send_timeout_now(transfer)


def send_and_call_it_done(self: Handover, transfer: Any) -> None:
    """Tell the caller that the target leads as soon as it was asked to campaign."""
    send_timeout_now(self, transfer)
    if transfer.token is not None:
        self._core.emit(Resolve(transfer.token, TransferDone(transfer.target)))
        transfer.token = None


def give_back_at_once(self: Handover, node_id: NodeId) -> bool:
    """The preferred member has the lead again while it is about to stop."""
    return False


def take_meanwhile(self: Leader, event: Propose) -> Exception | None:
    """Go on taking proposals while leadership is handed over; the target never has all of them."""
    transfer, self.handover._transfer = self.handover._transfer, None
    try:
        return refusal(self, event)
    finally:
        self.handover._transfer = transfer


def seeds_of(purpose: Purpose, count: int) -> list[int]:
    """The first seeds that are bent to a purpose."""
    return list(islice((seed for seed in counted(1) if purpose_of(seed) is purpose), count))


def among_the_first(purpose: Purpose, count: int) -> list[int]:
    """Those of the first seeds that are bent to a purpose."""
    return [seed for seed in range(1, count + 1) if purpose_of(seed) is purpose]


def first_finding(engine_type: type[Engine], seeds: Iterable[int]) -> str:
    """What the simulator says about the first seed that it finds wrong."""
    for seed in seeds:
        result = run_seed(seed, engine_type=engine_type)
        if result.verdict is SimVerdict.WRONG:
            return result.problem
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
    return ""


@pytest.mark.slow
def test_an_ack_before_the_sync_is_found() -> None:
    problem = first_finding(AcksBeforeSync, lately_first(range(1, 100), 2))
    assert "crash" in problem or "without" in problem or "lease" in problem


@pytest.mark.slow
def test_a_commit_of_an_earlier_term_by_count_is_found() -> None:
    problem = first_finding(CommitsOldTerms, lately_first(range(1, 600), 28))
    assert "without the" in problem or "removes entry" in problem


@pytest.mark.slow
def test_a_vote_that_is_not_persisted_is_found() -> None:
    problem = first_finding(ForgetsItsVote, lately_first(range(1, 20), 1))
    assert "voted for" in problem or "two leaders" in problem


@pytest.mark.slow
def test_a_new_store_that_votes_is_found() -> None:
    problem = first_finding(TrustsNewStores, lately_first(seeds_of(Purpose.DISKS, 40), 1))
    assert "without the" in problem


@pytest.mark.slow
def test_a_promise_that_a_restart_ends_is_found() -> None:
    problem = first_finding(ForgetsItsPromise, lately_first(seeds_of(Purpose.LEASES, 60), 98))
    assert "has a lease" in problem


@pytest.mark.slow
def test_a_read_that_a_round_of_before_confirms_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = WaitingReads.add

    def add_too_early(self: WaitingReads, token: int, *, index: Index, after_round: int) -> None:
        add(self, token, index=index, after_round=max(0, after_round - 1))

    monkeypatch.setattr(WaitingReads, "add", add_too_early)
    problem = first_finding(Engine, lately_first(seeds_of(Purpose.LEASES, 60), 83))
    assert "a read is answered" in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "lately"),
    [
        ("has_lease", lease_since_heard, 6),
        ("has_lease", lease_without_margin, 183),
        ("stood_still", lease_that_stands_still, 79),
    ],
)
def test_a_lease_that_is_too_long_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object], lately: int
) -> None:
    monkeypatch.setattr(Leader, name, broken)
    seeds = lately_first(among_the_first(Purpose.CLOCKS, 300), lately)
    assert "has a lease" in first_finding(Engine, seeds)


@pytest.mark.slow
def test_a_read_without_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "read", read_without_lease)
    seeds = lately_first(among_the_first(Purpose.LEASES, 300), 8)
    assert "a read is answered" in first_finding(Engine, seeds)


@pytest.mark.slow
def test_a_vote_that_comes_too_early_is_found() -> None:
    seeds = lately_first(among_the_first(Purpose.LEASES, 300), 143)
    problem = first_finding(EngineThatVotesEarly, seeds)
    assert "has a lease" in problem


@pytest.mark.slow
def test_a_member_that_blames_others_for_its_own_standstill_is_found() -> None:
    seeds = lately_first(among_the_first(Purpose.STILL, 300), 24)
    problem = first_finding(EngineThatBlamesOthers, seeds)
    assert "nothing is wrong with the leader before" in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "lately"),
    [(HeldSends, "may_leave", hold_everything, 86), (Standstills, "end", tick_first, 24)],
)
def test_whatever_replaces_a_leader_without_a_reason_is_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    broken: Callable[..., object],
    lately: int,
) -> None:
    """A heartbeat's answer that waits for the disk; a deadline that counts before the sockets were read."""
    monkeypatch.setattr(owner, name, broken)
    problem = first_finding(Engine, lately_first(among_the_first(Purpose.STILL, 300), lately))
    assert "nothing is wrong with the leader" in problem


@pytest.mark.slow
def test_a_lease_that_is_kept_after_a_hand_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handover, "_send_timeout_now", send_and_keep_lease)
    seeds = lately_first(among_the_first(Purpose.LEASES, 300), 8)
    assert "has a lease" in first_finding(Engine, seeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "problem", "lately"),
    [
        (Handover, "advanced", send_at_once, "without an answer", 41),
        (Handover, "_send_timeout_now", send_and_call_it_done, "knows of no later term", 14),
        (Handover, "_has_just_handed_over", give_back_at_once, "wrong with the leader", 14),
        (Leader, "_refusal", take_meanwhile, "without an answer", 14),
    ],
)
def test_a_hand_over_that_costs_something_is_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    broken: Callable[..., object],
    problem: str,
    lately: int,
) -> None:
    monkeypatch.setattr(owner, name, broken)
    seeds = lately_first(among_the_first(Purpose.STOPS, 300), lately)
    assert problem in first_finding(Engine, seeds)


@pytest.mark.slow
def test_a_failed_sync_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync

    def sync_quietly(self: SimFile) -> None:
        with suppress(OSError):
            sync(self)

    monkeypatch.setattr(SimFile, "sync", sync_quietly)
    problems = (run_seed(seed).problem for seed in lately_first(seeds_of(Purpose.DISKS, 90), 80))
    assert any("had confirmed" in problem for problem in problems)
