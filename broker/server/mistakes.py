"""Mistakes of ours: errors that nobody expects, and what becomes of them where work is done for others.

One client's odd frame must not end a leader, and then each one that it is sent to next. So in a broker such an error is
kept in, whether it comes at once or in an act that had to wait: it is logged with its traceback and counted, and the
request is answered with what is true of it. Nobody else keeps it in: in the simulator and in tests it goes up, and they
fail. What is said of the store (a disk that failed, bytes that are damaged and nobody can mend) ends the node in any
case, and so does the fold, which runs in no act that is guarded (docs/adr/0261).

It must not know what the acts are, nor who runs them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from dledger import CorruptionError, DiskFailedError

_log = logging.getLogger(__name__)

ENDS_THE_NODE: Final = (CorruptionError, DiskFailedError, OSError, ExceptionGroup)
"""Errors of the store: a node that goes on with them may say what is not so. A group of errors may hold one."""

LOG_AGAIN_S: Final = 1.0
"""Between two tracebacks that end in the same line: what clients repeat must not push all else out of the log."""


class Answerable(Protocol):
    """Something that somebody waits for."""

    @property
    def described(self) -> str:
        """Its description, for people."""
        ...

    def answer_mistake(self, error: Exception) -> None:
        """Answer, unless it was answered, that a mistake has come in between, and what is true all the same."""
        ...


class Mistakes:
    """The mistakes of one node, kept in or not.

    Attributes:
        count: of those that were kept in.
    """

    def __init__(self, *, keeps: bool = False, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with none.

        Args:
            keeps: whether they are kept in; else each goes up to whoever ran the act.
            now_s: a clock that never goes back.
        """
        self.count = 0
        self._keeps = keeps
        self._now_s = now_s
        self._logged: dict[tuple[str, int], tuple[float, int]] = {}
        """When each line was logged last, and how often it has failed since; there are as many as lines of code."""

    def answer(self, error: Exception, *waiting: Answerable) -> bool:
        """Keep an error in and answer those who wait for what it came up in, if it is to be kept in.

        Returns:
            Whether it is. Else nobody was answered, and it has to go up.
        """
        if not self.note(error, waiting[0].described if waiting else "what nobody waits for"):
            return False
        for each in waiting:
            try:
                each.answer_mistake(error)
            except Exception as another:
                if not self.note(another, f"the answer to {each.described}"):
                    raise
        return True

    def note(self, error: Exception, what: str) -> bool:
        """Count and log an error that is being handled, if it is to be kept in.

        Args:
            error: the error.
            what: in what it came up, for people.

        Returns:
            Whether it is. Else it has to go up.
        """
        if not self._keeps or isinstance(error, ENDS_THE_NODE):
            return False
        self.count += 1
        place, now_s = _place_of(error), self._now_s()
        logged_s, left_out = self._logged.get(place, (-LOG_AGAIN_S, 0))
        if now_s - logged_s < LOG_AGAIN_S:
            self._logged[place] = logged_s, left_out + 1
            return True
        self._logged[place] = now_s, 0
        more = f" ({left_out} more in the same line were not logged)" if left_out else ""
        _log.error("internal error in %s%s", what, more, exc_info=error)
        return True


def _place_of(error: Exception) -> tuple[str, int]:
    """Return the file and the line in which an error was raised."""
    step = error.__traceback__
    if step is None:
        return "", 0
    while step.tb_next is not None:
        step = step.tb_next
    return step.tb_frame.f_code.co_filename, step.tb_lineno
