"""Watches what name servers answer, every few milliseconds, while processes die: what was the route, and since when?

Written by hand on plain sockets in a thread of its own: a test that waits for a process must not keep it from looking.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from jepsen.processes import Process

GET_ROUTE: Final = 105
GET_CLUSTERS: Final = 106
GET_RUNTIME_INFO: Final = 28
LOOK_S: Final = 0.005
_ANSWER_S: Final = 60.0
_NUMBER_KEY: Final = re.compile(rb"([{,])(\d+):")


class Asker:
    """One connection for requests, made again after it broke."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._place = (host, int(port))
        self._sock: socket.socket | None = None

    def ask(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> tuple[int, bytes]:
        """Ask one request; return the code and the body of the answer.

        Raises:
            OSError: nobody is there, or the connection broke.
        """
        fields = {"code": code, "extFields": dict(ext), "flag": 0, "language": "JAVA"}
        header = json.dumps({**fields, "opaque": 1, "version": 409}).encode()
        try:
            if self._sock is None:
                self._sock = socket.create_connection(self._place, timeout=_ANSWER_S)
            sock = self._sock
            sock.sendall(
                struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
            )
            size, header_size = struct.unpack(">ii", _read(sock, 8))
            answer = json.loads(_read(sock, header_size))
            return int(answer["code"]), _read(sock, size - 4 - header_size)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the other end hung up")
        data += more
    return bytes(data)


def ask(address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> tuple[int, bytes]:
    """Ask over a connection of its own; return the code and the body of the answer.

    Raises:
        OSError: nobody answers.
    """
    asker = Asker(address)
    try:
        return asker.ask(code, ext, body)
    finally:
        asker.close()


def raft_of(address: str) -> dict[str, str]:
    """Return what a broker shows to tools; nothing if it does not answer."""
    try:
        table: dict[str, str] = json.loads(ask(address, GET_RUNTIME_INFO, {})[1])["table"]
    except OSError:
        return {}
    return table


def leads(node: Process) -> bool:
    """Return whether a broker says that it leads."""
    return raft_of(node.address).get("raftRole") == "leader"


@dataclass(frozen=True)
class Sighting:
    """What a name server answered from one time to another.

    Attributes:
        begun_s, ended_s: the first and the last look, `time.monotonic()`.
        route: brokerId to address in the route of the topic; None: no route.
        cluster: the same in the answer for tools.
        is_reached: whether the name server answered at all.
    """

    begun_s: float
    ended_s: float
    route: dict[int, str] | None
    cluster: dict[int, str] | None
    is_reached: bool = True

    @property
    def leader(self) -> str | None:
        """The address that clients send to; None: they have none."""
        return None if self.route is None else self.route.get(0)

    @property
    def is_gap(self) -> bool:
        """True if clients, or tools, found no leader."""
        return self.is_reached and (self.leader is None or 0 not in (self.cluster or {}))


class RouteWatch:
    """Looks at one name server until it is left; changes only are kept.

    Attributes:
        name_server: its address.
    """

    def __init__(self, name_server: str, topic: str, group: str = "broker-a") -> None:
        self.name_server = name_server
        self._asker = Asker(name_server)
        self._topic = topic
        self._group = group
        self._seen: list[Sighting] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._asker.close()

    @property
    def seen(self) -> list[Sighting]:
        """What was seen so far."""
        with self._lock:
            return list(self._seen)

    @property
    def now(self) -> Sighting | None:
        """The latest look."""
        with self._lock:
            return self._seen[-1] if self._seen else None

    def gaps(self) -> list[Sighting]:
        """The sightings without a leader."""
        return [each for each in self.seen if each.is_gap]

    def since(self, address: str) -> float:
        """Return when the name server was first seen to send clients there, `time.monotonic()`."""
        return next(each.begun_s for each in self.seen if each.leader == address)

    def forget(self) -> None:
        """Forget what was seen before the latest look."""
        with self._lock:
            del self._seen[:-1]

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            route, cluster, is_reached = None, None, True
            begun_s = time.monotonic()
            try:
                route, cluster = self._look()
            except OSError:
                is_reached = False
            new = Sighting(begun_s, time.monotonic(), route, cluster, is_reached)
            with self._lock:
                last = self._seen[-1] if self._seen else None
                if last is not None and (last.route, last.cluster, last.is_reached) == (
                    route,
                    cluster,
                    is_reached,
                ):
                    self._seen[-1] = Sighting(last.begun_s, new.ended_s, route, cluster, is_reached)
                else:
                    self._seen.append(new)

    def _look(self) -> tuple[dict[int, str] | None, dict[int, str] | None]:
        ext = {"topic": self._topic, "acceptStandardJsonOnly": "true"}
        code, body = self._asker.ask(GET_ROUTE, ext)
        route = None
        if code == 0:
            (broker,) = json.loads(body)["brokerDatas"]
            route = {int(key): addr for key, addr in broker["brokerAddrs"].items()}
        _, body = self._asker.ask(GET_CLUSTERS, {})
        # As RocketMQ writes it, the ids are no texts.
        table = json.loads(_NUMBER_KEY.sub(rb'\1"\2":', body))["brokerAddrTable"]
        cluster = None
        if self._group in table:
            cluster = {int(key): addr for key, addr in table[self._group]["brokerAddrs"].items()}
        return route, cluster
