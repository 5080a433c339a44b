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
from anyio.abc import TaskGroup, TaskStatus


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
    async with anyio.create_task_group() as outer:
        service, scope = await outer.start(_serve)
        try:
            yield service
        finally:
            scope.cancel()


async def _serve(*, task_status: TaskStatus[tuple[TaskGroup, anyio.CancelScope]]) -> None:
    with anyio.CancelScope(shield=True) as scope:
        async with anyio.create_task_group() as service:
            task_status.started((service, scope))
            await anyio.sleep_forever()
