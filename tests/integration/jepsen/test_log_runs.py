"""A log workload against real members, killed: what must hold, holds. `test_broken_programs.py` has more of them."""

from pathlib import Path

import pytest

from jepsen.run import RunSettings, execute
from tests.integration.jepsen.breaking import TIME_LIMIT_S, one_after_another

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_log_group_keeps_its_promises_while_leaders_are_killed(tmp_path: Path) -> None:
    settings = RunSettings("log-append", "kill:leader", TIME_LIMIT_S, seed=7)
    enough = one_after_another(1, {"append": 200, "read": 200})
    result = execute(settings, tmp_path, break_it=enough)
    wrong = [one for check in result.checks for one in check.anomalies]
    assert (wrong, result.problems) == ([], ())
    linearizable = result.checks[0]
    assert linearizable.name == "linearizable"
    assert linearizable.valid is True, linearizable
    assert result.faults["kill:leader"] == 1
