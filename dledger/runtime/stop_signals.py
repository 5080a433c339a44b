"""SIGTERM and SIGINT as calls, from the start of a program to its very end.

A receiver of trio's ends before the process does, and then delivers what nobody took once more,
with the action from before. A second SIGTERM would so kill a program that has just obeyed the first,
with status -15, and a second Ctrl-C would show a traceback. So nothing is put back here.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import trio


def obey_stop_signals(obey: Callable[[signal.Signals], None]) -> None:
    """Call `obey` in the running trio loop for each SIGTERM and SIGINT; only from the main thread.

    `obey` must neither block nor raise. Signals that come once the loop is over change nothing: the
    program is at its end, with a status of its own.
    """
    loop = trio.lowlevel.current_trio_token()

    def take(number: int, _frame: FrameType | None) -> None:
        with suppress(trio.RunFinishedError):
            loop.run_sync_soon(obey, signal.Signals(number))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take)
