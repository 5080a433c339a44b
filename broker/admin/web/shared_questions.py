"""Questions that a page asks by itself, shared by all who look at it: one at a time for each, and kept for a moment."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar, cast

import trio

FRESH_S: Final = 2.0
KEPT_MAX: Final = 128
AT_ONCE_MAX: Final = 4

_T = TypeVar("_T")


class _Kept:
    """The last answer to a question, and the lock of whoever asks it."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.answer: object = None
        self.until_s = -1.0


class SharedQuestions:
    """The answers that are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._limiter = trio.CapacityLimiter(AT_ONCE_MAX)

    async def ask(self, name: Hashable, question: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer to a question: one that is fresh, or that of the question which is under way."""
        kept = self._kept.setdefault(name, _Kept())
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        async with kept.lock:
            if trio.current_time() >= kept.until_s:
                async with self._limiter:
                    kept.answer = await question()
                kept.until_s = trio.current_time() + FRESH_S
            return cast("_T", kept.answer)
