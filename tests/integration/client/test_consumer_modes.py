"""Batches, broadcast, start times and a member that is killed, against real brokers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dledger_mq import (
    Later,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from jepsen.processes import Group
from tests.integration.client.leaders import a_moment, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MEMBER = """
import sys, trio
from dledger_mq import PushConsumer

async def handle(message):
    await trio.sleep(0.001)
    print(message.body.decode(), flush=True)

async def main():
    async with PushConsumer(
        sys.argv[1], "killed", handle, subscriptions={"Killed": "*"}, start_from="first", concurrency=4,
        commit_interval_s=0.05,
    ):
        await trio.sleep_forever()

trio.run(main)
"""


async def until_committed(group: Group, topic: str, name: str) -> None:
    """Wait until a group has an offset to go on from."""
    with trio.fail_after(PATIENCE_S):
        async with PullConsumer(group.namesrv, name, timeout_s=PATIENCE_S) as reader:
            queues = await reader.queues(topic)
            while not any([await reader.committed(queue) for queue in queues]):
                await a_moment()


@asynccontextmanager
async def filled(group: Group, topic: str, count: int) -> AsyncIterator[Producer]:
    async with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:
        await wait_for_queues(producer, topic)
        pending = [await producer.submit(Message(topic, b"%d" % n)) for n in range(count)]
        for one in pending:
            await one.wait()
        yield producer


async def test_l12_of_a_batch_only_the_rest_comes_again(group: Group) -> None:
    got: list[tuple[bytes, ...]] = []
    again: list[tuple[bytes, int]] = []

    async def handle(messages: tuple[ReceivedMessage, ...]) -> Later | None:
        if messages[0].reconsume_times:
            again.extend((message.body, message.reconsume_times) for message in messages)
            return None
        got.append(tuple(message.body for message in messages))
        return Later(consumed=len(messages) - 1, delay_level=1) if len(got) == 1 else None

    async with (
        filled(group, "Batches", 100),
        PushConsumer(
            group.namesrv,
            "batches",
            batch_handler=handle,
            consume_batch_max=10,
            subscriptions={"Batches": "*"},
            start_from="first",
        ) as one,
    ):
        # What was given back may come again before the rest has come at all.
        await until(lambda: again and len({body for bodies in got for body in bodies}) == 100)
        assert set(again) == {(got[0][-1], 1)}
        assert max(map(len, got)) == 10
        assert one.statistics().given_back == 1


async def test_s1_s2_broadcast_members_read_everything_and_go_on_after_a_restart(
    group: Group, tmp_path: Path
) -> None:
    inboxes: dict[str, list[int]] = {"a": [], "b": []}

    def member(name: str) -> PushConsumer:
        async def note(message: ReceivedMessage) -> None:
            inboxes[name].append(int(message.body))

        return PushConsumer(
            group.namesrv,
            "broadcast",
            note,
            subscriptions={"News": "*"},
            broadcast=True,
            offsets_folder=tmp_path,
            instance=name,
            start_from="first",
        )

    async with filled(group, "News", 50) as producer:
        async with member("a"), member("b"):
            await until(lambda: all(len(set(inbox)) == 50 for inbox in inboxes.values()))
        await producer.send(Message("News", b"50"))
        async with member("a"):
            await until(lambda: len(inboxes["a"]) == 51)
    assert sorted(inboxes["a"]) == list(range(51))
    assert sorted(inboxes["b"]) == list(range(50))


async def test_i6_a_group_begins_at_a_time(group: Group) -> None:
    got: list[int] = []

    async def note(message: ReceivedMessage) -> None:
        got.append(int(message.body))

    async with filled(group, "Times", 8) as producer:
        await producer.send(Message("Times", b"8"))
        async with PushConsumer(
            group.namesrv,
            "times",
            note,
            subscriptions={"Times": "*"},
            start_from=time.time_ns() // 1_000_000 - 3_600_000,
        ):
            await until(lambda: len(set(got)) == 9)
    assert set(got) == set(range(9))


async def test_i7_a_member_that_is_killed_leaves_nothing_out(group: Group, tmp_path: Path) -> None:
    ours: set[int] = set()
    log = tmp_path / "member"

    async def note(message: ReceivedMessage) -> None:
        ours.add(int(message.body))

    def theirs() -> set[int]:
        return {int(line) for line in log.read_text().splitlines(keepends=True) if line[-1] == "\n"}

    async with filled(group, "Killed", 2000):
        with log.open("wb") as out:
            child = subprocess.Popen(  # noqa: ASYNC220 - started, killed and reaped here
                [sys.executable, "-c", MEMBER, group.namesrv], stdout=out
            )
            try:
                await until(lambda: len(theirs()) > 300)
                await until_committed(group, "Killed", "killed")
            finally:
                child.kill()
                child.wait()
        first = theirs()
        async with PushConsumer(
            group.namesrv, "killed", note, subscriptions={"Killed": "*"}, start_from="first"
        ):
            await until(lambda: len(first | ours) == 2000)
    assert len(ours) < 2000, "it began where the other's commits had come to"
