"""Sockets of members that are encrypted: they behave as plain ones, so that nobody else need know.

A read takes whole records off the socket and leaves none behind in memory, so what epoll says of the socket is true of
the plain bytes, too. What a write could not send has to be offered again, as all who write here do.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final, cast

import trio

from dledger.config import Peer
from dledger.errors import PeerProtocolError
from dledger.member_tls import MemberTls
from dledger.runtime.sockets import FrameStream, connect

_RECORD_BYTES: Final = 16 * 1024
"""The largest piece that TLS encrypts as one, and that a read must have room for."""

_HELLO: Final = b"\x16"
"""The first byte of TLS. That of a frame is the highest of a length below 1 MiB."""

_PLAIN_TEXT: Final = "plain text on a port that takes TLS only (tls.peer.mode=enforcing)"


class MemberSocket(ssl.SSLSocket):
    """An encrypted socket that says of what it has to wait for as a plain one does: by BlockingIOError."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive one record at most; a look ahead shows what travels, which is there or is not."""
        if flags:
            return socket.socket.recv(self, buflen, flags)
        try:
            return super().recv(max(buflen, _RECORD_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive as many records as are there and have room for sure."""
        room = memoryview(buffer)[: nbytes or None]
        count = 0
        while len(room) - count >= _RECORD_BYTES:
            try:
                received = super().recv_into(room[count:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if count:
                    break
                raise BlockingIOError from error
            if not received:
                break
            count += received
        return count

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what the kernel takes, record by record."""
        rest = memoryview(data)
        sent = 0
        while sent < len(rest):
            try:
                sent += super().send(rest[sent : sent + _RECORD_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if sent:
                    break
                raise BlockingIOError from error
        return sent


def send_pieces(sock: socket.socket, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Send pieces as one, in one call; return how many bytes the kernel took.

    Raises:
        OSError: as `send`.
    """
    if isinstance(sock, MemberSocket):
        return sock.send(b"".join(pieces))  # it is copied to be encrypted anyhow
    return sock.sendmsg(pieces)


async def connect_member(peer: Peer, tls: MemberTls | None) -> socket.socket:
    """Open a connection to a member, encrypted if that is wanted.

    Raises:
        OSError: nobody answers there.
        PeerProtocolError: there is no agreement on TLS.
    """
    sock = await connect(peer.host, peer.port)
    if tls is None:
        return sock
    try:
        return await _encrypted(sock, tls.client(), host=peer.host)
    except ssl.SSLCertVerificationError as error:
        raise PeerProtocolError(
            f"TLS: the certificate of {peer} is not believed: {error.verify_message}"
        ) from error
    except OSError as error:
        if not tls.takes_plain_text:
            raise PeerProtocolError(f"TLS with {peer}: {_why(error)}") from error
    return await connect(peer.host, peer.port)  # it has none yet


async def meet(stream: FrameStream, tls: MemberTls) -> None:
    """Encrypt a connection that came in, if its first byte asks for that.

    Raises:
        OSError: the connection is gone.
        PeerProtocolError: there is no agreement on TLS.
    """
    await trio.lowlevel.wait_readable(stream.sock)
    first = stream.sock.recv(1, socket.MSG_PEEK)
    if first != _HELLO:
        if first and not tls.takes_plain_text:
            raise PeerProtocolError(_PLAIN_TEXT)
        return
    stream.sock = wrapped = _wrapped(stream.sock, tls.server(), is_server=True)
    try:
        await _shake(wrapped)
    except ssl.SSLError as error:
        raise PeerProtocolError(f"TLS: {_why(error)}") from error


async def _encrypted(sock: socket.socket, context: ssl.SSLContext, *, host: str) -> MemberSocket:
    wrapped = _wrapped(sock, context, host=host)
    try:
        await _shake(wrapped)
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def _wrapped(
    sock: socket.socket,
    context: ssl.SSLContext,
    *,
    is_server: bool = False,
    host: str | None = None,
) -> MemberSocket:
    """Return the encrypted socket, to which the descriptor of the plain one belongs from here on."""
    context.sslsocket_class = MemberSocket
    wrapped = context.wrap_socket(
        sock, server_side=is_server, do_handshake_on_connect=False, server_hostname=host
    )
    return cast("MemberSocket", wrapped)


async def _shake(wrapped: MemberSocket) -> None:
    while True:
        try:
            wrapped.do_handshake()
        except ssl.SSLWantReadError:
            await trio.lowlevel.wait_readable(wrapped)
        except ssl.SSLWantWriteError:
            await trio.lowlevel.wait_writable(wrapped)
        else:
            return


def _why(error: OSError) -> str:
    """Return the cause without its place in the source of `ssl`."""
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate that it showed is not believed: {error.verify_message}"
    return str(reason).replace("_", " ").lower() if reason else error.strerror or str(error)
