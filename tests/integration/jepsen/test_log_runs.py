"""A log workload against real members, killed: what must hold, holds. `test_broken_programs.py` has more of them."""

from pathlib import Path

import pytest

from jepsen.run import RunSettings, execute

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_log_group_keeps_its_promises_while_leaders_are_killed(tmp_path: Path) -> None:
    result = execute(RunSettings("log-append", "kill:leader", 6.0, seed=7), tmp_path)
    wrong = [one for check in result.checks for one in check.anomalies]
    assert result.valid is True, (
        wrong,
        result.problems,
        [check.why_unknown for check in result.checks],
    )
    assert result.faults["kill:leader"] >= 1
