"""A short soak of real brokers: members die and are replaced under load, and every message is accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jepsen.cli import main
from jepsen.soak import course, load, turns
from jepsen.soak.load import SteadyLoad
from tests.integration.jepsen.breaking import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.integration]


MADE = ["kill-leader", "stop-follower", "replace-follower"]
ENOUGH = 1000


def has_done_enough(self: course._Course, _load: SteadyLoad) -> bool:
    """Let the work end a soak, and no clock: a busy machine needs longer for the same."""
    soak = self._soak
    assert soak.turns is not None
    return len(soak.turns.done) >= len(MADE) and soak.ledger.counts["acknowledged"] >= ENOUGH


def test_a_short_soak_keeps_every_promise_and_says_that_it_was_too_short_for_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course._Course, "_is_over", has_done_enough)
    monkeypatch.setattr(course, "RATE_SHARE_MIN", 0.0)
    for module, names in (
        (course, ("DRAIN_S",)),
        (turns, ("LEAD_S", "WHOLE_S", "CHANGE_S")),
        (load, ("SEND_TIMEOUT_S",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, PATIENCE_S)
    folder = tmp_path / "soak"
    # However long it takes, nothing is deleted before it is read.
    options = ["--hours", "0.01", "--rate", "200", "--retention", "600", "--pause", "0.5"]
    code = main(["soak", *options, "--seed", "7", "--keep", str(folder), "--json"])
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert result == json.loads((folder / "results.json").read_text())
    checks = {check["name"]: check for check in result["checks"]}
    kept = {name: check["valid"] for name, check in checks.items()}
    assert kept == dict.fromkeys(kept, True) | {"flatness": None}, told.err
    assert (code, result["verdict"]) == (2, "unknown")
    assert "too short" in checks["flatness"]["why_unknown"]
    assert result["problems"] == []
    assert list(result["turns"])[:3] == MADE
    counts = checks["messages"]["counts"]
    assert counts["read"] == counts["acknowledged"] == counts["sent"] >= ENOUGH
    samples = (folder / "samples.jsonl").read_text().splitlines()
    lives = {json.loads(line)["name"] for line in samples}
    assert {"n0", "n1", "n2", "n3", "namesrv0"} <= lives


def test_a_folder_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text("{}")
    assert main(["soak", "--keep", str(tmp_path)]) == 2
    assert "holds something already" in " ".join(capsys.readouterr().err.split())
