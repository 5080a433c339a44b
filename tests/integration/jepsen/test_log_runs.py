"""The log workloads against real members, with faults: what must hold, holds."""

from pathlib import Path

import pytest

from jepsen.run import RunSettings, execute

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize(
    ("workload", "nemesis", "network"),
    [("log-set", "kill:leader", "none"), ("log-append", "partition:leader", "proxies")],
)
def test_a_log_group_keeps_its_promises_under_faults(
    tmp_path: Path, workload: str, nemesis: str, network: str
) -> None:
    settings = RunSettings(workload, nemesis, 6.0, seed=7, network=network)  # type: ignore[arg-type]
    result = execute(settings, tmp_path)
    wrong = [one for check in result.checks for one in check.anomalies]
    assert result.valid is True, (
        wrong,
        result.problems,
        [check.why_unknown for check in result.checks],
    )
    assert result.faults[nemesis] >= 1
