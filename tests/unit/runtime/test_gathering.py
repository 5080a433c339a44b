"""What is proposed together: who gathers is asked before the pass, and after all tasks that were ready."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from tests.unit.runtime.conftest import Group, wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]


async def test_what_gathers_in_one_turn_is_proposed_together_and_leaves_with_that_pass(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        appender = leader.server.appender
        await wait_until(lambda: not appender.pending_count)
        gathered: list[bytes] = []
        counts: list[int] = []
        ended: list[object] = []

        def gather() -> None:
            if gathered:
                counts.append(len(gathered))
                appender.propose(b"".join(gathered), ended.append)
                gathered.clear()

        appender.gatherers.append(gather)

        async def stage(body: bytes) -> None:
            gathered.append(body)
            appender.gather_soon()

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(stage, b"%d" % number)
        await wait_until(lambda: bool(ended))
        assert sum(counts) == 8
        assert len(counts) <= 2, "a pass that was due by its time may have come in between"
        assert sorted(leader.machine.bodies[-1]) == sorted(b"01234567")


async def test_who_asks_while_it_is_gathered_is_asked_again(open_group: OpenGroup) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        calls = 0

        def gather() -> None:
            nonlocal calls
            calls += 1
            if calls < 5:
                leader.server.appender.gather_soon()

        leader.server.appender.gatherers.append(gather)
        leader.server.appender.gather_soon()
        await wait_until(lambda: calls >= 5)
