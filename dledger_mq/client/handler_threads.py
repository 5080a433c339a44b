"""Handlers without `async`: they run in worker threads, which a consumer that is left does not wait for without end.

A thread cannot be ended from outside. When the consumer is left, or its block is cancelled, a handler in a thread has
a while to return, and what it returns then counts as ever. After that its thread is left behind: what it still does
counts for nothing, its message is neither consumed nor failed, and the log names both.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import TypeVar, cast

import anyio
import anyio.to_thread

from dledger_mq.client.arguments import check_callable
from dledger_mq.client.consume_results import Result, UnfinishedError
from dledger_mq.client.messages import ReceivedMessage

log = logging.getLogger(__name__)

_T = TypeVar("_T", bound=ReceivedMessage | tuple[ReceivedMessage, ...])


class HandlerThreads:
    """The threads in which the handler of one consumer runs.

    Args:
        count: calls of the handler at the same time.

    Attributes:
        left_behind: the first message of each call that had not returned in its time.
    """

    def __init__(self, count: int) -> None:
        self.left_behind: list[ReceivedMessage] = []
        self._turns = anyio.CapacityLimiter(count)
        # A call that is left behind keeps its thread, and no turn: the consumer may be opened again.
        self._threads = anyio.CapacityLimiter(math.inf)
        self._ends_at = math.inf
        self._scopes: set[anyio.CancelScope] = set()

    def begin(self) -> None:
        """Start anew: the consumer's block is entered."""
        self.left_behind = []
        self._ends_at = math.inf

    def end_in(self, seconds: float) -> None:
        """Leave behind what has not returned in `seconds`; the first word counts."""
        if self._ends_at == math.inf:
            self._ends_at = anyio.current_time() + seconds
            for scope in self._scopes:
                scope.deadline = self._ends_at

    async def call(self, handler: Callable[[_T], Result], argument: _T) -> Result:
        """Call the handler in a thread, and return what it does; cancelling alone does not end the wait.

        Raises:
            UnfinishedError: the call was left behind, or its turn came when the end had begun.
            What the handler raises.
        """
        # In a list: a lambda may make a coroutine, which trio does not let out of a thread.
        results: list[Result | Awaitable[Result]] = []
        async with self._turns:
            if self._ends_at < math.inf:
                raise UnfinishedError  # not begun: it is the next owner's
            with anyio.CancelScope(deadline=self._ends_at, shield=True) as scope:
                self._scopes.add(scope)
                try:
                    results = await anyio.to_thread.run_sync(
                        lambda: [handler(argument)], abandon_on_cancel=True, limiter=self._threads
                    )
                finally:
                    self._scopes.discard(scope)
        if results:
            result = results[0]
            return await result if isinstance(result, Awaitable) else result
        first = argument[0] if isinstance(argument, tuple) else argument
        self.left_behind.append(first)
        log.error(
            "the handler %s has not returned from %s of %s: the consumer ends without it. Its thread goes on by "
            "itself; the offset %d is not committed, and the message comes again",
            getattr(handler, "__qualname__", handler),
            first.unique_key,
            first.queue,
            first.queue_offset,
        )
        raise UnfinishedError


def awaited(
    handler: Callable[[_T], Awaitable[Result]] | Callable[[_T], Result], threads: HandlerThreads
) -> Callable[[_T], Awaitable[Result]]:
    """Return an async function as it is; let one without `async` run in threads.

    Raises:
        ClientUsageError: it cannot be called.
    """
    check_callable("handler", handler)
    if iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004 - what it is, not whether
        return cast("Callable[[_T], Awaitable[Result]]", handler)
    function = cast("Callable[[_T], Result]", handler)

    async def run(argument: _T) -> Result:
        return await threads.call(function, argument)

    return run
