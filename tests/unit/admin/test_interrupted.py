"""Ctrl-C ends a command with one line and the exit code for what is not known: nobody has found anything wrong."""

from __future__ import annotations

import pytest
import trio

from broker.admin import cli, lag, looks, nodes


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
