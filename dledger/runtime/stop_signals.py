"""SIGTERM, SIGINT and SIGHUP as calls, from the start of a program to its very end.

A receiver of trio's ends before the process does, and then delivers what nobody took once more,
with the action from before. A second SIGTERM would so kill a program that has just taken the first,
with status -15, and a second Ctrl-C would show a traceback. So nothing is put back here.

An orderly end writes and waits for what was begun, and a disk that hangs never answers. Nothing that was confirmed
needs either. So a program that has not ended in time is ended as it is, with status 1.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

import trio

_log = logging.getLogger(__name__)

STOP_S_MAX: Final = 20.0
"""From the first signal to the end of the process; a supervisor's own limit is often 30 s."""

SECOND_STOP_S_MAX: Final = 5.0
"""From any further one."""


def handle_stop_signals(
    handle: Callable[[signal.Signals], None],
    *,
    stop_s_max: float = STOP_S_MAX,
    second_stop_s_max: float = SECOND_STOP_S_MAX,
) -> None:
    """Call `handle` in the running trio loop for each of these signals; only from the main thread.

    A terminal that is closed sends SIGHUP, and the shell in it may send it again: only the first signal may be one.
    Under `nohup` it is ignored, and stays so.

    `handle` must neither block nor raise. The process ends within `stop_s_max` of the first, and within
    `second_stop_s_max` of the next one, whatever hangs: a program with children gives them their time, and ends after
    them. Signals that come once the loop is over change nothing: the program is at its end, with a status of its own.
    """
    loop = trio.lowlevel.current_trio_token()
    wait_s = stop_s_max
    is_first = True

    def take(number: int, _frame: FrameType | None) -> None:
        nonlocal is_first, wait_s
        if number == signal.SIGHUP and not is_first:
            return
        is_first = False
        _end_after(wait_s)
        wait_s = second_stop_s_max
        with suppress(trio.RunFinishedError):
            loop.run_sync_soon(handle, signal.Signals(number))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, take)


def _end_after(wait_s: float) -> None:
    def end() -> None:
        _log.critical(
            "not stopped %.0f s after it was asked for: ended without waiting for the disk; nothing that was "
            "confirmed needs that",
            wait_s,
        )
        os._exit(1)

    timer = threading.Timer(wait_s, end)
    timer.daemon = True  # a program that ends before is not kept
    timer.start()
