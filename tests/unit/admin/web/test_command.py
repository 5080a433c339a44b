"""The subcommand `web`: where it listens, where its token comes from, and what it says without its extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from broker.admin import cli
from broker.admin.web import server
from broker.admin.web.command import VARIABLE
from broker.admin.web.web_options import WebOptions

NAMES = ["web", "-n", "127.0.0.1:1"]
SECRET = "sixteen letters!"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[WebOptions]:
    """The options with which the console would have been started."""
    found: list[WebOptions] = []

    def run(options: WebOptions) -> int:
        found.append(options)
        return 0

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(server, "run_console", run)
    return found


def test_by_default_it_only_reads_and_is_on_loopback(seen: list[WebOptions]) -> None:
    assert cli.main(NAMES) == 0
    (options,) = seen
    assert (str(options.listen), options.token) == ("127.0.0.1:8088", None)
    assert (options.may_change, options.is_open) == (False, True)


def test_changes_need_a_token_and_one_is_made(seen: list[WebOptions]) -> None:
    assert [cli.main([*NAMES, "--changes"]) for _ in range(2)] == [0, 0]
    first, second = seen
    assert first.is_token_new
    assert first.may_change
    assert first.token != second.token


def test_beyond_loopback_looking_needs_the_token(seen: list[WebOptions]) -> None:
    places = ("0.0.0.0:80", "192.0.2.1:80", "[::]:80", "console.example:80")
    assert [cli.main([*NAMES, "--listen", place]) for place in places] == [0] * 4
    assert [(each.is_open, each.token is None) for each in seen] == [(False, False)] * 4


@pytest.mark.parametrize("place", ["8089", "127.0.0.2:8089", "[::1]:8089", "localhost:8089"])
def test_loopback_is_open(seen: list[WebOptions], place: str) -> None:
    assert cli.main([*NAMES, "--listen", place]) == 0
    assert seen[0].is_open


def test_a_token_comes_from_a_file_or_the_environment(
    seen: list[WebOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET + " of the environment")
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    assert cli.main([*NAMES, "--changes"]) == 0
    assert cli.main([*NAMES, "--changes", "--token-file", str(file)]) == 0
    assert [each.token for each in seen] == [SECRET + " of the environment", SECRET]
    assert not any(each.is_token_new for each in seen)


def test_a_token_that_can_be_guessed_is_refused(
    seen: list[WebOptions], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert cli.main([*NAMES, "--token-file", str(file)]) == 2
    error = capsys.readouterr().err
    assert error == "dledger-admin: the token has 6 characters, and needs 16\n"
    assert not seen


def test_without_the_extra_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    monkeypatch.delitem(sys.modules, "broker.admin.web.server")
    assert cli.main(NAMES) == 2
    assert "which comes with the extra `web`" in capsys.readouterr().err


def test_an_address_that_is_taken_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_options: WebOptions) -> int:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(server, "run_console", run)
    assert cli.main(NAMES) == 3
    error = capsys.readouterr().err
    assert error == "dledger-admin: cannot listen on 127.0.0.1:8088: Address already in use\n"
