"""A fold that fails at an entry stops its member there, again after a restart; the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from dledger import Entry
from tests.unit.runtime.conftest import BodiesMachine, Group, wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
S = 60.0


class FailingMachine(BodiesMachine):
    """Cannot fold one body."""

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.body == b"poison":
                raise ValueError(f"entry {entry.index} cannot be folded")
            super().apply([entry])


async def test_a_fold_that_fails_stops_its_member_at_that_entry_and_nobody_else(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=3) as group:
        await group.start("n0")
        await group.start("n1")
        failing = await group.start("n2", machine=FailingMachine())
        leader = await group.leader()
        if leader is failing:
            await leader.server.transfer(None, timeout_s=S)
            await wait_until(lambda: not failing.server.is_leader)
            leader = await group.leader()
        await leader.server.appender.append(b"before", timeout_s=S)
        poison = await leader.server.appender.append(b"poison", timeout_s=S)
        await failing.has_ended.wait()
        assert str(failing.failure) == f"entry {poison.index} cannot be folded"
        await leader.server.appender.append(b"after", timeout_s=S)
        again = await group.start("n2", machine=FailingMachine())
        await again.has_ended.wait()
        assert str(again.failure) == str(failing.failure)
        assert again.machine.applied_index == poison.index - 1
        await leader.server.appender.append(b"still", timeout_s=S)
        assert leader.machine.bodies[-3:] == [b"poison", b"after", b"still"]
