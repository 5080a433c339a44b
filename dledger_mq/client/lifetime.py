"""The life of a client object: `async with`, or `start` and `stop`.

Knows nothing of brokers. A class says in one asynchronous context manager, `_run`, what it opens, and
what it does before it closes; the tasks that it starts end there too.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

import anyio

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.net.loop import is_trio_running


class Lifetime(ABC):
    """Makes `async with`, `start` and `stop` of `_run`; an object is entered once at a time."""

    _is_entered = False
    """True from the beginning of opening to the end of closing; true while `_running` is kept."""

    _running: AbstractAsyncContextManager[None] | None = None
    _holder: _Holder | None = None

    @abstractmethod
    def _run(self) -> AbstractAsyncContextManager[None]:
        """Open, yield while in use, close."""

    async def start(self) -> Self:
        """Open, where no `async with` fits; `stop` closes.

        On asyncio `stop` may come from any task. On trio both must come from one task, as an `async with` would.
        Cancelled, it leaves nothing open.

        Raises:
            ClientUsageError: it is open already.
            What opening raises.
        """
        if is_trio_running():
            return await self.__aenter__()
        if self._is_entered or self._holder is not None:
            raise ClientUsageError("it is open already")
        self._holder = holder = _Holder(self)
        try:
            await holder.wait_opened()
        except BaseException:
            if self._holder is holder:
                self._holder = None
            raise
        return self

    async def stop(self) -> None:
        """Close what `start` opened; does nothing when it is not open."""
        holder, self._holder = self._holder, None
        if holder is not None:
            await holder.close()
        elif self._running is not None:
            await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise ClientUsageError("it is open already")
        self._is_entered = True
        try:
            running = self._run()
            await running.__aenter__()
        except BaseException:
            self._is_entered = False
            raise
        assert self._running is None, f"{type(self).__name__} was opened twice"
        self._running = running
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        running, self._running = self._running, None
        if running is None:
            raise ClientUsageError("it is not open")
        assert self._is_entered, f"{type(self).__name__} is left and was never entered"
        try:
            return await running.__aexit__(kind, error, trace)
        finally:
            self._is_entered = False


class _Holder:
    """A task of asyncio that keeps a client open: the task that enters a client must leave it, too."""

    def __init__(self, client: Lifetime) -> None:
        self._client = client
        self._stop = asyncio.Event()
        self._opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name=type(client).__name__)

    async def _hold(self) -> None:
        try:
            async with self._client:
                self._opened.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self._opened.cancel()
                raise
            self._opened.set_exception(error)

    async def wait_opened(self) -> None:
        """Wait until the client is open; raise what opening raised. Cancelled, close it: nobody would."""
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._stop.set()
            if not self._opened.done():
                self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])
            if self._opened.done() and not self._opened.cancelled():
                self._opened.exception()  # nobody asks for it any more
            raise

    async def close(self) -> None:
        self._stop.set()
        try:
            await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or caller.cancelling() or not self._task.cancelled():
                raise
            # Not the caller was cancelled, but a start that was still under way: it has left nothing open.
