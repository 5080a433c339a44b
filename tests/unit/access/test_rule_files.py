"""The files of access rules: what counts as a change of them, and what as a disk that cannot say."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.access.errors import AccessRulesError
from broker.access.rule_files import RuleFiles


def write(path: Path, name: str, secret: str = "secret-of-it") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'accounts:\n- {{accessKey: {name}, secretKey: "{secret}"}}\n')
    path.chmod(0o600)


def test_accounts_of_a_file_that_cannot_be_looked_at_do_not_count_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RuleFiles(tmp_path / "plain_acl.yml")
    write(files.path, "of-the-file")
    write(tmp_path / "acl" / "more.yml", "of-the-folder")
    assert set(files.read().accounts) == {"of-the-file", "of-the-folder"}
    stat = Path.stat

    def failing(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == files.path and follow_symlinks:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", failing)
        for look in (files.has_changed, files.read):
            with pytest.raises(AccessRulesError, match=r"plain_acl\.yml cannot be read: Input"):
                look()
    files.path.rename(tmp_path / "elsewhere")
    files.path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(AccessRulesError, match="a link to what is not there"):
        files.read()
    files.path.unlink()
    assert set(files.read().accounts) == {"of-the-folder"}


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RuleFiles(tmp_path / "plain_acl.yml")
    write(files.path, "of-the-file")
    write(tmp_path / "acl" / "more.yml", "of-the-folder")

    def failing(path: str | Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing)
        with pytest.raises(AccessRulesError, match="acl cannot be read: Too many open files"):
            files.read()
    (tmp_path / "acl" / "more.yml").unlink()
    (tmp_path / "acl").rmdir()
    (tmp_path / "acl").write_text("a file of this name is no folder of rules")
    assert set(files.read().accounts) == {"of-the-file"}


@pytest.mark.parametrize("word", ["secretKey", "accessKey"])
def test_half_a_character_is_told_of_as_any_other_mistake(tmp_path: Path, word: str) -> None:
    """Whatever else was raised ended the process that watches its files."""
    files = RuleFiles(tmp_path / "plain_acl.yml")
    write(files.path, "somebody")
    files.read()
    half = {"accessKey": '"somebody"', "secretKey": '"secret-of-it"', word: '"\\ud800-and-more"'}
    pairs = ", ".join(f"{key}: {text}" for key, text in half.items())
    files.path.write_text(f"accounts:\n- {{{pairs}}}\n")
    with pytest.raises(AccessRulesError, match=f"account 1: {word} has half a character"):
        files.read()
