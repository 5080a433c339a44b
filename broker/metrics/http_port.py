"""A small HTTP port for people and programs that watch a server: a page for each path, and nothing to send there.

h11 reads and writes HTTP; sockets, bounds and times are here. Whatever comes from the network is hostile: heads are
bounded, bodies are refused, whoever is slow is cut off, and the connection that has been idle for longest, or else has
been reading its page for longest, makes room for the next one. It must not know what stands on a page.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import h11
import trio
from outcome import Error, acapture

from dledger.runtime import descriptors

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8 * 1024
"""The request line and the header fields."""

READ_BYTES: Final = 4096
IDLE_S: Final = 75.0
"""Prometheus asks every 15 to 60 s over the same connection."""

WRITE_S: Final = 10.0
"""A page has to be taken by then."""

UNHURRIED_S: Final = 1.0
"""Whoever has been reading a page for longer may have to make room: usual pages are taken within milliseconds."""

HANDSHAKE_S: Final = 10.0
"""The time that a client has for a TLS handshake; until then he waits as one does who asks for nothing."""

LEAVE_S: Final = 1.0
LEAVE_BYTES: Final = 64 * 1024
"""So much of what a refused client still sends is read, and for so long: a reset would take its answer from it."""

_ACCEPT_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to whoever asks for a path."""

    body: bytes
    content_type: str
    status: int = 200


MakePage = Callable[[], Awaitable[Page]]
_Encrypted = trio.SSLStream[trio.SocketStream]


def plain(status: int, text: str) -> Page:
    """Return a page with one line of text."""
    return Page(f"{text}\n".encode(), "text/plain; charset=utf-8", status)


class _RefusedError(Exception):
    """Raised for a request that gets a page of its own, after which the connection is closed.

    Attributes:
        is_head: it asked for the head alone: a body is no answer to it.
    """

    def __init__(self, page: Page, *, is_head: bool = False) -> None:
        super().__init__(page.status)
        self.page = page
        self.is_head = is_head


class HttpPort:
    """The port; `run` serves it.

    Attributes:
        open_count: connections that are open now.
        refused_count: connections that were turned away, since all others were being answered.
    """

    def __init__(
        self,
        sock: socket.socket,
        pages: Mapping[str, MakePage],
        *,
        idle_s: float = IDLE_S,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Set up a port.

        Args:
            sock: listens.
            pages: by path.
            idle_s: a connection is closed that has sent no whole request for so long.
            tls: returns what the next connection is encrypted with; None: it is plain text.
        """
        self.open_count = 0
        self.refused_count = 0
        self._socket = sock
        self._pages = pages
        self._idle_s = idle_s
        self._tls = tls
        self._idle: dict[trio.CancelScope, None] = {}
        """Of the connections that wait for a request: those that began first come first."""
        self._reading: dict[trio.CancelScope, float] = {}
        """Of the connections whose pages are being taken, and since when: those that began first come first."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; the socket is closed then."""
        with self._socket:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    await trio.lowlevel.wait_readable(self._socket)
                    try:
                        sock, _ = self._socket.accept()
                    except BlockingIOError:
                        continue
                    except OSError as error:
                        _log.warning("a connection for figures could not be accepted: %s", error)
                        await trio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    if not self._has_room() or descriptors.is_kept(sock.fileno()):
                        self.refused_count += 1
                        sock.close()
                        continue
                    sock.setblocking(False)
                    self.open_count += 1
                    nursery.start_soon(self._serve, sock)

    def _has_room(self) -> bool:
        """Return True if one more connection may be served; one that is idle, or reads slowly, may have to go."""
        if self.open_count < CONNECTIONS_MAX:
            return True
        oldest = next(iter(self._idle), None) or self._slowest()
        if oldest is None:
            return False
        self._idle.pop(oldest, None)
        self._reading.pop(oldest, None)
        oldest.cancel()
        return True

    def _slowest(self) -> trio.CancelScope | None:
        """Return the connection that has been reading its page for longest, if that is long."""
        scope, began_at = next(iter(self._reading.items()), (None, 0.0))
        return scope if trio.current_time() - began_at > UNHURRIED_S else None

    async def _serve(self, sock: socket.socket) -> None:
        """Serve one connection to its end; a mistake of ours ends it, and no server."""
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        try:
            served = await acapture(self._serve_stream, stream)
            if isinstance(served, Error) and isinstance(served.error, Exception):
                _log.error("internal error at the port for figures", exc_info=served.error)
            else:
                served.unwrap()
        finally:
            self.open_count -= 1
            sock.close()

    async def _serve_stream(self, stream: trio.SocketStream) -> None:
        """Answer over a stream, encrypted if that is wanted, until one side has had enough."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            context = self._tls()
            if context is None:
                await self._answer_all(stream, stream)
            elif (encrypted := await self._encrypt(stream, context)) is not None:
                await self._answer_all(encrypted, stream)

    async def _encrypt(
        self, transport: trio.SocketStream, context: ssl.SSLContext
    ) -> _Encrypted | None:
        """Return the stream above a handshake; None if it was not done in time, or room was needed before."""
        stream = trio.SSLStream(transport, context, server_side=True, https_compatible=True)
        with trio.move_on_after(HANDSHAKE_S) as scope:
            self._idle[scope] = None
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError as error:
                _log.info("a TLS handshake for figures failed: %s", error.__cause__ or error)
                return None
            finally:
                self._idle.pop(scope, None)
        return None if scope.cancelled_caught else stream

    async def _answer_all(
        self, stream: trio.SocketStream | _Encrypted, transport: trio.SocketStream
    ) -> None:
        """Answer one request after the other; `transport` is what carries the stream, or the stream itself."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        while True:
            try:
                request = await self._read_request(stream, http)
                if request is None:
                    return
                page = await self._page(request)
                is_head = _is_head(request)
            except _RefusedError as refused:
                page, is_head = refused.page, refused.is_head
            if not await self._write(stream, http, page, is_head=is_head):
                return
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                await _leave(transport)
                return
            http.start_next_cycle()

    async def _read_request(
        self, stream: trio.SocketStream | _Encrypted, http: h11.Connection
    ) -> h11.Request | None:
        """Return the next request, which has no body; None: the connection ends.

        Raises:
            _RefusedError: it is no such request.
        """
        request = None
        with trio.move_on_after(self._idle_s) as scope:
            self._idle[scope] = None
            try:
                while True:
                    event = http.next_event()
                    if event is h11.NEED_DATA:
                        http.receive_data(bytes(await stream.receive_some(READ_BYTES)))
                    elif isinstance(event, h11.Request):
                        request = event
                    elif isinstance(event, h11.EndOfMessage):
                        return request
                    elif isinstance(event, h11.Data):
                        page = plain(413, "a request has no body here")
                        raise _RefusedError(page, is_head=_is_head(request))
                    else:
                        return None
            except h11.RemoteProtocolError as error:
                page = plain(error.error_status_hint, str(error))
                raise _RefusedError(page, is_head=_is_head(request)) from None
            finally:
                self._idle.pop(scope, None)
        return None

    async def _page(self, request: h11.Request) -> Page:
        """Make the page that is asked for; a mistake of ours ends no server."""
        if request.method not in (b"GET", b"HEAD"):
            raise _RefusedError(plain(405, "GET and HEAD only"))
        make = self._pages.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
        if make is None:
            return plain(404, f"there is {', '.join(self._pages)}")
        made = await acapture(make)
        if isinstance(made, Error) and isinstance(made.error, Exception):
            _log.error("internal error while a page was made", exc_info=made.error)
            return plain(500, "internal error; the log says more")
        return made.unwrap()

    async def _write(
        self,
        stream: trio.SocketStream | _Encrypted,
        http: h11.Connection,
        page: Page,
        *,
        is_head: bool,
    ) -> bool:
        """Write a page; return False if it was not taken in time, or no answer can be given any more."""
        if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return False
        data = _encode(http, page, is_head=is_head)
        with trio.move_on_after(WRITE_S) as scope:
            self._reading[scope] = trio.current_time()
            try:
                await stream.send_all(data)
            finally:
                self._reading.pop(scope, None)
        return not scope.cancelled_caught


def _is_head(request: h11.Request | None) -> bool:
    return request is not None and request.method == b"HEAD"


async def _leave(stream: trio.SocketStream) -> None:
    """Say that nothing more comes, and let the other side read what came."""
    with trio.move_on_after(LEAVE_S):
        await stream.send_eof()
        read_bytes = 0
        while read_bytes < LEAVE_BYTES and (data := await stream.receive_some(READ_BYTES)):
            read_bytes += len(data)


def _encode(http: h11.Connection, page: Page, *, is_head: bool) -> bytes:
    """Return a page as it is sent."""
    headers = [
        ("Content-Type", page.content_type),
        ("Content-Length", str(len(page.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if page.status == 405:
        headers.append(("Allow", "GET, HEAD"))
    if page.status in (400, 413, 431):
        headers.append(("Connection", "close"))
    events: list[h11.Event] = [h11.Response(status_code=page.status, headers=headers)]
    if not is_head:
        events.append(h11.Data(data=page.body))
    return b"".join(http.send(event) or b"" for event in (*events, h11.EndOfMessage()))
