"""The settings files that a supervisor writes for its processes."""

from __future__ import annotations

from pathlib import Path

from broker.node.config import read_node_file
from broker.node.plan import plan_node
from broker.node.supervisor import write_files


def test_a_file_that_everybody_could_read_is_for_its_owner_alone_afterwards(tmp_path: Path) -> None:
    file = read_node_file('secret_file = "s"\n[machines]\nhere = "127.0.0.1"\n', folder=tmp_path)
    plan = plan_node(file, "here", secret="s3cret")
    conf = plan.folder / "conf" / "broker-a.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("old\n")
    conf.chmod(0o644)
    write_files(plan)
    found = {path.name: path.stat().st_mode & 0o777 for path in conf.parent.iterdir()}
    assert found == dict.fromkeys(("namesrv.conf", "broker-a.conf"), 0o600)
    assert not any("s3cret" in path.read_text() for path in conf.parent.iterdir())
    assert not any("s3cret" in word for child in plan.children for word in child.command)


def test_files_that_are_right_are_not_written_again(tmp_path: Path) -> None:
    file = read_node_file('[machines]\nhere = "127.0.0.1"\n', folder=tmp_path)
    plan = plan_node(file, "here", secret=None)
    write_files(plan)
    before = {path: path.stat().st_ino for path in (plan.folder / "conf").iterdir()}
    write_files(plan)
    assert {path: path.stat().st_ino for path in (plan.folder / "conf").iterdir()} == before
