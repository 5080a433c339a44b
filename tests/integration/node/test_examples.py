"""The files in examples/node are what they claim to be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.node.config import read_node_file
from broker.node.plan import plan_node
from broker.node.supervisor import Supervisor

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[3] / "examples" / "node"
SERVICE = EXAMPLES / "dledger-node.service"
PAGE = EXAMPLES.parents[1] / "docs" / "node.md"


def test_the_example_plans_three_groups_without_a_warning() -> None:
    file = read_node_file((EXAMPLES / "node.toml").read_text(), folder=EXAMPLES)
    plans = [plan_node(file, machine, secret="s") for machine in file.machines]
    names = ["namesrv", "broker-a", "broker-b", "broker-c"]
    assert [[child.name for child in plan.children] for plan in plans] == [names] * 3
    strangers = "EVERYBODY"  # whoever reaches them, until there is access control
    assert [text for plan in plans for text in plan.warnings if strangers not in text] == []


def test_who_waits_for_a_supervisor_waits_longer_than_it_takes_itself() -> None:
    file = read_node_file((EXAMPLES / "node.toml").read_text(), folder=EXAMPLES)
    supervisor = Supervisor(plan_node(file, "alpha", secret="s"), print)
    texts = (SERVICE.read_text(), (EXAMPLES / "Containerfile").read_text(), PAGE.read_text())
    patterns = (r"^TimeoutStopSec=(\d+)$", r"--stop-timeout (\d+)", r"`TimeoutStopSec=(\d+)`")
    found = [re.search(one, text, re.M) for one, text in zip(patterns, texts, strict=True)]
    waits = {int(match[1]) for match in found if match}
    assert (len(found), len(waits)) == (3, 1)
    assert f"the supervisor itself takes {supervisor.stop_s_max:.0f} s at most" in " ".join(
        PAGE.read_text().split()
    )
    assert waits.pop() > supervisor.stop_s_max + 5  # which `dledger-node stop` waits


def test_systemd_leaves_stopped_what_was_stopped_in_order() -> None:
    assert re.findall(r"^Restart=(.*)$", SERVICE.read_text(), re.M) == ["on-failure"]


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd-analyze is not installed")
    # The program of the example is not installed here, which is all that may be wrong.
    unit = tmp_path / SERVICE.name
    unit.write_text(SERVICE.read_text().replace("/opt/dledger/bin/dledger-node", "/bin/true"))
    found = subprocess.run(
        [analyse, "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
