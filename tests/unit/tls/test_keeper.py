"""Certificates of a process: loaded again when they change, and kept when what is new cannot be used."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import ssl
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from broker.settings.tls import TlsMode, TlsSettings
from broker.tls.keeper import LOOK_S, TlsKeeper, tls_warnings
from dledger import ConfigError
from dledger_mq.net.tls import TlsEnd, TlsError
from dledger_mq.net.tls_contexts import TlsFiles
from tests.certificates import HOST, client_side, write_files


def replace(files: TlsFiles, by: TlsFiles) -> None:
    """Put other files in the place of some, as tools do that renew certificates: each at once."""
    for old, new in zip(files.paths, by.paths, strict=True):
        beside = f"{old}.new"
        shutil.copy(new, beside)
        Path(beside).replace(old)


def believed(keeper: TlsKeeper, client: ssl.SSLContext) -> bool:
    """Whether a client goes on with what the port shows now."""
    assert keeper.door is not None
    server, near = keeper.door.meet(), TlsEnd(client, is_server=False, host=HOST)
    server.decrypt(near.begin())
    try:
        near.decrypt(server.take_output())
    except TlsError:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def serving(folder: Path) -> tuple[TlsFiles, TlsKeeper]:
    files = write_files(folder / "here")
    return files, TlsKeeper(TlsSettings(mode=TlsMode.PERMISSIVE, server=files))


def test_new_files_are_used_for_who_comes_then(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, keeper = serving(folder)
    ours, strangers = client_side(folder / "c"), client_side(folder / "c", "strangers")
    assert believed(keeper, ours)
    replace(files, write_files(folder / "new", "strangers"))
    assert believed(keeper, ours)  # until it looks
    with caplog.at_level(logging.INFO):
        keeper.look()
    assert not believed(keeper, ours)
    assert believed(keeper, strangers)
    assert f"TLS: {', '.join(files.paths)} were loaded again" in caplog.text


def test_a_file_that_cannot_be_used_changes_nothing_and_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, keeper = serving(folder)
    ours = client_side(folder / "c")
    Path(files.certificate).write_text("half of a certi")
    for _ in range(3):
        keeper.look()
    assert believed(keeper, ours)
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"TLS stays as it was: {files.certificate} and {files.key} do not hold")
    replace(files, write_files(folder / "new"))
    keeper.look()
    assert believed(keeper, ours)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EMFILE])
def test_what_cannot_be_read_for_a_moment_is_read_at_the_next_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """It was taken away between two steps of a look, or there were no descriptors left."""
    files, keeper = serving(folder)
    strangers = client_side(folder / "c", "strangers")
    replace(files, write_files(folder / "new", "strangers"))

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_cert_chain", fail)
        for _ in range(3):
            keeper.look()
    assert not believed(keeper, strangers)
    keeper.look()
    assert believed(keeper, strangers)
    assert [each.levelname for each in caplog.records].count("ERROR") == 1


def test_a_certificate_that_comes_before_its_key_waits_for_it(folder: Path) -> None:
    files, keeper = serving(folder)
    new, strangers = (
        write_files(folder / "new", "strangers"),
        client_side(folder / "c", "strangers"),
    )
    shutil.copy(new.certificate, files.certificate)
    keeper.look()
    assert not believed(keeper, strangers)
    shutil.copy(new.key, files.key)
    keeper.look()
    assert believed(keeper, strangers)


def test_files_that_stay_are_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, keeper = serving(folder)
    before = keeper._now
    keeper.look()
    assert keeper._now is before


async def test_it_looks_by_itself(folder: Path, autojump_clock: MockClock) -> None:
    files, keeper = serving(folder)
    strangers = client_side(folder / "c", "strangers")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        replace(files, write_files(folder / "new", "strangers"))
        await trio.sleep(2 * LOOK_S)
        assert believed(keeper, strangers)
        nursery.cancel_scope.cancel()


def test_what_is_not_used_is_not_loaded() -> None:
    nowhere = TlsFiles("/no/cert", "/no/key")
    keeper = TlsKeeper(TlsSettings(server=nowhere, client=nowhere))
    assert keeper.door is None
    assert keeper.client() is None
    with pytest.raises(ConfigError, match="TLS: /no/cert cannot be read: No such file"):
        TlsKeeper(TlsSettings(mode=TlsMode.ENFORCING, server=nowhere))


def test_what_is_opened_is_encrypted_where_that_is_wanted(folder: Path) -> None:
    files = write_files(folder)
    checking = TlsKeeper(TlsSettings(dials=True, client=TlsFiles(trust=files.trust))).client()
    assert checking is not None
    assert checking.verify_mode is ssl.CERT_REQUIRED
    assert checking.check_hostname
    anybody = TlsSettings(dials=True, checks_servers=False)
    trusting = TlsKeeper(anybody).client()
    assert trusting is not None
    assert trusting.verify_mode is ssl.CERT_NONE
    assert tls_warnings(anybody) == [
        "tls.client.authServer=false: connections are encrypted to whoever answers, who may be anybody"
    ]


@pytest.mark.skipif(os.name != "posix", reason="files have no such permissions there")
def test_a_key_that_everybody_can_read_is_warned_of(folder: Path) -> None:
    files = write_files(folder)
    settings = TlsSettings(mode=TlsMode.PERMISSIVE, server=files)
    assert tls_warnings(settings) == []
    Path(files.key).chmod(0o604)
    (warning,) = tls_warnings(settings)
    assert warning.startswith(f"{files.key}, a key, can be read by everybody")
    assert tls_warnings(TlsSettings(server=files)) == []  # it is not used


def test_an_offer_without_a_certificate_is_warned_of() -> None:
    settings = TlsSettings(mode=TlsMode.PERMISSIVE)
    assert TlsKeeper(settings).door is None
    (warning,) = tls_warnings(settings)
    assert "only plain text is taken" in warning
