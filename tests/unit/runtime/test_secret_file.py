"""The file with a group's secret: what may stand in it, and what becomes of it when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dledger.errors import ConfigError
from dledger.group_secret import GroupSecret, read_secrets
from dledger.runtime.secret_file import LOOK_S, SecretFile


def replace(path: Path, text: str) -> None:
    """Put another file in its place, at once."""
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.replace(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("one\n", ("one",)),
        (" one \n\n# two is to come\n", ("one",)),
        ("new\nold\n", ("new", "old")),
    ],
)
def test_what_stands_in_a_file(text: str, found: tuple[str, ...]) -> None:
    assert read_secrets(text) == found


@pytest.mark.parametrize("text", ["", "\n", "\none\n", "  \none", "# one\n", "a1\na2\na3\n"])
def test_an_unclear_file_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_secrets(text)
    assert "a1" not in str(refused.value)


def test_a_secret_is_not_shown_by_mistake() -> None:
    assert "one" not in f"{GroupSecret('one', 'two')!r}"
    with pytest.raises(ConfigError, match="the secret is empty"):
        GroupSecret.of("")


async def test_a_changed_file_counts_and_a_bad_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    del autojump_clock
    caplog.set_level(logging.INFO)
    path = tmp_path / "secret"
    path.write_text("first0\n")
    path.chmod(0o644)
    file = SecretFile(str(path), "--secret-file")
    (warning,) = file.warnings()
    assert warning.endswith(f"run chmod o-rwx {path}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        replace(path, "second\nfirst0\n")
        await trio.sleep(LOOK_S * 1.5)
        assert file.secret.accepted == ("second", "first0")
        for bad in ("", "a1\na2\na3\n"):
            replace(path, bad)
            await trio.sleep(LOOK_S)
            assert file.secret.accepted == ("second", "first0")
        path.unlink()
        await trio.sleep(LOOK_S)
        assert file.secret.shown == "second"
        replace(path, "second\n")
        await trio.sleep(LOOK_S)
        assert file.secret.accepted == ("second",)
        nursery.cancel_scope.cancel()
    said = caplog.text
    assert said.count("stays as it was") == 3
    assert not any(secret in said for secret in ("first0", "second\n", "a1"))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="--secret-file /no/file cannot be read: No such file"):
        SecretFile("/no/file", "--secret-file")
