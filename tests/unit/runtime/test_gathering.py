"""What is proposed together: who gathers is asked before the pass, and after all tasks that were ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from dledger.raft.entry import Entry
from tests.unit.runtime.conftest import PATIENCE_S, BodiesMachine, Group, wait_until

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
        await wait_until(lambda: sum(counts) == 8 and len(ended) == len(counts))
        assert len(counts) <= 2, "a pass that was due by its time may have come in between"
        assert sorted(b"".join(leader.machine.bodies[-len(counts) :])) == sorted(b"01234567")


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


async def test_who_gathers_now_has_it_proposed_and_written_before_the_call_returns(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        appender = leader.server.appender
        await wait_until(lambda: not appender.pending_count)
        asked: list[object] = []
        ended: list[object] = []

        def gather() -> None:
            if not asked:
                asked.append(appender.propose(b"now", ended.append))

        appender.gatherers.append(gather)
        end = appender.end_position
        appender.gather_now()
        assert appender.end_position > end, "it is in the log, if not on disk"
        await wait_until(lambda: bool(ended))
        assert leader.machine.bodies[-1] == b"now"


class BrokenMachine(BodiesMachine):
    """Does not take one body."""

    def apply(self, entries: Sequence[Entry]) -> None:
        super().apply(entries)
        if b"bad" in self.bodies:
            raise RuntimeError("this cannot be folded")


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_what_a_pass_fails_with_ends_the_member_and_not_who_gathers(
    open_group: OpenGroup, is_at_once: bool
) -> None:
    """The pass that fails is that of `gather_now`, unless the disk takes longer; or one of the driver's tasks."""
    async with open_group(size=1, secret=None) as group:
        await group.start("n0", machine=BrokenMachine())
        leader = await group.leader()
        appender = leader.server.appender
        asked: list[object] = []

        def gather() -> None:
            if not asked:
                asked.append(appender.propose(b"bad", lambda _outcome: None))

        appender.gatherers.append(gather)
        if is_at_once:
            appender.gather_now()
        else:
            appender.gather_soon()
        with trio.fail_after(PATIENCE_S):
            await leader.has_ended.wait()
        assert "cannot be folded" in repr(leader.failure)
        driver = leader.server._standing.driver
        assert driver is not None
        for _ in range(2):  # as each task of the driver may that was ready when it failed
            with pytest.raises(RuntimeError, match="cannot be folded"):
                driver.run_pass()
        appender.gather_now()
