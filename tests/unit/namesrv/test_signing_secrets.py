"""The secrets with which registrations are signed: by name, for all others, and while they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.namesrv.errors import NameServerConfigError
from broker.namesrv.signing_secrets import SigningSecrets


def write(path: Path, text: str) -> None:
    """Put another file in its place, for its owner's eyes."""
    beside = path.with_name("beside")
    beside.touch(mode=0o600)
    beside.write_text(text)
    beside.replace(path)


def test_a_name_has_its_own_secrets_or_those_of_all_others(tmp_path: Path) -> None:
    names, group = tmp_path / "names", tmp_path / "group"
    write(group, "of the group\n")
    write(names, "a one\na two\n")
    secrets = SigningSecrets(file=names, group=str(group))
    assert secrets.accepted("a") == ("one", "two")
    assert secrets.accepted("b") == ("of the group",)
    write(names, "a two\n* three\n")
    write(group, "new\nof the group\n")
    secrets.look()
    assert secrets.accepted("a") == ("two",)
    assert secrets.accepted("b") == ("three",)
    assert SigningSecrets().accepted("a") == ()


def test_files_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    names = tmp_path / "names"
    write(names, "a one\n")
    secrets = SigningSecrets(file=names)
    for bad in ("", "a\n", "a 1\na 2\na 3\n"):
        write(names, bad)
        secrets.look()
        assert secrets.accepted("a") == ("one",)
        with pytest.raises(NameServerConfigError, match="--secret-file"):
            SigningSecrets(file=names)
    names.chmod(0o644)
    with pytest.raises(NameServerConfigError, match="can be read or changed by everybody"):
        SigningSecrets(file=names)
    with pytest.raises(NameServerConfigError, match="--group-secret-file /no/file cannot be read"):
        SigningSecrets(group="/no/file")


def test_a_file_is_read_once_it_is_closed_to_others_as_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """chmod changes neither its size nor the time of its last change."""
    names = tmp_path / "names"
    write(names, "a one\n")
    secrets = SigningSecrets(file=names)
    write(names, "a another\n")
    names.chmod(0o604)
    for _ in range(3):
        secrets.look()
    assert secrets.accepted("a") == ("one",)
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    names.chmod(0o600)
    secrets.look()
    assert secrets.accepted("a") == ("another",)
