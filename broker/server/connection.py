"""One accepted connection: frames in, answers out, bounded. Knows nothing of what the frames mean."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count

import trio

from broker.message.errors import MessageFormatError
from broker.message.hosts import pack_host
from broker.remoting.frame import FrameDecoder
from broker.remoting.header import encode_command, make_response

_numbers = count(1)
_UNKNOWN_HOST = bytes(8)


class ClientConnection:
    """A client's socket with what came half and what could not be sent yet.

    `send` only gathers; `flush` writes everything gathered with one system call, so that the answers
    of one commit leave together. What the socket does not take is drained by a task of its own; a
    client that lets more than `output_bytes_max` pile up is cut off.

    Attributes:
        number: unique in the process.
        address: host:port of the client, for logs and for tools.
        born_host: the same as a host field of a record.
        active_ms: when it last sent or took something.
        partial_since_ms: when the first byte of an unfinished frame came; None between frames.
    """

    __slots__ = (
        "_draining",
        "_mark_dirty",
        "_out",
        "_output_bytes_max",
        "_spawn",
        "active_ms",
        "address",
        "born_host",
        "close_reason",
        "decoder",
        "is_closed",
        "number",
        "out_bytes",
        "partial_since_ms",
        "sock",
    )

    def __init__(
        self,
        sock: socket.socket,
        *,
        decoder: FrameDecoder,
        output_bytes_max: int,
        mark_dirty: Callable[[ClientConnection], None],
        spawn: Callable[[ClientConnection], None],
        now_ms: int,
    ) -> None:
        """Take over an accepted, non-blocking socket.

        `mark_dirty` is called when there is something to flush after there was nothing; `spawn` is
        called to start `drain` as a task.
        """
        self.number = next(_numbers)
        self.sock = sock
        self.decoder = decoder
        self.address, self.born_host = _peer_of(sock)
        self.active_ms = now_ms
        self.partial_since_ms: int | None = None
        self.out_bytes = 0
        self.is_closed = False
        self.close_reason = ""
        self._out: list[bytes] = []
        self._output_bytes_max = output_bytes_max
        self._mark_dirty = mark_dirty
        self._spawn = spawn
        self._draining = False

    def send(self, data: bytes) -> None:
        """Gather bytes to be written by the next flush; dropped when the connection is closed."""
        if self.is_closed:
            return
        if not self._out:
            self._mark_dirty(self)
        self._out.append(data)
        self.out_bytes += len(data)
        if self.out_bytes > self._output_bytes_max:
            self.close(f"slow reader: {self.out_bytes} bytes of answers wait")

    def answer(
        self,
        opaque: int,
        code: int,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Gather the answer to a request."""
        self.send(encode_command(make_response(opaque, code, remark, ext, body)))

    def flush(self) -> None:
        """Write what was gathered, as far as the socket takes it."""
        if self.is_closed or self._draining or not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(f"write failed: {error}")
            return
        self.out_bytes -= sent
        if sent < len(data):
            self._out.append(data[sent:])
            self._draining = True
            self._spawn(self)

    async def drain(self) -> None:
        """Write the rest when the socket takes it; the task that `spawn` starts."""
        while not self.is_closed and self._out:
            try:
                await trio.lowlevel.wait_writable(self.sock)
            except (trio.ClosedResourceError, OSError):
                break
            self._draining = False
            data = b"".join(self._out)
            self._out.clear()
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.close(f"write failed: {error}")
                break
            self.out_bytes -= sent
            if sent < len(data):
                self._out.append(data[sent:])
                self._draining = True
        self._draining = False

    def close(self, reason: str) -> None:
        """Close at once; waiting tasks of this connection end."""
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        self._out.clear()
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()


def _peer_of(sock: socket.socket) -> tuple[str, bytes]:
    """Text and host field of the other end; a client that is gone already counts as unknown."""
    try:
        host, port, *_ = sock.getpeername()
        return f"{host}:{port}", pack_host(host, port)
    except (OSError, MessageFormatError):
        return "unknown", _UNKNOWN_HOST
