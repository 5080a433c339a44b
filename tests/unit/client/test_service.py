from __future__ import annotations

import pytest
import trio

from dledger_mq.client.service import open_service_nursery


async def test_service_tasks_outlive_the_cancelled_block_until_its_clean_up_is_done() -> None:
    log: list[str] = []

    async def serve() -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("service ended")

    with trio.CancelScope() as scope:
        async with open_service_nursery() as service:
            service.start_soon(serve)
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()
                    log.append("cleaned up")
    assert log == ["cleaned up", "service ended"]


async def test_a_service_that_fails_ends_the_block() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with open_service_nursery() as service:
            service.start_soon(fail)
            await trio.sleep_forever()
