"""The event loop that a client runs in, asyncio's or trio's, as far as it is used for every message.

All else (tasks, cancelling, timeouts, threads) is AnyIO's, which asks anew at every call which loop it is in.
Here that is asked once, when something is opened, and then the loop's own functions are called. A server runs
on trio and gets trio's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import anyio
import trio
from anyio.abc import TaskGroup


class Event(Protocol):
    """Something that happens once; waiters go on then."""

    def set(self) -> None:
        """It happened."""
        ...

    async def wait(self) -> object:
        """Return once it has happened."""
        ...


Starter: TypeAlias = TaskGroup | trio.Nursery
"""Where tasks can be started."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The functions of one loop.

    Attributes:
        now: the loop's clock, in seconds; AnyIO's deadlines are on it too.
        new_event: makes an event.
        wait_readable, wait_writable: wait until a socket is; raise one of CLOSED when it is closed meanwhile.
        notify_closing: wakes who waits for a socket that is about to be closed.
    """

    now: Callable[[], float]
    new_event: Callable[[], Event]
    wait_readable: Callable[[socket.socket], Awaitable[None]]
    wait_writable: Callable[[socket.socket], Awaitable[None]]
    notify_closing: Callable[[socket.socket], None]


CLOSED = (trio.ClosedResourceError, anyio.ClosedResourceError)
"""What waiting for a socket raises that was closed from this end."""

_TRIO = Loop(
    trio.current_time,
    trio.Event,
    trio.lowlevel.wait_readable,
    trio.lowlevel.wait_writable,
    trio.lowlevel.notify_closing,
)


def current_loop() -> Loop:
    """Return the loop that runs the caller.

    Raises:
        RuntimeError: none does.
    """
    if trio.lowlevel.in_trio_run():
        return _TRIO
    return Loop(
        asyncio.get_running_loop().time,
        asyncio.Event,
        anyio.wait_readable,
        anyio.wait_writable,
        anyio.notify_closing,
    )
