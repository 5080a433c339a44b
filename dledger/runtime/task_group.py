"""A group of tasks that fail together and raise the first failure itself, without an exception group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVarTuple

import trio

Arguments = TypeVarTuple("Arguments")


class TaskGroup:
    """A nursery in which the first failure stops everybody and is remembered.

    A plain nursery would wrap it in an exception group, and callers of a LogServer want to catch
    `DiskFailedError`.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.failure: Exception | None = None

    def start(
        self,
        task: Callable[[*Arguments], Awaitable[None]],
        *arguments: *Arguments,
        name: str,
    ) -> None:
        """Start a task."""

        async def run() -> None:
            try:
                await task(*arguments)
            except Exception as error:  # noqa: BLE001  # the root of a task; `open_task_group` raises it
                self.fail(error)

        self._nursery.start_soon(run, name=name)

    def fail(self, error: Exception) -> None:
        """Stop everybody; the first error counts."""
        if self.failure is None:
            self.failure = error
        self._nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """Cancel all tasks without a failure."""
        self._nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_task_group() -> AsyncIterator[TaskGroup]:
    """Open a task group for the time of the block; it waits for its tasks at the end.

    Raises:
        Exception: the first failure of a task, as it is.
    """
    tasks: TaskGroup | None = None
    try:
        async with trio.open_nursery() as nursery:
            tasks = TaskGroup(nursery)
            yield tasks
    finally:
        if tasks is not None and tasks.failure is not None:
            raise tasks.failure
