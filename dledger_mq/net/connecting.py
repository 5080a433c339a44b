"""Opening connections."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable

import anyio

from dledger_mq.net.address import Address
from dledger_mq.net.connection import Connection
from dledger_mq.net.loop import Starter, current_loop
from dledger_mq.net.tls import TlsError


async def connect(
    address: Address,
    tasks: Starter,
    *,
    timeout_s: float,
    tune: Callable[[socket.socket], None] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Open a connection; a host with several addresses is tried at one after the other.

    Args:
        address: where to; an empty host is this machine.
        tasks: where the task runs that writes what the socket does not take at once.
        timeout_s: for all addresses together.
        tune: sets further options of the socket.
        tls: encrypts the connection; None: plain text.

    Raises:
        OSError: refused, unknown or unreachable host, or no agreement on TLS; TimeoutError after `timeout_s`.
    """
    failure = OSError(f"{address} has no address")
    deadline = current_loop().now() + timeout_s
    with anyio.move_on_after(timeout_s):
        try:
            found = await anyio.getaddrinfo(
                address.host or "127.0.0.1", address.port, type=socket.SOCK_STREAM
            )
        except UnicodeError as error:
            raise OSError(errno.EADDRNOTAVAIL, f"no address: {error}") from error
        for tried, (family, kind, protocol, _, target) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                left_s = deadline - current_loop().now()
                with anyio.fail_after(left_s / (len(found) - tried)):
                    await _connect(sock, target)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if tune is not None:
                        tune(sock)
                    return await _open(sock, tasks, tls, address.host or "127.0.0.1")
            except TlsError as error:
                sock.close()
                failure = ConnectionError(str(error))
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure
    raise TimeoutError(f"no connection to {address} within {timeout_s} s")


async def _open(
    sock: socket.socket, tasks: Starter, tls: ssl.SSLContext | None, host: str
) -> Connection:
    """Return the connection of a connected socket, encrypted if that is wanted; raises TlsError."""
    connection = Connection(sock, tasks)
    if tls is not None:
        try:
            await connection.encrypt_all(tls, host)
        except BaseException:
            connection.close("TLS was not agreed on")
            raise
    return connection


async def _connect(sock: socket.socket, target: tuple[object, ...]) -> None:
    sock.setblocking(False)
    code = sock.connect_ex(target)
    if code == errno.EINPROGRESS:
        await current_loop().wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
