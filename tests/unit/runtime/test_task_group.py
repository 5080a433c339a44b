"""Tasks that live and fail together."""

from __future__ import annotations

import pytest
import trio

from dledger.errors import ShutdownError
from dledger.runtime.task_group import open_task_group


async def test_the_first_failure_of_a_group_comes_out_as_it_is() -> None:
    async def fail() -> None:
        raise ShutdownError("first")

    async def work() -> None:
        async with open_task_group() as tasks:
            tasks.start(trio.sleep_forever, name="idle")
            tasks.start(fail, name="fails")

    with trio.fail_after(60), pytest.raises(ShutdownError, match="first"):
        await work()


async def test_a_group_can_be_stopped_without_a_failure() -> None:
    with trio.fail_after(60):
        async with open_task_group() as tasks:
            tasks.start(trio.sleep_forever, name="idle")
            tasks.stop()
    assert tasks.failure is None
