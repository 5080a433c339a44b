"""Stores of Apache's own brokers are imported, three nodes begin with copies, and clients find what they left there.

The stores, and what their brokers said of them at the end (`expected.json`), were made by
tests/interop/stores/StoreMaker.java; tests/golden/rocketmq_stores/README.md tells how.
"""

from __future__ import annotations

import json
import shutil
import time
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from broker.admin.cli import main
from broker.server.broker import Broker
from broker.store.schedule import DELAY_LEVELS_TEXT, parse_delay_levels
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire
from tests.unpacking import unpack

STORES: Final = Path(__file__).parents[2] / "golden" / "rocketmq_stores"
RELEASES: Final = ("4.9.7", "5.3.3", "4.9.7-dledger")
INTERNAL: Final = ("RMQ_SYS_", "SCHEDULE_", "rmq_sys_")
DELAYS_MS: Final = tuple(parse_delay_levels(DELAY_LEVELS_TEXT))


class OldQueue(NamedTuple):
    """A queue as the old broker showed it; `crc` is that of all bodies, one after the other."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    message_count: int
    crc: int


@pytest.fixture(params=RELEASES)
def old_store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(STORES / f"{request.param}.tar.gz", tmp_path / "old")
    return tmp_path / "old"


def old_queues(old_store: Path) -> list[OldQueue]:
    rows = json.loads((old_store / "expected.json").read_text())["queues"]
    queues = [OldQueue(*row) for row in rows]
    return [queue for queue in queues if not queue.topic.startswith(INTERNAL)]


async def bodies(wire: Wire, queue: OldQueue) -> list[bytes]:
    """Read what the old broker had in a queue."""
    found: list[bytes] = []
    offset = queue.max_offset - queue.message_count
    while offset < queue.max_offset:
        messages = await wire.messages(queue.topic, queue.queue_id, offset)
        assert messages, f"nothing at {offset} of {queue}"
        assert [each.queue_offset for each in messages] == list(
            range(offset, offset + len(messages))
        )
        found += [each.body for each in messages]
        offset += len(messages)
    return found[: queue.message_count]


async def check_queues(wire: Wire, old_store: Path, *grown: str) -> None:
    """Every queue has its bounds and its messages; those of topics that have grown may have more."""
    queues = old_queues(old_store)
    assert {"orders", "old", "again", "bad"} <= {queue.topic for queue in queues}
    for queue in queues:
        place = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        low = await wire.ask(RequestCode.GET_MIN_OFFSET, place)
        high = await wire.ask(RequestCode.GET_MAX_OFFSET, place)
        # RocketMQ 4.9 leaves the min offset of a queue alone whose messages are all gone.
        expected = queue.min_offset if queue.message_count else queue.max_offset
        assert int(low.ext["offset"]) == expected
        added = int(high.ext["offset"]) - queue.max_offset
        assert added == 0 or (queue.topic in grown and 0 < added <= 5)
        assert zlib.crc32(b"".join(await bodies(wire, queue))) == queue.crc, queue


def old_offsets(old_store: Path) -> dict[str, dict[str, int]]:
    """The offsets of one group, as the old broker has written them down."""
    text = (old_store / "store" / "config" / "consumerOffset.json").read_text()
    row = text.split('"orders@g-orders":{')[1].split("}")[0]
    return {"orders": {k.strip(): int(v) for k, v in (each.split(":") for each in row.split(","))}}


async def check_offsets(wire: Wire, old_store: Path) -> None:
    """A consumer goes on exactly where it was."""
    offsets = old_offsets(old_store)["orders"]
    assert len(offsets) == 4
    for queue_id, offset in offsets.items():
        ext = {"consumerGroup": "g-orders", "topic": "orders", "queueId": queue_id}
        answer = await wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        assert (answer.code, answer.ext["offset"]) == (ResponseCode.SUCCESS, str(offset))


WAITING: Final = ("delayed by level 17", "delayed by level 18", "delayed by level 18")
TIMED: Final = ("timed by 3600", "timed by 7200")


def waiting_count(broker: Broker) -> int:
    """Return how many delayed messages and timers wait, whenever they are due."""
    schedule, never_ms = broker.state.schedule, 1 << 60
    return len(schedule.due(never_ms, 100)) + broker.state.timers.count


async def check_waiting(cluster: Cluster, broker: Broker, wire: Wire, old_store: Path) -> None:
    """What waited waits, or was delivered when it fell due: each once.

    The stores are from November 2026, so what was to wait for hours then is due by now.
    """
    assert len(broker.state.transactions) == 2
    delivered: list[str] = []
    wanted = [*WAITING, *TIMED][: 5 if has_timers(old_store) else 3]
    await cluster.wait(lambda: not waiting_count(broker) or not is_due(broker))
    for queue in old_queues(old_store):
        if queue.topic == "orders":
            new = await wire.messages("orders", queue.queue_id, queue.max_offset)
            delivered += [each.body.decode() for each in new]
    assert len(delivered) + waiting_count(broker) == len(wanted)
    assert set(delivered) <= set(wanted)
    if not waiting_count(broker):
        assert sorted(delivered) == sorted(wanted)


def is_due(broker: Broker) -> bool:
    now_ms = time.time_ns() // 1_000_000
    state = broker.state
    return bool(state.schedule.due(now_ms, 1) or state.timers.due(now_ms, 1))


def has_timers(old_store: Path) -> bool:
    return (old_store / "store" / "config" / "timercheck").exists()


def digests_are_equal(cluster: Cluster) -> bool:
    states = [broker.state for broker in cluster.brokers.values()]
    return len({(s.applied_index, tuple(s.digests().items())) for s in states}) == 1


def import_into(old_store: Path, target: Path) -> None:
    assert main(["import", str(old_store / "store"), "--store", str(target), "--json"]) == 0


@pytest.mark.slow
async def test_three_nodes_go_on_with_the_store_of_a_broker_of_rocketmq(
    old_store: Path, tmp_path: Path, make_cluster: ClusterMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    import_into(old_store, tmp_path / "n0")
    report = json.loads(capsys.readouterr().out)
    assert (report["imported"], report["problems"], report["differences"]) == (True, [], [])
    for name in ("n1", "n2"):
        shutil.copytree(tmp_path / "n0", tmp_path / name)
    assert report["timers"] == (2 if has_timers(old_store) else 0)
    cluster = await make_cluster(3, delay_levels_ms=DELAYS_MS)
    broker = await cluster.leader()
    async with cluster.wire(broker) as wire:
        await check_queues(wire, old_store, "orders")  # what waited for it may be in it by now
        await check_offsets(wire, old_store)
        await check_waiting(cluster, broker, wire, old_store)
        _, high = broker.state.queues.min_max("old", QueueId(1))
        sent = await wire.send("old", b"new", queue=1)
        assert int(sent.ext["queueOffset"]) == high == 15
        found = await wire.ask(
            RequestCode.QUERY_MESSAGE,
            {
                "topic": "orders",
                "key": "7",  # of the two in `KEYS`
                "maxNum": "10",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            },
        )
        assert found.code == ResponseCode.SUCCESS
        assert b"order 7" in found.body
        for place in (report["begin"], report["end"] - 400):
            old = await wire.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
            assert old.code == ResponseCode.SYSTEM_ERROR
    # A member whose disk is lost gets everything from the others.
    follower = (await cluster.followers())[0].log.node_id
    await cluster.stop(follower)
    shutil.rmtree(tmp_path / follower)
    again = await cluster.start(follower)
    await cluster.wait(lambda: digests_are_equal(cluster))
    await cluster.transfer(follower)
    await cluster.wait(lambda: again.is_serving)
    async with cluster.wire(again) as wire:
        assert [m.body for m in await wire.messages("old", 1, 15)] == [b"new"]
        offsets = old_offsets(old_store)["orders"]
        assert again.state.offsets.of("g-orders", "orders") == {
            int(queue): offset for queue, offset in offsets.items()
        }
        await check_queues(wire, old_store, "orders", "old")


def test_a_dry_run_writes_nothing(
    old_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["import", str(old_store / "store"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "orders" in printed
    assert "the topic was deleted" in printed
    assert sorted(tmp_path.rglob("*")) == before
