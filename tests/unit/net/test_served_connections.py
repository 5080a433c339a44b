"""One task that serves all connections of a server, over real sockets on loopback."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.net import served_connections
from broker.net.served_connection import LONE_BYTES_MAX, ServedConnection
from broker.net.served_connections import FRAMES_MAX, ServedConnections
from broker.net.shared_writes import send_each
from dledger.runtime.frame_room import FrameRoom
from dledger_mq.net.frame_socket import READ_BYTES, FrameSocket
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame, FrameDecoder, encode_frame
from tests.stages import EACH, needs_compiled, stage

TIMEOUT_S = 60.0
FRAME = encode_frame(b"h", b"body")
KIBI = 1024


@dataclass
class Server:
    """A server that echoes, and what it was told, in order: frames, ends of turns, ends of connections."""

    told: list[str] = field(default_factory=list)
    handled: dict[str, list[bytes]] = field(default_factory=dict)
    answers: dict[FrameSocket, list[bytes]] = field(default_factory=dict)
    names: dict[FrameSocket, str] = field(default_factory=dict)
    before: Callable[[FrameSocket, list[Frame]], None] = lambda _connection, _frames: None
    unsent_bytes_max: int = 1 << 20
    room_bytes: int = 64 * KIBI
    is_waited_for: bool = False
    together_max: int = 0

    def __post_init__(self) -> None:
        self.room = FrameRoom(self.room_bytes)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.clients = [self.listening]
        self.served = ServedConnections(
            self.handle,
            closed=self.closed,
            turn_ended=self.turn_ended,
            handle_together=self.handle_together,
            room=self.room,
            frame_bytes_max=1 << 20,
            unsent_bytes_max=self.unsent_bytes_max,
        )

    def close(self) -> None:
        self.served.close()
        for near in self.clients:
            near.close()

    def handle(self, connection: FrameSocket, frames: list[Frame]) -> None:
        name = self.names[connection]
        self.told.append(f"{name}:{len(frames)}")
        self.before(connection, frames)
        self.handled.setdefault(name, []).extend(frame.body for frame in frames)
        self.answers.setdefault(connection, []).extend(
            encode_frame(frame.header, frame.body) for frame in frames
        )

    def handle_together(
        self, connections: list[ServedConnection], frames: list[Frame]
    ) -> Sequence[int]:
        """Takes the first of those that do not say no."""
        taken = [at for at, frame in enumerate(frames) if frame.body != b"no"][: self.together_max]
        for at in taken:
            self.answers[connections[at]] = [encode_frame(frames[at].header, frames[at].body)]
        self.told.append(f"together:{len(taken)} of {len(frames)}")
        return taken

    def turn_ended(self) -> bool:
        self.told.append("turn")
        answers, self.answers = self.answers, {}
        for connection, pieces in answers.items():
            connection.send_many(pieces)
        return self.is_waited_for

    def closed(self, connection: FrameSocket) -> None:
        self.told.append(f"{self.names[connection]} ended: {connection.close_reason}")

    def connect(self, name: str) -> tuple[socket.socket, ServedConnection]:
        """A client's end, and the server's."""
        near = socket.create_connection(self.listening.getsockname())
        self.clients.append(near)
        near.setblocking(False)
        far, _ = self.listening.accept()
        connection = self.served.add(far)
        self.names[connection] = name
        return near, connection


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[None]:
    """Serves what was connected before and in the block; in the end all is closed."""
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.served.run)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()
    server.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


async def read(near: socket.socket, bytes_count: int) -> bytes:
    received = bytearray()
    while len(received) < bytes_count:
        await trio.lowlevel.wait_readable(near)
        data = near.recv(1 << 20)
        assert data, f"it ended after {len(received)} of {bytes_count} bytes"
        received += data
    return bytes(received)


async def send(near: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        await trio.lowlevel.wait_writable(near)
        rest = rest[near.send(rest) :]


def reset(near: socket.socket) -> None:
    """End a connection as a process does that was killed while bytes came in."""
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()


@pytest.mark.parametrize(("is_waited_for", "short_s"), [(False, 60.0), (False, 0.0), (True, 60.0)])
async def test_who_comes_in_a_short_turn_is_served_in_it(
    monkeypatch: pytest.MonkeyPatch, is_waited_for: bool, short_s: float
) -> None:
    """Unless it was not short, or others have to go on with what came."""
    monkeypatch.setattr(served_connections, "TURN_S", 60.0)
    monkeypatch.setattr(served_connections, "SHORT_S", short_s)
    server = Server(is_waited_for=is_waited_for)
    first, second = (server.connect(name)[0] for name in ("c1", "c2"))

    def ask_again(connection: FrameSocket, _frames: list[Frame]) -> None:
        if server.names[connection] == "c1":
            second.sendall(FRAME)

    class Passes(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            server.told.append("others")

    server.before = ask_again
    first.sendall(FRAME)
    trio.lowlevel.add_instrument(Passes())
    async with serving(server):
        assert await read(second, len(FRAME)) == FRAME
    is_at_once = not is_waited_for and short_s > 0
    between = server.told[server.told.index("c1:1") : server.told.index("c2:1")]
    assert ("others" in between) is not is_at_once


async def test_what_is_ready_together_is_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine takes for it."""
    monkeypatch.setattr(served_connections, "TURN_S", 60.0)
    server = Server()
    clients = [server.connect(f"c{number}")[0] for number in range(5)]
    for near in clients:
        near.sendall(FRAME * 2)
    async with serving(server):
        for near in clients:
            assert await read(near, 2 * len(FRAME)) == FRAME * 2
        assert sorted(server.told[:5]) == [f"c{number}:2" for number in range(5)]
        assert server.told[5] == "turn"


async def test_a_burst_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn may take no time here, so each portion is one."""
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    server = Server()
    near, _ = server.connect("burst")
    count = 10 * FRAMES_MAX + 1
    near.sendall(b"".join(encode_frame(b"", b"%06d" % number) for number in range(count)))
    turns_of_others = 0
    async with serving(server):
        while len(server.handled.get("burst", ())) < count:
            await trio.lowlevel.checkpoint()
            turns_of_others += 1
        assert turns_of_others >= 10
    assert server.handled["burst"] == [b"%06d" % number for number in range(count)]
    portions = [each for each in server.told if each != "turn" and "ended" not in each]
    assert portions[:2] == [f"burst:{FRAMES_MAX}"] * 2
    first_turns = server.told[: 2 * 10]
    assert first_turns == [f"burst:{FRAMES_MAX}", "turn"] * 10


async def test_a_sync_sender_beside_a_burst_waits_for_one_read_of_it() -> None:
    server = Server(unsent_bytes_max=1 << 30)
    burst, _ = server.connect("burst")
    sync, _ = server.connect("sync")
    portion = encode_frame(b"", bytes(1000)) * 100
    rounds = 20

    async def flood() -> None:
        while True:
            await send(burst, portion)

    async def drain() -> None:
        while True:
            await trio.lowlevel.wait_readable(burst)
            burst.recv(1 << 20)

    async with serving(server), trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        nursery.start_soon(drain)
        for _ in range(rounds):
            await send(sync, FRAME)
            await read(sync, len(FRAME))
        nursery.cancel_scope.cancel()
    gaps = "\n".join(server.told).split("sync:1\n")
    assert len(gaps) == rounds + 1
    read_frames_max = READ_BYTES // len(encode_frame(b"", bytes(1000))) + 1
    for gap in gaps[1:-1]:
        burst_frames = sum(int(each[6:]) for each in gap.split() if each.startswith("burst:"))
        # The answer goes out at the end of a turn, and the next question comes during one of the next rounds.
        assert burst_frames <= 3 * read_frames_max


def numbered(count: int) -> bytes:
    return b"".join(encode_frame(b"", b"%06d" % number) for number in range(count))


async def test_the_rest_of_a_read_waits_for_the_others_and_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn may take no time here, so each portion is one; 20 of them had to end before anybody else was heard."""
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    server = Server()
    greedy = [server.connect(f"greedy{number}")[0] for number in range(5)]
    quick = [server.connect(f"quick{number}")[0] for number in range(5)]
    count = 20 * FRAMES_MAX
    for near in greedy:
        near.sendall(numbered(count))
    for near in quick:
        near.sendall(FRAME)
    async with serving(server):
        for near in quick:
            await read(near, len(FRAME))
        for _ in range(5):
            before = len(server.told)
            quick[0].sendall(FRAME)
            await read(quick[0], len(FRAME))
            portions = [each for each in server.told[before:] if each.startswith("greedy")]
            assert len(portions) <= 3, "one that had begun, one of the round, one while it reads"
        assert all(len(server.handled[f"greedy{number}"]) < count for number in range(5))
        await until(lambda: all(len(server.handled[f"greedy{n}"]) == count for n in range(5)))
    for number in range(5):
        assert server.handled[f"greedy{number}"] == [b"%06d" % each for each in range(count)]
    first = [each for each in server.told if each != "turn"]
    assert first[:10] == [f"greedy{n}:{FRAMES_MAX}" for n in range(5)] + [
        f"quick{n}:1" for n in range(5)
    ]


async def test_what_comes_behind_a_rest_is_read_when_that_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    server = Server()
    near, connection = server.connect("one")
    count = 3 * FRAMES_MAX
    near.sendall(numbered(count))
    async with serving(server):
        await until(lambda: connection.waits_for_turn)
        near.sendall(encode_frame(b"", b"behind"))
        near.shutdown(socket.SHUT_WR)
        await until(lambda: not server.served.connections)
    assert server.handled["one"] == [b"%06d" % each for each in range(count)] + [b"behind"]
    assert server.told[-1] == "one ended: closed by the peer"


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_rest_is_dropped_with_the_connection_that_its_user_closes(
    monkeypatch: pytest.MonkeyPatch, is_error: bool
) -> None:
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)

    def end(connection: FrameSocket, frames: list[Frame]) -> None:
        if frames[0].body == b"%06d" % FRAMES_MAX:
            if is_error:
                raise FrameError("a header that cannot be read")
            connection.close("its user wants it")

    server = Server(before=end)
    near, connection = server.connect("one")
    near.sendall(numbered(5 * FRAMES_MAX))
    async with serving(server):
        await until(lambda: not server.served.connections)
    assert len(server.handled["one"]) == FRAMES_MAX * (1 if is_error else 2)
    assert sum("ended" in each for each in server.told) == 1
    assert connection.close_reason


async def test_a_server_that_ends_drops_rests_and_tells_each_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    server = Server()
    near, connection = server.connect("one")
    near.sendall(numbered(5 * FRAMES_MAX))
    async with serving(server):
        await until(lambda: connection.waits_for_turn)
    assert len(server.handled["one"]) < 5 * FRAMES_MAX
    assert server.told[-1] == "one ended: the server stops"


async def test_the_time_in_which_a_rest_waits_does_not_count_against_the_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be silent for too long, or its frame never whole, because this side is slow."""
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)

    def make_old(connection: FrameSocket, _frames: list[Frame]) -> None:
        connection.received_at = connection.partial_since = -1e9

    server = Server(before=make_old)
    near, connection = server.connect("one")
    near.sendall(numbered(2 * FRAMES_MAX) + FRAME[:-1])
    async with serving(server):
        await until(lambda: len(server.handled.get("one", ())) == 2 * FRAMES_MAX)
        assert connection.received_at > 0
        assert connection.partial_since == connection.received_at


async def test_while_many_rests_wait_little_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was read and waits for its turn has a bound over all connections, and nobody is kept out by it."""
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    monkeypatch.setattr(served_connections, "RESTS_MAX", 2)
    server = Server()
    first = [server.connect(f"first{number}") for number in range(2)]
    many = 30 * FRAMES_MAX
    for near, _ in first:
        near.sendall(numbered(many))
    async with serving(server):
        await until(lambda: all(connection.waits_for_turn for _, connection in first))
        late, _ = server.connect("late")
        large = encode_frame(b"", bytes(40_000))
        count = 5 * FRAMES_MAX
        late.sendall(numbered(count) + large)
        await until(lambda: "late" in server.handled)
        assert server.served.is_crowded
        assert len(server.handled["late"]) <= 4096 // len(encode_frame(b"", b"%06d" % 0))
        await until(lambda: len(server.handled["late"]) == count + 1)
        assert server.handled["late"][-1] == bytes(40_000)
        await until(lambda: not server.served.is_crowded)
        await until(lambda: all(len(server.handled[f"first{n}"]) == many for n in range(2)))


async def test_a_slow_reader_holds_up_nobody_and_gets_all_in_order() -> None:
    server = Server(unsent_bytes_max=64 << 20)
    slow, connection = server.connect("slow")
    quick, _ = server.connect("quick")
    bodies = [bytes([number % 251]) * 50_000 for number in range(200)]
    async with serving(server):
        await send(slow, b"".join(encode_frame(b"", body) for body in bodies))
        await until(lambda: len(server.handled.get("slow", ())) == len(bodies))
        await send(quick, FRAME)
        assert await read(quick, len(FRAME)) == FRAME
        assert connection.unsent_bytes > 0, "the buffers of the system are larger than thought"
        decoder, received = FrameDecoder(), list[Frame]()
        while len(received) < len(bodies):
            await trio.lowlevel.wait_readable(slow)
            decoder.feed(slow.recv(30_000))
            received += decoder.frames()
        assert [frame.body for frame in received] == bodies
        assert connection.unsent_bytes == 0
        await wait_all_tasks_blocked(0.01)  # would never be, if it were looked at all the time
        await send(slow, FRAME)
        assert await read(slow, len(FRAME)) == FRAME


async def test_a_reader_that_is_too_slow_is_cut_off_and_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(unsent_bytes_max=1 << 20)
    slow, connection = server.connect("slow")
    quick, _ = server.connect("quick")
    async with serving(server):
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            await send(slow, encode_frame(b"", bytes(50_000)) * 2000)
        assert connection.close_reason.startswith("reads too slowly")
        await until(lambda: server.told[-1].startswith("slow ended: reads too slowly"))
        await send(quick, FRAME)
        assert await read(quick, len(FRAME)) == FRAME
    assert "reads too slowly" in caplog.text


async def test_of_many_that_read_nothing_the_first_are_cut_off_and_who_reads_stays() -> None:
    """None is too slow by itself; what waits for all of them together is bounded."""
    size = 512 * KIBI
    server = Server(unsent_bytes_max=2 * size)
    unsent = server.served.unsent

    def connect(name: str) -> tuple[socket.socket, ServedConnection]:
        near, connection = server.connect(name)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIBI)
        connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIBI)
        return near, connection

    reader, reading = connect("reader")
    slow = [connect(f"slow {number}")[1] for number in range(30)]
    async with serving(server):
        for connection in slow:
            reading.send_nowait(bytes(2 * size - reading.unsent_bytes))
            sent = reading.sent_bytes
            while reading.sent_bytes == sent:
                await read(reader, KIBI)
                await trio.lowlevel.checkpoint()
            connection.send_nowait(bytes(size))
            assert unsent.count_bytes <= unsent.bytes_max == 8 * size
        assert not reading.close_reason
        cut = [connection for connection in slow if connection.close_reason]
        assert len(cut) > 15
        assert cut == slow[: len(cut)]
        assert unsent.cut_count == len(cut)
    assert unsent.count_bytes == 0


async def test_waiting_for_a_reader_costs_no_turns() -> None:
    """A connection that is readable by nobody, and writable to nobody, is not looked at again and again."""
    server = Server(unsent_bytes_max=64 << 20)
    slow, connection = server.connect("slow")
    async with serving(server):
        await send(slow, encode_frame(b"", bytes(20_000)) * 500)
        await until(lambda: len(server.handled.get("slow", ())) == 500)
        assert connection.unsent_bytes > 0
        await wait_all_tasks_blocked(0.01)  # would never be, with turns all the time


@pytest.mark.parametrize("end", [socket.socket.close, reset])
async def test_an_end_in_the_middle_of_a_frame_is_told_once(
    end: Callable[[socket.socket], None],
) -> None:
    server = Server()
    near, _ = server.connect("torn")
    large = encode_frame(b"", bytes(50_000))
    async with serving(server):
        await send(near, FRAME + large[:30_000])
        await until(lambda: server.room.used_bytes > 0)
        end(near)
        await until(lambda: not server.served.connections)
        assert server.room.used_bytes == 0
        assert server.handled["torn"] == [b"body"]
    assert sum("torn ended" in each for each in server.told) == 1


async def test_who_waits_for_room_is_not_read_and_goes_on_when_there_is_some() -> None:
    server = Server()
    large = encode_frame(b"", bytes(50_000))
    holder, _ = server.connect("holder")
    waiter, waiting = server.connect("waiter")
    async with serving(server):
        await send(holder, large[:20_000])
        await until(lambda: server.room.used_bytes > 0)
        await send(waiter, FRAME + large)
        await until(lambda: waiting.waits_for_room)
        await wait_all_tasks_blocked(0.01)  # would never be, if it were looked at all the time
        assert server.handled["waiter"] == [b"body"]
        holder.close()
        assert await read(waiter, len(FRAME + large)) == FRAME + large
        assert server.room.used_bytes == 0


async def test_who_waits_for_room_and_is_gone_ends_without_a_busy_loop() -> None:
    server = Server()
    large = encode_frame(b"", bytes(50_000))
    holder, _ = server.connect("holder")
    waiter, waiting = server.connect("waiter")
    async with serving(server):
        await send(holder, large[:20_000])
        await until(lambda: server.room.used_bytes > 0)
        await send(waiter, large)
        await until(lambda: waiting.waits_for_room)
        reset(waiter)
        await wait_all_tasks_blocked(0.01)
        holder.close()
        await until(lambda: not server.served.connections)
    assert [each for each in server.told if each.startswith("waiter ended")]


async def test_an_end_behind_unread_bytes_is_seen_of_the_one_that_has_ended() -> None:
    server = Server()
    gone, going = server.connect("gone")
    stays, staying = server.connect("stays")
    assert (going.has_ended, staying.has_ended) == (False, False)
    gone.sendall(FRAME)
    stays.sendall(FRAME)
    gone.shutdown(socket.SHUT_WR)
    assert (going.has_ended, staying.has_ended) == (True, False)
    async with serving(server):
        assert await read(gone, len(FRAME)) == FRAME  # it reads on
        await until(lambda: going not in server.served.connections)
        assert (going.has_ended, staying.has_ended) == (True, False)


async def test_bad_bytes_and_bad_headers_end_one_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(_connection: FrameSocket, frames: list[Frame]) -> None:
        if any(frame.body == b"bad" for frame in frames):
            raise FrameError("a header that cannot be read")

    server = Server(before=refuse)
    garbage, _ = server.connect("garbage")
    header, _ = server.connect("header")
    good, _ = server.connect("good")
    garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
    header.sendall(encode_frame(b"", b"bad") + FRAME * FRAMES_MAX)
    good.sendall(FRAME)
    async with serving(server):
        assert await read(good, len(FRAME)) == FRAME
        await until(lambda: len(server.served.connections) == 1)
        assert set(server.handled) == {"good"}, "what follows a bad header is not carried out"
    assert len(caplog.records) == 2


async def test_an_error_of_the_user_ends_the_server_and_closes_all() -> None:
    def fail(_connection: FrameSocket, _frames: list[Frame]) -> None:
        raise OSError("the disk has failed")

    server = Server(before=fail)
    one, _ = server.connect("one")
    server.connect("other")
    one.sendall(FRAME)
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="the disk has failed")):
        await server.served.run()
    server.close()
    assert sorted(each for each in server.told if "ended" in each) == [
        "one ended: the server stops",
        "other ended: the server stops",
    ]


async def test_a_connection_that_somebody_else_closes_is_told_soon() -> None:
    server = Server()
    _, connection = server.connect("one")
    async with serving(server):
        await wait_all_tasks_blocked()
        connection.close("test")
        assert not [each for each in server.told if "ended" in each], "not within the call"
        await until(lambda: server.told == ["one ended: test"])


async def test_what_was_read_before_a_close_is_handed_over_before_its_end_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    server = Server()
    near, connection = server.connect("one")
    near.sendall(FRAME * 3 * FRAMES_MAX)
    async with serving(server):
        await until(lambda: bool(server.told))
        connection.close("between two turns")
        await until(lambda: not server.served.connections)
    assert len(server.handled["one"]) == 3 * FRAMES_MAX
    assert server.told[-1] == "one ended: between two turns"


async def test_two_thousand_connections_are_answered_each() -> None:
    count = 2000
    server = Server()
    clients = [server.connect(f"c{number}")[0] for number in range(count)]
    async with serving(server):
        for number, near in enumerate(clients):
            near.send(encode_frame(b"", b"%04d" % number))
        for number, near in enumerate(clients):
            expected = encode_frame(b"", b"%04d" % number)
            assert await read(near, len(expected)) == expected
            near.close()
        await until(lambda: not server.served.connections)


async def test_a_descriptor_may_belong_to_another_connection_later() -> None:
    server = Server()
    async with serving(server):
        for number in range(3):
            near, connection = server.connect(f"c{number}")
            await send(near, FRAME)
            assert await read(near, len(FRAME)) == FRAME
            connection.close("test")
            near.close()
            await until(lambda: not server.served.connections)
    assert [each for each in server.told if "ended" in each] == [
        f"c{number} ended: test" for number in range(3)
    ]


async def test_a_connection_that_cannot_be_waited_for_ends_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lack_memory(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    server = Server()
    stays, _ = server.connect("stays")
    with monkeypatch.context() as patched:
        patched.setattr(server.served.ready, "watch", lack_memory)
        server.connect("ends")
    async with serving(server):
        await until(lambda: len(server.served.connections) == 1)
        await send(stays, FRAME)
        assert await read(stays, len(FRAME)) == FRAME
    assert sum("ends ended: it cannot be waited for" in each for each in server.told) == 1


async def test_what_a_user_has_no_time_for_comes_again_in_order() -> None:
    server = Server()
    handed: list[int] = []

    def take_one(_connection: FrameSocket, frames: list[Frame]) -> int:
        handed.append(frames[0].body[0])
        return 1

    server.served._handle = take_one
    near, _ = server.connect("client")
    async with serving(server):
        await send(near, b"".join(encode_frame(b"", bytes([number])) for number in range(9)))
        await until(lambda: len(handed) == 9)
    assert handed == list(range(9))
    assert "turn" in server.told


async def test_what_came_behind_a_mistake_of_ours_is_not_handed_over() -> None:
    def close(connection: FrameSocket, _frames: list[Frame]) -> None:
        connection.close("internal error")

    server = Server(before=close)
    near, _ = server.connect("one")
    near.sendall(FRAME * 3 * FRAMES_MAX)
    async with serving(server):
        await until(lambda: bool(server.told) and not server.served.connections)
    told = [each for each in server.told if each != "turn"]  # two, where the machine is slow
    assert told == [f"one:{FRAMES_MAX}", "one ended: internal error"]


async def test_connections_without_a_whole_frame_leave_turns_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn may take no time here; large frames that have begun take much of one each, and so do slow readers."""
    monkeypatch.setattr(served_connections, "TURN_S", 0.0)
    server = Server(room_bytes=KIBI * KIBI)
    for number in range(8):
        near, _ = server.connect(f"c{number}")
        near.sendall(FRAME[:-1])
    async with serving(server):
        await until(lambda: all(each.received_bytes for each in server.served.connections))
        assert server.told.count("turn") >= 7


def lone_ones(server: Server, count: int) -> list[socket.socket]:
    """Clients that have sent one frame and have its answer, as many as `served` has served."""
    return [server.connect(f"c{number}")[0] for number in range(count)]


async def ask_all(server: Server, clients: list[socket.socket], frames: list[bytes]) -> list[str]:
    """Let each send something, and await as much; return what the server was told of it."""
    before = len(server.told)
    for near, data in zip(clients, frames, strict=True):
        near.sendall(data)
    for near, data in zip(clients, frames, strict=True):
        assert await read(near, len(data)) == data
    return [each for each in server.told[before:] if each != "turn"]


NO = encode_frame(b"h", b"no")


@needs_compiled
async def test_frames_that_each_are_a_read_are_handed_over_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once each connection was seen to send one at a time. Who is not taken comes by itself in the same round."""
    monkeypatch.setattr(served_connections, "TURN_S", 60.0)
    server = Server(together_max=8)
    clients = lone_ones(server, 9)
    everybody = [f"c{number}:1" for number in range(9)]
    async with serving(server):
        assert sorted(await ask_all(server, clients, [FRAME] * 9)) == everybody
        told = await ask_all(server, clients, [FRAME] * 9)
        assert told == ["together:8 of 9", "c8:1"]
        told = await ask_all(server, clients, [FRAME] * 2 + [NO] + [FRAME] * 6)
        assert told == ["together:8 of 9", "c2:1"]
        told = await ask_all(server, clients, [NO] * 9)
        assert told == ["together:0 of 9", *everybody]
        for connection in server.names:
            assert connection.received_frames == 4
            no_count = 2 if server.names[connection] == "c2" else 1
            no_bytes = no_count * (len(FRAME) - len(NO))
            assert connection.received_bytes == 4 * len(FRAME) - no_bytes


@needs_compiled
async def test_who_sends_more_or_less_than_a_frame_is_read_by_itself() -> None:
    server = Server(together_max=256, room_bytes=1 << 20)
    clients = lone_ones(server, 6)
    large = encode_frame(b"h", bytes(LONE_BYTES_MAX))
    async with serving(server):
        await ask_all(server, clients, [FRAME] * 6)
        for sent in (large, FRAME * 2):
            await ask_all(server, clients, [sent] * 6)
            assert not any(connection.is_lone for connection in server.served.connections)
            await ask_all(server, clients, [FRAME] * 6)
            assert all(connection.is_lone for connection in server.served.connections)
        before = len(server.told)
        for near in clients:
            near.sendall(FRAME[:5])
        await wait_all_tasks_blocked()
        for near in clients:
            near.sendall(FRAME[5:])
            assert await read(near, len(FRAME)) == FRAME
        assert not any(each.startswith("together") for each in server.told[before:])


@needs_compiled
async def test_what_was_read_of_a_connection_that_is_closed_meanwhile_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_connections, "TURN_S", 60.0)
    server = Server(together_max=0)
    clients = lone_ones(server, 6)
    last = list(server.names)[-1]

    def close_the_last(connection: FrameSocket, _frames: list[Frame]) -> None:
        if connection is not last:
            last.close("for another's sake")

    async with serving(server):
        await ask_all(server, clients, [FRAME] * 6)
        server.before = close_the_last
        before = len(server.told)
        for near in clients:
            near.sendall(FRAME)
        await wait_all_tasks_blocked()
        told = server.told[before:]
    assert "c5:1" not in told
    assert [each for each in told if "ended" in each] == ["c5 ended: for another's sake"]
    assert "c4:1" in told


@needs_compiled
async def test_the_end_and_the_failure_of_lone_connections_are_told() -> None:
    server = Server(together_max=256)
    clients = lone_ones(server, 6)
    async with serving(server):
        await ask_all(server, clients, [FRAME] * 6)
        clients[0].shutdown(socket.SHUT_WR)
        clients[1].sendall(b"\xff" * 9)
        for near in clients[2:]:
            near.sendall(FRAME)
        await wait_all_tasks_blocked()
        assert "c0 ended: closed by the peer" in server.told
        assert any(each.startswith("c1 ended: bad frame") for each in server.told)
        assert "together:4 of 4" in server.told


@pytest.mark.parametrize("is_compiled", EACH)
async def test_each_of_several_connections_gets_its_own_bytes(is_compiled: bool) -> None:
    """Behind what waits for it, as far as its socket takes them, and none of one that is closed."""
    server = Server(unsent_bytes_max=64 << 20)
    clients = lone_ones(server, 5)
    waiting, closed, greedy, broken, plain = server.names
    large = bytes(8 << 20)
    async with serving(server):
        waiting.send_nowait(large)
        assert waiting.unsent_bytes
        closed.close("by the test")
        reset(clients[3])
        with stage(is_compiled=is_compiled):
            send_each(
                [waiting, closed, greedy, broken, plain],
                [b"behind", b"lost", large, b"lost", b"all"],
            )
        assert 0 < greedy.unsent_bytes < len(large)
        assert greedy.sent_bytes == len(large) - greedy.unsent_bytes
        assert broken.close_reason.startswith("write failed: [Errno")
        assert plain.sent_bytes == 3
        assert await read(clients[4], 3) == b"all"
        assert await read(clients[2], len(large)) == large
        assert await read(clients[0], len(large) + 6) == large + b"behind"
