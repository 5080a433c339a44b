from __future__ import annotations

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


async def test_a_service_that_fails_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with open_service_nursery() as service:
            service.start_soon(fail)
            await anyio.sleep_forever()
