"""A nursery for what the clean-up of a block still needs.

When a block is cancelled, everything in its nurseries is cancelled with it, the connections too, and
nothing can be committed or said any more. The tasks of a service nursery go on until the block has
really been left, with whatever it does on its way out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup


class BodyFailure:
    """Keeps an error of a block from the task group around it, which would wrap it in a group of errors.

    Use as a context manager around the block, and `raise_again` once the task group has been left.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._error = error if isinstance(error, Exception) else None
        return self._error is not None

    def raise_again(self) -> None:
        """Raise the error as it was; do nothing if there was none."""
        if self._error is not None:
            raise self._error


@asynccontextmanager
async def open_service_nursery() -> AsyncIterator[TaskGroup]:
    """Open a nursery whose tasks are cancelled when the block has been left, and not before.

    The block itself is cancelled from outside as usual. Its clean-up should be short and bounded.
    """
    scope = anyio.CancelScope(shield=True)
    opened = _Opened()
    async with anyio.create_task_group() as outer:
        # No `start`: cancelled halfway, it waits for a task that nobody ends.
        outer.start_soon(_serve, scope, opened)
        try:
            with anyio.CancelScope(shield=True):  # who is cancelled here learns it in the block
                await opened.event.wait()
            yield opened.services[0]
        finally:
            scope.cancel()


class _Opened:
    """The nursery of a service, once it is there."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.services: list[TaskGroup] = []


async def _serve(scope: anyio.CancelScope, opened: _Opened) -> None:
    with scope:
        async with anyio.create_task_group() as service:
            opened.services.append(service)
            opened.event.set()
            await anyio.sleep_forever()
