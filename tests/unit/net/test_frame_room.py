"""Unfinished frames: room for them over all connections, and who gets it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from broker.net.listener import Listener, ListenerLimits
from dledger.runtime.frame_room import (
    FEW_BYTES,
    FREE_BYTES,
    LOOSE_SHARE,
    PACE_BYTES,
    FrameRoom,
)
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.net.frame_socket import FrameSocket, ReadBuffer
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.remoting.frame import Frame, encode_frame
from tests.unit.net.test_connection import LOOPBACK, TIMEOUT_S, echo

KIBI = 1024
BODY = bytes(400 * KIBI)
LIMITS = ListenerLimits(frame_bytes_max=512 * KIBI, unfinished_bytes_max=1024 * KIBI)


@dataclass(eq=False)
class Sender:
    room: FrameRoom
    peer: str = "somebody"
    received_bytes: int = 0
    has_unread: bool = False
    reasons: list[str] = field(default_factory=list)

    def cut_off(self, reason: str) -> None:
        self.reasons.append(reason)
        self.room.leave(self)


async def test_room_is_given_whole_and_in_order() -> None:
    room = FrameRoom(100)
    first, second, third = (Sender(room) for _ in range(3))
    assert room.want(first, 60)
    assert not room.want(second, 50)
    assert not room.want(third, 10)  # there would be room, but somebody came before
    assert (room.used_bytes, room.waiting_count) == (60, 2)
    room.leave(first)
    await room.wait(second)
    await room.wait(third)
    assert (room.used_bytes, room.waiting_count) == (60, 0)
    room.leave(second)
    room.leave(second)
    room.leave(third)
    assert room.used_bytes == 0


def test_while_others_wait_room_must_be_filled() -> None:
    room = FrameRoom(100)
    slow, quick, unread, waiting = (Sender(room) for _ in range(4))
    for sender in (slow, quick, unread):
        assert room.want(sender, 30)
    assert not room.close_slow()
    assert not room.close_slow()  # nobody waits: one may be as slow as one likes
    assert not room.want(waiting, 30)
    assert not room.close_slow()
    slow.received_bytes += PACE_BYTES - 1
    quick.received_bytes += PACE_BYTES
    unread.has_unread = True  # it is this side that is slow
    assert room.close_slow() == [slow]
    assert slow.reasons
    assert not room.is_waiting(waiting)
    assert (room.used_bytes, room.waiting_count) == (90, 0)


Dial = Callable[[], Awaitable[Connection]]


@asynccontextmanager
async def serving(
    closed: Callable[[FrameSocket], None] = lambda _connection: None,
) -> AsyncIterator[tuple[Listener, Dial]]:
    """A listener, and how to connect to it; all is closed in the end."""
    listener = Listener(echo, closed=closed, limits=LIMITS)
    sock = bind(LOOPBACK)
    clients: list[Connection] = []
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:

            async def dial() -> Connection:
                clients.append(await connect(bound_address(sock), nursery, timeout_s=TIMEOUT_S))
                return clients[-1]

            await nursery.start(listener.run, [sock])
            yield listener, dial
            for client in clients:
                client.close("the test is over")
            nursery.cancel_scope.cancel()


async def test_a_frame_of_many_small_pieces_keeps_its_room() -> None:
    async with serving() as (listener, dial):
        client = await dial()
        frame = encode_frame(b"", BODY)
        for first in range(0, len(frame), 8000):
            client.send_nowait(frame[first : first + 8000])
            await trio.lowlevel.checkpoint()
            assert listener._room.used_bytes in (0, len(frame))
        assert await client.receive() == [Frame(0, b"", BODY)]
        assert listener._room.used_bytes == 0


async def test_more_large_frames_than_there_is_room_for_get_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is begun by its sender before any is whole; none is cut off."""
    monkeypatch.setattr("dledger.runtime.frame_room.PACE_S", TIMEOUT_S)  # they wait for all others
    count = 20
    frame = encode_frame(b"", BODY)
    half = len(frame) // 2
    answered: list[int] = []

    async def receive(client: Connection) -> None:
        answered.append(len((await client.receive())[0].body))

    async with serving() as (listener, dial):
        clients = [await dial() for _ in range(count)]
        for client in clients:
            client.send_nowait(frame[:half])
        while listener._room.waiting_count < count - 2:
            await trio.lowlevel.checkpoint()
        assert listener._room.used_bytes <= LIMITS.unfinished_bytes_max
        held = sum(each._decoder.pending_bytes for each in listener.connections)
        assert held <= LIMITS.unfinished_bytes_max + count * FREE_BYTES
        for client in clients:
            client.send_nowait(frame[half:])
        async with trio.open_nursery() as hearing:
            for client in clients:
                hearing.start_soon(receive, client)
        assert answered == [len(BODY)] * count
        assert listener._room.used_bytes == 0


async def test_frames_that_never_end_do_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dledger.runtime.frame_room.PACE_S", 0.02)
    frame = encode_frame(b"", BODY)
    async with serving() as (listener, dial):
        for _ in range(10):
            (await dial()).send_nowait(frame[:-1])
        honest = await dial()
        honest.send_nowait(encode_frame(b"", b"small"))
        assert (await honest.receive())[0].body == b"small"
        honest.send_nowait(frame)
        assert (await honest.receive())[0].body == BODY
        assert listener._room.used_bytes <= LIMITS.unfinished_bytes_max
    assert "unfinished frames came too slowly" in caplog.text


async def test_small_frames_that_never_end_have_a_bound_over_all_connections() -> None:
    """A frame of 16 KiB needs no room, but ten thousand of them would be 160 MB."""
    count = 200
    begun = encode_frame(b"", bytes(FREE_BYTES - 10))[:-1]
    async with serving() as (listener, dial):
        for _ in range(count):
            (await dial()).send_nowait(begun)
        honest = await dial()
        honest.send_nowait(encode_frame(b"", b"small"))
        assert (await honest.receive())[0].body == b"small"
        held_bytes = sum(each._decoder.pending_bytes for each in listener.connections)
        loose_bytes = LIMITS.unfinished_bytes_max // LOOSE_SHARE + count * 2 * FEW_BYTES
        assert held_bytes <= LIMITS.unfinished_bytes_max + loose_bytes
        honest.send_nowait(encode_frame(b"", BODY))
        assert (await honest.receive())[0].body == BODY
    assert listener._room.loose_count == 0
    assert listener._room.used_bytes == 0


def test_no_more_is_read_than_fits_and_is_wanted() -> None:
    left, right = socket.socketpair()
    with left, right:
        right.sendall(bytes(100))
        buffer = ReadBuffer(40)
        assert [len(buffer.receive(left, wanted)) for wanted in (0, 10, 41)] == [40, 10, 40]


async def test_a_connection_that_waits_for_room_can_be_closed() -> None:
    gone: list[str] = []
    frame = encode_frame(b"", BODY)
    async with serving(lambda connection: gone.append(connection.close_reason)) as (listener, dial):
        for _ in range(3):
            (await dial()).send_nowait(frame[:-1])
        while not listener._room.waiting_count:
            await trio.lowlevel.checkpoint()
        (waiting,) = [each for each in listener.connections if each.waits_for_room]
        (holding, *_) = [each for each in listener.connections if each is not waiting]
        assert min(waiting._decoder.pending_bytes, holding._decoder.pending_bytes) > 0
        waiting.close("test")
        holding.close("test")
        assert waiting._decoder.pending_bytes + holding._decoder.pending_bytes == 0, (
            "others have the room, so it must not keep them until it is collected"
        )
        while len(gone) < 2:
            await trio.lowlevel.checkpoint()
        assert gone == ["test", "test"]
        assert not listener._room.waiting_count
