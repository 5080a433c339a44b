"""The figures of brokers over HTTP against what was sent and read, and whether nodes say that they are ready."""

from __future__ import annotations

import json

import pytest
import trio

from broker.metrics import endpoint
from broker.server.config import MetricsSettings
from broker.server.requests import put_times
from broker.store.pops import IN_FLIGHT_MAX
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.net.address import Address
from dledger_mq.remoting.header import encode_command, make_request
from tests.integration.broker.conftest import ClusterMaker, Wire, send_ext
from tests.integration.broker.scraping import PATIENCE_S, Figures, fetch, readiness, scrape

pytestmark = pytest.mark.usefixtures("each_stage", "patient")

FIGURES = MetricsSettings(Address("127.0.0.1", 0))


@pytest.fixture(autouse=True)
def _always_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are gathered for each who asks: tests compare them with what they have just done."""
    monkeypatch.setattr(endpoint, "FRESH_S", 0.0)


async def commit(wire: Wire, group: str, topic: str, queue: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
    assert (await wire.ask(15, {**fields, "commitOffset": str(offset)})).code == 0


async def test_messages_in_and_out_are_those_that_were_sent_and_read(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, metrics=FIGURES)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        opaques = [
            wire.send_request(310, send_ext("T", queue), b"x" * (queue + 1))
            for queue in (0, 1, 2)
            for _ in range(10)
        ]
        answers = [await wire.answer(opaque) for opaque in opaques]
        batch = encode_batch(
            BatchItem(0, body, b"UNIQ_KEY\x01%b\x02" % body) for body in (b"one", b"two")
        )
        assert (await wire.ask(320, {**send_ext("T", 3), "m": "true"}, batch)).code == 0
        assert (await wire.ask(310, send_ext("not/allowed"), b"x")).code == 1
        read = sum([len(await wire.messages("T", queue)) for queue in range(3)])
        # Ten of the last queue are given once more, to another group.
        again = len(await wire.messages("T", 2, group="other"))
        await wire.pull("T", 0, 10)  # nothing new
        await commit(wire, "G", "T", 0, 4)
        await commit(wire, "G", "T", 1, 10)
        figures = await scrape(leader.metrics_address)
        stored = [message for queue in range(4) for message in await wire.messages("T", queue)]
    assert {answer.code for answer in answers} == {0}
    own = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    of_topic = {**own, "topic": "T", "is_system": "false"}
    assert figures.one("rocketmq_messages_in_total", **of_topic, message_type="normal") == 32
    size_bytes = sum(message.size_bytes for message in stored)
    assert figures.one("rocketmq_throughput_in_total", **of_topic) == size_bytes
    assert (read, again) == (30, 10)
    assert figures.one("rocketmq_messages_out_total", **of_topic, consumer_group="G") == 30
    assert figures.one("rocketmq_messages_out_total", **of_topic, consumer_group="other") == 10
    assert figures.one("rocketmq_consumer_lag_messages", **of_topic, consumer_group="G") == 18
    queue_ends = {
        queue: figures.one("dledger_queue_offset", topic="T", queue_id=str(queue))
        for queue in range(4)
    }
    assert queue_ends == {0: 10, 1: 10, 2: 10, 3: 2}
    assert figures.one("dledger_consumer_offset", topic="T", queue_id="0", consumer_group="G") == 4
    calls = "rocketmq_rpc_latency_count"
    assert figures.one(calls, request_code="send_message_v2", response_code="success") == 30
    assert figures.one(calls, request_code="send_batch_message", response_code="success") == 1
    assert figures.one(calls, request_code="send_message_v2", response_code="system_error") == 1
    assert figures.one(calls, request_code="pull_message", response_code="success") == 4
    assert figures.one(calls, request_code="pull_message", response_code="pull_not_found") == 1


async def test_sends_that_come_together_are_counted(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_times, "PERIOD_MS", 1_000_000_000)  # however slow the machine is
    cluster = await make_cluster(1, metrics=FIGURES)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        await wire.send("T")
        frames = b"".join(
            encode_command(
                make_request(310, 9_000 + n, send_ext("T", 0, f"UNIQ_KEY\x01K{n:031d}\x02"), b"x")
            )
            for n in range(20)
        )
        wire.connection.send_nowait(frames)
        for n in range(20):
            assert (await wire.answer(9_000 + n)).code == 0
        figures = await scrape(leader.metrics_address)
        answer = await wire.ask(28)
    calls = "rocketmq_rpc_latency_count"
    assert figures.one(calls, request_code="send_message_v2", response_code="success") == 21
    table = json.loads(answer.body)["table"]
    classes = table["putMessageDistributeTime"].split(" ")
    assert len(classes) == 13
    assert sum(int(each.partition(":")[2]) for each in classes) == 21


async def test_what_the_log_counts_is_shown_by_the_leader_alone_whoever_that_is(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, metrics=FIGURES)
    before = await cluster.leader()
    async with cluster.wire(before) as wire:
        for _ in range(5):
            assert (await wire.send("T")).code == 0
    await cluster.transfer()
    await cluster.wait(lambda: not before.is_serving)
    after = await cluster.leader()
    async with cluster.wire(before) as old_route:
        assert (await old_route.send("T")).code == 0
    shown = {
        node: (await scrape(broker.metrics_address)).of("rocketmq_messages_in_total", topic="T")
        for node, broker in cluster.brokers.items()
    }
    assert shown == {node: [6.0] if node == after.log.node_id else [] for node in cluster.brokers}
    passed_on = await scrape(before.metrics_address)
    carried_out = await scrape(after.metrics_address)
    calls = ("rocketmq_rpc_latency_count", {"request_code": "send_message_v2"})
    assert passed_on.of(calls[0], **calls[1]) == [5.0]
    assert carried_out.of(calls[0], **calls[1]) == [1.0]


async def test_the_age_of_what_a_group_lacks_is_that_of_the_oldest_message(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(1, metrics=FIGURES)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        for queue in (0, 0, 1):
            await wire.send("T", queue=queue)
        stored_ms = {
            (queue, offset): message.store_timestamp_ms
            for queue in (0, 1)
            for offset, message in enumerate(await wire.messages("T", queue))
        }
        await commit(wire, "G", "T", 0, 1)
        await commit(wire, "G", "T", 1, 0)
        wall_ms = leader._clock
        first_ms = wall_ms()
        figures = await scrape(leader.metrics_address)
        last_ms = wall_ms()
        await commit(wire, "G", "T", 0, 2)
        await commit(wire, "G", "T", 1, 1)
        all_consumed = await scrape(leader.metrics_address)
    oldest_ms = min(stored_ms[0, 1], stored_ms[1, 0])
    age_ms = figures.one("rocketmq_consumer_lag_latency", topic="T", consumer_group="G")
    assert first_ms - oldest_ms <= age_ms <= last_ms - oldest_ms
    seconds = figures.one("dledger_consumer_lag_seconds", topic="T", consumer_group="G")
    assert seconds * 1000 == pytest.approx(age_ms, abs=last_ms - first_ms)
    assert all_consumed.one("rocketmq_consumer_lag_latency", topic="T") == 0
    assert all_consumed.one("dledger_consumer_lag_seconds", topic="T") == 0


def of_raft(figures: Figures) -> dict[str, float]:
    kinds = ("last", "durable", "commit", "applied")
    return {kind: figures.one("dledger_raft_index", kind=kind) for kind in kinds}


async def test_raft_figures_are_those_of_the_log(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3, metrics=FIGURES)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        await wire.send("T")
    followers = await cluster.followers()

    def is_everywhere() -> bool:
        now = leader.log.status.statistics()
        done = (now.durable_index, now.applied_index, *now.match_indexes.values())
        return set(done) == {now.last_index}

    last_index = -1
    with trio.fail_after(PATIENCE_S):
        while leader.log.status.statistics().last_index != last_index:  # marks come at any time
            await cluster.wait(is_everywhere)
            last_index = leader.log.status.statistics().last_index
            figures = await scrape(leader.metrics_address)
    now = leader.log.status.statistics()
    assert of_raft(figures) == dict.fromkeys(
        ("last", "durable", "commit", "applied"), now.last_index
    )
    assert figures.one("dledger_raft_term") == now.term
    assert figures.one("dledger_raft_role", role="leader") == 1
    assert sum(figures.of("dledger_raft_role")) == 1
    assert figures.one("dledger_raft_leaderships_total") == 1
    assert figures.one("dledger_raft_elections_total") >= 1
    syncs = figures.one("dledger_raft_sync_seconds_count")
    assert 0 < syncs <= now.sync_count
    assert figures.one("dledger_raft_sync_seconds_bucket", le="+Inf") == syncs
    for follower in followers:
        name = str(follower.log.node_id)
        assert figures.one("dledger_raft_replication_lag_entries", peer=name) == 0
        assert figures.one("dledger_raft_peer_connected", peer=name) == 1
        shown = await scrape(follower.metrics_address)
        assert shown.one("dledger_raft_role", role="follower") == 1
        assert shown.of("dledger_raft_replication_lag_entries") == []


async def test_nodes_say_whether_they_are_ready_and_why_not(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3, metrics=FIGURES)
    leader = await cluster.leader()
    followers = await cluster.followers()
    with trio.fail_after(PATIENCE_S):
        status, said = await readiness(leader.metrics_address)
        while status != 200:  # the others may not have said anything yet
            status, said = await readiness(leader.metrics_address)
    assert (status, said["causes"], said["leader"]) == (200, [], str(leader.log.node_id))
    assert set(said["lagEntries"]) == {str(each.log.node_id) for each in followers}
    assert (await fetch(leader.metrics_address, "/healthz")) == (200, b"ok\n")
    await cluster.kill(str(followers[0].log.node_id))
    await cluster.kill(str(leader.log.node_id))
    last = followers[1]
    await cluster.wait(lambda: last.log.leader_id is None)
    status, said = await readiness(last.metrics_address)
    assert (status, said["ready"]) == (503, False)
    assert "no leader is known in term" in " ".join(said["causes"])
    assert (await fetch(last.metrics_address, "/healthz"))[0] == 200


async def test_retries_and_dead_letters_are_counted_by_their_group(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(1, metrics=FIGURES)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        group = json.dumps({"groupName": "G", "retryMaxTimes": 3}).encode()
        assert (await wire.ask(200, {}, group)).code == 0
        await wire.send("T")
        (message,) = await wire.messages("T")
        fields = {"offset": str(message.physical_offset), "group": "G", "originTopic": "T"}
        fields |= {"unitMode": "false", "maxReconsumeTimes": "16"}
        assert (await wire.ask(36, {**fields, "delayLevel": "-1"})).code == 0
        figures = await scrape(leader.metrics_address)
    dead = figures.one("rocketmq_send_to_dlq_messages_total", consumer_group="G")
    assert (dead, figures.one("dledger_pending_delays")) == (1, 0)


async def test_what_is_popped_and_not_acknowledged_is_counted_by_its_group(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(1, metrics=FIGURES)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        assert (await wire.ask(200, {}, b'{"groupName":"G"}')).code == 0
        for _ in range(5):
            await wire.send("T")
        place = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
        wish = {"maxMsgNums": "32", "invisibleTime": "600000", "pollTime": "0", "initMode": "0"}
        popped = await wire.ask(200_050, {**place, **wish, "bornTime": "0"})
        said = popped.ext
        start = said["startOffsetInfo"].split(" ")[2]
        for offset in ("0", "2"):
            times = f"{said['popTime']} {said['invisibleTime']} {said['reviveQid']}"
            handle = f"{start} {times} 0 broker-a 0 {offset}"
            acknowledged = await wire.ask(200_051, {**place, "offset": offset, "extraInfo": handle})
            assert acknowledged.code == 0, acknowledged.remark
        figures = await scrape(leader.metrics_address)
    found = {"consumer_group": "G", "topic": "T"}
    assert figures.one("rocketmq_consumer_lag_messages", **found) == 0, "they are passed"
    assert figures.one("rocketmq_consumer_inflight_messages", **found) == 3
    room = figures.one("dledger_pop_room_messages", consumer_group="G")
    assert room == (IN_FLIGHT_MAX - 3 - 3 - IN_FLIGHT_MAX // 4) // 2


def by_label(figures: Figures, name: str, *labels: str) -> dict[str, float]:
    """The figures of a name, by the values of some labels."""
    return {
        "/".join(sample.labels[label] for label in labels): sample.value
        for sample in figures.samples
        if sample.name == name
    }


async def test_half_and_timing_messages_are_counted_by_the_topic_that_they_are_for(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3, metrics=FIGURES, delay_levels_ms=[3_600_000, 7_200_000])
    leader = await cluster.leader()
    due = f"TIMER_DELIVER_MS\x01{leader._clock() + 86_400_000}\x02"
    async with cluster.wire(leader) as wire:
        ends = []
        for number, topic in enumerate("TTTUU"):
            named = f"UNIQ_KEY\x01h{number}\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"
            fields = send_ext(topic, 0, named) | {"f": "4"}
            stored = await wire.ask(310, fields, b"x")
            place = {"tranStateTableOffset": stored.ext["queueOffset"]}
            place["commitLogOffset"] = str(int(stored.ext["msgId"][16:], 16))
            ends.append({"producerGroup": "P", **place})
        for place, decision in zip(ends, ("8", "12", "8"), strict=False):
            assert (await wire.ask(37, {**place, "commitOrRollback": decision})).code == 0
        handles = []
        for number, topic in enumerate("TTU"):
            stored = await wire.send(topic, properties=f"UNIQ_KEY\x01t{number}\x02{due}")
            handles.append(stored.ext["recallHandle"])
        for topic, level in (("T", 1), ("T", 1), ("T", 2), ("U", 2)):
            assert (await wire.send(topic, properties=f"DELAY\x01{level}\x02")).code == 0
        figures = await scrape(leader.metrics_address)
        assert (await wire.ask(370, {"topic": "T", "recallHandle": handles[0]})).code == 0
        recalled = await scrape(leader.metrics_address)
    assert by_label(figures, "rocketmq_half_messages", "topic") == {"U": 2}
    assert by_label(figures, "rocketmq_commit_messages_total", "topic") == {"T": 2}
    assert by_label(figures, "rocketmq_rollback_messages_total", "topic") == {"T": 1}
    assert by_label(figures, "rocketmq_timing_messages", "topic") == {"T": 2, "U": 1}
    delayed = {"T/1": 2, "T/2": 1, "U/2": 1}
    assert by_label(figures, "dledger_delayed_messages", "topic", "level") == delayed
    assert figures.one("rocketmq_timer_dequeue_latency") == 0
    assert by_label(recalled, "rocketmq_timing_messages", "topic") == {"T": 1, "U": 1}
    # The others have the same state, and show it so that sums over the members are true: not at all.
    for follower in await cluster.followers():
        names = ("half_messages", "timing_messages", "timer_dequeue_latency")
        shown = await scrape(follower.metrics_address)
        assert [shown.of(f"rocketmq_{name}") for name in names] == [[], [], []]
        assert shown.of("dledger_delayed_messages") == []
