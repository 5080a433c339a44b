"""How messages reach the handler: batches, partial success, delays, time-outs, broadcast (L, S, E16, I6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dledger_mq.client.consume_results import ConsumeResult, Later
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.group_requests import PullAnswer
from dledger_mq.client.local_offsets import LocalOffsets
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.process_queue import FlowLimits
from dledger_mq.client.push_consumer import PushConsumer
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.rebalance import allocate_circle, by_config
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import encode_command, make_response
from dledger_mq.remoting.heartbeat import ConsumeFromWhere, MessageModel
from dledger_mq.remoting.requests import PullRequest
from dledger_mq.testing import FakeGroup, open_fake_group
from tests.unit.client.test_push_consumer import Inbox, consumer, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(queues=2) as fake:
        fake.create_topic("T")
        yield fake


class Batches:
    """A batch handler that remembers what came together, and answers as told."""

    def __init__(self, *answers: ConsumeResult | Later | Exception | None) -> None:
        self.got: list[tuple[bytes, ...]] = []
        self.times: list[int] = []
        self.answers = list(answers)

    async def __call__(self, messages: tuple[ReceivedMessage, ...]) -> ConsumeResult | Later | None:
        self.got.append(tuple(message.body for message in messages))
        self.times.append(messages[0].reconsume_times)
        await anyio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def count(self) -> int:
        return sum(map(len, self.got))


def batches(group: FakeGroup, handler: Batches, size: int, **settings: object) -> PushConsumer:
    return PushConsumer(
        group.namesrv,
        "g",
        subscriptions={"T": "*"},
        batch_handler=handler,
        consume_batch_max=size,
        start_from="first",
        **settings,  # type: ignore[arg-type]  # by name
    )


def put(group: FakeGroup, count: int) -> None:
    for n in range(count):
        group.put("T", 0, b"%d" % n)


async def test_a_handler_gets_up_to_so_many_messages_of_one_queue(group: FakeGroup) -> None:
    put(group, 10)
    handler = Batches()
    async with batches(group, handler, 4) as one:
        await until(lambda: handler.count == 10)
        await until(lambda: one.statistics().consumed == 10)
    assert sorted(map(len, handler.got)) == [2, 4, 4]
    assert group.offsets["g", "T", 0] == 10


async def test_l12_of_a_batch_only_what_lies_beyond_the_ack_index_comes_again(
    group: FakeGroup,
) -> None:
    put(group, 4)
    handler = Batches(Later(consumed=3, delay_level=5))
    async with batches(group, handler, 4, concurrency=1) as one:
        await until(lambda: handler.count == 5)
        statistics = one.statistics()
    assert handler.got == [(b"0", b"1", b"2", b"3"), (b"3",)]
    assert group.sent_back == [(b"3", 5)]
    assert statistics.given_back == 1
    assert group.offsets["g", "T", 0] == 4


async def test_l12_a_failure_counts_for_the_whole_batch(group: FakeGroup) -> None:
    put(group, 3)
    handler = Batches(ValueError("no"))
    async with batches(group, handler, 3, concurrency=1):
        await until(lambda: handler.count == 6)
    assert group.sent_back == [(b"0", 0), (b"1", 0), (b"2", 0)]


async def test_ordered_batches_keep_the_order_over_partial_success(group: FakeGroup) -> None:
    put(group, 6)
    handler = Batches(Later(consumed=1, suspend_s=0.01), ConsumeResult.LATER)
    async with batches(group, handler, 3, ordered=True, suspend_s=0.01):
        await until(lambda: handler.got[-1:] == [(b"4", b"5")] or handler.count == 12)
    assert handler.got[:3] == [
        (b"0", b"1", b"2"),
        (b"1", b"2", b"3"),
        (b"1", b"2", b"3"),
    ]
    assert handler.times[:3] == [0, 1, 2]
    assert group.sent_back == []
    assert group.offsets["g", "T", 0] == 6


async def test_i7_one_queue_is_worked_in_parallel_and_the_lowest_offset_is_committed(
    group: FakeGroup,
) -> None:
    put(group, 30)
    gate, done = anyio.Event(), []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"3":
            await gate.wait()
        done.append(int(message.body))

    async with PushConsumer(
        group.namesrv, "g", handle, subscriptions={"T": "*"}, start_from="first", concurrency=4
    ) as one:
        await until(lambda: len(done) == 29)
        await one.commit()
        assert group.offsets["g", "T", 0] == 3
        gate.set()
        await until(lambda: len(done) == 30)
        await one.commit()
        assert group.offsets["g", "T", 0] == 30


@pytest.mark.parametrize(
    ("setting", "answer", "level"),
    [
        (0, ConsumeResult.LATER, 0),
        (4, ConsumeResult.LATER, 4),
        (4, Later(), 4),
        (4, Later(delay_level=0), 0),
        (4, Later(delay_level=-1), -1),
    ],
)
async def test_l12_the_level_of_the_next_try_is_the_handlers_or_the_consumers(
    group: FakeGroup, setting: int, answer: ConsumeResult | Later, level: int
) -> None:
    put(group, 1)
    handler = Batches(answer)
    async with batches(group, handler, 1, retry_delay_level=setting):
        await until(lambda: group.sent_back)
    assert group.sent_back == [(b"0", level)]


def test_an_answer_that_no_broker_takes_is_refused_at_once() -> None:
    mistakes: tuple[dict[str, Any], ...] = (
        {"delay_level": 19},
        {"consumed": -1},
        {"suspend_s": 31},
    )
    for mistake in mistakes:
        with pytest.raises(ClientUsageError):
            Later(**mistake)


async def test_l18_what_the_handler_has_for_too_long_is_given_back(group: FakeGroup) -> None:
    put(group, 2)
    stuck = anyio.Event()
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)
        if message.body == b"0" and message.reconsume_times == 0:
            await stuck.wait()

    async with PushConsumer(
        group.namesrv,
        "g",
        handle,
        subscriptions={"T": "*"},
        start_from="first",
        consume_timeout_s=0.3,
        commit_interval_s=0.01,
    ):
        await until(lambda: group.offsets.get(("g", "T", 0)) == 2)
        await until(lambda: got.count(b"0") == 2)
        stuck.set()
    assert group.sent_back == [(b"0", 3)]


async def test_pulls_are_as_large_and_as_frequent_as_told(group: FakeGroup) -> None:
    put(group, 6)
    inbox = Inbox()
    async with consumer(group, inbox, pull_batch=2, pull_interval_s=0.01):
        await until(lambda: len(inbox.got) == 6)
        await until(lambda: group.requests.count(11) >= 4)  # three of two, and one that waits


async def test_e16_an_ordered_queue_has_no_bound_on_its_span(group: FakeGroup) -> None:
    one = consumer(group, Inbox(), ordered=True)
    other = consumer(group, Inbox())
    assert one._settings.pull.limits.span_max > 2**62
    assert other._settings.pull.limits == FlowLimits()


@pytest.mark.parametrize(("max_offset", "is_believed"), [(9, True), (7, False)])
async def test_e8_an_operators_reset_is_believed_at_once_a_late_node_is_not(
    group: FakeGroup, max_offset: int, is_believed: bool
) -> None:
    """Both send 21 with a lower offset; ours lies inside the queue only when it was a reset."""
    for n in range(9):
        group.put("T", 0, b"%d" % n)
    inbox = Inbox()
    async with consumer(group, inbox, ordered=True) as one:
        await until(lambda: len(inbox.got) == 9)
        reader = one._owned().readers[MessageQueue("T", "broker-a", 0)]
        await reader._take(PullAnswer((), 7, 0, max_offset, is_offset_wrong=True, is_empty=False))
        assert reader.held.next_offset == (7 if is_believed else 9)
        assert reader.resets == is_believed


async def test_members_share_by_the_strategy_of_their_choice(group: FakeGroup) -> None:
    async with (
        consumer(group, Inbox(), instance="a", allocation=allocate_circle) as a,
        consumer(group, Inbox(), instance="b", allocation=allocate_circle) as b,
    ):
        await until(lambda: len([q for q in a.assigned if q.topic == "T"]) == 1)
        await until(lambda: len([q for q in b.assigned if q.topic == "T"]) == 1)
    mine = by_config([MessageQueue("T", "broker-a", 1)])
    async with consumer(group, Inbox(), allocation=mine) as one:
        assert await one.wait_assigned() == (MessageQueue("T", "broker-a", 1),)


@pytest.mark.parametrize(
    ("start_from", "where", "first"),
    [
        ("first", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
        ("last", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 3),
        (0, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 0),
        (2**50, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 3),
    ],
)
async def test_i6_where_a_group_without_an_offset_begins(
    group: FakeGroup, start_from: str | int, where: ConsumeFromWhere, first: int
) -> None:
    put(group, 3)
    group.create_topic("%RETRY%g", 1)
    group.put("%RETRY%g", 0, b"again", b"RETRY_TOPIC\x01T\x02")
    async with consumer(group, Inbox(), start_from=start_from) as one:
        await one.wait_assigned()
        await until(lambda: len(one.assigned) == 3)
        beat = group.nodes[0].heartbeats[-1].consumers[0]
        # A group that begins at a time leaves out what it gave back before; the others do not.
        was_read = isinstance(start_from, str)
        await until(lambda: one.statistics().consumed == 3 - first + was_read)
    assert beat.consume_from_where == where


def offset_files(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.glob("*/g/offsets.json"))
    return {file.parent.parent.name.partition("@")[2]: file.read_bytes() for file in files}


async def test_s1_every_broadcast_member_reads_everything(group: FakeGroup, tmp_path: Path) -> None:
    for n in range(4):
        group.put("T", n % 2, b"%d" % n)
    left, right = Inbox(), Inbox()
    left.answers = [ValueError("no")]
    settings = {"broadcast": True, "offsets_folder": tmp_path}
    async with (
        consumer(group, left, instance="a", **settings) as a,
        consumer(group, right, instance="b", **settings),
    ):
        await until(lambda: len(left.got) == len(right.got) == 4)
        assert {queue.topic for queue in a.assigned} == {"T"}  # no retry topic
        assert a.statistics().given_back == 0
        beat = group.nodes[0].heartbeats[-1].consumers[0]
    assert beat.message_model == MessageModel.BROADCASTING
    assert group.offsets == {}
    assert group.sent_back == []
    files = offset_files(tmp_path)
    assert list(files) == ["a", "b"]
    assert b'"queueId":1,"topic":"T"}:2' in files["a"]


async def test_s2_a_broadcast_member_goes_on_where_its_file_says(
    group: FakeGroup, tmp_path: Path
) -> None:
    put(group, 2)
    settings = {"broadcast": True, "offsets_folder": tmp_path}
    first, second = Inbox(), Inbox()
    async with consumer(group, first, **settings):
        await until(lambda: len(first.got) == 2)
    group.put("T", 0, b"new")
    async with consumer(group, second, **settings) as one:
        await until(lambda: len(second.got) == 1)
        assert one.client_id.endswith("@DEFAULT")
    assert second.bodies == [b"new"]


async def test_p4_an_ordered_broadcast_member_locks_nothing(
    group: FakeGroup, tmp_path: Path
) -> None:
    put(group, 3)
    inbox = Inbox()
    inbox.answers = [ConsumeResult.LATER]
    async with consumer(group, inbox, ordered=True, broadcast=True, offsets_folder=tmp_path):
        await until(lambda: len(inbox.got) == 4)
    assert inbox.bodies == [b"0", b"0", b"1", b"2"]
    assert group.locks == {}


async def test_a_folder_that_cannot_be_used_is_said_at_once(
    group: FakeGroup, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        async with consumer(group, Inbox(), broadcast=True, offsets_folder=tmp_path / "file"):
            pytest.fail("it is open")
    with pytest.raises(ClientUsageError, match="folder"):
        async with consumer(
            group, Inbox(), broadcast=True, offsets_folder=tmp_path, instance="../x"
        ):
            pytest.fail("it is open")


async def test_s1_offsets_that_cannot_be_written_are_written_later(
    group: FakeGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(group, 1)
    failed = []

    def full(_self: LocalOffsets, offsets: dict[MessageQueue, int]) -> None:
        failed.append(offsets)
        raise OSError(28, "full")

    inbox = Inbox()
    async with consumer(
        group, inbox, broadcast=True, offsets_folder=tmp_path, commit_interval_s=0.01, instance="a"
    ):
        with monkeypatch.context() as patched:
            patched.setattr(LocalOffsets, "save", full)
            await until(lambda: inbox.got and failed)
    assert b'"queueId":0,"topic":"T"}:1' in offset_files(tmp_path)["a"]


async def test_a_broker_that_refuses_pulls_is_named_in_the_log_once_for_each_code(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing, asked = [ResponseCode.SYSTEM_ERROR], 0

    def answer(request: PullRequest) -> bytes:
        nonlocal asked
        asked += (request.fields.topic, request.fields.queue_id) == ("T", 0)
        return encode_command(make_response(request.opaque, refusing[0], "the shelf is broken"))

    monkeypatch.setattr(group.log, "answer_pull", answer)
    inbox = Inbox()
    put(group, 1)
    async with consumer(group, inbox):
        await until(lambda: asked >= 4)
        refusing[0], asked = ResponseCode.NO_PERMISSION, 0
        await until(lambda: asked >= 2)
        monkeypatch.undo()
        await until(lambda: inbox.bodies == [b"0"])
    said = [line for line in caplog.messages if line.startswith("pull of T@broker-a/0 refused")]
    assert [line[line.index("response code") :] for line in said] == [
        f"response code {code}: the shelf is broken" for code in (1, 16)
    ]


async def test_a_broker_that_holds_no_pull_is_not_asked_in_a_circle(
    group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_at_once(_node: object, connection: Connection, request: PullRequest) -> None:
        connection.send_nowait(group.log.answer_nothing(request, ResponseCode.PULL_NOT_FOUND))

    monkeypatch.setattr(group, "_hold", answer_at_once)
    inbox = Inbox()
    async with consumer(group, inbox) as one:
        readers = len(await one.wait_assigned())
        await anyio.sleep(0.5)
        assert group.requests.count(RequestCode.PULL_MESSAGE) <= 10 * (readers + 1)
        put(group, 1)
        await until(lambda: inbox.got)
