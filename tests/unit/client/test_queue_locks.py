"""Locks of ordered consumers (P1 to P4, L17): who may work on a queue, and when it is not sure any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest
import trio
from trio.testing import MockClock

from dledger_mq.client import assignment, queue_locks
from dledger_mq.client.consume_results import ConsumeResult
from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.push_consumer import PushConsumer
from dledger_mq.client.queue_locks import HELD_S, RENEW_S, SURE_S, QueueLocks
from dledger_mq.client.queues import MessageQueue
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import Inbox, consumer, until

ONE, TWO = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


class Requests:
    """A broker group that grants what the test says; None: it does not answer."""

    def __init__(self) -> None:
        self.granted: frozenset[MessageQueue] | None = frozenset({ONE, TWO})
        self.locked: list[list[MessageQueue]] = []
        self.unlocked: list[list[MessageQueue]] = []
        self.takes_s = 0.0

    async def lock(
        self, broker_name: str, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue]:
        assert broker_name == "broker-a"
        self.locked.append(sorted(queues))
        await trio.sleep(self.takes_s)
        if self.granted is None:
            raise ConnectionLostError("no answer")
        return self.granted

    async def unlock(self, broker_name: str, queues: Iterable[MessageQueue]) -> None:
        assert broker_name == "broker-a"
        self.unlocked.append(sorted(queues))
        if self.granted is None:
            raise ConnectionLostError("no answer")


class Bench:
    def __init__(self) -> None:
        self.requests = Requests()
        self.lost: list[MessageQueue] = []
        self.locks = QueueLocks(self.requests, self.lost.append)  # type: ignore[arg-type]  # its part


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def renewing(bench: Bench, nursery: trio.Nursery) -> Bench:
    nursery.start_soon(bench.locks.run)
    return bench


async def test_p3_renewed_after_a_second_and_then_every_20(
    renewing: Bench, autojump_clock: MockClock
) -> None:
    assert await renewing.locks.take(ONE)
    await trio.sleep(1.5)
    assert renewing.requests.locked == [[ONE], [ONE]]
    assert await renewing.locks.take(TWO)
    await trio.sleep(2 * RENEW_S)
    assert renewing.requests.locked[3:] == [[ONE, TWO], [ONE, TWO]]
    assert renewing.locks.holds(ONE)
    assert not renewing.lost


async def test_p3_a_lock_of_30_s_is_not_worked_on_until_it_is_renewed(
    renewing: Bench, autojump_clock: MockClock
) -> None:
    await renewing.locks.take(ONE)
    renewing.requests.granted = None
    await trio.sleep(HELD_S - 0.1)
    assert renewing.locks.holds(ONE)
    await trio.sleep(0.2)
    assert not renewing.locks.holds(ONE)
    renewing.requests.granted = frozenset({ONE})
    assert await renewing.locks.wait_held(ONE)
    assert not renewing.lost


async def test_the_time_counts_from_the_request_not_from_the_answer(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.requests.takes_s = 10
    await bench.locks.take(ONE)
    await trio.sleep(HELD_S - 10)
    assert not bench.locks.holds(ONE)


async def test_what_is_refused_is_lost(renewing: Bench, autojump_clock: MockClock) -> None:
    await renewing.locks.take(ONE)
    await renewing.locks.take(TWO)
    renewing.requests.granted = frozenset({TWO})
    await trio.sleep(2)
    assert renewing.lost == [ONE]
    assert not await renewing.locks.wait_held(ONE)
    assert renewing.locks.holds(TWO)


async def test_a_lock_that_may_have_been_anothers_meanwhile_is_lost_though_it_is_granted(
    renewing: Bench, autojump_clock: MockClock
) -> None:
    await renewing.locks.take(ONE)
    renewing.requests.granted = None
    await trio.sleep(SURE_S + 5)
    renewing.requests.granted = frozenset({ONE})
    assert not await renewing.locks.wait_held(ONE)
    assert renewing.lost == [ONE]


async def test_a_queue_that_is_given_up_is_unlocked_and_never_renewed(
    renewing: Bench, autojump_clock: MockClock
) -> None:
    await renewing.locks.take(ONE)
    await renewing.locks.take(TWO)
    await renewing.locks.release([ONE])
    renewing.locks.forget(TWO)
    await renewing.locks.release_all()
    await trio.sleep(2)
    assert renewing.requests.unlocked == [[ONE]]
    assert len(renewing.requests.locked) == 2
    assert not renewing.lost
    await renewing.locks.take(ONE)
    renewing.requests.granted = None
    await renewing.locks.release_all()
    assert not renewing.locks.holds(ONE), "what cannot be said expires"


# With a group in memory.


@pytest.fixture
async def group(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGroup]:
    monkeypatch.setattr(assignment, "REBALANCE_SOON_S", 0.02)
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


async def test_a_queue_of_another_member_is_left_alone_until_it_is_free(group: FakeGroup) -> None:
    group.locks["g", "T", 0] = "other"
    group.put("T", 0, b"0")
    group.put("T", 1, b"1")
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True) as one:
        await until(lambda: inbox.bodies == [b"1"])
        del group.locks["g", "T", 0]
        await until(lambda: sorted(inbox.bodies) == [b"0", b"1"])
        assert set(group.locks.values()) == {one.client_id}
    assert group.locks == {}, "given back at the end"


async def test_others_lock_nothing(group: FakeGroup) -> None:
    group.locks["g", "T", 0] = "other"
    group.put("T", 0, b"0")
    inbox = Inbox()
    async with consumer(group, inbox):
        await until(lambda: inbox.got)
    assert 41 not in group.requests


async def test_a_lost_queue_is_begun_anew_where_its_next_owner_stopped(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "FIRST_RENEW_S", 0.01)
    monkeypatch.setattr(queue_locks, "RENEW_S", 0.01)
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True, commit_interval_s=1000) as one:
        await one.wait_assigned()
        group.put("T", 0, b"0")
        await until(lambda: inbox.got)
        group.locks["g", "T", 0] = "other"
        await until(lambda: not any(q.topic == "T" and not q.queue_id for q in one.assigned))
        for n in range(1, 6):
            group.put("T", 0, b"%d" % n)
        group.offsets["g", "T", 0] = 4
        del group.locks["g", "T", 0]
        await until(lambda: len(inbox.got) == 3)
    assert inbox.bodies == [b"0", b"4", b"5"]
    assert group.offsets["g", "T", 0] == 6


class Times:
    """A handler that never succeeds with "bad" and remembers how often it was told to have tried."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, int]] = []

    async def __call__(self, message: ReceivedMessage) -> ConsumeResult:
        self.got.append((message.body, message.reconsume_times))
        await trio.lowlevel.checkpoint()
        return ConsumeResult.LATER if message.body == b"bad" else ConsumeResult.SUCCESS


async def test_l17_failures_are_counted_and_at_the_limit_a_message_is_buried(
    group: FakeGroup,
) -> None:
    group.put("T", 0, b"bad")
    group.put("T", 0, b"good")
    times = Times()
    async with PushConsumer(
        group.namesrv,
        "g",
        times,
        subscriptions={"T": "*"},
        start_from="first",
        ordered=True,
        max_reconsume_times=2,
        suspend_s=0.01,
    ) as one:
        await until(lambda: len(times.got) == 4)
        assert one.statistics().given_back == 1
    assert times.got == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]
    assert [m.body for m in group.messages("%DLQ%g")] == [b"bad"]


async def test_l17_without_a_limit_nothing_overtakes(group: FakeGroup) -> None:
    group.put("T", 0, b"bad")
    group.put("T", 0, b"good")
    times = Times()
    async with PushConsumer(
        group.namesrv,
        "g",
        times,
        subscriptions={"T": "*"},
        start_from="first",
        ordered=True,
        suspend_s=0.01,
    ):
        await until(lambda: len(times.got) == 30)
    assert {body for body, _ in times.got} == {b"bad"}


async def test_all_queues_go_on_when_their_locks_are_certain_again(
    renewing: Bench, autojump_clock: MockClock
) -> None:
    await renewing.locks.take(ONE)
    await renewing.locks.take(TWO)
    renewing.requests.granted = None
    await trio.sleep(HELD_S + 1)
    held: list[MessageQueue] = []

    async def work_on(queue: MessageQueue) -> None:
        if await renewing.locks.wait_held(queue):
            held.append(queue)

    with trio.move_on_after(SURE_S):
        async with trio.open_nursery() as tasks:
            tasks.start_soon(work_on, ONE)
            tasks.start_soon(work_on, TWO)
            await trio.sleep(1)
            renewing.requests.granted = frozenset({ONE, TWO})
    assert sorted(held) == [ONE, TWO]
    assert not renewing.lost
