"""The life of a client object: everything happens inside its `async with`.

Knows nothing of brokers. A class says in one asynchronous context manager, `_run`, what it opens, and
what it does before it closes; the tasks that it starts end there too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """Makes `async with` of `_run`; an object is entered once at a time."""

    _running: AbstractAsyncContextManager[None] | None = None

    @abstractmethod
    def _run(self) -> AbstractAsyncContextManager[None]:
        """Open, yield while in use, close."""

    async def __aenter__(self) -> Self:
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(kind, error, trace)
