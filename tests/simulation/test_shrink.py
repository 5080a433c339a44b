"""A failing run is made smaller and still fails; its settings survive the command line."""

from __future__ import annotations

import json
from functools import partial

import pytest

from dledger.engine import Engine
from dledger.errors import UsageError
from dledger.raft.hard_state import HardState
from dledger.storage.hard_state import HardStateStore
from dledger.testing import sim
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_fault_kinds import ALL_KINDS
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_shrink import assignments, override, shrink
from dledger.testing.simulation import SimVerdict, run_settings


class ForgetfulStore(HardStateStore):
    def save(self, state: HardState) -> None:
        super().save(HardState(state.term, None))


class ForgetsItsVote(Engine):
    store_type = ForgetfulStore


@pytest.mark.slow
def test_a_failing_run_becomes_smaller_and_still_fails() -> None:
    run = partial(run_settings, engine_type=ForgetsItsVote)
    drawn = next(
        settings
        for settings in map(draw_settings, range(1, 30))
        if run(settings).verdict is SimVerdict.WRONG
    )
    smaller = shrink(drawn, run)
    assert run(smaller).verdict is SimVerdict.WRONG
    assert run(smaller).step_count < run(drawn).step_count
    assert sum(smaller.fault_weights.values()) < sum(drawn.fault_weights.values())
    assert override(drawn, assignments(drawn, smaller)) == smaller


def test_knobs_are_set_by_name() -> None:
    settings = override(
        SimSettings(seed=1), ["loss_permille=7", "wire=True", "faults=heal:2,crash-one:1"]
    )
    assert (settings.loss_permille, settings.wire) == (7, True)
    assert {kind: weight for kind, weight in settings.fault_weights.items() if weight} == {
        "heal": 2,
        "crash-one": 1,
    }
    assert override(settings, []) == settings
    assert not any(override(settings, ["faults="]).fault_weights.values())


@pytest.mark.parametrize(
    "assignment", ["colour=1", "loss_permille=x", "wire=1", "faults=rain:1", "faults=heal", "heal"]
)
def test_an_unknown_knob_is_refused(assignment: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        override(SimSettings(seed=1), [assignment])


def test_there_is_nothing_to_shrink_in_a_run_that_is_fine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sim.main(["--seed", "2", "--shrink"]) == 0
    assert "nothing to shrink" in capsys.readouterr().out


def test_a_sweep_changes_the_knobs_of_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--seeds", "4", "--first", "1", "--processes", "1", "--json"]
    assert sim.main([*command, "--set", "faults=pause:10"]) == 0
    fired = json.loads(capsys.readouterr().out)["coverage"]
    assert fired["pause"] > 0
    assert not any(fired.get(kind) for kind in ALL_KINDS if kind != "pause")


def test_a_knob_that_there_is_not_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sim.main(["--seeds", "1", "--set", "nothing=1"])
    assert caught.value.code == 2
    assert "nothing" in capsys.readouterr().err
