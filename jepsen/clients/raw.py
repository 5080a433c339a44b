"""A client that writes requests as bytes, several at once, and hangs up when it likes: no retries, no routes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from dledger_mq.client.credentials import chosen_credentials
from dledger_mq.client.tls import chosen_tls
from dledger_mq.net.address import parse_address
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command

CONNECT_TIMEOUT_S: Final = 2.0
LAST_WORDS_S: Final = 0.5
CORKED_S: Final = 0.15
"""Linux holds corked bytes back for 0.2 s at most (tcp(7))."""
_READ_BYTES: Final = 65536


class RawConnection:
    """One connection.

    Attributes:
        answers: what was answered so far, by opaque.
    """

    def __init__(self, plain: trio.SocketStream, stream: trio.abc.Stream) -> None:
        """Speak over a stream.

        Args:
            plain: the connection.
            stream: the same, or TLS over it.
        """
        self.answers: dict[int, RemotingCommand] = {}
        self._plain = plain
        self._stream = stream
        self._decoder = FrameDecoder()

    async def write(self, frames: bytes) -> bool:
        """Write whole frames in one call; return False when the connection is gone."""
        try:
            await self._stream.send_all(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def write_and_hang_up(self, frames: bytes) -> bool:
        """Write whole frames and close: corked, so that they leave with the end and no answer comes before it.

        Returns:
            False: this process stood still meanwhile, so they may have left before the end, and been answered.
        """
        began = trio.current_time()
        with suppress(OSError):  # it is gone already
            self._plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            await self.write(frames)
        self._plain.socket.close()
        return trio.current_time() - began < CORKED_S

    async def wait_for(self, opaques: Collection[int], timeout_s: float) -> bool:
        """Wait for the answers to these requests; return False when time is up or the connection is gone."""
        with trio.move_on_after(timeout_s):
            while not self.answers.keys() >= set(opaques):
                if not await self._read():
                    break
        return self.answers.keys() >= set(opaques)

    async def give_up(self) -> None:
        """Shut down sending, and read the answers that still come before the other end closes."""
        with trio.move_on_after(LAST_WORDS_S):
            try:
                await self._plain.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            while await self._read():
                pass

    async def _read(self) -> bool:
        """Read answers once; return False at the end of the connection."""
        try:
            data = bytes(await self._stream.receive_some(_READ_BYTES))
            self._decoder.feed(data)
            commands = [decode_command(frame) for frame in self._decoder.frames()]
        except (trio.BrokenResourceError, trio.ClosedResourceError, FrameError):
            return False
        self.answers |= {each.opaque: each for each in commands if each.is_response}
        return bool(data)


@asynccontextmanager
async def raw_connection(address: str) -> AsyncIterator[RawConnection | None]:
    """Connect to "host:port", and encrypt where all clients do; None when nobody takes the connection.

    At the end it is closed at once.
    """
    host, port = parse_address(address)
    plain: trio.SocketStream | None = None
    connection: RawConnection | None = None
    try:
        with trio.move_on_after(CONNECT_TIMEOUT_S), suppress(OSError, trio.BrokenResourceError):
            plain = await trio.open_tcp_stream(host, port)
            connection = RawConnection(plain, await _encrypted(plain, host))
        yield connection
    finally:
        if plain is not None:
            await trio.aclose_forcefully(plain)


async def _encrypted(plain: trio.SocketStream, host: str) -> trio.abc.Stream:
    """Return TLS over a connection where `tls_for_all` says so; raises trio.BrokenResourceError."""
    if (context := chosen_tls()) is None:
        return plain
    stream = trio.SSLStream(plain, context, server_hostname=host)
    await stream.do_handshake()
    return stream


def signed(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a request without a body, signed where all clients are given an account."""
    credentials = chosen_credentials()
    return dict(ext) if credentials is None else credentials.sign(ext, b"")
