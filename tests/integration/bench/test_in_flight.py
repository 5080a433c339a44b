"""`bench.in_flight` holds what it has popped, and measures without and with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_both_looks_are_taken_and_every_second_message_is_held() -> None:
    command = [sys.executable, "-m", "bench.in_flight", "--mib", "4", "--groups", "2"]
    command += ["--seconds", "1", "--per-second", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["without"]["in_flight"] == 0
    assert found["with_it"]["in_flight"] > 3000, "half of what two groups have popped"
    for look in (found["without"], found["with_it"]):
        assert look["leader_mib"] > 10
        assert look["pops"]["count"] == 200
    assert found["taken_per_s"] > 0
