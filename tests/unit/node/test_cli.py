"""What users of `dledger-node` read when it cannot go on: one line, whatever has happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.node import cli
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
        (b"\xff\n", "secret_file {path} cannot be read: it is not text in UTF-8: byte 0 is 0xff"),
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
