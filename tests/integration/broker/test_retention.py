"""A log that is held to a size: what clients see of its beginning, over a restart too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from broker.admin.ask import ask_all
from broker.admin.pins import PinBounds, PinRefusedError, pin_log, unpin_log
from broker.server.broker import Broker
from broker.server.deliveries.delays import Delays
from broker.server.deliveries.deliveries import AGAIN_MS
from broker.service.retention import RetentionRules
from broker.store.recent_sends import RecentSends
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from tests.integration.broker.conftest import ANSWER_S, ClusterMaker, Wire, send_ext

pytestmark = pytest.mark.usefixtures("patient")

SEGMENT = 64 * 1024
KEPT = 4 * SEGMENT
ANY_DISK = RetentionRules(used_percent_max=100, forcibly_percent=0, round_ms=100)
"""However full the disk of the tests is."""

RULES = replace(ANY_DISK, bytes_max=KEPT)
PLACE = {"topic": "T", "queueId": "0"}
TOGETHER = 20


@pytest.fixture
def sends_are_old_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all brokers, restarted ones too, recognise sends for a moment only: else a test would wait a minute."""
    monkeypatch.setattr(RecentSends.__init__, "__defaults__", (1,))


async def send_many(wire: Wire, count: int) -> None:
    """Send messages of 1000 bytes, some at a time: one after the other, each would wait for the disk."""
    while count > 0:
        opaques = [
            wire.send_request(310, send_ext("T"), b"x" * 1000) for _ in range(min(count, TOGETHER))
        ]
        for opaque in opaques:
            assert (await wire.answer(opaque)).code == ResponseCode.SUCCESS
        count -= len(opaques)


def min_offset(broker: Broker) -> int:
    low, _ = broker.state.queues.min_max("T", QueueId(0))
    return low


@pytest.mark.usefixtures("sends_are_old_at_once")
async def test_a_pin_holds_the_log_and_every_member_may_be_asked_for_it(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(
        1, segment_size_bytes=SEGMENT, snapshot_log_bytes=SEGMENT, retention=RULES
    )
    broker = await cluster.leader()
    address = [str(broker.service_address)]
    bounds = PinBounds(keep_ms=3_600_000, keep_bytes=1 << 30)
    async with cluster.wire(broker) as wire:
        assert await pin_log(address, "archive", bounds) == 0
        await send_many(wire, 600)
        held_up = ""
        with trio.fail_after(ANSWER_S):
            while not held_up:
                (answer,) = await ask_all(address)
                held_up = answer.table.get("raftForgettingHeldUp", "")
        assert held_up.startswith("the pin 'archive', at position 0")
        assert broker.state.retention.position == 0
        end = broker.log.reader.applied_position
        assert await pin_log(address, "archive", bounds, end) == end
        await cluster.wait(lambda: end - broker.state.retention.position <= KEPT)
        with pytest.raises(PinRefusedError, match="is forgotten: the log begins with entry"):
            await pin_log(address, "archive", bounds, 0)
        await unpin_log(address, "archive")
        with pytest.raises(PinRefusedError, match="there is no pin 'archive'; there are: none"):
            await unpin_log(address, "archive")
        (answer,) = await ask_all(address)
        assert answer.table["raftPins"] == "{}"


async def number(wire: Wire, code: RequestCode, field: str) -> int:
    answer = await wire.ask(code, PLACE)
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.ext[field])


@pytest.mark.usefixtures("sends_are_old_at_once")
async def test_what_clients_see_of_a_log_that_is_held_to_a_size(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    cluster = await make_cluster(
        1, segment_size_bytes=SEGMENT, snapshot_log_bytes=SEGMENT, retention=RULES
    )
    broker = await cluster.leader()
    async with cluster.wire(broker) as wire:
        first = await wire.send("T", b"x" * 1000)
        first_place = int(first.ext["msgId"][-16:], 16)
        await send_many(wire, 600)
        reader = broker.log.reader
        await cluster.wait(
            lambda: reader.applied_position - broker.state.retention.position <= KEPT
        )
        low = min_offset(broker)
        assert low > 0
        assert await number(wire, RequestCode.GET_MIN_OFFSET, "offset") == low
        assert await number(wire, RequestCode.GET_MAX_OFFSET, "offset") == 601
        moved = await wire.pull("T", 0, 0)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert (int(moved.ext["nextBeginOffset"]), int(moved.ext["minOffset"])) == (low, low)
        found = await wire.pull("T", 0, low)
        assert found.code == ResponseCode.SUCCESS
        assert await number(wire, RequestCode.GET_EARLIEST_MSG_STORETIME, "timestamp") > 0
        gone = await wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(first_place)})
        assert gone.code == ResponseCode.SYSTEM_ERROR
        info = await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert f'"raftKeptFromIndex":"{broker.state.keep_from}"'.encode() in info.body
        assert b'"raftForgotten":"size, ' in info.body
        # Each member gives the bytes back once its snapshots contain the new beginning.
        await cluster.wait(lambda: reader.first_position > 0)
        assert (await wire.pull("T", 0, low)).code == ResponseCode.SUCCESS
    # The log has no other beginning from here on; its files go after that, in a thread.
    oldest = tmp_path / "n0" / "data" / f"{0:020}"
    await cluster.wait(lambda: not oldest.exists())
    keep_from = broker.state.keep_from
    await cluster.kill("n0")
    again = await cluster.start("n0")
    await cluster.wait(lambda: again.is_serving)
    assert again.state.keep_from >= keep_from
    assert min_offset(again) >= low
    async with cluster.wire(again) as wire:
        assert (await wire.send("T", b"x")).ext["queueOffset"] == "601"


TOPIC = {"topic": "Short", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}


async def test_a_topic_has_a_time_of_its_own_as_an_attribute(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1)
    broker = await cluster.leader()
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    async with cluster.wire(broker) as wire:

        async def attributes() -> bytes:
            told = await wire.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            assert told.code == ResponseCode.SUCCESS
            return told.body

        made = await wire.ask(code, {**TOPIC, "attributes": "+reserve.time=24,+message.type=FIFO"})
        assert made.code == ResponseCode.SUCCESS
        expected = b'"attributes":{"reserve.time":"24","message.type":"FIFO"}'
        assert expected in await attributes()
        assert (await wire.ask(code, TOPIC)).code == ResponseCode.SUCCESS
        assert expected in await attributes(), "what a request does not name stays"
        wrong = await wire.ask(code, {**TOPIC, "attributes": "+retention.ms=5"})
        assert wrong.code == ResponseCode.SYSTEM_ERROR
        assert "unsupported key: retention.ms" in (wrong.remark or "")
        await wire.ask(code, {**TOPIC, "attributes": "-reserve.time,-message.type"})
        assert b"attributes" not in await attributes()


@pytest.mark.usefixtures("sends_are_old_at_once")
async def test_the_commands_of_mqadmin_do_what_they_print(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cleanUnusedTopic`, `deleteExpiredCommitLog` and `cleanExpiredCQ` print `success` for the answers here."""
    rules = replace(ANY_DISK, reserved_ms=1, delete_hours=frozenset())
    cluster = await make_cluster(1, segment_size_bytes=SEGMENT, retention=rules)
    broker = await cluster.leader()
    queues = broker.state.queues
    async with cluster.wire(broker) as wire:
        with monkeypatch.context() as undelivered:
            undelivered.setattr(Delays, "wait_ms", lambda _: AGAIN_MS)
            undelivered.setattr(Delays, "tick", lambda _: None)
            await wire.send("Gone", b"late", properties="DELAY\x011\x02")
            deleted = await wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
            assert deleted.code == ResponseCode.SUCCESS
            assert "Gone" not in queues.topics()
        await cluster.wait(lambda: "Gone" in queues.topics())
        cleaned = await wire.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        assert cleaned.code == ResponseCode.SUCCESS
        assert "Gone" not in queues.topics()
        await send_many(wire, 200)
        assert broker.state.keep_from == 1, "there is no hour for it"
        assert (await wire.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == ResponseCode.SUCCESS
        await cluster.wait(lambda: min_offset(broker) > 0)
        assert broker.state.retention.cause == "operator"
        swept = await wire.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert swept.code == ResponseCode.SUCCESS
        queue = queues.by_key[b"T", QueueId(0)]
        assert queue.held_first == queue.min_offset > 0
