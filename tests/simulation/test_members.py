"""Members are added and removed while everything else fails; what would break that is found.

docs/adr/0182 has the rules. Each planted bug must be found among the first 300 seeds.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dledger.errors import DLedgerError
from dledger.raft.candidate import Campaign
from dledger.raft.core import Core
from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.raft.member_changes import MemberChanges
from dledger.raft.messages import PreVoteResponse, VoteResponse
from dledger.raft.quorum import majority, reached_by_majority
from dledger.raft.replication import Replication
from dledger.testing.sim_draws import DRAWS_STOPS, draw_settings, purpose_of
from dledger.testing.sim_purposes import Purpose, favour_members
from dledger.testing.simulation import SimVerdict, run_seed, run_settings
from tests.simulation.searches import lately_first

matches = Replication.matches
why_not_now = MemberChanges._why_not_now


SEEDS = range(1, 301)
"""In these a planted bug has to show."""


def first_problem(lately: int) -> str:
    """What the checker says of the first run that is wrong, all of them bent to changing members."""
    for seed in lately_first(SEEDS, lately):
        result = run_settings(favour_members(draw_settings(seed)))
        if result.verdict is SimVerdict.WRONG:
            return result.problem
    return ""


@pytest.mark.slow
def test_members_change_under_all_faults() -> None:
    reached: Counter[str] = Counter()
    for seed in range(1, 56):
        settings = draw_settings(seed)
        if settings.changes_members:
            result = run_seed(seed)
            assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
            reached.update(result.reached)
    for state in ("learner-added", "voter-added", "member-removed", "leader-removed", "truncated"):
        assert reached[state] >= 5, f"{state}: {reached[state]}"
    assert reached["readmitted"]


def test_older_draws_change_no_members() -> None:
    assert not any(draw_settings(seed, draws=DRAWS_STOPS).changes_members for seed in range(1, 300))
    assert sum(purpose_of(seed) is Purpose.MEMBERS for seed in SEEDS) > 20


def change_at_any_time(self: MemberChanges) -> DLedgerError | None:
    """Begin a change while the one before is not committed."""
    return why_not_now(self) if self._handover.target is not None else None


@pytest.mark.slow
def test_two_changes_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberChanges, "_why_not_now", change_at_any_time)
    problem = first_problem(3)
    assert "in one change" in problem or "two leaders" in problem or "without the" in problem, (
        problem
    )


def once_voters(core: Core) -> tuple[NodeId, ...]:
    """The others that ever were voters, as far as this node remembers."""
    notes = (note.configuration.voters for note in core.configurations.notes)
    names = {
        *core.config.voters,
        *core.other_voters,
        *(name for voters in notes for name in voters),
    }
    return tuple(sorted(names - {core.node_id}))


class AsksAll(Campaign):
    """Asks whoever was a voter once, and counts the answer."""

    __slots__ = ()

    def ask_whether(self) -> None:
        self._asking_all(super().ask_whether)

    def ask(self, *, is_transfer: bool) -> None:
        self._asking_all(lambda: Campaign.ask(self, is_transfer=is_transfer))

    def count(self, response: PreVoteResponse | VoteResponse) -> None:
        if response.granted and response.source not in self.supporters:
            self.supporters.append(response.source)

    def _asking_all(self, ask: object) -> None:
        core = self._core
        voters, core.other_voters = core.other_voters, once_voters(core)
        assert callable(ask)
        ask()
        core.other_voters = voters


@pytest.mark.slow
def test_a_vote_of_a_removed_member_that_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.raft.node.Campaign", AsksAll)
    problem = first_problem(3)
    assert "two leaders" in problem or "without the" in problem, problem


def matches_of_old(self: Replication) -> list[Index]:
    """What a majority of the first voters holds is taken for committed, too."""
    core = self._core

    def held(name: NodeId) -> Index:
        if name == core.node_id:
            return core.durable_index
        peer = self.peers.get(name)
        return peer.match_index if peer is not None and peer.admission.is_counted else NO_INDEX

    old = reached_by_majority([held(name) for name in core.config.voters])
    return [max(old, reached_by_majority(matches(self)))]


def matches_of_learners(self: Replication) -> list[Index]:
    """A learner's confirmation counts like a voter's; as many are needed as there are voters for."""
    voters = matches(self)
    learners = [
        peer.match_index
        for name, peer in self.peers.items()
        if name not in self._core.other_voters and peer.admission.is_counted
    ]
    return [sorted([*voters, *learners], reverse=True)[majority(len(voters)) - 1]]


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "lately"), [(matches_of_old, 1), (matches_of_learners, 10)])
def test_a_commit_by_the_wrong_members_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: object, lately: int
) -> None:
    monkeypatch.setattr(Replication, "matches", broken)
    problem = first_problem(lately)
    signs = ("without the", "commits other", "has a lease")
    assert any(sign in problem for sign in signs), problem
