"""The command line: what is wrong with it is said in one line, before anything is listened at."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

from broker.proxy.cli import main

NAMESRV = ("--namesrv", "127.0.0.1:9876")


@pytest.mark.parametrize("listen", ["8081", "127.0.0.1", ":8081", "host:", "host:x", "host:65536"])
def test_an_address_without_host_or_port_is_refused(
    listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NAMESRV, "--listen", listen]) == 2
    assert f"--listen {listen!r} is not HOST:PORT" in capsys.readouterr().err


def test_accounts_that_cannot_be_read_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain_acl.yml"
    for text in (None, "accounts: [{accessKey: short}]"):
        if text is not None:
            path.write_text(text)
        assert main([*NAMESRV, "--listen", "127.0.0.1:0", "--acl", str(path)]) == 2
        assert "--acl: " in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "proxy.log"
    assert main([*NAMESRV, "--listen", "127.0.0.1:0", "--log-file", str(path)]) == 2
    assert f"--log-file {path} cannot be written" in capsys.readouterr().err
