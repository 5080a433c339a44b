"""Members whose access rules differ: the tool that shows the status names them until their files are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.guards import ACCOUNT, make_guards
from jepsen.processes import SMALL_SEGMENTS, Group, poll
from jepsen.systems.brokers import guard_group

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_S = 120.0
OTHER = "- {accessKey: somebody-else, secretKey: of-somebody-else}\n"


class TwoFiles:
    """A group of three, of which one has a file of rules of its own."""

    def __init__(self, folder: Path) -> None:
        self.group = Group(folder, settings=SMALL_SEGMENTS)
        guards = make_guards(folder, ("accounts",), ["127.0.0.1"])
        guard_group(self.group, guards)
        assert guards.rules is not None
        self.rules = guards.rules.read_text()
        own = folder / "own"
        own.mkdir()
        self.file = own / "plain_acl.yml"
        self.file.write_text(self.rules + OTHER)
        with (folder / "n2.conf").open("a") as conf:
            conf.write(f"aclFile={self.file}\n")
        self.keys = folder / "keys.yml"
        self.keys.write_text(f"accessKey: {ACCOUNT.access_key}\nsecretKey: {ACCOUNT.secret_key}\n")

    def reasons(self) -> dict[str, str] | None:
        """What the tool says of each member; None while the group has no leader."""
        command = [sys.executable, "-m", "broker.admin.cli", "--credentials", str(self.keys)]
        done = subprocess.run(
            [*command, "status", "-n", self.group.namesrv, "--strict", "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        groups = json.loads(done.stdout)["groups"] if done.stdout else []
        if not groups or not groups[0]["led"] or len(groups[0]["members"]) < 3:
            return None
        reasons = {one["id"]: one["reason"] for one in groups[0]["members"]}
        if any(reasons.values()):
            assert done.returncode == 1, done.stderr
        return reasons


@pytest.fixture
def two_files(tmp_path: Path) -> Iterator[TwoFiles]:
    found = TwoFiles(tmp_path / "group")
    with found.group as group:
        group.start()
        group.wait_listening()
        yield found


def test_who_differs_is_named_until_the_files_are_the_same(two_files: TwoFiles) -> None:
    def is_named() -> bool:
        reasons = two_files.reasons()
        return reasons is not None and {
            name for name, reason in reasons.items() if "access rules differ from" in reason
        } in ({"n2"}, {"n0", "n1"})  # whichever of them leads

    assert poll(is_named, PATIENCE_S), two_files.reasons()
    two_files.file.write_text("# the same, but for this line\n" + two_files.rules)
    assert poll(lambda: two_files.reasons() == dict.fromkeys(("n0", "n1", "n2"), ""), PATIENCE_S)
