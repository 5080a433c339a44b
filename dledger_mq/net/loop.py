"""The event loop that a client runs in, asyncio's or trio's, as far as it is used for every message.

All else (tasks, cancelling, timeouts, threads) is AnyIO's, which asks anew at every call which loop it is in.
Here that is asked once, when something is opened, and then the loop's own functions are called. Trio is
imported only where it runs: an application on asyncio does not load it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup

if TYPE_CHECKING:
    import trio


class Event(Protocol):
    """An event that is set once, and lets all its waiters go on."""

    def set(self) -> None:
        """Let all waiters go on, now and later."""
        ...

    async def wait(self) -> object:
        """Wait until the event is set."""
        ...


Starter: TypeAlias = "TaskGroup | trio.Nursery"
"""The owner of tasks, in which they can be started."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The functions of one loop.

    Attributes:
        now: the loop's clock, in seconds; AnyIO's deadlines are on it too.
        new_event: makes an event.
        wait_readable, wait_writable: wait until a socket is; raise `closed_error` when it is closed meanwhile.
        notify_closing: wakes the tasks that wait for a socket that is about to be closed.
        closed_error: raised by a wait for a socket that was closed from this end.
    """

    now: Callable[[], float]
    new_event: Callable[[], Event]
    wait_readable: Callable[[socket.socket], Awaitable[None]]
    wait_writable: Callable[[socket.socket], Awaitable[None]]
    notify_closing: Callable[[socket.socket], None]
    closed_error: type[Exception]


@cache
def _trio_loop() -> Loop:
    import trio

    return Loop(
        trio.current_time,
        trio.Event,
        trio.lowlevel.wait_readable,
        trio.lowlevel.wait_writable,
        trio.lowlevel.notify_closing,
        trio.ClosedResourceError,
    )


def is_trio_running() -> bool:
    """Return whether trio runs the caller; it is not imported to find out."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def current_loop() -> Loop:
    """Return the loop that runs the caller.

    Raises:
        RuntimeError: none does.
    """
    if is_trio_running():
        return _trio_loop()
    return Loop(
        asyncio.get_running_loop().time,
        asyncio.Event,
        anyio.wait_readable,
        anyio.wait_writable,
        anyio.notify_closing,
        anyio.ClosedResourceError,
    )
