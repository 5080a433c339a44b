"""The soak: it ends in time, keeps what fails, and says when it proves little."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from broker.testing import soak
from dledger.testing import sim
from dledger.testing.sim_draws import DRAWS_NOW
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_tally import SILENT_SEEDS_MIN, Tally
from dledger.testing.sim_trace import Trace
from dledger.testing.simulation import SimResult, SimVerdict, run_seed


def stuck(settings: SimSettings, *, trace: Trace | None = None) -> SimResult:
    return replace(run_seed(1), seed=settings.seed, verdict=SimVerdict.STUCK, problem="no way")


def test_a_failing_seed_is_kept_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "SIMULATORS", (replace(sim.LOG_SIMULATOR, run=stuck),))
    file = tmp_path / "kept" / "seeds.txt"
    wanted = ["--hours", "0.00005", "--processes", "1", "--first", "7", "--failures", str(file)]
    assert soak.main(wanted) == int(SimVerdict.STUCK)
    assert file.read_text().startswith(
        f"python -m dledger.testing.sim --seed 7 --trace --draws {DRAWS_NOW}  # stuck: no way"
    )
    told = capsys.readouterr().out
    assert "seeds from 7" in told
    assert re.search(r"[1-9]\d* bad", told)


@pytest.mark.slow
def test_both_simulators_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "seeds.txt"
    assert soak.main(["--hours", "0.001", "--processes", "1", "--failures", str(file)]) == 0
    told = capsys.readouterr().out
    assert "the log" in told
    assert "brokers" in told
    assert not file.exists()


def test_a_fault_that_never_came_spoils_a_long_run() -> None:
    tally = Tally()
    result = replace(run_seed(1), coverage={"earthquake": 0}, reached={})
    assert soak._exit_code([tally]) == 0
    for _ in range(SILENT_SEEDS_MIN):
        tally.add(result)
    assert soak._exit_code([tally]) == soak.SILENT
