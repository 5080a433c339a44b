"""Appends of log clients that have begun and not ended: what they hold in memory, and whom they keep waiting."""

from __future__ import annotations

import gc
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import pytest
import trio

from dledger import Client, LogServer, NodeId, PeerProtocolError
from dledger.codec.client_rpc import AppendCall
from dledger.codec.frame import CHUNK_BYTES, FrameDecoder, encode_frame, encode_frames
from dledger.codec.wire_types import encode_header
from dledger.config import Peer
from dledger.runtime.events_log import LimitedLog
from dledger.runtime.frame_room import FREE_BYTES, FrameRoom
from dledger.runtime.handshake import Identity, dial_member
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.sockets import RECEIVE_BYTES, FrameStream
from tests.unit.runtime.conftest import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Any]]
MEBI = 1024 * 1024
STRANGER_COUNT = 40
CALL = encode_header(AppendCall(1))
UNFINISHED = b"".join(encode_frames(CALL, bytes(14 * MEBI)))[:-1]


def room_of(server: LogServer) -> FrameRoom:
    return server._transport._room


def streams_in(room: FrameRoom) -> list[FrameStream]:
    return [each for each in (*room._given, *room._waiting) if isinstance(each, FrameStream)]


def held_bytes(stream: FrameStream) -> int:
    return len(stream.decoder._rest) + stream.decoder._blob_bytes


async def dial(peer: Peer) -> FrameStream:
    stranger = Identity("g", None, 1, frozenset(), None)
    stream, _ = await dial_member(peer, stranger)
    # It is patient, unlike our clients.
    stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
    return stream


async def begin_and_stay(stream: FrameStream) -> None:
    """Send what is taken of an append, and never the rest."""
    try:
        with suppress(OSError, trio.ClosedResourceError):
            await stream.send(UNFINISHED)
        await trio.sleep_forever()
    finally:
        stream.close()


async def test_unfinished_appends_of_many_share_one_room_and_keep_nobody_out(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_group(size=3, secret=None) as group, trio.open_nursery() as nursery:
        await group.start_all(entry_body_bytes_max=16 * MEBI)
        leader = await group.leader()
        room = room_of(leader.server)
        (peer,) = [each for each in group.peers if each.node_id == leader.server.node_id]
        monkeypatch.setattr("dledger.runtime.frame_room.PACE_S", 0.02)
        async with Client(group.peers, group="g", timeout_s=PATIENCE_S) as client:
            with monkeypatch.context() as nobody_is_slow:
                nobody_is_slow.setattr(room, "close_slow", list)
                strangers = [await dial(peer) for _ in range(STRANGER_COUNT)]
                for stranger in strangers:
                    nursery.start_soon(begin_and_stay, stranger)
                await wait_until(lambda: len(streams_in(room)) == STRANGER_COUNT)
                # Small ones need no room, and neither do the other members.
                await client.append(bytes(FREE_BYTES // 2))
                assert room.used_bytes <= room.bytes_max
                held = sum(held_bytes(each) for each in streams_in(room))
                assert held <= room.bytes_max + STRANGER_COUNT * RECEIVE_BYTES
            # Some go while they wait; those who stay are cut off in their turn.
            for stranger in strangers[10:]:
                stranger.close()
            await client.append(bytes(4 * FREE_BYTES))
        assert leader.server.is_leader
        nursery.cancel_scope.cancel()
    assert "unfinished-frames-cut-off" in caplog.text


async def test_room_is_left_when_a_frame_ends_and_when_its_connection_does(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all(entry_body_bytes_max=4 * MEBI)
        room = room_of((await group.leader()).server)
        stream = await dial(group.peers[0])
        first, last = encode_frames(CALL, bytes(CHUNK_BYTES + 1))
        small = encode_frame(CALL, bytes(2 * FREE_BYTES))
        await stream.send(first)
        await wait_until(lambda: room.used_bytes > 4 * MEBI)
        # A whole frame between the chunks ends no blob; one that is begun after it needs what it tells.
        await stream.send(small + last + small[:-1])
        await wait_until(lambda: room.used_bytes == len(small))
        await stream.send(small[-1:] + first)
        await wait_until(lambda: room.used_bytes > 4 * MEBI)
        stream.close()
        await wait_until(lambda: not room.used_bytes)


@pytest.mark.parametrize("is_cut_off", [True, False])
async def test_who_gave_its_room_back_holds_no_bytes(is_cut_off: bool) -> None:
    """Others get the room at once; the stream itself may be held for longer, by who reads it or looks for its end."""
    room = FrameRoom()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    stream = FrameStream(ours, FrameDecoder(blob_bytes_max=16 * MEBI))
    stream.share(room)

    async def read() -> None:
        with pytest.raises((PeerProtocolError, trio.ClosedResourceError)):
            await stream.receive()

    with theirs, trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.to_thread.run_sync(theirs.sendall, UNFINISHED)
            await wait_until(lambda: held_bytes(stream) > 13 * MEBI)
            assert room.used_bytes > 13 * MEBI
            stream.send_soon(bytes(MEBI))
            if is_cut_off:
                stream.cut_off("others wait")
            else:
                stream.close()
                assert stream.queued_bytes == 0
            assert (held_bytes(stream), room.used_bytes) == (0, 0)
        stream.close()


async def test_who_is_about_to_read_when_the_stream_is_closed_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    stream = FrameStream(ours, FrameDecoder(blob_bytes_max=MEBI))

    async def close(_sock: socket.socket) -> None:
        stream.close()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", close)
    with theirs, pytest.raises(trio.ClosedResourceError):
        await stream.receive()


async def test_a_member_that_goes_within_a_frame_leaves_no_bytes() -> None:
    """Whether it hangs up or sends garbage; without the collector, which comes when it likes."""
    links = PeerLinks(NodeId("n0"), group_check=None, outsiders=LimitedLog())
    links.add(NodeId("n1"))
    gc.disable()
    tracemalloc.start()
    try:
        for garbage in (b"", b"\xff" * 8):
            before_bytes, _ = tracemalloc.get_traced_memory()
            ours, theirs = socket.socketpair()
            for end in (ours, theirs):
                end.setblocking(False)
            stream = FrameStream(ours, FrameDecoder(blob_bytes_max=16 * MEBI))
            links.adopt(NodeId("n1"), 1, stream)
            del ours, stream
            rest = memoryview(UNFINISHED)
            while rest:
                with suppress(BlockingIOError):
                    rest = rest[theirs.send(rest) :]
                links.receive(lambda _: None)
            assert tracemalloc.get_traced_memory()[0] - before_bytes > 13 * MEBI
            theirs.sendall(garbage)
            theirs.close()
            links.receive(lambda _: None)
            assert not links.incoming_count
            assert tracemalloc.get_traced_memory()[0] - before_bytes < MEBI
    finally:
        tracemalloc.stop()
        gc.enable()
        links.close()
