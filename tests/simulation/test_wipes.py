"""Members lose their disks for ever, a minority at a time: nothing committed is lost, nobody votes twice.

docs/adr/0061 has the rule. The planted bug shows that the simulator would see it broken.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.engine import Engine
from dledger.storage.hard_state import HardStateStore
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_settings import SimSettings
from dledger.testing.simulation import Simulation, SimVerdict, run_settings
from tests.simulation.searches import lately_first

WIPES = {"wipe-one": 4, "crash-one": 1, "partition-leader": 2, "partition-one": 1, "heal": 3}
CUT_AND_WIPED = {"wipe-one": 3, "cut-committing-leader": 3, "heal": 1, "crash-one": 1}


def settings_of(seed: int, weights: dict[str, int]) -> SimSettings:
    drawn = draw_settings(seed)
    return replace(
        drawn,
        node_count=(3, 5)[seed % 2],
        fault_weights=weights,
        fault_interval_ms=250,
        fsync=True,
    )


SEEDS = range(1, 13)
"""Three times as many as it takes until the planted bug shows."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weights", [WIPES, CUT_AND_WIPED], ids=["wipes", "cut-and-wiped"])
def test_a_group_survives_lost_disks(seed: int, weights: dict[str, int]) -> None:
    result = run_settings(settings_of(seed, weights))
    assert result.verdict is SimVerdict.FINE, result.problem


class ForgetfulStore(HardStateStore):
    """Takes an empty store for one that has promised nothing."""

    @classmethod
    def open(cls, *args: object, **kwargs: object) -> HardStateStore:  # type: ignore[override]
        made = super().open(*args, **kwargs)  # type: ignore[arg-type]
        made.is_new = False
        return made


class Forgetful(Engine):
    store_type = ForgetfulStore


@pytest.mark.slow
def test_a_group_whose_wiped_members_vote_at_once_loses_data() -> None:
    verdicts = (
        Simulation(settings_of(seed, CUT_AND_WIPED), engine_type=Forgetful).run().verdict
        for seed in lately_first(SEEDS, 4)
    )
    assert SimVerdict.WRONG in verdicts
