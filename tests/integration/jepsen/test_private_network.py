"""What is started in a private network finds each other there, and nobody outside finds it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen.private_network import lacking_private_network, private_network

pytestmark = pytest.mark.integration

SERVES = """
import socket
with socket.create_server(("0.0.0.0", 0)) as server:
    print(server.getsockname()[1], flush=True)
    server.accept()[0].sendall(b"inside")
    input()
"""


@pytest.fixture(autouse=True)
def able() -> None:
    if reason := lacking_private_network():
        pytest.skip(reason)


def network() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


def test_a_server_on_all_addresses_is_reached_inside_only() -> None:
    before = network()
    with private_network():
        assert network() != before
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        server = subprocess.Popen(
            [sys.executable, "-c", SERVES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        address = ("127.0.0.1", int(server.stdout.readline()))
        with socket.create_connection(address) as connection:
            assert connection.recv(100) == b"inside"
    assert network() == before
    assert Path(f"/proc/{server.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    server.communicate("")


def test_whoever_fails_inside_is_outside_again() -> None:
    before = network()
    with pytest.raises(ZeroDivisionError), private_network():
        raise ZeroDivisionError
    assert network() == before


def test_what_is_lacking_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "unshare" in (lacking_private_network() or "")
    monkeypatch.undo()
    refused = subprocess.CompletedProcess([], 1, "", "Operation not permitted")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_named: refused)
    assert lacking_private_network() == (
        "a network namespace cannot be made: Operation not permitted"
    )
