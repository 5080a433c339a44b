"""The command line: what it refuses, and what it tells; nothing is started here."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from dledger import cli
from dledger.errors import (
    ConfigError,
    CorruptionError,
    LeadershipLostError,
    NotLeaderError,
    UsageError,
)
from dledger.group_secret import GroupSecret
from dledger.runtime.commands import EXIT_REFUSED, EXIT_UNKNOWN, EXIT_USAGE


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLEDGER_PEERS", raising=False)
    monkeypatch.delenv("DLEDGER_SECRET", raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["server"],
        ["append", "--count", "0"],
        ["append", "--data", "x", "--file", "y"],
        ["append", "--timeout", "0"],
        ["append", "--timeout", "nan"],
        ["get", "--index", "-1"],
        ["get", "--index", "one"],
    ],
)
def test_a_wrong_command_line_is_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == EXIT_USAGE
    assert "usage: dledger" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["append", "--peers", "nonsense"],
        ["append", "--peers", "n0-127.0.0.1:1", "--file", "/nowhere/at/all"],
        ["status", "--peers", "n0-127.0.0.1:1", "--secret-file", "/nowhere/at/all"],
        ["server", "--id", "n9", "--store", "unused"],
    ],
)
def test_a_wrong_configuration_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == EXIT_USAGE
    told = capsys.readouterr().err
    assert told.startswith("dledger: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["server", "append", "get", "status", "transfer"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main([command, "--help"])
    assert exit_info.value.code == 0
    told = capsys.readouterr().out
    assert "--peers" in told
    assert "--secret-file" in told


@pytest.mark.parametrize(
    ("error", "command", "code"),
    [
        (ConfigError("x"), "server", EXIT_USAGE),
        (UsageError("x"), "get", EXIT_USAGE),
        (NotLeaderError(None, 3), "append", EXIT_REFUSED),
        (LeadershipLostError("x"), "append", EXIT_UNKNOWN),
        (CorruptionError("data/0", 4096, "crc"), "server", EXIT_REFUSED),
        (ZeroDivisionError("x"), "server", EXIT_REFUSED),
        (KeyboardInterrupt(), "append", EXIT_UNKNOWN),
        (KeyboardInterrupt(), "status", EXIT_REFUSED),
        (ZeroDivisionError("x"), "append", EXIT_UNKNOWN),
    ],
)
def test_every_error_is_one_line_and_a_code(
    error: BaseException, command: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    group = BaseExceptionGroup("wrapped", [BaseExceptionGroup("twice", [error])])
    options = argparse.Namespace(command=command)
    assert cli._exit_with(cli._innermost(group), options) == code
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert told.count("\n") == 1


def test_the_secret_comes_from_the_file_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli._secret(cli._secret_file(argparse.Namespace(secret_file=None))) is None
    monkeypatch.setenv("DLEDGER_SECRET", "from the environment")
    nowhere = cli._secret_file(argparse.Namespace(secret_file=None))
    assert cli._secret(nowhere) == "from the environment"
    file = tmp_path / "secret"
    file.write_text("from the file\nand the one before\n")
    found = cli._secret(cli._secret_file(argparse.Namespace(secret_file=str(file))))
    assert isinstance(found, GroupSecret)
    assert found.accepted == ("from the file", "and the one before")
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        cli._secret_file(argparse.Namespace(secret_file=str(file)))
