"""Members join and leave while leaders die: nothing is left out, and first deliveries keep the queue's order."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import trio

from dledger_mq import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from dledger_mq.client.rebalance import Strategy, allocate_average, by_consistent_hash
from jepsen.processes import Group
from tests.integration.client.leaders import killer_of, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC = "Members"
KILLS = 3
SENDERS = 4
STAY_S = 2.0
SENT_MIN = 200


class Seen:
    """What the members of one group handled together, and in which order each offset came first."""

    def __init__(self) -> None:
        self.times: Counter[tuple[MessageQueue, int]] = Counter()
        self.first: dict[MessageQueue, list[int]] = defaultdict(list)
        self.bodies: set[bytes] = set()

    async def handle(self, message: ReceivedMessage) -> None:
        place = (message.queue, message.queue_offset)
        if not self.times[place]:
            self.first[message.queue].append(message.queue_offset)
        self.times[place] += 1
        await trio.lowlevel.checkpoint()
        self.bodies.add(message.body)


def member(
    group: Group, name: str, seen: Seen, concurrency: int, allocation: Strategy
) -> PushConsumer:
    return PushConsumer(
        group.namesrv,
        name,
        seen.handle,
        subscriptions={TOPIC: "*"},
        start_from="first",
        concurrency=concurrency,
        allocation=allocation,
        commit_interval_s=0.5,
    )


async def test_q5_i7_nothing_is_left_out_while_leaders_die_and_members_change(
    group: Group,
) -> None:
    sent: set[bytes] = set()
    # One at a time shows the order of deliveries; many at a time shows that the lowest is committed.
    groups: list[tuple[str, Seen, int, Strategy]] = [
        ("in-turn", Seen(), 1, allocate_average),
        ("parallel", Seen(), 20, by_consistent_hash()),
    ]
    stop = trio.Event()

    async def send(number: int) -> None:
        count = 0
        while not stop.is_set():
            body = b"%d %d" % (number, count)
            await producer.send(Message(TOPIC, body))
            sent.add(body)
            count += 1

    async def come_and_go(settings: tuple[str, Seen, int, Strategy]) -> None:
        while not stop.is_set():
            async with member(group, *settings):
                with trio.move_on_after(STAY_S):
                    await stop.wait()
            with trio.move_on_after(STAY_S / 2):
                await stop.wait()

    async with (
        killer_of(group, kills=KILLS, period_s=2.5, down_s=0.7) as killer,
        Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer,
    ):
        await wait_for_queues(producer, TOPIC)
        async with member(group, *groups[0]), member(group, *groups[1]):
            async with trio.open_nursery() as working:
                for number in range(SENDERS):
                    working.start_soon(send, number)
                for settings in groups:
                    working.start_soon(come_and_go, settings)
                await killer.run()
                await until(lambda: len(sent) > SENT_MIN)
                stop.set()
            # Only now every send has ended, and `sent` is whole.
            await until(lambda: all(sent <= seen.bodies for _, seen, _, _ in groups))
    assert killer.done == KILLS
    assert len(sent) > SENT_MIN
    for name, seen, concurrency, _ in groups:
        assert sent <= seen.bodies, f"{name}: lost {len(sent - seen.bodies)}"
        for queue, offsets in seen.first.items():
            assert sorted(offsets) == list(range(len(offsets))), f"{name} {queue}: a gap"
            if concurrency == 1:
                assert offsets == sorted(offsets), f"{name} {queue}: out of order"
