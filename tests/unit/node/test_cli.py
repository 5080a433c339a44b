"""What users of `dledger-node` read when it cannot go on: one line, whatever has happened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from broker.node import cli
from broker.node.config import read_node_file
from broker.node.plan import plan_node, plan_to_look
from broker.node.status import STATUS_NAME, NodeStatus
from broker.processes.child import ChildStatus
from broker.processes.identity import process_of
from dledger import ConfigError
from dledger.errors import StoreLockedError


def run_on_error(
    error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> int:
    """Let the supervisor end with an error; returns the exit status."""

    def fail(*_: object) -> None:
        raise error

    file = folder / "node.toml"
    file.write_text('[machines]\nhere = "127.0.0.1"\n')
    monkeypatch.setattr("trio.run", fail)
    return cli.main(["-c", str(file), "--machine", "here", *options])


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("the ports do not fit"), 2, "dledger-node: the ports do not fit"),
        (StoreLockedError("in use by process 7"), 1, "dledger-node: in use by process 7"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (
            OSError(13, "Permission denied", "/d/lock"),
            1,
            "dledger-node: /d/lock: Permission denied",
        ),
        (
            ZeroDivisionError("division by zero"),
            1,
            "internal error, please report it: ZeroDivisionError: division by zero (--log-level debug shows where)",
        ),
        (KeyboardInterrupt(), 1, "dledger-node: interrupted"),
    ],
)
def test_whatever_ends_it_is_one_line_and_a_status(
    error: BaseException,
    status: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = BaseExceptionGroup("a nursery's", [BaseExceptionGroup("another's", [error])])
    assert run_on_error(group, tmp_path, monkeypatch) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert line in last


def test_where_an_internal_error_was_raised_is_shown_when_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", logger="broker"):
        run_on_error(ZeroDivisionError("x"), tmp_path, monkeypatch, "--log-level", "debug")
    (record,) = [one for one in caplog.records if one.message == "internal error"]
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "secret_file {path} cannot be read: No such file or directory"),
        (b"", "secret_file {path}: its first line is empty"),
        (b"\nsecond", "secret_file {path}: its first line is empty"),
        (b"\xff\n", "secret_file {path} cannot be read: it is not text in UTF-8"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_with_its_place(
    content: bytes | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
    file = tmp_path / "node.toml"
    file.write_text('secret_file = "secret"\n[machines]\nhere = "127.0.0.1"\n')
    assert cli.main(["-c", str(file), "--machine", "here", "check"]) == 2
    assert f"{file}: {reason.format(path=secret)}" in capsys.readouterr().err


def node_file(folder: Path) -> list[str]:
    """Write a node.toml; returns the options that name it."""
    folder.mkdir(exist_ok=True)
    file = folder / "node.toml"
    file.write_text('[machines]\nhere = "127.0.0.1"\n')
    return ["-c", str(file), "--machine", "here"]


@pytest.mark.parametrize(
    "wrong",
    [
        'secret_file = "gone"\n',
        'tls_config_file = "gone"\n',
        "[broker]\naclEnable = 7\nflushDiskType = 'NEVER'\nauthenticationEnabled = true\n",
    ],
)
def test_what_runs_is_seen_and_stopped_whatever_has_become_of_its_settings(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    is_table = wrong.startswith("[")
    machines = '[machines]\nhere = "127.0.0.1"\n'
    file.write_text(machines + wrong if is_table else wrong + machines)
    options = ["-c", str(file), "--machine", "here"]
    assert cli.main([*options, "check"]) == 2
    capsys.readouterr()
    assert (cli.main([*options, "status"]), cli.main([*options, "stop"])) == (1, 0)
    assert "here is not running" in capsys.readouterr().out


def test_processes_are_looked_for_by_the_commands_with_which_they_were_started(
    tmp_path: Path,
) -> None:
    text = (
        'secret_file = "s"\nlog_folder = "logs"\nlog_level = "debug"\n[ports]\nmetrics = 5557\n'
        '[machines]\nhere = "127.0.0.1"\n'
    )
    file = read_node_file(text, folder=tmp_path)
    started, looked = plan_node(file, "here", secret="s"), plan_to_look(file, "here")
    assert [each.program for each in looked.children] == [each.program for each in started.children]
    assert [each.address for each in looked.children] == [each.address for each in started.children]
    assert looked.folder == started.folder


@pytest.mark.parametrize(("action", "status"), [("check", 0), ("status", 1), ("stop", 0)])
def test_a_folder_is_shown_as_it_is_called(
    action: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "of [b]all"
    assert cli.main([*node_file(folder), action]) == status
    shown = capsys.readouterr()
    assert str(folder / "data" / "here") in shown.out + shown.err


def test_a_check_for_scripts_is_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = node_file(tmp_path)
    file = tmp_path / "node.toml"
    file.write_text(file.read_text() + '[broker]\nflushDiskType = "ASYNC_FLUSH"\n')
    assert cli.main(["--json", *options, "check"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (warning,) = shown.pop("warnings")
    assert "ASYNC_FLUSH" in warning
    assert shown == {
        "machine": "here",
        "folder": str(tmp_path / "data" / "here"),
        "addresses": {"namesrv": "127.0.0.1:9876", "broker-a": "127.0.0.1:10911"},
        "has_left": False,
        "changes": [],
    }


def test_a_machine_that_joins_is_told_what_to_order_and_one_that_left_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["-c", str(tmp_path / "node.toml"), "--machine"]
    (tmp_path / "node.toml").write_text(
        'left = ["here"]\n[machines]\nhere = "127.0.0.1"\n[joined]\nthere = "127.0.0.2"\n'
    )
    assert cli.main([*options, "there", "check"]) == 0
    shown = capsys.readouterr().out
    assert "waits until its members are added" in shown
    order = 'dledger-admin members add n1-127.0.0.2:20911 -g broker-a -n "127.0.0.2:9876"'
    assert order in shown.splitlines()[-1]
    assert cli.main([*options, "here", "check"]) == 0
    assert "machine here has left" in capsys.readouterr().out
    assert cli.main([*options, "here"]) == 1
    assert "machine here has left: its members are removed" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_since_when_one_is_down_is_shown_only_if_somebody_saw_it_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = node_file(tmp_path)
    own = process_of(os.getpid())
    assert own is not None
    children = (
        ChildStatus("namesrv", own.pid, 5, start="an-earlier-boot/1"),
        ChildStatus("broker-a", None, 5, last_end="was ended by SIGKILL"),
    )
    folder = tmp_path / "data" / "here"
    folder.mkdir(parents=True)
    status = NodeStatus(own.pid, "here", children, own.start)
    (folder / STATUS_NAME).write_bytes(msgspec.json.encode(status))
    assert cli.main([*options, "status"]) == 1
    name_server, broker = (
        [cell.strip() for cell in line.split("\u2502")[3:5]]
        for line in capsys.readouterr().out.splitlines()
        if "namesrv" in line or "broker-a" in line
    )
    assert name_server == ["down", "-"]
    assert broker[0] == "down"
    assert broker[1].endswith(" s")
    assert cli.main([*options, "--json", "status"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [child["since_ms"] for child in shown["children"]] == [None, 5]


def test_the_help_says_what_each_exit_code_means_of_each_action(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    codes = capsys.readouterr().out.partition("exit codes:")[2]
    failed = codes.partition("  1  ")[2].partition("  2  ")[0]
    assert "status: not all of it runs" in failed
    assert "stop: something still runs" in failed
