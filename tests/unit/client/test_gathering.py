"""Requests that wait for each other: which of them leave together, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from dledger_mq.client import gathering
from dledger_mq.client.gathering import HELD_BYTES_MAX, RequestGathering
from dledger_mq.net.loop import current_loop
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio


class Written:
    """What a gathering has written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.gathering = RequestGathering(current_loop(), self.writes.append)

    def put(self, *opaques: int) -> None:
        for opaque in opaques:
            self.gathering.put(opaque, b"%d " % opaque)


@pytest.fixture
async def written(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Written]:
    """Held for ever, but for what the test does."""
    monkeypatch.setattr(gathering, "HOLD_S", 1000.0)
    async with anyio.create_task_group() as tasks:
        one = Written()
        tasks.start_soon(one.gathering.run)
        yield one
        tasks.cancel_scope.cancel()


async def test_the_first_leaves_at_once_and_those_behind_it_with_its_answer(
    written: Written,
) -> None:
    written.put(1, 2, 3)
    assert written.writes == [b"1 "]
    written.gathering.ended([1])
    assert written.writes == [b"1 ", b"2 3 "]
    written.put(4)
    written.gathering.ended([2])
    assert written.writes[2:] == [b"4 "]
    written.gathering.ended([3, 4])
    written.put(5)
    assert written.writes[3:] == [b"5 "]


async def test_none_is_held_for_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "HOLD_S", 0.01)
    async with anyio.create_task_group() as tasks:
        written = Written()
        tasks.start_soon(written.gathering.run)
        written.put(1, 2, 3)
        await until(lambda: len(written.writes) == 2)
        written.put(4)
        await until(lambda: len(written.writes) == 3)
        assert written.writes == [b"1 ", b"2 3 ", b"4 "]
        tasks.cancel_scope.cancel()


async def test_one_that_nobody_waits_for_any_more_is_not_sent(written: Written) -> None:
    written.put(1, 2, 3)
    written.gathering.ended([2])
    assert written.writes == [b"1 ", b"3 "]
    written.put(4)
    written.gathering.ended([4])
    written.gathering.ended([1, 3])
    assert len(written.writes) == 2
    written.put(5)
    assert written.writes[2:] == [b"5 "]


async def test_many_bytes_are_not_held(written: Written) -> None:
    written.put(1)
    written.gathering.put(2, b"x" * (HELD_BYTES_MAX - 1))
    assert len(written.writes) == 1
    written.gathering.put(3, b"x")
    assert [len(data) for data in written.writes] == [2, HELD_BYTES_MAX]
