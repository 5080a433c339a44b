"""One connection that carries remoting frames, with a task that waits for it: what a client opens.

One task reads; any task of the same thread writes. A task that lives as long as there is a rest writes what the socket
did not take at once.
"""

from __future__ import annotations

import socket
import ssl

import anyio

from dledger_mq.net.frame_socket import UNSENT_BYTES_MAX, FrameSocket, ReadBuffer
from dledger_mq.net.loop import Starter, current_loop
from dledger_mq.net.tls import TlsEnd, TlsError
from dledger_mq.remoting.frame import Frame


class Connection(FrameSocket):
    """A frame socket, the bytes of which tasks wait for.

    `receive` gives no frames once it has ended; it never raises for that.
    """

    __slots__ = ("_drained", "_is_draining", "_loop", "_nursery")

    def __init__(
        self,
        sock: socket.socket,
        nursery: Starter,
        *,
        buffer: ReadBuffer | None = None,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        """Take over a connected socket.

        Args:
            sock: made non-blocking here.
            nursery: where the task that writes a rest runs; it has to outlive the connection.
            buffer: to share between connections; one of its own when None.
            unsent_bytes_max: bound of `unsent_bytes`.
        """
        self._loop = loop = current_loop()
        super().__init__(sock, now=loop.now, buffer=buffer, unsent_bytes_max=unsent_bytes_max)
        self._nursery = nursery
        self._is_draining = False
        self._drained = loop.new_event()

    async def encrypt_all(self, context: ssl.SSLContext, host: str) -> None:
        """Encrypt everything from here on: before the first frame, and done when this returns.

        Args:
            context: what is offered and who is believed.
            host: whom the caller means to reach.

        Raises:
            FrameError: there is no agreement with the other end. The connection is closed already.
        """
        cipher = self._cipher = TlsEnd(context, is_server=False, host=host)
        self.is_shaking, self.partial_since = True, self._now()
        self._send_output(cipher.begin())
        while self.is_shaking and not self.close_reason:  # the first write may have closed it
            if await self._read_once():
                self.close("it has sent a frame before it was asked for anything")
        if self.close_reason:
            raise TlsError(self.close_reason)

    async def receive(self) -> list[Frame]:
        """Wait for bytes and return the frames that are whole now.

        Returns:
            At least one frame; an empty list means that the connection has ended, and `close_reason`
            says how.

        Raises:
            FrameError: the bytes are no frames. The connection is closed already.
        """
        while not self.close_reason:
            frames = await self._read_once()
            if frames:
                return frames
        return []

    async def _read_once(self) -> list[Frame]:
        """Wait for bytes, and return the frames that they end; raises FrameError as `receive`."""
        try:
            await self._loop.wait_readable(self._sock)
        except (OSError, self._loop.closed_error) as error:
            self.close(f"read failed: {error}")
            return []
        return self.read_now()

    def _write_later(self) -> None:
        """Start the task that writes, unless it has not ended yet."""
        if not self._is_draining:
            self._is_draining = True
            self._drained = self._loop.new_event()
            self._nursery.start_soon(self._drain)

    async def _drain(self) -> None:
        """Write what is queued; ends when nothing is left or the connection has ended."""
        while self._queue and not self.close_reason:
            try:
                await self._loop.wait_writable(self._sock)
            except (OSError, self._loop.closed_error) as error:
                self.close(f"write failed: {error}")
                break
            self.write_queued()
        self._is_draining = False
        self._drained.set()

    async def wait_sent(self, timeout_s: float) -> bool:
        """Wait until nothing is queued; return whether that came in time. For an orderly end."""
        with anyio.move_on_after(timeout_s):
            if self._is_draining:
                await self._drained.wait()
        return not self._queue

    def _part_from(self, sock: socket.socket) -> None:
        """Wake the tasks that wait on the socket; they see that it ended."""
        self._loop.notify_closing(sock)
