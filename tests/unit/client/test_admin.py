"""Topics, groups and offsets from outside. tests/integration/client/test_admin.py asks a real broker the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dledger_mq import Admin, ClientUsageError, MessageQueue, NoRouteError
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import Inbox, consumer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        yield fake


@pytest.fixture
async def admin(group: FakeGroup) -> AsyncIterator[Admin]:
    async with Admin(group.namesrv, timeout_s=5) as one:
        yield one


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", number)


async def test_a_topic_is_made_listed_described_and_removed(group: FakeGroup, admin: Admin) -> None:
    await admin.create_topic("T", queues=3)
    group.put("T", 1, b"x")
    group.create_topic("%RETRY%g")
    assert await admin.list_topics() == ("T",)
    described = await admin.describe_topic("T")
    assert described.queues == {queue(0): (0, 0), queue(1): (0, 1), queue(2): (0, 0)}
    assert described.messages == 1
    await admin.delete_topic("T")
    await admin.delete_topic("T")
    assert await admin.list_topics() == ()
    for name in ("no topic", "TBW102"):
        with pytest.raises(ClientUsageError):
            await admin.create_topic(name)
        with pytest.raises(ClientUsageError):
            await admin.delete_topic(name)


async def test_a_group_is_made_listed_described_and_removed(group: FakeGroup, admin: Admin) -> None:
    group.create_topic("T")
    group.offsets = {("old", "T", 1): 7, ("g", "T", 0): 3}
    await admin.create_group("g")
    assert await admin.list_groups() == ("g", "old")
    described = await admin.describe_group("g")
    assert (described.members, described.offsets) == ((), {queue(0): 3})
    await admin.delete_group("g")
    assert await admin.list_groups() == ("g", "old"), "its offsets stay"
    await admin.delete_group("g", with_offsets=True)
    assert await admin.list_groups() == ("old",)
    with pytest.raises(ClientUsageError):
        await admin.create_group("no group")


async def test_offsets_are_reset_while_nobody_is_online(group: FakeGroup, admin: Admin) -> None:
    group.create_topic("T")
    for number in range(4):
        group.put("T", 0, b"%d" % number)
    group.drop_before("T", 0, 1)
    assert await admin.reset_offsets("g", "T", "first") == {queue(0): 1, queue(1): 0}
    assert await admin.reset_offsets("g", "T", "last") == {queue(0): 4, queue(1): 0}
    assert await admin.reset_offsets("g", "T", 0) == {queue(0): 1, queue(1): 0}
    assert await admin.reset_offsets("g", "T", {queue(0): 2}) == {queue(0): 2}
    assert group.offsets == {("g", "T", 0): 2, ("g", "T", 1): 0}
    async with consumer(group, Inbox()) as one:
        await one.wait_assigned()
        with pytest.raises(ClientUsageError, match="online"):
            await admin.reset_offsets("g", "T", "first")
    with pytest.raises(ClientUsageError):
        await admin.reset_offsets("g", "T", "middle")  # type: ignore[arg-type]


@pytest.mark.slow
async def test_without_a_broker_nothing_is_made(group: FakeGroup) -> None:
    group.has_brokers = False
    async with Admin(
        group.namesrv, timeout_s=2.0
    ) as admin:  # enough for an answer of a name server
        with pytest.raises(NoRouteError):
            await admin.create_topic("T")
