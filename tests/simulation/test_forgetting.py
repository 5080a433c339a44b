"""Groups that forget the beginning of their log, under all faults; and mistakes in that, planted and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dledger.engine import Engine
from dledger.raft.ids import Index
from dledger.storage.log_start import FrontDrop
from dledger.storage.scan import ChainEnd
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing import sim_forgetting
from dledger.testing.sim_draws import DRAWS_STOPS, draw_settings
from dledger.testing.sim_fault_kinds import SNAPSHOT_KINDS
from dledger.testing.sim_forgetting import FORGETTING_STATES
from dledger.testing.sim_tally import Tally
from dledger.testing.simulation import SimVerdict, run_seed, run_settings
from tests.simulation.searches import lately_first

SEEDS_MAX = 300
"""A planted mistake is found among so many of the first seeds, of which about every fourth forgets."""

FORGETTING = [seed for seed in range(1, SEEDS_MAX + 1) if draw_settings(seed).keep_entries]

HARD_SEEDS_MAX = 300
"""Among so many, bent to that, members come to all that forgetting leads to."""

HARD = {"crash-one": 4, "kill-one": 2, "flip-all-snapshots": 4, "flip-snapshot": 2}
"""Faults that lead often to what is rare in mixed runs: a start with a state ahead of the log, or with none at all."""

begin_log_after = Engine.begin_log_after
drop_before = SegmentedLog.drop_before


def first_finding(lately: int) -> str:
    """What the simulator says about the first seed that it finds wrong."""
    for seed in lately_first(FORGETTING, lately):
        result = run_seed(seed)
        if result.verdict is not SimVerdict.FINE:
            return f"{result.verdict.name} {result.problem}"
    return ""


@pytest.mark.parametrize("seed", FORGETTING[:5])
def test_older_seeds_forget_nothing_and_mean_what_they_meant(seed: int) -> None:
    before, now = draw_settings(seed, draws=DRAWS_STOPS), draw_settings(seed)
    assert before.keep_entries == 0
    assert replace(before, fault_weights={}) == replace(
        now,
        fault_weights={},
        keep_entries=0,
        catch_up_bytes_max=0,
        snapshot_pause_ms=before.snapshot_pause_ms,
        segment_size_bytes=before.segment_size_bytes,
        settle_ms_max=before.settle_ms_max,
    )
    kept = {kind: now.fault_weights[kind] for kind in before.fault_weights}
    assert kept == before.fault_weights | {"damage-all": 0}


@pytest.mark.slow
def test_groups_that_forget_are_fine_and_come_to_all_that_forgetting_leads_to() -> None:
    tally = Tally()
    for seed in range(1, HARD_SEEDS_MAX + 1):
        drawn = draw_settings(seed)
        if not drawn.keep_entries:
            continue
        settings = replace(
            drawn,
            keep_entries=5,
            catch_up_bytes_max=0,
            snapshot_pause_ms=30,
            fault_weights=drawn.fault_weights | HARD,
        )
        result = run_settings(settings)
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
        tally.add(result)
    found = {name: tally.seeds[name] for name in FORGETTING_STATES + SNAPSHOT_KINDS}
    assert min(found.values()) > 0, found


def past_its_snapshots(*_: object) -> Index:
    """As if the state on disk were always as new as the one in memory."""
    return Index(1 << 40)


def one_entry_late(self: Engine, before: ChainEnd) -> None:
    late = replace(before, index=Index(before.index + 1))
    self._handed_out_index = max(self._handed_out_index, late.index)
    begin_log_after(self, late)


def one_segment_more(self: SegmentedLog, index: Index) -> FrontDrop | None:
    """Drop the segment in which the place stands, too."""
    count = self._row.count_before(index)
    following = min(count + 1, len(self._row) - 2)
    return drop_before(self, self._row[following].first_index) if count else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "problem", "lately"),
    [
        (sim_forgetting, "covered_index", past_its_snapshots, "cannot start", 34),
        (Engine, "begin_log_after", one_entry_late, "has a log that begins after", 4),
        (SegmentedLog, "drop_before", one_segment_more, "the group needs it from", 4),
    ],
)
def test_a_mistake_in_forgetting_is_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    broken: Callable[..., object],
    problem: str,
    lately: int,
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert problem in first_finding(lately)
