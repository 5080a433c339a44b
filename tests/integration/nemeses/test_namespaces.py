"""Namespaces join what they should, cut what they are told to, and leave nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from jepsen.nemeses import namespaces
from jepsen.nemeses.namespaces import (
    NamespaceError,
    NamespaceLinks,
    lacking_namespaces,
    remove_left_over,
)
from jepsen.processes import poll
from jepsen.systems.api import CLIENTS, CUT, WHOLE, Shape, UnsupportedShapeError

pytestmark = pytest.mark.integration

PORT = 5000
PATIENCE_S = 60.0

# Says what it hears, and from whom: "n0" for a datagram with that text.
LISTENS = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
while True:
    print(sock.recv(2000)[:20].decode(), flush=True)
"""
SENDS = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, DO: never in fragments
sock.sendto(sys.argv[3].encode().ljust(int(sys.argv[4])), (sys.argv[1], int(sys.argv[2])))
"""


class Net:
    """Two nodes that listen."""

    def __init__(self, links: NamespaceLinks, folder: Path) -> None:
        self.links = links
        self._heard = {name: folder / name for name in ("n0", "n1")}
        self._listeners = [self._listen(name) for name in self._heard]
        assert poll(lambda: all("up" in self.received(name) for name in self._heard), PATIENCE_S)

    def _listen(self, name: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", LISTENS, self.links.address(name), str(PORT)]
        with self._heard[name].open("wb") as out:
            return subprocess.Popen([*self.links.prefix(name), *words], stdout=out)

    def received(self, name: str) -> list[str]:
        return [line.strip() for line in self._heard[name].read_text().splitlines()]

    def send(self, source: str, target: str, text: str, size: int = 20) -> bool:
        """Send a datagram; whether the kernel took it."""
        prefix = [] if source == CLIENTS else self.links.prefix(source)
        words = [
            sys.executable,
            "-c",
            SENDS,
            self.links.address(target),
            str(PORT),
            text,
            str(size),
        ]
        return subprocess.run([*prefix, *words], capture_output=True, check=False).returncode == 0

    def receives(self, source: str, target: str, text: str) -> bool:
        """Whether it arrives, within a time that is generous; said again, as datagrams may be lost."""

        def arrives() -> bool:
            self.send(source, target, text)
            return text in self.received(target)

        return poll(arrives, PATIENCE_S)

    def close(self) -> None:
        for each in self._listeners:
            each.kill()
            each.wait()


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    if lacking := lacking_namespaces():
        pytest.skip(lacking)
    with NamespaceLinks(["n0", "n1"]) as links:
        made = Net(links, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_a_cut_link_is_cut_one_way_and_healed(net: Net) -> None:
    assert net.receives("n0", "n1", "whole")
    assert net.receives(CLIENTS, "n0", "clients")
    net.links.shape("n0", "n1", CUT)
    for _ in range(3):
        net.send("n0", "n1", "cut")
    assert net.receives("n1", "n0", "other way")
    assert net.receives(CLIENTS, "n1", "clients")  # later than what was cut, and it arrives
    assert "cut" not in net.received("n1")
    net.links.shape("n0", "n1", WHOLE)
    assert net.receives("n0", "n1", "whole again")
    net.links.shape(CLIENTS, "n1", CUT)
    net.send(CLIENTS, "n1", "cut")
    assert net.receives("n0", "n1", "others")
    net.links.heal()
    assert net.receives(CLIENTS, "n1", "clients again")
    assert "cut" not in net.received("n1")


def test_an_unplugged_node_hears_nobody(net: Net) -> None:
    assert net.receives("n0", "n1", "plugged")  # so that no datagram waits for an address
    net.links.set_plugged("n1", is_plugged=False)
    net.send("n0", "n1", "unplugged")
    net.links.heal()
    assert net.receives("n0", "n1", "again")
    assert "unplugged" not in net.received("n1")


def test_packets_are_small_until_healed(net: Net) -> None:
    assert net.send("n0", "n1", "large", 1200)
    net.links.set_mtu(600)
    assert not net.send("n0", "n1", "too large", 1200)
    assert net.send("n0", "n1", "small", 500)
    net.links.heal()
    assert net.send("n0", "n1", "large", 1200)


def test_a_rate_is_set_and_taken_away(net: Net) -> None:
    show = [*net.links.prefix("n0"), "tc", "qdisc", "show", "dev", "eth0"]
    net.links.shape("n0", "n1", Shape(bytes_per_s=125_000))
    assert "rate 1Mbit" in subprocess.run(show, capture_output=True, text=True, check=True).stdout
    net.links.heal()
    assert "tbf" not in subprocess.run(show, capture_output=True, text=True, check=True).stdout


def test_what_packets_cannot_do_is_refused(net: Net) -> None:
    with pytest.raises(UnsupportedShapeError):
        net.links.shape("n0", "n1", Shape(duplicate=0.5))
    with pytest.raises(UnsupportedShapeError):
        net.links.replay("n0", "n1", 1)


def ours() -> list[str]:
    folder = Path("/run/netns")
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return [name for name in names if name.startswith(f"jepsen-{os.getpid()}-")]


def test_nothing_is_left(net: Net) -> None:
    assert len(ours()) == 3
    net.close()
    net.links.close()
    assert ours() == []
    assert f"jp{os.getpid()}" not in [name for _, name in socket.if_nameindex()]


def test_what_a_killed_run_left_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking := lacking_namespaces():
        pytest.skip(lacking)
    links = NamespaceLinks(["n0"])
    try:
        links.start()
        assert f"jepsen-{os.getpid()}-n0" not in remove_left_over()
        monkeypatch.setattr(namespaces, "is_running", lambda pid: pid != os.getpid())
        assert f"jepsen-{os.getpid()}-n0" in remove_left_over()
        assert ours() == []
    finally:
        links.close()


@pytest.mark.parametrize("stays", [False, True])
def test_a_device_that_goes_by_itself_while_it_is_removed_is_no_failure(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([True, stays])

    def no_such_device(*words: str) -> str:
        raise NamespaceError(" ".join(words))

    monkeypatch.setattr(Path, "exists", lambda _: next(seen))
    monkeypatch.setattr(namespaces, "_run", no_such_device)
    with pytest.raises(NamespaceError) if stays else nullcontext():
        namespaces._remove_device("jp1")


def test_without_root_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    lacking = lacking_namespaces()
    assert lacking is not None
    assert "root" in lacking or "ip" in lacking
