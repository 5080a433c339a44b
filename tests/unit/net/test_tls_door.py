"""TLS within the connections that one task serves: over real sockets, with clients that wait for nobody."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path

import pytest
import trio

from broker.net import handshakes
from broker.net.handshakes import STEPS_MAX, Handshakes, first_to_shake
from broker.net.listener import Listener, ListenerLimits
from broker.net.served_connection import ServedConnection
from broker.net.tls_door import TlsDoor
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.net.frame_socket import FrameSocket
from dledger_mq.net.tls import TlsEnd
from dledger_mq.remoting.frame import Frame, encode_frame
from tests.certificates import HOST, client_side, server_side
from tests.waiting import wait_until

TIMEOUT_S = 60.0


class Echo:
    """A listener that sends back what it gets, and what became of its connections."""

    def __init__(
        self,
        folder: Path,
        *,
        takes_plain_text: bool = True,
        limits: ListenerLimits | None = None,
    ) -> None:
        context = server_side(folder / "server")
        self.ended: list[str] = []
        self.listener = Listener(
            self.handle,
            closed=lambda connection: self.ended.append(connection.close_reason),
            limits=limits,
            door=TlsDoor(lambda: context, takes_plain_text=takes_plain_text),
        )
        self.sock = socket.create_server((HOST, 0))
        self.sock.setblocking(False)
        self.address = Address(HOST, self.sock.getsockname()[1])

    @staticmethod
    def handle(connection: FrameSocket, frames: list[Frame]) -> None:
        connection.send_many([encode_frame(frame.header, frame.body) for frame in frames])

    @property
    def connections(self) -> list[ServedConnection]:
        return list(self.listener.connections)

    def raw(self, data: bytes) -> socket.socket:
        """A client that sends some bytes, and that the test closes."""
        near = socket.create_connection((self.address.host, self.address.port))
        near.sendall(data)
        near.setblocking(False)
        return near


async def answer(echo: Echo, tasks: trio.Nursery, tls: ssl.SSLContext | None, body: bytes) -> bytes:
    """What a client gets back that sends one frame."""
    connection = await connect(echo.address, tasks, timeout_s=TIMEOUT_S, tls=tls)
    connection.send_nowait(encode_frame(b"h", body))
    frames = await connection.receive()
    connection.close("done")
    return b"".join(frame.body for frame in frames)


async def read_to_end(near: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    received = b""
    while True:
        await trio.lowlevel.wait_readable(near)
        try:
            data = near.recv(1 << 16)
        except ConnectionResetError:
            return received
        if not data:
            return received
        received += data


async def test_one_port_takes_both(tmp_path: Path) -> None:
    echo, tls = Echo(tmp_path), client_side(tmp_path)
    large = bytes(range(256)) * (1 << 13)  # 2 MiB: many records, and more than a socket takes
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(echo.listener.run, [echo.sock])
            assert await answer(echo, nursery, None, b"plain") == b"plain"
            assert await answer(echo, nursery, tls, b"secret") == b"secret"
            assert await answer(echo, nursery, tls, large) == large
            nursery.cancel_scope.cancel()


async def test_plain_text_is_refused_where_tls_is_a_must(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo, tls = Echo(tmp_path, takes_plain_text=False), client_side(tmp_path)
    with trio.fail_after(TIMEOUT_S), echo.raw(encode_frame(b"h", b"plain")) as near:
        async with trio.open_nursery() as nursery:
            await nursery.start(echo.listener.run, [echo.sock])
            assert await read_to_end(near) == b""
            assert await answer(echo, nursery, tls, b"secret") == b"secret"
            nursery.cancel_scope.cancel()
    assert "plain text on a port that takes TLS only (tls.server.mode=enforcing)" in caplog.text
    assert "Traceback" not in caplog.text


async def test_who_does_not_agree_is_told_and_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    echo = Echo(tmp_path)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(echo.listener.run, [echo.sock])
            with pytest.raises(ConnectionError, match="not believed"):
                await answer(echo, nursery, client_side(tmp_path, "strangers"), b"never")
            with echo.raw(b"\x16\x03\x01\x00\x05hello") as near:
                assert (await read_to_end(near))[:1] == b"\x15"  # an alert
            await wait_until(lambda: not echo.connections)
            nursery.cancel_scope.cancel()
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert "does not know who signed the certificate" in lines[0]
    assert "TLS handshake: " in lines[1]


@pytest.mark.parametrize("is_reset", [False, True])
async def test_an_end_within_a_handshake_is_said_to_be_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_reset: bool
) -> None:
    hello = TlsEnd(client_side(tmp_path), is_server=False, host=HOST).begin()
    echo = Echo(tmp_path)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(echo.listener.run, [echo.sock])
            near = echo.raw(hello[:100])
            await wait_until(lambda: len(echo.listener.handshakes) == 1)
            if is_reset:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            near.close()
            await wait_until(lambda: bool(echo.ended))
            assert len(echo.listener.handshakes) == 0
            nursery.cancel_scope.cancel()
    assert ("read failed" if is_reset else "closed the connection in the middle") in echo.ended[0]


async def test_a_handshake_that_never_ends_is_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A byte now and then keeps nobody in: what counts is when it began."""
    hello = TlsEnd(client_side(tmp_path), is_server=False, host=HOST).begin()
    echo = Echo(tmp_path, limits=ListenerLimits(handshake_timeout_s=0.2, sweep_interval_s=0.05))
    with trio.fail_after(TIMEOUT_S), echo.raw(hello[:1]) as near:
        async with trio.open_nursery() as nursery:
            await nursery.start(echo.listener.run, [echo.sock])
            for byte in hello[1:]:
                if echo.ended:
                    break
                near.send(bytes([byte]))
                await trio.sleep(0.01)
            while not echo.ended:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert echo.ended == ["unfinished TLS handshake"]
    assert "a TLS handshake never ended" in caplog.text


async def test_a_flood_of_handshakes_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "UNFINISHED_MAX", 20)
    hello = TlsEnd(client_side(tmp_path), is_server=False, host=HOST).begin()
    limits = ListenerLimits(
        handshake_timeout_s=TIMEOUT_S
    )  # they end for each other, not for their time
    echo, tls = Echo(tmp_path, limits=limits), client_side(tmp_path)
    assert echo.listener.handshakes.unfinished_max == 20
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(echo.listener.run, [echo.sock])
            flood = [echo.raw(hello) for _ in range(60)]
            assert await answer(echo, nursery, None, b"plain") == b"plain"
            assert await answer(echo, nursery, tls, b"secret") == b"secret"
            await wait_until(lambda: echo.listener.handshakes.evicted_count >= 40)
            assert len(echo.listener.handshakes) <= 20
            for near in flood:
                near.close()
            nursery.cancel_scope.cancel()


class Waiting:
    """A connection whose handshake is not done."""

    def __init__(self, name: str, received_at: float = 0.0) -> None:
        self.peer = name
        self.received_at = received_at
        self.end = ""

    def close(self, reason: str, /) -> None:
        self.end = reason


def test_of_too_many_handshakes_the_oldest_ends(caplog: pytest.LogCaptureFixture) -> None:
    bounded = Handshakes(2)
    first, second, third = (Waiting(name) for name in ("first", "second", "third"))
    for each in (first, second, first, third):
        bounded.join(each)
    assert first.end == "too many TLS handshakes are not done"
    assert (second.end, third.end) == ("", "")
    assert len(bounded) == 2
    bounded.leave(second)
    bounded.leave(second)
    assert len(bounded) == 1
    assert bounded.evicted_count == 1
    assert "closed the connection of first" in caplog.text


def test_who_was_heard_longest_ago_gets_on_first() -> None:
    """A few that send byte after byte do not keep the others out."""
    greedy = [Waiting(f"greedy {number}", 5.0 + number) for number in range(STEPS_MAX)]
    patient = Waiting("patient", 1.0)
    found = first_to_shake([*greedy, patient])
    assert len(found) == STEPS_MAX
    assert found[0] is patient
    assert first_to_shake(greedy) == greedy
