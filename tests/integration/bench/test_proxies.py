"""`bench.proxies` measures our proxy where Apache's is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_ours_is_measured_alone_where_the_other_is_lacking(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.proxies", "--rounds", "1", "--seconds", "1"]
    command += ["--heat", "0.5", "--backlog-mib", "16", "--interop", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    measured = {
        proxy: [each for each in found["costs"] if each["proxy"] == proxy]
        for proxy in ("ours", "empty")
    }
    assert sum(map(len, measured.values())) == len(found["costs"])
    sends = ["send x 1", "send x 64"]
    assert [each["work"] for each in measured["ours"]] == [*sends, "receive x 8"]
    assert [each["work"] for each in measured["empty"]] == sends
    assert all(each["per_second"] > 0 for each in found["costs"])
    assert all(each["brokers_us"] > 0 for each in measured["ours"])
    assert found["own_mib"]["ours"] > 10
    assert found["lacking"]
