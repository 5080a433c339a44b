"""The proxy process: TCP connections between members, and of clients, passed on and mistreated.

Started by `proxy.ProxyLinks` and steered through its standard input (`proxy_protocol.py`); it ends when that
closes. A process of its own, so that neither the harness' load nor a slow checker distorts the links.

Each connection has two directions and each direction is a link of its own: with ("n0", "n1") cut, what
n0 sends is swallowed on the connections that n0 opened and on those that n1 opened, while what n1 sends
arrives. A cut that swallowed bytes of a connection ends it when the link is healed: TCP never delivers
a stream with a gap. New connections over a cut link are accepted (the kernel does it before we know) and
lead nowhere.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from typing import Final

import msgspec
import trio

from broker.server.links.private_codes import PrivateCode
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import decode_command
from dledger_mq.remoting.registrant import ASK_REGISTRANT
from jepsen.nemeses.mangling import FrameCutter, Mangler, Recorder
from jepsen.nemeses.proxy_protocol import (
    NAME_SERVERS,
    Command,
    Done,
    Replay,
    Route,
    Serve,
    Swallowed,
    Treat,
)
from jepsen.systems.api import CLIENTS, WHOLE, Shape

READ_BYTES: Final = 64 * 1024
QUEUE_BYTES_MAX: Final = (
    4 * 1024 * 1024
)  # delayed bytes of one direction; then the sender must wait
RATED_QUEUE_BYTES_MAX: Final = (
    32 * 1024
)  # a slow line does not hide its slowness behind a large buffer
RATED_PIECE_BYTES: Final = 8 * 1024
RETRANSMIT_S: Final = 0.2  # Linux' shortest retransmission timeout
HANDSHAKE_FRAMES: Final = 2  # of each direction between members; not worth a replay
_ABORT: Final = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: close() sends a reset
_GRACEFUL: Final = struct.pack("ii", 0, 0)
_ENDS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class LinkState:
    """One directed link: its shape, its connections, and what went over it."""

    def __init__(self) -> None:
        self.shape = WHOLE
        self.changed = trio.Event()
        self.recorder = Recorder()
        self.lanes: list[ProxyLane] = []
        self.free_at = 0.0
        self.swallowed_bytes = 0


class ProxyLane:
    """One direction of one connection.

    Invariants: what is queued leaves in order; once `has_gap`, the connection is ended as soon as the
    link passes bytes again.
    """

    def __init__(
        self,
        link: LinkState,
        source: trio.SocketStream,
        target: trio.SocketStream,
        *,
        is_dialer: bool,
        chance: random.Random,
    ) -> None:
        self.link = link
        self.has_gap = False
        self.is_dialer = is_dialer
        self.scope = trio.CancelScope()
        self._source = source
        self._target = target
        self._cutter = FrameCutter()
        self._mangler = Mangler(chance)
        self._chance = chance
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._is_writing = False
        self._last_release = 0.0
        self._seen_frames = 0
        self._stirred = trio.Event()

    async def run(self, first: bytes) -> None:
        """Pass bytes on until the source ends; then end the target's side, too."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            await self._take(first)
            while True:
                await self._wait_room()
                data = await self._source.receive_some(READ_BYTES)
                while self.link.shape.flow == "stall":
                    await self.link.changed.wait()
                if not data:
                    break
                await self._take(data)
            while self.link.shape.flow != "pass":  # a FIN does not cross a cut link either
                await self.link.changed.wait()
            self._enqueue(self._cutter.take_rest(), WHOLE)
            while self._queue or self._is_writing:
                await self._wait_stirred()
            await self._target.send_eof()
            nursery.cancel_scope.cancel()

    def inject(self, frames: list[bytes]) -> None:
        """Send frames between two others."""
        for frame in frames:
            self._enqueue(frame, WHOLE)

    def change(self) -> None:
        """Adopt the link's new shape."""
        flow = self.link.shape.flow
        if flow == "drop" and self._queue:
            self._swallow(self._queued_bytes)
            self._queue.clear()
            self._queued_bytes = 0
        if self.link.shape.bytes_per_s:
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RATED_QUEUE_BYTES_MAX)
        self._stir()

    async def _take(self, data: bytes) -> None:
        """Treat bytes that arrived; an unshaped lane with an empty queue writes at once, not through another task."""
        shape = self.link.shape
        if shape.flow == "drop":
            self._swallow(len(data))
            return
        frames = self._cutter.feed(data)
        if not frames:
            return
        if self.is_dialer and self._seen_frames >= HANDSHAKE_FRAMES:
            self.link.recorder.note(frames)
        self._seen_frames += len(frames)
        released = [] if shape.is_frame_wise else self._mangler.release()
        joined = b"".join(
            self._mangler.treat(frames, shape) if shape.is_frame_wise else released + frames
        )
        if shape == WHOLE and not self._queue and not self._is_writing:
            self._is_writing = True
            await self._target.send_all(joined)
            self._is_writing = False
            self._stir()
            return
        self._enqueue(joined, shape)

    def _swallow(self, count: int) -> None:
        self.link.swallowed_bytes += count
        self.has_gap = self.has_gap or count > 0

    def _enqueue(self, data: bytes, shape: Shape) -> None:
        """Queue bytes with the time at which they may leave; times never decrease, because TCP keeps its order."""
        if not data:
            return
        release = trio.current_time() + shape.delay_ms / 1000
        if shape.jitter_ms:
            release += self._chance.random() * shape.jitter_ms / 1000
        if shape.retransmit and self._chance.random() < shape.retransmit:
            release += RETRANSMIT_S
        size = RATED_PIECE_BYTES if shape.bytes_per_s else len(data)
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            if shape.bytes_per_s:
                self.link.free_at = max(release, self.link.free_at) + len(piece) / shape.bytes_per_s
                release = self.link.free_at
            self._last_release = max(release, self._last_release)
            self._queue.append((self._last_release, piece))
            self._queued_bytes += len(piece)
        self._stir()

    async def _wait_room(self) -> None:
        while True:
            rated = self.link.shape.bytes_per_s
            if self.link.shape.flow == "stall":
                await self.link.changed.wait()
            elif self._queued_bytes > (RATED_QUEUE_BYTES_MAX if rated else QUEUE_BYTES_MAX):
                await self._wait_stirred()
            else:
                return

    async def _write(self) -> None:
        """Write pieces when they are due; a cut may empty the queue meanwhile, so its head is checked again."""
        while True:
            while not self._queue or self._is_writing:
                await self._wait_stirred()
            release, piece = first = self._queue[0]
            with trio.move_on_at(release):
                await self._wait_stirred()
                continue
            if not self._queue or self._queue[0] is not first:
                continue  # a cut came in the very moment in which it was due, and has swallowed it
            if self.link.shape.flow == "stall":
                await self.link.changed.wait()
                continue
            self._queue.popleft()
            self._queued_bytes -= len(piece)
            self._is_writing = True
            await self._target.send_all(piece)
            self._is_writing = False
            self._stir()

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = trio.Event()

    async def _wait_stirred(self) -> None:
        await self._stirred.wait()


class Proxy:
    """All links, and the tasks that serve their connections."""

    def __init__(self, seed: int) -> None:
        self._links: dict[tuple[str, str], LinkState] = {}
        self._chance = random.Random(seed)

    def link(self, source: str, target: str) -> LinkState:
        """Return the state of a link, made when it is first named."""
        return self._links.setdefault((source, target), LinkState())

    def treat(self, source: str, target: str, shape: Shape) -> None:
        """Change a link, and end the connections that cannot live on."""
        link = self.link(source, target)
        link.shape = shape
        link.changed.set()
        link.changed = trio.Event()
        for lane in list(link.lanes):
            lane.change()
            if shape.flow == "reset" or (shape.flow == "pass" and lane.has_gap):
                lane.scope.cancel()

    def replay(self, source: str, target: str, count: int) -> int:
        """Send old frames on the connection that `source` has opened to `target`."""
        link = self.link(source, target)
        lanes = [lane for lane in link.lanes if lane.is_dialer]
        if not lanes:
            return 0
        frames = link.recorder.old_frames(count, self._chance)
        lanes[-1].inject(frames)
        return len(frames)

    async def serve(self, route: Route, listener: trio.SocketListener) -> None:
        """Serve the connections of one listener."""

        async def pass_on(near: trio.SocketStream) -> None:
            async with near:
                with suppress(*_ENDS):
                    await self._pass_on(route, near)

        await trio.serve_listeners(pass_on, [listener])

    async def _pass_on(self, route: Route, near: trio.SocketStream) -> None:
        """Serve one connection.

        Raises:
            OSError: the target does not listen; so the dialer is turned away, too.
            trio.BrokenResourceError: the dialer has gone.
        """
        source, first = route.source, b""
        if source is None:
            source, first = await _find_source(near)
        there, back = self.link(source, route.target), self.link(route.target, source)
        _reset_when_closed(near)
        if await _may_open(there, back):
            async with await trio.open_tcp_stream(route.target_host, route.target_port) as far:
                await self._join(near, far, there=there, back=back, first=first)

    async def _join(
        self,
        near: trio.SocketStream,
        far: trio.SocketStream,
        *,
        there: LinkState,
        back: LinkState,
        first: bytes,
    ) -> None:
        """Carry both directions of a connection in one cancel scope; a cancelled connection ends with a TCP reset."""
        out = ProxyLane(there, near, far, is_dialer=True, chance=self._chance)
        home = ProxyLane(back, far, near, is_dialer=False, chance=self._chance)
        scope = home.scope = out.scope
        there.lanes.append(out)
        back.lanes.append(home)
        try:
            with scope:
                if "reset" in {there.shape.flow, back.shape.flow}:
                    scope.cancel()  # changed while we connected
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_run_lane, home, b"", scope)
                    nursery.start_soon(_run_lane, out, first, scope)
        finally:
            there.lanes.remove(out)
            back.lanes.remove(home)
            if scope.cancelled_caught:
                _reset_when_closed(far)
            else:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _GRACEFUL)


def _reset_when_closed(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)


async def _run_lane(lane: ProxyLane, first: bytes, scope: trio.CancelScope) -> None:
    """Run a lane; one that breaks takes the other one with it."""
    try:
        await lane.run(first)
    except* _ENDS:
        scope.cancel()


async def _may_open(there: LinkState, back: LinkState) -> bool:
    """Return whether a new connection is passed on; over a cut link not even after it is healed."""
    while True:
        flows = {there.shape.flow, back.shape.flow}
        if "reset" in flows:
            return False
        if flows == {"pass"}:
            return True
        is_cut = "drop" in flows
        blocked = there if there.shape.flow != "pass" else back
        await blocked.changed.wait()
        if is_cut:
            return False


async def _find_source(stream: trio.SocketStream) -> tuple[str, bytes]:
    """Read the first frame on a broker's client port: a node that forwards, a name server, or a client."""
    decoder, data = FrameDecoder(), b""
    while True:
        more = await stream.receive_some(READ_BYTES)
        data += more
        decoder.feed(more)
        try:
            frame = decoder.next_frame()
            if frame is not None:
                command = decode_command(frame)
                if command.code == ASK_REGISTRANT:
                    return NAME_SERVERS, data
                is_node = command.code == PrivateCode.HELLO
                return (command.ext.get("node", CLIENTS) if is_node else CLIENTS), data
        except FrameError:
            return CLIENTS, data
        if not more:
            return CLIENTS, data


async def _listen(route: Route) -> trio.SocketListener:
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    await sock.bind((route.host, route.port))
    sock.listen(256)
    return trio.SocketListener(sock)


async def _carry_out(command: Command, proxy: Proxy) -> Done:
    match command:
        case Treat(source, target, shape):
            proxy.treat(source, target, shape)
        case Replay(source, target, count):
            return Done(count=proxy.replay(source, target, count))
        case Swallowed(source, target):
            return Done(count=proxy.link(source, target).swallowed_bytes)
        case Serve():
            return Done(problem="it serves already")
    return Done()


async def _run() -> None:
    """Serve until standard input ends, so as not to outlive the harness; the first answer means: it listens."""
    decoder = msgspec.json.Decoder(Command)
    lines = _Lines(trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())))
    serve = decoder.decode(await lines.next() or b"")
    assert isinstance(serve, Serve), "the first command names the routes"
    proxy = Proxy(serve.seed)
    try:
        listeners = [(route, await _listen(route)) for route in serve.routes]
    except OSError as error:
        _answer(Done(problem=f"cannot listen: {error}"))
        return
    async with trio.open_nursery() as nursery:
        for route, listener in listeners:
            nursery.start_soon(proxy.serve, route, listener)
        _answer(Done())
        while (line := await lines.next()) is not None:
            _answer(await _carry_out(decoder.decode(line), proxy))
        nursery.cancel_scope.cancel()


def _answer(done: Done) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
    sys.stdout.buffer.flush()


class _Lines:
    def __init__(self, stream: trio.lowlevel.FdStream) -> None:
        self._stream = stream
        self._data = b""

    async def next(self) -> bytes | None:
        """Return the next line, None at the end."""
        while b"\n" not in self._data:
            more = await self._stream.receive_some(READ_BYTES)
            if not more:
                return None
            self._data += more
        line, _, self._data = self._data.partition(b"\n")
        return line


if __name__ == "__main__":
    trio.run(_run)
