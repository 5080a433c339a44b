"""One connection to a server, as the client uses it: its end is an error that says why."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import anyio

from dledger_mq.client.errors import ClientUsageError, ConnectionLostError
from dledger_mq.net.address import Address, parse_address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.net.frame_socket import CLOSED_BY_PEER
from dledger_mq.net.loop import Starter
from dledger_mq.net.tls import TlsError
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame

CONNECT_TIMEOUT_S: Final = 3.0  # the Java client's


class Wire:
    """An open connection. One task runs `serve`; anyone in the thread may send."""

    def __init__(self, connection: Connection, address: str, *, is_encrypted: bool = False) -> None:
        self.address = address
        self.send_nowait = connection.send_nowait
        self._connection = connection
        self._is_encrypted = is_encrypted

    async def serve(self, on_frames: Callable[[list[Frame]], None]) -> None:
        """Hand every batch of received frames to `on_frames` until the connection ends.

        Raises:
            ConnectionLostError: always, in the end: it was closed or broke, or the peer sent
                something that is no frame.
        """
        try:
            while frames := await self._connection.receive():
                on_frames(frames)
        except TlsError as error:
            raise ConnectionLostError(f"{self.address}: {error}") from error
        except FrameError as error:
            raise ConnectionLostError(f"{self.address} sent no frame: {error}") from error
        raise ConnectionLostError(f"{self.address}: {self._why_ended()}")

    def _why_ended(self) -> str:
        """Return why it ended; a port that takes TLS only closes what comes in plain text, without a word."""
        connection = self._connection
        is_mute = connection.sent_bytes and not connection.received_bytes
        if not self._is_encrypted and is_mute and connection.close_reason == CLOSED_BY_PEER:
            return f"{CLOSED_BY_PEER} without a word: does this port take TLS only?"
        return connection.close_reason

    @property
    def silence_s(self) -> float:
        """The time for which nothing was received."""
        return anyio.current_time() - self._connection.received_at

    def close(self) -> None:
        """Close it; `serve` ends."""
        self._connection.close("left by the client")


def split_address(address: str) -> Address:
    """Take "host:port" apart.

    Raises:
        ClientUsageError: it is not of that form.
    """
    try:
        parsed = parse_address(address)
    except ValueError:
        parsed = None
    if parsed is None or not parsed.host or not parsed.port:
        raise ClientUsageError(f"{address!r} is not HOST:PORT with a port from 1 to 65535")
    return parsed


async def open_wire(
    address: str,
    nursery: Starter,
    timeout_s: float = CONNECT_TIMEOUT_S,
    *,
    tls: ssl.SSLContext | None = None,
) -> Wire:
    """Connect. The caller closes the wire.

    Args:
        address: "host:port".
        nursery: outlives the connection; what the socket does not take at once is written there.
        timeout_s: for the connection to be made.
        tls: encrypts it; None: plain text.

    Raises:
        ConnectionLostError: nobody listens there, or not in time; or it is no address: brokers and name servers
            send what they were configured with.
    """
    try:
        connection = await connect(split_address(address), nursery, timeout_s=timeout_s, tls=tls)
    except (OSError, UnicodeError) as error:
        raise ConnectionLostError(f"{address}: {error}") from error
    except ClientUsageError as error:
        raise ConnectionLostError(str(error)) from error
    return Wire(connection, address, is_encrypted=tls is not None)
