"""Appends on a member that does not lead: through whoever does, or refused with its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio

from dledger import (
    LogConfig,
    LogServer,
    NotLeaderError,
    RefusedError,
    TooLargeError,
    parse_peers,
)
from tests.unit.runtime.conftest import BodiesMachine

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Any]]
S = 60.0


async def test_an_append_on_a_follower_goes_through_the_leader_and_is_applied_here(
    open_group: OpenGroup,
) -> None:
    async with open_group() as group:
        await group.start_all()
        follower = await group.follower()
        entry_id = await follower.server.forwarder.append(b"from afar", timeout_s=S)
        assert follower.machine.bodies == [b"from afar"]
        assert follower.server.reader.get(entry_id.index).body == b"from afar"


async def test_the_leader_appends_itself(open_group: OpenGroup) -> None:
    async with open_group(size=1, secret=None) as group:
        await group.start_all()
        leader = await group.leader()
        entry_id = await leader.server.forwarder.append(b"near", timeout_s=S)
        assert leader.server.reader.get(entry_id.index).body == b"near"


async def test_who_is_asked_without_forwarding_says_who_leads(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all()
        leader, follower = await group.leader(), await group.follower()
        await group.wait_applied(leader.machine.applied_index)
        with pytest.raises(NotLeaderError) as refused:
            await follower.server.appender.append(b"x", timeout_s=S)
        assert refused.value.leader_id == leader.server.node_id
        assert follower.server.status.address_of(str(refused.value.leader_id))


async def test_what_the_leader_refuses_is_refused(open_group: OpenGroup) -> None:
    async with open_group() as group:
        await group.start_all(entry_body_bytes_max=100)
        follower = await group.follower()
        with pytest.raises(TooLargeError):
            await follower.server.forwarder.append(bytes(101), timeout_s=S)
        assert follower.machine.bodies == []


async def test_without_a_leader_nothing_happens(open_group: OpenGroup) -> None:
    async with open_group() as group:
        member = await group.start("n0")
        with pytest.raises(RefusedError):
            await member.server.forwarder.append(b"x", timeout_s=0.3)
        await group.start("n1")
        await group.start("n2")
        await (await group.leader()).server.appender.append(b"y", timeout_s=S)
        assert (await group.leader()).machine.bodies == [b"y"]


async def test_before_the_member_runs_nothing_is_appended() -> None:
    peers = parse_peers("n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3")
    server = LogServer(LogConfig.for_member("n0", peers, "nowhere"), BodiesMachine())
    with trio.fail_after(S), pytest.raises(NotLeaderError):
        await server.forwarder.append(b"x", timeout_s=S)
