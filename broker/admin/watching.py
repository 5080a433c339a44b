"""Looks at something again and again, on a terminal in one place, until a signal or the key q.

It must not know what is looked at.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

import trio
from rich.console import Console, RenderableType
from rich.live import Live

_T = TypeVar("_T", bound=RenderableType)

_ENDING_KEYS: Final = frozenset(b"qQ\x04")
"""q, and what ends an input."""

_KEYS_READ_AT_ONCE: Final = 1024


async def keep_watching(
    look: Callable[[], Awaitable[_T]],
    show: Callable[[_T], None],
    *,
    interval_s: float,
    out: Console,
    is_live: bool,
) -> None:
    """Look until SIGINT or SIGTERM, or q.

    Args:
        look: looks once.
        show: prints what was seen, where it is not shown in one place.
        interval_s: from one look to the next; longer where a look takes longer.
        out: the terminal.
        is_live: on a terminal, show what was seen in one place, and draw it anew when its size changes.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(
            trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGWINCH)
        )
        live: Live | None = None
        if out.is_terminal and is_live:
            live = stack.enter_context(Live(console=out, screen=True, auto_refresh=False))
        has_keys = stack.enter_context(_keys_at_once()) if live is not None else False
        async with trio.open_nursery() as nursery:
            if has_keys:
                nursery.start_soon(_wait_for_q, nursery.cancel_scope)
            nursery.start_soon(_keep_looking, look, _updater(live) if live else show, interval_s)
            await _wait_for_end(signals, live)
            nursery.cancel_scope.cancel()


def printer(
    out: Console, json_of: Callable[[_T], object] | None, *, is_stream: bool
) -> Callable[[_T], None]:
    """Return what prints a look.

    Args:
        out: for tables; in a stream there is a blank line after each.
        json_of: makes JSON of it, for standard output: in a stream one object a line; None: a table is wanted.
        is_stream: whether another look follows.
    """

    def show(seen: _T) -> None:
        if json_of is not None:
            json.dump(json_of(seen), sys.stdout, indent=None if is_stream else 2)
            sys.stdout.write("\n")
        else:
            out.print(seen)
            if is_stream:
                out.print()
        sys.stdout.flush()

    return show


async def _wait_for_end(signals: AsyncIterator[int], live: Live | None) -> None:
    async for number in signals:
        if number != signal.SIGWINCH:
            return
        if live is not None:
            live.refresh()


async def _keep_looking(
    look: Callable[[], Awaitable[_T]], show: Callable[[_T], None], interval_s: float
) -> None:
    while True:
        next_s = trio.current_time() + interval_s
        show(await look())
        await trio.sleep_until(next_s)


def _updater(live: Live) -> Callable[[RenderableType], None]:
    return lambda seen: live.update(seen, refresh=True)


async def _wait_for_q(scope: trio.CancelScope) -> None:
    fd = sys.stdin.fileno()
    while True:
        await trio.lowlevel.wait_readable(fd)
        keys = os.read(fd, _KEYS_READ_AT_ONCE)
        if not keys or _ENDING_KEYS & frozenset(keys):
            scope.cancel()
            return


@contextmanager
def _keys_at_once() -> Iterator[bool]:
    """Let keys be read when they are pressed; what they do with Ctrl stays. False: there are no keys for us to read."""
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield False
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
