"""The session that jobs get, its formats, and the command."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from pipeline.cli import main


def test_workers_run_in_this_python_and_time_is_utc(spark: Any) -> None:
    seen = spark.sparkContext.range(1).map(lambda _: sys.executable).collect()
    assert seen == [sys.executable]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.integration
def test_the_command_says_what_it_runs_with(capsys: pytest.CaptureFixture[str], spark: Any) -> None:
    assert main(["environment", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == []
    assert found["java"].split(".")[0].isdigit()
