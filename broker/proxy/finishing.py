"""Work that is carried to its end although the call that asked for it is broken off.

A client that hangs up in the middle of an acknowledgement has sent it all the same: half of it must not be forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError

AT_ONCE_MAX: Final = 10_000
"""As many as calls: those that were broken off leave no more behind than that."""

_T = TypeVar("_T")


class _Work(Generic[_T]):
    """Work under way, and its end."""

    def __init__(self, unclaimed: Callable[[_T], object] | None) -> None:
        self.unclaimed = unclaimed
        self.is_left = False
        self.ended = anyio.Event()
        self.results: list[_T] = []
        self.failure: Exception | None = None


class Finishing:
    """Carries out work in a nursery; who waits for it may be cancelled.

    Args:
        nursery: ends with the proxy, and all work with it.
    """

    def __init__(self, nursery: TaskGroup) -> None:
        self._nursery = nursery
        self._count = 0

    async def run(
        self, ask: Callable[[], Awaitable[_T]], *, unclaimed: Callable[[_T], object] | None = None
    ) -> _T:
        """Return what the work brings.

        Args:
            ask: begins it; bounded in time.
            unclaimed: called with the result when nobody waits for it any more. Must not block.

        Raises:
            CallRefusedError: too much is under way, so it was not begun; or the proxy stops in the middle.
            Exception: what the work raises.
        """
        if self._count >= AT_ONCE_MAX:
            raise CallRefusedError(Code.TOO_MANY_REQUESTS, "too many requests are under way")
        work = _Work(unclaimed)
        self._count += 1
        self._nursery.start_soon(self._carry_out, ask, work)
        try:
            await work.ended.wait()
        except BaseException:  # its call is broken off: nobody waits for the result any more
            work.is_left = True
            _hand_over(work)
            raise
        if work.failure is not None:
            raise work.failure
        if not work.results:
            text = "it may have been done: the proxy is being stopped"
            raise CallRefusedError(Code.PROXY_TIMEOUT, text)
        return work.results[0]

    async def _carry_out(self, ask: Callable[[], Awaitable[_T]], work: _Work[_T]) -> None:
        try:
            work.results.append(await ask())
        except Exception as error:  # belongs to who waits; nobody else may fail for it
            work.failure = error
        finally:
            self._count -= 1
            work.ended.set()
            if work.is_left:
                _hand_over(work)


def _hand_over(work: _Work[_T]) -> None:
    """Give a result that nobody waits for to who looks after it, once."""
    if work.results and work.unclaimed is not None:
        unclaimed, work.unclaimed = work.unclaimed, None
        unclaimed(work.results[0])
