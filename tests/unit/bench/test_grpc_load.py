"""The client of `bench.proxies` counts the messages of all calls that are in flight together."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

import grpc

from bench.grpc_load import GrpcLoad


def test_steps_that_are_in_flight_together_are_all_counted() -> None:
    async def count() -> int:
        async with (
            grpc.aio.insecure_channel("127.0.0.1:1") as channel,
            asyncio.TaskGroup() as tasks,
        ):
            load = GrpcLoad(channel, "T", "g")

            async def step() -> int:
                await asyncio.sleep(0)
                load.end()
                return 3

            for _ in range(8):
                tasks.create_task(load.keep_on(step))
        return load.message_count

    assert asyncio.run(count()) == 24
