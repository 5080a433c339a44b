"""Sockets that listen."""

from __future__ import annotations

import socket
from typing import Final

from dledger_mq.net.address import Address

_BACKLOG: Final = 1024


def bind(address: Address, *, accepts: bool = True) -> socket.socket:
    """Open a listening socket; port 0 picks a free one, an empty host means every IPv4 interface.

    Without `accepts` it refuses connections until `start_accepting`. Otherwise the system lets clients in, and they
    wait for a server that may not answer for long.

    Raises:
        OSError: the host is unknown, or the port is taken or not allowed.
    """
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host or "0.0.0.0",  # noqa: S104  an empty host was chosen by the user
        address.port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE,
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(target)
        if accepts:
            start_accepting(sock)
    except OSError:
        sock.close()
        raise
    return sock


def start_accepting(sock: socket.socket) -> None:
    """Take connections from now on.

    Raises:
        OSError: somebody else listens on that port since.
    """
    sock.listen(_BACKLOG)


def bound_address(sock: socket.socket) -> Address:
    """Return where a socket listens, with the port that the system has picked."""
    host, port, *_ = sock.getsockname()
    return Address(host, port)
