"""Connections that one task serves do what connections with a task each do, whatever their clients do.

Both get the same bytes in the same steps: frames cut anywhere, bad ones, ends, reads of a few bytes. After each step
both servers have handed over the same frames of each client and ended the same ones, for the same reasons.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from re import sub
from typing import Final, cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.net import lone_reads, served_connections
from broker.net.served_connection import ServedConnection
from broker.net.served_connections import ServedConnections
from broker.net.shared_writes import send_each
from dledger.runtime.frame_room import FrameRoom
from dledger_mq.net.connection import Connection
from dledger_mq.net.frame_socket import FrameSocket
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FRAME_BYTES_MAX, Frame, encode_frame

TIMEOUT_S: Final = 60.0
UNSENT_BYTES_MAX: Final = 8 << 20
LARGE_BYTES: Final = 3 << 20
"""An answer that no socket takes whole, and of which three are more than a connection lets wait."""

KINDS: Final = {
    "small": encode_frame(b"h", b"small"),
    "large": encode_frame(b"h", b"large"),
    "bad": encode_frame(b"h", b"bad"),
    "close": encode_frame(b"h", b"close"),
    "long": encode_frame(b"h", bytes(40_000)),
    "garbage": b"\xff" * 9,
}


@dataclass(frozen=True)
class Step:
    """What a client does: sends the next bytes of its stream, alone or with all others, reads, or ends."""

    client: int
    act: str
    count: int = 0


STEPS: Final = st.builds(
    Step,
    st.integers(0, 2),
    st.sampled_from(["send"] * 4 + ["all send"] * 3 + ["read", "half-close", "close"]),
    st.one_of(st.integers(1, 60), st.integers(1, 100_000)),
)
STREAMS: Final = st.lists(
    st.lists(
        st.sampled_from(["small"] * 6 + ["large", "large", "long", "bad", "close", "garbage"]),
        max_size=30,
    ),
    min_size=3,
    max_size=3,
)


class Server(ABC):
    """What a server is told, by client."""

    def __init__(self) -> None:
        self.numbers: dict[FrameSocket, int] = {}
        self.handled: list[list[bytes]] = []
        self.ended: dict[int, str] = {}

    @abstractmethod
    def add(self, far: socket.socket) -> FrameSocket: ...

    def connect(self, far: socket.socket) -> None:
        self.numbers[self.add(far)] = len(self.handled)
        self.handled.append([])

    def handle(self, connection: FrameSocket, frames: list[Frame]) -> None:
        for frame in frames:
            self.handled[self.numbers[connection]].append(frame.body)
            if frame.body == b"bad":
                raise FrameError("a header that cannot be read")
            if frame.body == b"close":
                connection.close("the server wants it")
            size = LARGE_BYTES if frame.body == b"large" else 10
            connection.send_nowait(encode_frame(b"", bytes(size)))
            if connection.is_closed:
                return  # as a service whose mistake ended it

    def closed(self, connection: FrameSocket) -> None:
        number = self.numbers[connection]
        assert number not in self.ended, f"{number} ended twice"
        # How many of the bytes a socket took, and how many wait, is the system's affair; so is whether a connection
        # that broke while bytes wait is written to first, or read.
        reason = sub(r"^(read|write) failed: .*", "it broke", connection.close_reason)
        self.ended[number] = sub(r"\d+", "N", reason)

    def seen(self) -> dict[int, bool]:
        return {number: connection.has_ended for connection, number in self.numbers.items()}


class OrdinaryServer(Server):
    """A task for each connection."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery

    def add(self, far: socket.socket) -> Connection:
        connection = Connection(far, self._nursery, unsent_bytes_max=UNSENT_BYTES_MAX)
        self._nursery.start_soon(self._serve, connection)
        return connection

    async def _serve(self, connection: Connection) -> None:
        try:
            while frames := await connection.receive():
                self.handle(connection, frames)
        except FrameError as error:
            connection.close(f"bad frame: {error}")
        self.closed(connection)


class OneTaskServer(Server):
    """One task for all."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self.calls = 0
        self._served = ServedConnections(
            self.handle,
            closed=self.closed,
            handle_together=self.handle_together,
            room=FrameRoom(),
            frame_bytes_max=FRAME_BYTES_MAX,
            unsent_bytes_max=UNSENT_BYTES_MAX,
        )
        nursery.start_soon(self._served.run)

    def add(self, far: socket.socket) -> FrameSocket:
        return self._served.add(far)

    def handle_together(
        self, _connections: list[ServedConnection], _frames: list[Frame]
    ) -> Sequence[int]:
        """Take none."""
        return ()


class TogetherServer(OneTaskServer):
    """One task for all, which hands over what several had together, and answers it in one go."""

    def handle_together(
        self, connections: list[ServedConnection], frames: list[Frame]
    ) -> Sequence[int]:
        """Take those that are usual; now and then all but the first."""
        self.calls += 1
        usual = [at for at, frame in enumerate(frames) if frame.body in {b"small", b"large"}]
        taken = usual[self.calls % 2 :]
        for at in taken:
            self.handled[self.numbers[connections[at]]].append(frames[at].body)
        sizes = [LARGE_BYTES if frames[at].body == b"large" else 10 for at in taken]
        answers = [encode_frame(b"", bytes(size)) for size in sizes]
        send_each([connections[at] for at in taken], answers)
        return taken


class Client:
    """A client's end."""

    def __init__(self, server: Server, stream: bytes) -> None:
        # A pair of sockets has what was sent at once: what goes over loopback TCP may come after a moment.
        self.sock, far = socket.socketpair()
        self.sock.setblocking(False)
        server.connect(far)
        self._stream = stream
        self._has_ended = False

    def take(self, step: Step) -> None:
        if self.sock.fileno() < 0:
            return
        try:
            if step.act.endswith("send") and not self._has_ended:
                sent = self.sock.send(self._stream[: step.count])
                self._stream = self._stream[sent:]
            elif step.act == "read":
                self.sock.recv(step.count)
            elif step.act == "half-close":
                self._has_ended = True
                self.sock.shutdown(socket.SHUT_WR)
            elif step.act == "close":
                self.sock.close()
        except OSError:
            pass  # the server has ended it, or sent nothing


@dataclass(frozen=True)
class After:
    """What a server has been told after a step."""

    handled: list[list[bytes]]
    ended: dict[int, str]
    seen: dict[int, bool]


async def observed(kind: type[Server], streams: list[bytes], steps: list[Step]) -> list[After]:
    """What a server of a kind is told after each step."""
    after: list[After] = []
    clients: list[Client] = []
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            server = cast("type[OneTaskServer | OrdinaryServer]", kind)(nursery)
            clients += [Client(server, stream) for stream in streams]
            for step in steps:
                for number, client in enumerate(clients):
                    if number == step.client or step.act == "all send":
                        client.take(step)
                seen = server.seen()
                await wait_all_tasks_blocked()
                handled = [list(each) for each in server.handled]
                after.append(After(handled, dict(server.ended), seen))
            nursery.cancel_scope.cancel()
    for connection in server.numbers:
        connection.close("the test is over")
    for client in clients:
        client.sock.close()
    return after


@pytest.mark.parametrize("kind", [OneTaskServer, TogetherServer])
@pytest.mark.parametrize(("frames_max", "turn_s"), [(64, 0.01), (1, 0.0), (3, 0.0)])
@settings(max_examples=100, deadline=None)
@given(streams=STREAMS, steps=st.lists(STEPS, min_size=1, max_size=40))
def test_both_are_told_the_same(
    kind: type[OneTaskServer],
    frames_max: int,
    turn_s: float,
    streams: list[list[str]],
    steps: list[Step],
) -> None:
    raw = [b"".join(KINDS[kind] for kind in stream) for stream in streams]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(served_connections, "FRAMES_MAX", frames_max)
        patched.setattr(served_connections, "TURN_S", turn_s)
        patched.setattr(lone_reads, "TOGETHER_MIN", 1)
        one = trio.run(observed, kind, raw, steps)
    assert one == trio.run(observed, OrdinaryServer, raw, steps)
