"""Sockets that one task serves: all hang on one epoll descriptor, and each has an owner that is told what is ready.

A socket stays registered as long as it is wanted, so that a message costs no system call to wait for it, and however
many are ready cost one wake-up together. What is done with one that is ready is the business of whoever takes it.
"""

from __future__ import annotations

import select
import socket
from typing import Final, Generic, TypeVar

import trio

READ: Final[int] = select.EPOLLIN
WRITE: Final[int] = select.EPOLLOUT

_TAKEN_MAX: Final = 256
"""Sockets that one look takes; the system gives the others first in the next one."""

Owner = TypeVar("Owner")


Watched = socket.socket | int
"""A socket, or the descriptor of something else that becomes readable."""


class ReadySockets(Generic[Owner]):
    """Sockets by what is waited for; a look returns those that are ready.

    Invariant: every socket that is watched, and no other, is in `_owners` under its descriptor.
    """

    def __init__(self) -> None:
        """Start without sockets."""
        self._epoll = select.epoll()
        self._owners: dict[int, Owner] = {}

    def watch(self, sock: Watched, owner: Owner, mask: int) -> None:
        """Report a socket to its owner when any of `mask` is possible; its end and its errors are reported always."""
        descriptor = _descriptor(sock)
        if descriptor in self._owners:
            self._epoll.modify(descriptor, mask)
        else:
            self._epoll.register(descriptor, mask)
        self._owners[descriptor] = owner

    def forget(self, sock: Watched) -> None:
        """Report a socket no more, if it was; before it is closed."""
        if self._owners.pop(_descriptor(sock), None) is not None:
            self._epoll.unregister(sock)

    def is_watched(self, sock: Watched) -> bool:
        """Return whether a socket is reported."""
        return _descriptor(sock) in self._owners

    def take(self) -> list[tuple[Owner, int]]:
        """Return some of those that are ready, in turn, and what is: bits of epoll."""
        owners = self._owners
        return [(owners[each], mask) for each, mask in self._epoll.poll(0, _TAKEN_MAX)]

    async def wait(self) -> None:
        """Wait until `take` returns something."""
        await trio.lowlevel.wait_readable(self._epoll)

    def close(self) -> None:
        """Watch no more; the sockets stay open."""
        self._epoll.close()


def _descriptor(sock: Watched) -> int:
    return sock if isinstance(sock, int) else sock.fileno()
