"""Links as proxies: every directed link between members, and between clients and members, in user space.

Nothing on the machine is needed or changed: all of 127.0.0.0/8 is the loopback device, so the proxies stand
on other addresses of it and keep the ports. A member listens on 127.0.0.1; its own `--peers` names for each other
member the proxy from it to that member:

    n0 --peers n0-127.0.0.1:P0;n1-127.16.0.2:P1;n2-127.16.0.3:P2      and 127.16.0.2:P1 leads to 127.0.0.1:P1

Clients, and the link between brokers, find a broker under the address that it registers (`brokerIP1`). With
`--listen 127.0.0.1:C0` and `brokerIP1=127.15.0.1` that is a proxy, too, and its first frame says who speaks.
Not on proxies: the name servers, and an observer that asks members under their real addresses.
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from jepsen.nemeses.claims import Claims
from jepsen.nemeses.proxy_protocol import (
    Command,
    Done,
    Replay,
    Route,
    Serve,
    Swallowed,
    Treat,
)
from jepsen.systems.api import CLIENTS, NODES_MAX, Shape

ANSWER_TIMEOUT_S = 60.0
LOOPBACK = "127.0.0.1"
_CLIENT_NET = 15  # 127.15.0.x: where clients find member x
_FIRST_MEMBER_NET = 16  # 127.(16 + y).0.x: where member y finds member x


class ProxyError(Exception):
    """The proxy process cannot listen, or has ended."""


@dataclass(frozen=True, slots=True)
class ProxiedMember:
    """One member and its two ports: for members and log clients, and for clients of the broker.

    `client_port` is None for a member that is no broker.
    """

    name: str
    port: int
    client_port: int | None = None


class ProxyLinks:
    """The proxies of one group; see `jepsen.systems.api.Links`. A context manager that owns the process."""

    def __init__(self, members: Sequence[ProxiedMember], *, seed: int = 0) -> None:
        assert len(members) <= NODES_MAX, "each member has a loopback net of its own"
        self._members = list(members)
        self._seed = seed
        self._claims = Claims()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The proxy process, while it runs."""
        return self._child.pid if self._child and self._child.poll() is None else None

    # Addresses.

    def peers_of(self, name: str) -> str:
        """Return the `--peers` of a member: its own address, and proxies for the others."""
        own = self._number(name)
        return ";".join(
            f"{member.name}-{LOOPBACK if at == own else _host(_FIRST_MEMBER_NET + own, at)}:{member.port}"
            for at, member in enumerate(self._members)
        )

    def client_peers(self) -> str:
        """Return the members as log clients find them: through proxies."""
        return ";".join(
            f"{member.name}-{_host(_CLIENT_NET, at)}:{member.port}"
            for at, member in enumerate(self._members)
        )

    def advertised_host(self, name: str) -> str:
        """Return the host under which clients and other brokers find this broker (`brokerIP1`)."""
        return _host(_CLIENT_NET, self._number(name))

    def _number(self, name: str) -> int:
        return next(at for at, member in enumerate(self._members) if member.name == name)

    def routes(self) -> list[Route]:
        """Return every listener of the proxy."""
        found: list[Route] = []
        for at, member in enumerate(self._members):
            there = (LOOPBACK, member.port)
            for own, source in enumerate(self._members):
                if own != at:
                    host = _host(_FIRST_MEMBER_NET + own, at)
                    found.append(Route(source.name, member.name, host, member.port, *there))
            host = _host(_CLIENT_NET, at)
            found.append(Route(CLIENTS, member.name, host, member.port, *there))
            if member.client_port is not None:
                port = member.client_port
                found.append(Route(None, member.name, host, port, LOOPBACK, port))
        return found

    # Life.

    def start(self) -> None:
        """Start the proxy process; it listens when this returns.

        Raises:
            ProxyError: an address is taken.
        """
        self._child = subprocess.Popen(
            [sys.executable, "-m", "jepsen.nemeses.proxy_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches us alone
        )
        try:
            self._ask(Serve(self.routes(), self._seed))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process and all connections through it."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def __enter__(self) -> ProxyLinks:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Links.

    def shape(self, source: str, target: str, shape: Shape, owner: str = "") -> None:
        """Set the shape of the link from `source` to `target`."""
        self._ask(Treat(source, target, self._claims.claim((source, target), shape, owner)))

    def replay(self, source: str, target: str, count: int) -> int:
        """Send old frames once more, on the connection that `source` opened; how many."""
        return self._ask(Replay(source, target, count)).count

    def swallowed_bytes(self, source: str, target: str) -> int:
        """Count the bytes that cuts of this link have swallowed so far."""
        return self._ask(Swallowed(source, target)).count

    def heal(self, owner: str | None = None) -> None:
        """Undo an owner's shapes, or everybody's for None; connections that have lost bytes are reset."""
        released = self._claims.release(owner)
        if self.pid is None:
            return
        for (source, target), shape in released.items():
            self._ask(Treat(source, target, shape))

    def _ask(self, command: Command) -> Done:
        """Send a command, wait for its answer; raises ProxyError if the process has ended, is silent, or refuses."""
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise ProxyError("the proxy process does not run")
        try:
            child.stdin.write(msgspec.json.encode(command) + b"\n")
            child.stdin.flush()
        except OSError as error:
            raise ProxyError(f"the proxy process has ended: {error.strerror}") from error
        ready, _, _ = select.select([child.stdout], [], [], ANSWER_TIMEOUT_S)
        line = child.stdout.readline() if ready else b""
        if not line:
            raise ProxyError(
                f"the proxy process gave no answer within {ANSWER_TIMEOUT_S} s"
                if not ready
                else "the proxy process has ended"
            )
        done = msgspec.json.decode(line, type=Done)
        if done.problem:
            raise ProxyError(done.problem)
        return done


def _host(net: int, number: int) -> str:
    return f"127.{net}.0.{number + 1}"
