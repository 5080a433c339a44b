"""Members change while the group forgets the beginning of its log, under all faults; and mistakes in that, planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dledger.raft.configuration_log import ConfigurationLog, ConfigurationNote
from dledger.raft.log_layout import LogLayout
from dledger.testing.sim_draws import draw_forgetting_members, purpose_of
from dledger.testing.sim_purposes import Purpose
from dledger.testing.simulation import SimVerdict, run_settings
from tests.simulation.searches import lately_first

pytestmark = pytest.mark.slow

SEEDS_MAX = 300
SEEDS = [seed for seed in range(1, SEEDS_MAX + 1) if purpose_of(seed) is Purpose.MEMBERS]

begin_after = ConfigurationLog.begin_after


def first_finding(lately: int) -> str:
    """What the simulator says about the first seed that it finds wrong."""
    for seed in lately_first(SEEDS, lately):
        result = run_settings(draw_forgetting_members(seed))
        if result.verdict is not SimVerdict.FINE:
            return f"{result.verdict.name} {result.problem}"
    return ""


def test_members_change_while_logs_lose_their_beginning() -> None:
    reached: Counter[str] = Counter()
    for seed in SEEDS[:6]:
        result = run_settings(draw_forgetting_members(seed))
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
        reached.update(result.reached)
    for what in (
        "learner-added",
        "voter-added",
        "member-removed",
        "begun-anew",
        "snapshot-fetched",
    ):
        assert reached[what] >= 5, (what, reached)


def knows_nobody(self: ConfigurationLog, log: LogLayout, note: ConfigurationNote | None) -> bool:
    """Begin anew with the members of the first start, whatever the leader has told."""
    return begin_after(self, log, None)


def is_not_saved(self: ConfigurationLog, log: LogLayout, note: ConfigurationNote | None) -> bool:
    """Take over what the leader has told, and forget it at the next crash."""
    before = self.is_unsaved
    is_new = begin_after(self, log, note)
    self.is_unsaved = before
    return is_new


@pytest.mark.parametrize(("broken", "lately"), [(knows_nobody, 17), (is_not_saved, 294)])
def test_a_log_that_begins_anew_with_the_wrong_members_is_found(
    broken: Callable[[ConfigurationLog, LogLayout, ConfigurationNote | None], bool],
    lately: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ConfigurationLog, "begin_after", broken)
    assert first_finding(lately), f"none of {len(SEEDS)} runs shows it"
