"""What TLS costs a server in processor time, for each message and each connection, beside plain text in the same run.

    python -m bench.tls_cost [--turns 7] [--messages 20000] [--connections 400]

A server of `broker.net` that echoes 1.2 KB, in a process of its own whose time is counted by the scheduler. Kinds take
turns, so that other work on the machine strikes all; medians are printed, with the least and the most.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio
import trustme
from rich.console import Console
from rich.table import Table

from broker.net.listener import Listener
from broker.net.tls_door import TlsDoor
from dledger_mq.net.address import Address
from dledger_mq.net.frame_socket import FrameSocket
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.net.tls_contexts import TlsFiles, client_context, server_context
from dledger_mq.remoting.frame import Frame, encode_frame

HOST: Final = "127.0.0.1"
IN_FLIGHT: Final = 64
MESSAGE: Final = encode_frame(b"{}", bytes(1200))
KINDS: Final = ("plain", "permissive", "TLS", "mutual TLS")
"""Plain text on a port without TLS and on one that takes both; TLS; TLS with certificates of both sides."""

ENCRYPTED: Final = KINDS[2:]


def serve(kind: str, folder: Path) -> None:
    """Echo until killed; print the port."""
    files = files_in(folder)
    door = None
    if kind != "plain":
        context = server_context(
            files, ssl.CERT_REQUIRED if kind == "mutual TLS" else ssl.CERT_NONE
        )
        door = TlsDoor(lambda: context, takes_plain_text=kind == "permissive")

    def echo(connection: FrameSocket, frames: list[Frame]) -> None:
        connection.send_many([encode_frame(frame.header, frame.body) for frame in frames])

    async def run() -> None:
        sock = bind(Address(HOST, 0))
        sys.stdout.write(f"{bound_address(sock).port}\n")
        sys.stdout.flush()
        await Listener(echo, door=door).run([sock])

    with contextlib.suppress(KeyboardInterrupt):
        trio.run(run)


def files_in(folder: Path) -> TlsFiles:
    """Return the certificate, its key and who signed it."""
    return TlsFiles(
        certificate=str(folder / "cert.pem"),
        key=str(folder / "key.pem"),
        trust=str(folder / "ca.pem"),
    )


def make_files(folder: Path) -> None:
    """Write them; the key is of ECDSA, as most are."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert(HOST, key_type=trustme.KeyType.ECDSA)
    (folder / "cert.pem").write_bytes(leaf.cert_chain_pems[0].bytes())
    (folder / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))


class MeasuredServer:
    """A server of one kind, and those who connect to it."""

    def __init__(self, kind: str, folder: Path) -> None:
        command = [sys.executable, "-m", "bench.tls_cost", "--serve", kind, "--folder", str(folder)]
        self.kind = kind
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "it is a pipe"
        self._port = int(self._process.stdout.readline())
        self._tls: ssl.SSLContext | None = None
        if kind in ENCRYPTED:
            files = files_in(folder)
            is_mutual = kind == "mutual TLS"
            self._tls = client_context(files if is_mutual else TlsFiles(trust=files.trust))

    def connect(self) -> socket.socket:
        """Open a connection, and encrypt it where the server wants it."""
        near = socket.create_connection((HOST, self._port), timeout=60.0)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return near if self._tls is None else self._tls.wrap_socket(near, server_hostname=HOST)

    def cost_us(self, act: Callable[[], int]) -> float:
        """Return the server's processor time, in microseconds, for each of those that an act says it has done."""
        before = self._spent_ns()
        count = act()
        return (self._spent_ns() - before) / 1000 / count

    def _spent_ns(self) -> int:
        """Return the time of the server's thread, of which it has one."""
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def receive(near: socket.socket, size: int) -> None:
    """Read so many bytes."""
    left = size
    while left:
        data = near.recv(min(left, 1 << 20))
        assert data, "the server has closed"
        left -= len(data)


def together(server: MeasuredServer, messages: int) -> Callable[[], int]:
    """Return what sends on one connection that is there, with IN_FLIGHT in flight."""
    near = settled(server)

    def act() -> int:
        with near:
            for _ in range(messages // IN_FLIGHT):
                near.sendall(MESSAGE * IN_FLIGHT)
                receive(near, len(MESSAGE) * IN_FLIGHT)
        return messages

    return act


def alone(server: MeasuredServer, messages: int) -> Callable[[], int]:
    """Return what sends one by one on IN_FLIGHT connections that are there."""
    crowd = [settled(server) for _ in range(IN_FLIGHT)]

    def act() -> int:
        for _ in range(messages // IN_FLIGHT):
            for near in crowd:
                near.sendall(MESSAGE)
            for near in crowd:
                receive(near, len(MESSAGE))
        for near in crowd:
            near.close()
        return messages

    return act


def settled(server: MeasuredServer) -> socket.socket:
    """Return a connection whose handshake is done on both sides."""
    near = server.connect()
    near.sendall(MESSAGE)
    receive(near, len(MESSAGE))
    return near


def connecting(server: MeasuredServer, connections: int) -> Callable[[], int]:
    """Connect, send one message and leave."""

    def act() -> int:
        for _ in range(connections):
            with server.connect() as near:
                near.sendall(MESSAGE)
                receive(near, len(MESSAGE))
        return connections

    return act


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[list[MeasuredServer]]:
    """One of each kind."""
    with ExitStack() as stack:
        made = [MeasuredServer(kind, folder) for kind in KINDS]
        for server in made:
            stack.callback(server.close)
        yield made


def _shown(costs_us: Sequence[float]) -> str:
    return f"{statistics.median(costs_us):.1f} ({min(costs_us):.1f}-{max(costs_us):.1f})"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="bench.tls_cost", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--messages", type=int, default=20_000, help="of a turn")
    parser.add_argument("--connections", type=int, default=400, help="of a turn")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder)
        return 0
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        with servers(folder) as made:
            for _ in range(options.turns):
                for server in made:
                    for what, make, count in (
                        ("a message, 64 together", together, options.messages),
                        ("a message, each alone", alone, options.messages),
                        ("a connection, with one message", connecting, options.connections),
                    ):
                        cost_us = server.cost_us(make(server, count))
                        found.setdefault((what, server.kind), []).append(cost_us)
    table = Table("processor time of the server, us", *KINDS)
    for what in dict.fromkeys(what for what, _ in found):
        table.add_row(what, *(_shown(found[what, kind]) for kind in KINDS))
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
