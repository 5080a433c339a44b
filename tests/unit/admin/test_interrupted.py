"""Ctrl-C ends a command with one line and the exit code for what is not known: nobody has found anything wrong.

So does an output that takes no more; what is no text is a wrong usage.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import trio

from broker.admin import cli, lag, looks, nodes
from broker.admin.ask import NodeAnswer


async def interrupted(*_: object, **__: object) -> None:
    """Be ended by Ctrl-C within a nursery, which wraps it."""

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)


@pytest.mark.parametrize("command", ["status", "verify", "snapshots", "lag"])
def test_an_interrupt_is_a_line_and_the_code_for_unknown(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(looks, "look_around", interrupted)
    monkeypatch.setattr(nodes, "addresses_of_group", interrupted)
    monkeypatch.setattr(lag, "consumer_lags", interrupted)
    assert cli.main([command, "-n", "127.0.0.1:1"]) == 3
    assert capsys.readouterr() == ("", "dledger-admin: interrupted\n")


@pytest.mark.parametrize("command", ["verify", "snapshots"])
def test_a_full_disk_behind_the_output_is_a_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nodes, "ask_all", nobody)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert cli.main([command, "-b", "127.0.0.1:1", "--json"]) == 3
    assert capsys.readouterr().err == "dledger-admin: [Errno 28] No space left on device\n"


def test_an_output_without_a_character_has_its_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "ask_all", nobody)
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert cli.main(["snapshots", "-b", "127.0.0.1:1"]) == 3
    assert b"h:1: \\u2603" in raw.getvalue()


@pytest.mark.parametrize(
    "words", [["config", "set", "-k", "\udcff", "-v", "1"], ["why", "\udcff", "-s", "."]]
)
def test_an_argument_that_is_no_text_is_a_wrong_usage(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ["-b", "127.0.0.1:1"] if words[0] == "config" else []
    assert cli.main([*words, *where]) == 2


async def nobody(_: object) -> list[NodeAnswer]:
    return [NodeAnswer("h:1", problem="\u2603")]
