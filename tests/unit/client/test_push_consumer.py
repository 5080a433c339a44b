"""The push consumer against a group in memory: nothing skipped, order kept, queues shared out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dledger_mq.client.consume_results import ConsumeResult
from dledger_mq.client.errors import ClientClosedError, ClientUsageError
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.process_queue import FlowLimits
from dledger_mq.client.push_consumer import PushConsumer
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.waiting import WAIT_S

pytestmark = pytest.mark.anyio

EVERYTHING = {"T": "*"}


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


class Inbox:
    """A handler that remembers, and waits on demand."""

    def __init__(self) -> None:
        self.got: list[ReceivedMessage] = []
        self.answers: list[ConsumeResult | Exception | None] = []

    async def __call__(self, message: ReceivedMessage) -> ConsumeResult | None:
        self.got.append(message)
        await anyio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


async def until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    with anyio.fail_after(timeout_s):
        while not condition():
            await anyio.lowlevel.checkpoint()


def consumer(group: FakeGroup, inbox: Inbox, **settings: object) -> PushConsumer:
    wanted = {"subscriptions": EVERYTHING, "start_from": "first", "suspend_s": 0.01} | settings
    return PushConsumer(group.namesrv, "g", inbox, **wanted)  # type: ignore[arg-type]  # by name


async def test_everything_is_delivered_and_committed_at_the_end(group: FakeGroup) -> None:
    for n in range(100):
        group.put("T", n % 2, b"%d" % n)
    inbox = Inbox()
    async with consumer(group, inbox, commit_interval_s=1000) as one:
        assert len(await one.wait_assigned()) >= 2
        await until(lambda: len(inbox.got) == 100)
        assert group.offsets == {}  # nothing yet: the interval is longer
    assert sorted(inbox.bodies) == sorted(b"%d" % n for n in range(100))
    assert group.offsets[("g", "T", 0)] == group.offsets[("g", "T", 1)] == 50


async def test_offsets_are_committed_over_the_run(group: FakeGroup) -> None:
    group.put("T", 0, b"x")
    inbox = Inbox()
    async with consumer(group, inbox, commit_interval_s=0.01) as one:
        await until(lambda: group.offsets.get(("g", "T", 0)) == 1)
        statistics = one.statistics()
    assert (statistics.consumed, statistics.unfinished, statistics.offset_resets) == (1, 0, 0)


async def test_new_messages_wake_the_held_pull(group: FakeGroup) -> None:
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True) as one:
        await one.wait_assigned()
        for n in range(5):
            group.put("T", 0, b"%d" % n)
            await until(lambda n=n: len(inbox.got) == n + 1)  # type: ignore[misc]
    assert inbox.bodies == [b"%d" % n for n in range(5)]


async def test_a_killed_leader_leaves_no_gap_and_repeats_nothing(group: FakeGroup) -> None:
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True) as one:
        await one.wait_assigned()
        for n in range(50):
            group.put("T", 0, b"%d" % n)
        await until(lambda: len(inbox.got) == 50)
        await group.kill(group.nodes[0])
        for n in range(50, 80):
            group.put("T", 0, b"%d" % n)
        group.elect(group.nodes[1])
        await until(lambda: len(inbox.got) == 80)
        await group.restart(group.nodes[0])
        await group.kill(group.nodes[1])
        group.elect(group.nodes[2])
        group.put("T", 0, b"80")
        await until(lambda: len(inbox.got) == 81)
    assert inbox.bodies == [b"%d" % n for n in range(81)]
    assert group.offsets[("g", "T", 0)] == 81


@pytest.mark.slow
async def test_a_leader_that_hangs_is_left(group: FakeGroup) -> None:
    inbox = Inbox()
    async with consumer(group, inbox) as one:
        await one.wait_assigned()
        await until(lambda: group.requests.count(11) >= 3)
        group.nodes[0].is_paused = True
        group.elect(group.nodes[1])
        group.put("T", 0, b"x")
        await until(lambda: inbox.got)


async def test_ordered_consumers_hold_a_queue_up_and_try_again(group: FakeGroup) -> None:
    for n in range(3):
        group.put("T", 0, b"%d" % n)
    inbox = Inbox()
    inbox.answers = [None, ConsumeResult.LATER, ValueError("no")]
    async with consumer(group, inbox, ordered=True, suspend_s=0.01):
        await until(lambda: len(inbox.got) == 5)
    assert inbox.bodies == [b"0", b"1", b"1", b"1", b"2"]


async def test_what_the_handler_refuses_comes_again_through_the_retry_topic(
    group: FakeGroup,
) -> None:
    group.put("T", 0, b"x", b"UNIQ_KEY\x01K\x02")
    inbox = Inbox()
    inbox.answers = [ValueError("no")]
    async with consumer(group, inbox) as one:
        await until(lambda: len(inbox.got) == 2)
        assert one.statistics().given_back == 1
    first, second = inbox.got
    assert (second.topic, second.queue.topic, second.reconsume_times) == ("T", "%RETRY%g", 1)
    assert first.unique_key == second.unique_key == "K"
    assert group.offsets[("g", "T", 0)] == 1


async def test_tags_are_looked_at_again_here(group: FakeGroup) -> None:
    for tag in ("A", "B", "C"):
        group.put("T", 0, tag.encode(), b"TAGS\x01%b\x02" % tag.encode())
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True, subscriptions={"T": "A || C"}):
        await until(lambda: len(inbox.got) == 2)
    assert inbox.bodies == [b"A", b"C"]
    assert group.offsets[("g", "T", 0)] == 3


async def test_two_members_share_the_queues_and_one_takes_over(group: FakeGroup) -> None:
    for n in range(2):
        group.put("T", n, b"first %d" % n)
    left, right = Inbox(), Inbox()
    async with consumer(group, left, instance="a") as a:
        await until(lambda: len(left.got) == 2)
        async with consumer(group, right, instance="b") as b:
            await until(lambda: [q.queue_id for q in b.assigned if q.topic == "T"] == [1])
            await until(lambda: [q.queue_id for q in a.assigned if q.topic == "T"] == [0])
            for n in range(2):
                group.put("T", n, b"second %d" % n)
            await until(lambda: left.bodies[2:] == [b"second 0"])
            await until(lambda: right.bodies == [b"second 1"])
        await until(lambda: len([q for q in a.assigned if q.topic == "T"]) == 2)
        group.put("T", 1, b"third")
        await until(lambda: left.bodies[3:] == [b"third"])


async def test_a_group_without_an_offset_begins_where_it_was_told(group: FakeGroup) -> None:
    for n in range(5):
        group.put("T", 0, b"%d" % n)
    inbox = Inbox()
    async with consumer(group, inbox, start_from="last") as one:
        await one.wait_assigned()
        group.put("T", 0, b"new")
        await until(lambda: inbox.got)
    assert inbox.bodies == [b"new"]


async def test_a_stored_offset_wins(group: FakeGroup) -> None:
    for n in range(5):
        group.put("T", 0, b"%d" % n)
    group.offsets["g", "T", 0] = 3
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True):
        await until(lambda: len(inbox.got) == 2)
    assert inbox.bodies == [b"3", b"4"]


async def test_an_offset_before_the_start_of_the_queue_moves_to_the_start(
    group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        group.put("T", 0, b"%d" % n)
    group.drop_before("T", 0, 2)
    group.offsets["g", "T", 0] = 0
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True) as one:
        await until(lambda: len(inbox.got) == 3)
        assert one.statistics().offset_resets == 1
        assert one.statistics().deleted_unread == 2
    assert inbox.bodies == [b"2", b"3", b"4"]
    (line,) = [line for line in caplog.messages if "outside the queue" in line]
    assert line.endswith("going on at 2: 2 messages were deleted before they were read")


async def test_an_offset_beyond_the_end_is_not_believed_at_once(group: FakeGroup) -> None:
    """The node that says so may only be late: nothing is read twice because of it."""
    group.offsets["g", "T", 0] = 2
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True) as one:
        await one.wait_assigned()
        await until(lambda: group.requests.count(11) >= 3)
        for n in range(4):
            group.put("T", 0, b"%d" % n)
        await until(lambda: len(inbox.got) == 2)
        assert one.statistics().offset_resets == 0
    assert inbox.bodies == [b"2", b"3"]


async def test_a_cancelled_consumer_still_commits_what_is_done(group: FakeGroup) -> None:
    group.put("T", 0, b"x")
    inbox = Inbox()
    with anyio.CancelScope() as scope:
        async with consumer(group, inbox) as one:
            await until(lambda: one.statistics().consumed == 1)
            scope.cancel()
            await anyio.sleep_forever()
    assert group.offsets[("g", "T", 0)] == 1


async def test_a_cancelled_handlers_message_is_not_committed(group: FakeGroup) -> None:
    async def never(_message: ReceivedMessage) -> None:
        began.set()
        await anyio.sleep_forever()

    began = anyio.Event()
    group.put("T", 0, b"x")
    with anyio.CancelScope() as scope:
        async with PushConsumer(
            group.namesrv, "g", never, subscriptions=EVERYTHING, start_from="first"
        ):
            await began.wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert group.offsets.get(("g", "T", 0), 0) == 0


async def test_flow_control_stops_pulling_and_goes_on(group: FakeGroup) -> None:
    gate = anyio.Event()
    got = []

    async def slow(message: ReceivedMessage) -> None:
        got.append(message)
        await gate.wait()

    for n in range(200):
        group.put("T", 0, b"%d" % n)
    limits = FlowLimits(messages_max=40)
    async with PushConsumer(
        group.namesrv,
        "g",
        slow,
        subscriptions=EVERYTHING,
        start_from="first",
        ordered=True,
        limits=limits,
    ) as one:
        await until(lambda: one.statistics().unfinished >= 40)
        await anyio.wait_all_tasks_blocked()
        assert one.statistics().unfinished == 64  # two pulls of 32
        gate.set()
        await until(lambda: len(got) == 200)


async def test_misuse_is_said(group: FakeGroup) -> None:
    inbox = Inbox()
    mistakes: tuple[dict[str, Any], ...] = (
        {"subscriptions": {}},
        {"subscriptions": {"no topic": "*"}},
        {"subscriptions": {"T": " || "}},
        {"concurrency": 0},
        {"commit_interval_s": 0},
        {"consume_batch_max": 2},  # needs a batch_handler
        {"batch_handler": inbox},  # not both
        {"retry_delay_level": 19},
        {"suspend_s": 31},
        {"consume_timeout_s": 0},
        {"max_reconsume_times": -1},
        {"pull_batch": 0},
        {"pull_interval_s": -1},
        {"start_from": "middle"},
    )
    for settings in mistakes:
        with pytest.raises(ClientUsageError):
            consumer(group, inbox, **settings)
    with pytest.raises(ClientClosedError):
        consumer(group, inbox).statistics()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_who_waits_for_queues_is_told_that_the_consumer_is_left(
    group: FakeGroup, *, is_cancelled: bool
) -> None:
    group.has_brokers = False
    said: list[str] = []

    async def wait() -> None:
        try:
            await one.wait_assigned()
        except ClientClosedError as error:
            said.append(str(error))

    async with anyio.create_task_group() as nursery:
        with anyio.fail_after(30), anyio.CancelScope() as scope:
            async with consumer(group, Inbox()) as one:
                nursery.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                if is_cancelled:
                    scope.cancel()
                    await anyio.sleep_forever()
        with anyio.fail_after(30):
            await until(lambda: said)
    with pytest.raises(ClientClosedError):
        await one.wait_assigned()
