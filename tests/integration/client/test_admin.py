"""`Admin` against real brokers: what it makes is there, and what it removes is gone."""

from __future__ import annotations

import pytest
import trio

from dledger_mq import (
    Admin,
    ClientError,
    ClientUsageError,
    Message,
    NoRouteError,
    Producer,
    PushConsumer,
    RequestFailedError,
)
from jepsen.processes import Group
from tests.integration.client.leaders import a_moment, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def is_served(group: Group, topic: str) -> bool:
    """What a client finds that knows no route yet."""
    async with Admin(group.namesrv) as admin:
        try:
            await admin.describe_topic(topic)
        except (NoRouteError, RequestFailedError):
            return False
        except ClientError:
            return True  # for all that is known: nobody answered in time
        return True


async def test_topics_groups_and_offsets_of_a_real_group(group: Group) -> None:
    with trio.fail_after(PATIENCE_S):
        async with (
            Admin(group.namesrv, timeout_s=PATIENCE_S) as admin,
            Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer,
        ):
            await admin.create_topic("Administered", queues=2)
            await wait_for_queues(producer, "Administered")
            for number in range(6):
                await producer.send(Message("Administered", b"%d" % number))
            described = await admin.describe_topic("Administered")
            assert (len(described.queues), described.messages) == (2, 6)
            assert "Administered" in await admin.list_topics()

            await admin.create_group("administered", retries=3)
            assert "administered" in await admin.list_groups()
            first = await admin.reset_offsets("administered", "Administered", "first")
            assert set(first.values()) == {0}
            got: list[bytes] = []
            async with PushConsumer(
                group.namesrv, "administered", subscriptions={"Administered": "*"}
            ) as consumer:
                while len(set(got)) < 6:
                    got.append((await anext(consumer)).body)
                with pytest.raises(ClientUsageError, match="online"):
                    await admin.reset_offsets("administered", "Administered", "first")
            assert set(got) == {b"%d" % number for number in range(6)}
            ends = {queue: end for queue, (_, end) in described.queues.items()}
            offsets = (await admin.describe_group("administered")).offsets
            assert {queue: offsets[queue] for queue in ends} == ends

            await admin.delete_group("administered", with_offsets=True)
            assert "administered" not in await admin.list_groups()
            await admin.delete_topic("Administered")
            while await is_served(group, "Administered"):
                await a_moment()
