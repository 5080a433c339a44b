"""Connections and listeners over real sockets on loopback."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from broker.net import served_connections
from broker.net.listener import Listener, ListenerLimits
from dledger.runtime import descriptors
from dledger_mq.net import frame_socket
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.net.frame_socket import FrameSocket, ReadBuffer
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.net.tls import TlsError
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame, encode_frame
from tests.certificates import HOST, client_side

TIMEOUT_S = 60.0
LOOPBACK = Address("127.0.0.1", 0)


async def test_who_has_gone_before_the_first_byte_of_tls_is_told_as_that(tmp_path: Path) -> None:
    """A server that stops takes connections to the end; one of them ended its client."""
    near, far = socket.socketpair()
    far.close()
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            connection = Connection(near, nursery)
            with pytest.raises(TlsError, match="Broken pipe"):
                await connection.encrypt_all(client_side(tmp_path), HOST)


async def test_frames_of_one_read_come_together() -> None:
    left, right = socket.socketpair()
    with trio.fail_after(TIMEOUT_S), right:
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery)
            data = encode_frame(b"h", b"body")
            right.sendall(data * 3 + data[:5])
            assert await connection.receive() == [Frame(0, b"h", b"body")] * 3
            assert connection.partial_since is not None
            right.sendall(data[5:])
            assert len(await connection.receive()) == 1
            assert connection.partial_since is None
            assert (connection.received_frames, connection.received_bytes) == (4, 4 * len(data))
            right.shutdown(socket.SHUT_WR)
            assert await connection.receive() == []
            assert connection.close_reason == "closed by the peer"


async def test_bad_bytes_end_a_connection() -> None:
    left, right = socket.socketpair()
    with trio.fail_after(TIMEOUT_S), right:
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery)
            right.sendall(b"\xff" * 8)
            with pytest.raises(FrameError):
                await connection.receive()
            assert connection.is_closed
            assert await connection.receive() == []
            connection.send_nowait(b"dropped")
            assert connection.sent_bytes == 0


async def test_what_the_socket_does_not_take_is_sent_later_and_in_order() -> None:
    left, right = socket.socketpair()
    expected = b"".join(bytes([number % 251]) * 50_000 for number in range(100))
    with trio.fail_after(TIMEOUT_S), right:
        right.setblocking(False)
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery, buffer=ReadBuffer(1024))
            for number in range(100):
                connection.send_nowait(bytes([number % 251]) * 50_000)
            assert connection.unsent_bytes > 0
            assert not await connection.wait_sent(0.0)
            received = bytearray()
            while len(received) < len(expected):
                await trio.lowlevel.wait_readable(right)
                received += right.recv(1 << 20)
            assert bytes(received) == expected
            assert await connection.wait_sent(TIMEOUT_S)
            assert (connection.unsent_bytes, connection.sent_bytes) == (0, len(expected))
            connection.close("done")


async def test_nothing_overtakes_what_waits_though_the_socket_would_take_it() -> None:
    left, right = socket.socketpair()
    size = 1_000_000
    with trio.fail_after(TIMEOUT_S), right:
        right.setblocking(False)
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery)
            connection.send_nowait(b"1" * size)
            assert connection.unsent_bytes > 0
            received = bytearray(right.recv(size))  # and now there is room
            connection.send_nowait(b"2")
            connection.send_pieces([b"3", memoryview(b"4")])
            while len(received) < size + 3:
                await trio.lowlevel.wait_readable(right)
                received += right.recv(size)
            assert bytes(received) == b"1" * size + b"234"
            connection.close("done")


@pytest.mark.parametrize("takes", ["everything", "some", "nothing"])
async def test_pieces_arrive_as_if_they_were_joined(takes: str) -> None:
    left, right = socket.socketpair()
    random = Random(1)
    size = 4_000_000 if takes == "some" else 60_000
    whole = random.randbytes(size)
    ends = sorted(random.sample(range(size), 700))
    pieces: list[bytes | memoryview] = [
        memoryview(whole)[a:b] if number % 3 else whole[a:b]
        for number, (a, b) in enumerate(pairwise([0, *ends, size]))
    ]
    with trio.fail_after(TIMEOUT_S), right:
        right.setblocking(False)
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery)
            first = bytes(8_000_000) if takes == "nothing" else b""
            connection.send_many([first])
            before = connection.unsent_bytes
            connection.send_pieces(pieces)
            expected_rest = {"everything": 0, "nothing": before + size}
            rest = expected_rest.get(takes, connection.unsent_bytes)
            assert connection.unsent_bytes == rest
            assert (connection.unsent_bytes > 0) == (takes != "everything")
            assert all(type(each) is bytes for each in connection._queue), "nothing is kept alive"
            connection.send_pieces([b"end", memoryview(b"!")] * 1000)
            expected = first + whole + b"end!" * 1000
            received = bytearray()
            while len(received) < len(expected):
                await trio.lowlevel.wait_readable(right)
                received += right.recv(1 << 20)
            assert received == expected
            assert await connection.wait_sent(TIMEOUT_S)
            assert (connection.unsent_bytes, connection.sent_bytes) == (0, len(expected))
            connection.close("done")
            connection.send_pieces(pieces)
            assert connection.sent_bytes == len(expected)


def test_what_was_sent_of_pieces_is_left_out_wherever_it_ends() -> None:
    whole = Random(1).randbytes(100_000)
    pieces: list[bytes | memoryview] = [whole[:1], memoryview(whole)[1:40_000], b""]
    pieces += [whole[40_000:70_000], whole[70_000:]]
    for start in (0, 1, 32_767, 32_768, 39_999, 40_000, 40_001, 70_000, 99_999, 100_000):
        assert frame_socket._joined_from(pieces, start) == whole[start:]


async def test_pieces_for_a_vanished_peer_end_the_connection() -> None:
    left, right = socket.socketpair()
    right.close()
    async with trio.open_nursery() as nursery:
        connection = Connection(left, nursery)
        connection.send_pieces([b"1", memoryview(b"2")])
        assert connection.close_reason.startswith("write failed")


async def test_a_slow_reader_is_cut_off() -> None:
    left, right = socket.socketpair()
    with trio.fail_after(TIMEOUT_S), right:
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery, unsent_bytes_max=1 << 20)
            for _ in range(100):
                connection.send_nowait(bytes(100_000))
            assert "reads too slowly" in connection.close_reason
            assert connection.unsent_bytes == 0


async def test_a_vanished_peer_ends_a_connection_that_sends() -> None:
    left, right = socket.socketpair()
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery)
            right.close()
            connection.send_nowait(b"x")
            assert "write failed" in connection.close_reason


async def test_close_wakes_the_reader() -> None:
    left, right = socket.socketpair()
    with trio.fail_after(TIMEOUT_S), right:
        async with trio.open_nursery() as nursery:
            connection = Connection(left, nursery)

            async def read() -> None:
                assert await connection.receive() == []

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            connection.close("test")
            assert connection.close_reason == "test"


def echo(connection: FrameSocket, frames: list[Frame]) -> None:
    connection.send_many([encode_frame(frame.header, frame.body) for frame in frames])


async def test_a_listener_serves_and_tells_who_left() -> None:
    gone: list[str] = []
    listener = Listener(echo, closed=lambda connection: gone.append(connection.close_reason))
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            client = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            client.send_nowait(encode_frame(b"a", b"b"))
            assert await client.receive() == [Frame(0, b"a", b"b")]
            assert len(listener.connections) == 1
            client.close("test")
            while not gone:
                await trio.lowlevel.checkpoint()
            assert gone == ["closed by the peer"]
            assert not listener.connections
            nursery.cancel_scope.cancel()


async def test_a_listener_closes_all_when_it_stops() -> None:
    listener = Listener(echo)
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as outer:
            async with trio.open_nursery() as nursery:
                await nursery.start(listener.run, [sock])
                client = await connect(bound_address(sock), outer, timeout_s=TIMEOUT_S)
                client.send_nowait(encode_frame(b"", b""))
                await client.receive()
                nursery.cancel_scope.cancel()
            assert await client.receive() == []
        assert sock.fileno() == -1


async def test_one_bad_client_does_not_disturb_another(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(echo)
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            good = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            bad = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            bad.send_nowait(b"GET / HTTP/1.1\r\n\r\n")
            assert await bad.receive() == []
            good.send_nowait(encode_frame(b"x", b""))
            assert len(await good.receive()) == 1
            good.close("test")
            nursery.cancel_scope.cancel()
    (line,) = [record.message for record in caplog.records]
    assert "closed the connection of 127.0.0.1:" in line


async def test_connections_are_bounded() -> None:
    listener = Listener(echo, limits=ListenerLimits(connections_max=1))
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            first = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            first.send_nowait(encode_frame(b"x", b""))
            await first.receive()
            second = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            assert await second.receive() == []
            assert listener.refused_count == 1
            first.close("test")
            nursery.cancel_scope.cancel()


async def test_who_has_asked_nothing_makes_room_for_who_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The oldest of them, and none that has asked; the last that are left are turned away."""
    listener = Listener(echo, limits=ListenerLimits(connections_max=3))
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            asking = []
            mute = [await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S) for _ in "123"]
            for number in range(3):
                asking.append(await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S))
                asking[-1].send_nowait(encode_frame(b"x", b""))
                assert len(await asking[-1].receive()) == 1
                assert await mute[number].receive() == []
            refused = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            assert await refused.receive() == []
            for each in asking:
                each.send_nowait(encode_frame(b"x", b""))
                assert len(await each.receive()) == 1
                each.close("test")
            nursery.cancel_scope.cancel()
    assert (listener.displaced_count, listener.refused_count) == (3, 1)
    assert caplog.text.count("makes room for another") == 1


async def test_the_last_descriptors_are_for_no_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "is_kept", lambda _descriptor: True)
    listener = Listener(echo)
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            turned_away = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            assert await turned_away.receive() == []
            nursery.cancel_scope.cancel()
    assert (listener.refused_count, len(listener.connections)) == (1, 0)
    assert "a connection was turned away: 0 are open, and of the" in caplog.text


@pytest.mark.parametrize(("data", "reason"), [(b"", "idle"), (b"\0\0", "unfinished frame")])
async def test_silent_and_unfinished_connections_end(data: bytes, reason: str) -> None:
    gone: list[str] = []
    limits = ListenerLimits(
        idle_timeout_s=0.02 if not data else 60.0, partial_timeout_s=0.02, sweep_interval_s=0.01
    )
    listener = Listener(
        echo, closed=lambda connection: gone.append(connection.close_reason), limits=limits
    )
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            client = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            client.send_nowait(data)
            assert await client.receive() == []
            while not gone:
                await trio.lowlevel.checkpoint()
            assert gone == [reason]
            nursery.cancel_scope.cancel()


async def test_who_waits_for_its_turn_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """Its frames take longer than it may be silent, one in each turn; no other time passes."""
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    gone: list[str] = []
    handled: list[bytes] = []

    def take_one(_connection: FrameSocket, frames: list[Frame]) -> int:
        mock_clock.jump(0.002)
        handled.append(frames[0].body)
        return 1

    limits = ListenerLimits(idle_timeout_s=0.02, partial_timeout_s=0.02, sweep_interval_s=0.001)
    listener = Listener(
        take_one, closed=lambda connection: gone.append(connection.close_reason), limits=limits
    )
    sock = bind(LOOPBACK)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(listener.run, [sock])
            client = await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S)
            client.send_nowait(encode_frame(b"", b"x") * 30 + b"\0\0")
            while len(handled) < 30:
                await trio.lowlevel.checkpoint()
            mock_clock.jump(0.01)
            await wait_all_tasks_blocked()  # the times were looked at
            assert gone == []
            client.close("the test is over")
            nursery.cancel_scope.cancel()


async def test_nobody_listens() -> None:
    sock = bind(LOOPBACK)
    address = bound_address(sock)
    sock.close()
    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match=r".+"):
            await connect(address, nursery, timeout_s=TIMEOUT_S)
