from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from dledger_mq.client.service import open_service_nursery

pytestmark = pytest.mark.anyio


async def test_service_tasks_outlive_the_cancelled_block_until_its_clean_up_is_done() -> None:
    log: list[str] = []

    async def serve() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("service ended")

    with anyio.CancelScope() as scope:
        async with open_service_nursery() as service:
            service.start_soon(serve)
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                    log.append("cleaned up")
    assert log == ["cleaned up", "service ended"]


@pytest.mark.parametrize("turns", range(8))
async def test_it_is_left_wherever_opening_it_is_cancelled(turns: int) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as nursery:

            async def use() -> None:
                async with open_service_nursery():
                    await anyio.sleep_forever()

            nursery.start_soon(use)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancel_called


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("turns", range(8))
async def test_on_asyncio_its_task_may_be_cancelled_at_any_time(turns: int) -> None:
    async def use() -> None:
        async with open_service_nursery():
            await anyio.sleep_forever()

    task = asyncio.create_task(use())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=30)
    assert done


async def test_it_is_opened_in_a_scope_that_was_cancelled_before() -> None:
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        scope.cancel()
        async with open_service_nursery():
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_service_that_fails_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with open_service_nursery() as service:
            service.start_soon(fail)
            await anyio.sleep_forever()
