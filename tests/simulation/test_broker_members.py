"""Groups of brokers change their members under all faults; and mistakes that only show there, planted and found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from broker.server.requests.linear import LinearReads
from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from broker.store.state import BrokerState
from broker.testing import taking_in
from broker.testing.broker_simulation import BrokerSimulation, silence
from broker.testing.settings import (
    BrokerSimSettings,
    draw_broker_settings,
    is_forgetful_run,
    is_register_run,
    with_changes,
)
from dledger.runtime.roster import Roster
from dledger.starting_state import load_steps
from dledger.testing.sim_draws import DRAWS_POPS
from dledger.testing.simulation import SimResult, SimVerdict
from dledger_mq.remoting.codes import RequestCode
from tests.simulation.searches import lately_first

SEEDS_MAX = 300
"""A planted mistake is found among so many of the first seeds."""

SEEDS = range(1, SEEDS_MAX + 1)

CHANGING = [seed for seed in SEEDS if draw_broker_settings(seed).changes_members]
"""About every fifth."""


def run(settings: BrokerSimSettings, **broken: Any) -> SimResult:
    with silence():
        return BrokerSimulation(settings, **broken).run()


def first_finding(settings: Iterable[BrokerSimSettings], **broken: Any) -> str:
    """What the simulator says about the first run that it finds bad."""
    for each in settings:
        result = run(each, **broken)
        if result.verdict is not SimVerdict.FINE:
            return f"seed {each.seed}: {result.problem}"
    return ""


def with_keepers(lately: int) -> Iterable[BrokerSimSettings]:
    """Runs in which offsets are written and read at any node, whether it is a member or not."""
    seeds = lately_first(filter(is_register_run, SEEDS), lately)
    return (with_changes(draw_broker_settings(seed)) for seed in seeds)


def drops(seed: int) -> bool:
    return is_forgetful_run(seed) and draw_broker_settings(seed).drops_log


def with_drops(seeds: Iterable[int]) -> Iterable[BrokerSimSettings]:
    """Runs in which nodes are added behind the beginning of the log, and are given the state."""
    drawn = map(draw_broker_settings, seeds)
    return (replace(with_changes(each), catch_up_bytes_max=0) for each in drawn)


@pytest.mark.slow
def test_older_draws_change_no_members_and_mean_what_they_meant() -> None:
    assert SEEDS_MAX // 8 < len(CHANGING) < SEEDS_MAX // 3
    for seed in SEEDS:
        before = draw_broker_settings(seed, draws=DRAWS_POPS)
        assert not before.changes_members
        assert not before.spare_count
        if seed not in CHANGING:
            assert before == draw_broker_settings(seed)


@pytest.mark.slow
def test_members_change_under_all_faults() -> None:
    reached: Counter[str] = Counter()
    work: Counter[str] = Counter()
    for seed in CHANGING[:5]:
        result = run(draw_broker_settings(seed))
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
        reached.update(result.reached)
        work.update(result.work)
    for settings in with_drops(islice(filter(drops, SEEDS), 2)):
        result = run(settings)
        assert result.verdict is SimVerdict.FINE, f"seed {settings.seed}: {result.problem}"
        reached.update(result.reached)
        work.update(result.work)
    for name in ("learner-added", "voter-added", "member-removed", "leader-removed"):
        assert reached[name] > 0, (name, reached)
    for name in ("snapshot-fetched", "begun-anew", "acknowledged", "offsets_read"):
        assert work[name] > 0, (name, work)


def was_removed(roster: Roster) -> bool:
    """It may not know yet that this is committed, and may never learn it."""
    return roster.is_changed and not roster.is_member


def only_learns(roster: Roster) -> bool:
    return roster.node_id in roster.in_force.learners


@pytest.mark.slow
@pytest.mark.parametrize(("is_silly", "lately"), [(was_removed, 225), (only_learns, 169)])
def test_a_node_without_a_vote_that_answers_offsets_from_its_own_state_is_found(
    monkeypatch: pytest.MonkeyPatch, is_silly: Callable[[Roster], bool], lately: int
) -> None:
    route, read = Router.route, LinearReads.read

    def carry_out_here(self: Router, request: PendingRequest) -> None:
        is_query = request.handler.code == RequestCode.QUERY_CONSUMER_OFFSET
        if is_query and is_silly(self._log.roster):
            self.carry_out(request)
        else:
            route(self, request)

    def read_here(self: LinearReads, act: Any, failed: Any) -> None:
        if is_silly(self._log.roster):
            act()
        else:
            read(self, act, failed)

    monkeypatch.setattr(Router, "route", carry_out_here)
    monkeypatch.setattr(LinearReads, "read", read_here)
    assert "was known before" in (found := first_finding(with_keepers(lately))), found


@pytest.mark.slow
def test_a_leader_that_lets_in_none_but_its_first_members_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What clients ask of a member that was added is not passed on, though nothing is wrong."""
    monkeypatch.setattr(Roster, "is_known", lambda self, name: name in self._given)
    found = first_finding(map(draw_broker_settings, lately_first(CHANGING, 33)))
    assert "have no link to the leader" in found, found


@pytest.mark.slow
def test_a_member_that_joins_by_a_snapshot_without_one_of_its_tables_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_offsets(store: Any, snapshot: Any, state: BrokerState) -> Iterator[None]:
        yield from load_steps(store, snapshot, state)
        state.offsets._table.clear()

    monkeypatch.setattr(taking_in, "load_steps", without_offsets)
    found = first_finding(with_drops(lately_first(filter(drops, SEEDS), 39)))
    assert "not what a replay gives: offsets" in found, found
