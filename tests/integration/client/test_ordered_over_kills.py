"""Ordered produce and consume through leader kills and a changing membership, with real processes."""

from __future__ import annotations

from collections import defaultdict

import pytest
import trio

from dledger_mq import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from dledger_mq.client.consume_results import ConsumeResult
from jepsen.processes import Group
from tests.integration.client.leaders import killer_of, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEYS = [f"customer-{number}" for number in range(8)]
KILLS = 3
FAIL_EVERY = 41
AHEAD_MAX = 50
"""A failure holds up its queue for a second; the producer must not run away meanwhile."""


class Consumed:
    """What all members of the group handled together, and whether two ever had one queue."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        self.busy: dict[MessageQueue, int] = defaultdict(int)
        self.overlaps = 0
        self.failures = 0
        self.moved = trio.Event()
        self._failed: set[bytes] = set()

    async def handle(self, message: ReceivedMessage) -> ConsumeResult:
        self.busy[message.queue] += 1
        self.overlaps += self.busy[message.queue] > 1
        try:
            await trio.lowlevel.checkpoint()
            key, _, number = message.body.decode().partition(" ")
            if int(number) % FAIL_EVERY == 5 and message.body not in self._failed:
                self._failed.add(message.body)
                self.failures += 1
                return ConsumeResult.LATER
            self.numbers[key].append(int(number))
            self.offsets[message.queue].append(message.queue_offset)
            self.moved.set()
            self.moved = trio.Event()
            return ConsumeResult.SUCCESS
        finally:
            self.busy[message.queue] -= 1


def member(group: Group, consumed: Consumed) -> PushConsumer:
    return PushConsumer(
        group.namesrv,
        "ordered",
        consumed.handle,
        subscriptions={"Ordered": "*"},
        start_from="first",
        ordered=True,
        commit_interval_s=0.3,
    )


async def produce(
    producer: Producer, key: str, sent: dict[str, int], consumed: Consumed, stop: trio.Event
) -> None:
    while not stop.is_set():
        while sent[key] - len(consumed.numbers[key]) > AHEAD_MAX and not stop.is_set():
            await consumed.moved.wait()
        await producer.send(Message("Ordered", f"{key} {sent[key]}".encode()), key=key)
        sent[key] += 1


def has_enough(sent: dict[str, int], consumed: Consumed) -> bool:
    """Whether every queue had its failures."""
    return min(sent.values()) > 2 * FAIL_EVERY and consumed.failures > len(KEYS)


async def test_p_order_of_every_key_holds_while_leaders_die_and_members_change(
    group: Group,
) -> None:
    consumed, sent, stop = Consumed(), dict.fromkeys(KEYS, 0), trio.Event()
    async with (
        killer_of(group, kills=KILLS, period_s=2.5, down_s=0.7) as killer,
        Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer,
        member(group, consumed) as first,
    ):
        await wait_for_queues(producer, "Ordered")
        async with trio.open_nursery() as sending:
            for key in KEYS:
                sending.start_soon(produce, producer, key, sent, consumed, stop)
            await first.wait_assigned()
            async with member(group, consumed) as second:
                await killer.run()
                await until(lambda: any(queue.topic == "Ordered" for queue in second.assigned))
                shares = [set(one.assigned) for one in (first, second)]
                assert not shares[0] & shares[1]
                await until(lambda: has_enough(sent, consumed))
            stop.set()
            consumed.moved.set()
        # A member that leaves while nobody leads cannot give its locks back: they expire after 60 s.
        await until(lambda: all(len(set(consumed.numbers[key])) == sent[key] for key in KEYS), 300)
    assert killer.done == KILLS
    assert has_enough(sent, consumed)
    assert consumed.overlaps == 0
    for key in KEYS:
        assert consumed.numbers[key] == list(range(sent[key])), f"{key}: out of order or twice"
    for queue, offsets in consumed.offsets.items():
        assert offsets == list(range(len(offsets))), f"{queue}: a gap, or stored twice"
