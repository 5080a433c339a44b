"""Transactions over sockets: half messages, their ends, checks, failovers (rules O)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from broker.store.refusals import RefusalKind
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.properties import TIMER_OUT_MS, decode_properties
from dledger_mq.message.record import StoredMessage, decode_record
from dledger_mq.remoting.header import RemotingCommand
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire, send_ext

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("patient")]

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
FAST: dict[str, Any] = {"transaction_timeout_ms": 50, "transaction_check_interval_ms": 100}


async def half(wire: Wire, key: str, body: bytes = b"x", **more: str) -> dict[str, str]:
    """Send a half message; the ext of an END_TRANSACTION about it, without the decision."""
    answer = await send_half(wire, key, body, **more)
    assert answer.code == 0, answer.remark
    assert answer.ext["transactionId"] == key
    return {
        "producerGroup": "P",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)),
        "msgId": key,
        "transactionId": key,
    }


async def send_half(wire: Wire, key: str, body: bytes = b"x", **more: str) -> RemotingCommand:
    named = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "P"} | more
    properties = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
    return await wire.ask(310, send_ext("T", 1, properties) | {"f": "4"}, body)


async def end(wire: Wire, ext: dict[str, str], decision: int, **more: str) -> RemotingCommand:
    return await wire.ask(37, ext | {"commitOrRollback": str(decision)} | more)


def producer(client_id: str, group: str = "P") -> bytes:
    return json.dumps(
        {"clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    ).encode()


def same_everywhere(cluster: Cluster) -> bool:
    applied = {broker.log.reader.applied_index for broker in cluster.brokers.values()}
    digests = {str(broker.state.digests()) for broker in cluster.brokers.values()}
    return len(applied) == len(digests) == 1


def alarms(cluster: Cluster) -> list[RefusalKind]:
    return [r.kind for b in cluster.brokers.values() for r in b.state.refusals.newest]


async def visible(wire: Wire) -> list[StoredMessage]:
    return await wire.messages("T", 1)


async def test_committed_is_seen_once_with_its_op_record(one: Wire) -> None:
    ext = await half(one, "u", b"paid")
    assert await visible(one) == []
    (parked,) = await one.messages(HALF)
    named = decode_properties(parked.properties)
    assert (parked.sys_flag & 12, named["REAL_TOPIC"], named["REAL_QID"]) == (0, "T", "1")
    assert named["__transactionId__"] == "u"
    answer = await end(one, ext, 8)
    assert (answer.code, answer.ext["commitOrRollback"]) == (0, "8")
    (message,) = await visible(one)
    assert (message.body, message.queue_offset, message.sys_flag & 12) == (b"paid", 0, 8)
    assert message.prepared_transaction_offset == parked.physical_offset
    assert message.born_timestamp_ms == parked.born_timestamp_ms
    assert decode_properties(message.properties)["TRAN_MSG"] == "true"
    (op,) = await one.messages(OP)
    assert (op.body, decode_properties(op.properties)["TAGS"]) == (b"0,", "d")


async def test_rolled_back_is_never_seen(one: Wire) -> None:
    ext = await half(one, "u")
    answer = await end(one, ext, 12)
    assert (answer.code, answer.ext["commitOrRollback"]) == (0, "12")
    assert await visible(one) == []
    assert len(await one.messages(OP)) == 1


async def test_a_repeated_or_contradictory_end_is_told_what_was_recorded(one: Wire) -> None:
    ext, other = await half(one, "u"), await half(one, "v")
    opaques = [
        one.send_request(37, ext | {"commitOrRollback": decision})
        for decision in ("8", "12", "8", "8")
    ]
    answers = [await one.answer(opaque) for opaque in opaques]
    assert [answer.code for answer in answers] == [0, 200, 0, 0]
    assert [answer.ext["commitOrRollback"] for answer in answers] == ["8"] * 4
    assert [(await end(one, other, d)).code for d in (12, 8, 12)] == [0, 201, 0]
    assert len(await visible(one)) == 1
    assert len(await one.messages(OP)) == 2


async def test_o5_unknown_has_no_effect_and_no_answer(one: Wire) -> None:
    ext = await half(one, "u")
    opaque = one.send_request(37, ext | {"commitOrRollback": "0"})
    assert (await end(one, ext, 8)).code == 0
    assert not one.has_answer(opaque)
    assert len(await visible(one)) == 1


async def test_a_oneway_end_has_an_effect_and_no_answer(one: Wire) -> None:
    ext = await half(one, "u")
    opaque = one.send_request(37, ext | {"commitOrRollback": "8"}, flag=2)
    while not await visible(one):
        await trio.lowlevel.checkpoint()
    assert not one.has_answer(opaque)


async def test_o6_o7_o8_codes(one: Wire) -> None:
    ext = await half(one, "u")
    assert (await end(one, ext, 8, commitLogOffset="1")).code == 1
    assert (await end(one, ext, 8, producerGroup="Q")).code == 1
    assert (await end(one, ext, 8, tranStateTableOffset="5")).code == 1
    assert (await end(one, {**ext, "producerGroup": ""}, 8)).code == 1
    late = await half(one, "v", CHECK_IMMUNITY_TIME_IN_SECONDS="1")  # born in 2023
    assert (await end(one, late, 8)).code == 604
    assert (await end(one, late, 8, fromTransactionCheck="true")).code == 0
    assert len(await visible(one)) == 1


async def test_a_half_message_that_is_sent_again_is_not_stored_again(one: Wire) -> None:
    first = await half(one, "u")
    assert await half(one, "u") == first
    named = "UNIQ_KEY\x01w\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"
    opaques = [one.send_request(310, send_ext("T", 1, named), b"x") for _ in range(3)]
    answers = [await one.answer(opaque) for opaque in opaques]
    assert len({answer.ext["msgId"] for answer in answers}) == 1
    assert len(await one.messages(HALF)) == 2


@pytest.mark.parametrize("is_pipelined", [False, True])
async def test_two_half_messages_under_one_key_are_two_transactions(
    one: Wire, *, is_pipelined: bool
) -> None:
    halves = {}
    if is_pipelined:
        named = "UNIQ_KEY\x01u\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"
        opaques = [
            (body, one.send_request(310, send_ext("T", 1, named), body))
            for body in (b"v1", b"v2", b"v3", b"v1")
        ]
        for body, opaque in opaques:
            ext = (await one.answer(opaque)).ext
            halves[body] = {
                "producerGroup": "P",
                "tranStateTableOffset": ext["queueOffset"],
                "commitLogOffset": str(int(ext["msgId"][16:], 16)),
            }
    else:
        for body in (b"v1", b"v2", b"v3"):
            halves[body] = await half(one, "u", body)
    assert [m.body for m in await one.messages(HALF)] == [b"v1", b"v2", b"v3"]
    assert (await end(one, halves[b"v2"], 12)).code == 0
    assert (await end(one, halves[b"v3"], 8)).code == 0
    assert (await end(one, halves[b"v1"], 8)).code == 0
    assert [m.body for m in await visible(one)] == [b"v3", b"v1"]


async def test_o9_a_delay_begins_at_the_commit(one: Wire) -> None:
    ext = await half(one, "u", b"later", DELAY="2")
    assert await one.messages("SCHEDULE_TOPIC_XXXX", 1) == []
    assert (await end(one, ext, 8)).code == 0
    assert len(await one.messages("SCHEDULE_TOPIC_XXXX", 1)) == 1
    while not (found := await visible(one)):
        await trio.lowlevel.checkpoint()
    assert [(m.body, m.sys_flag & 12) for m in found] == [(b"later", 8)]


async def test_o9_a_due_time_counts_from_the_commit(one: Wire) -> None:
    ext = await half(one, "u", b"later", TIMER_DELAY_MS="150")
    (prepared,) = await one.messages(HALF)
    asked_ms = 0
    while asked_ms <= prepared.store_timestamp_ms + 20:  # so that the half's time is another one
        sent = await one.send("Clock", b"the broker's: it is not the machine's to the millisecond")
        (shown,) = await one.messages("Clock", offset=int(sent.ext["queueOffset"]))
        asked_ms = shown.store_timestamp_ms
    assert await one.messages("rmq_sys_wheel_timer") == []
    assert (await end(one, ext, 8)).code == 0
    (waiting,) = await one.messages("rmq_sys_wheel_timer")
    due_ms = int(waiting.find(TIMER_OUT_MS) or b"0")
    # Decided a moment before it is stored.
    assert asked_ms + 150 <= due_ms <= waiting.store_timestamp_ms + 150
    while not (found := await visible(one)):
        await trio.lowlevel.checkpoint()
    assert [(m.body, m.sys_flag & 12) for m in found] == [(b"later", 8)]
    assert found[0].store_timestamp_ms >= due_ms


async def test_a_half_message_leaves_room_for_its_commit(one: Wire) -> None:
    answer = await send_half(one, "u", x="x" * 32_500)
    assert (answer.code, "room" in (answer.remark or "")) == (13, True)
    ext = await half(one, "u", DELAY="1", x="x" * 32_300)
    assert (await end(one, ext, 8)).code == 0
    while not await visible(one):
        await trio.lowlevel.checkpoint()


async def test_too_many_open_transactions_are_turned_away(make_cluster: ClusterMaker) -> None:
    from broker.server.config import Limits

    cluster = await make_cluster(1, limits=Limits(open_transactions_max=1))
    async with cluster.wire(await cluster.leader()) as wire:
        ext = await half(wire, "u")
        assert (await send_half(wire, "v")).code == 2
        assert (await end(wire, ext, 12)).code == 0
        await half(wire, "v")


async def test_transactions_can_be_forbidden(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, reject_transactions=True)
    async with cluster.wire(await cluster.leader()) as wire:
        assert (await send_half(wire, "v")).code == 16


async def test_o19_o20_a_producer_is_asked_and_decides(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, **FAST, transaction_check_max=1_000_000)
    async with cluster.wire(await cluster.leader()) as wire:
        await wire.ask(34, {}, producer("c"))
        ext = await half(wire, "u", b"asked")
        asked = await wire.push(39)
        assert asked.is_oneway
        assert asked.ext["tranStateTableOffset"] == ext["tranStateTableOffset"]
        assert asked.ext["commitLogOffset"] == ext["commitLogOffset"]
        assert asked.ext["msgId"] == asked.ext["transactionId"] == "u"
        assert asked.ext["bname"] == "broker-a"
        message = decode_record(asked.body)
        assert (message.topic, message.queue_id, message.body) == ("T", 1, b"asked")
        assert decode_properties(message.properties)["PGROUP"] == "P"
        wire.send_request(
            37, ext | {"commitOrRollback": "0", "fromTransactionCheck": "true"}, flag=2
        )
        await wire.push(39)  # unknown: it is asked again
        assert (await end(wire, ext, 8, fromTransactionCheck="true")).code == 0
        assert len(await visible(wire)) == 1
        assert len(await wire.messages(HALF)) == 1  # O22 and O23 are not copied


async def test_o17c_o21_after_the_last_check_it_is_given_up(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, **FAST, transaction_check_max=2)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        await wire.ask(34, {}, producer("c"))
        ext = await half(wire, "u", b"forgotten")
        await cluster.wait(lambda: len(leader.state.transactions) == 0)
        (moved,) = await wire.messages("TRANS_CHECK_MAX_TIME_TOPIC")
        asked = [command for command in wire.pushed if command.code == 39]
        assert len(asked) == 2
        assert moved.body == b"forgotten"
        assert (await end(wire, ext, 8)).code == 201
        assert (await end(wire, ext, 12)).code == 0
        assert await visible(wire) == []


async def test_checks_resume_at_an_operators_word(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, **FAST, transaction_check_max=1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        ext = await half(wire, "u", b"forgotten")
        await cluster.wait(lambda: len(leader.state.transactions) == 0)
        # It is not given up again, however long the answer to a check takes.
        assert (await wire.ask(25, body=b"transactionCheckMax=1000000")).code == 0
        (moved,) = await wire.messages("TRANS_CHECK_MAX_TIME_TOPIC")
        await wire.ask(34, {}, producer("c"))
        msg_id = offset_msg_id(moved.store_host, moved.physical_offset)
        opaques = [wire.send_request(323, {"msgId": msg_id}) for _ in range(3)]
        assert [(await wire.answer(opaque)).code for opaque in opaques] == [0, 0, 0]
        assert len(await wire.messages(HALF)) == 2
        asked = await wire.push(39)
        fresh = ext | {
            name: asked.ext[name] for name in ("tranStateTableOffset", "commitLogOffset")
        }
        assert fresh != ext
        assert (await end(wire, fresh, 8, fromTransactionCheck="true")).code == 0
        assert (await end(wire, ext, 8)).code == 201
        assert [m.body for m in await visible(wire)] == [b"forgotten"]
        assert (await wire.ask(323, {"msgId": asked.ext["offsetMsgId"]})).code == 1


async def test_of_two_under_one_key_the_one_that_is_meant_is_resumed(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(1, **FAST, transaction_check_max=1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        await half(wire, "u", b"v1")
        await cluster.wait(lambda: len(leader.state.transactions) == 0)
        (moved,) = await wire.messages("TRANS_CHECK_MAX_TIME_TOPIC")
        await half(wire, "u", b"v2")
        msg_id = offset_msg_id(moved.store_host, moved.physical_offset)
        assert (await wire.ask(323, {"msgId": msg_id})).code == 0
        assert [m.body for m in await wire.messages(HALF)] == [b"v1", b"v2", b"v1"]


async def test_an_open_half_message_has_its_checks_counted_anew(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, **(FAST | {"transaction_check_interval_ms": 60_000}))
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        answer = await send_half(wire, "u")
        await wire.ask(34, {}, producer("c"))
        await cluster.wait(lambda: all(t.check_count == 1 for t in leader.state.transactions))
        await wire.messages(HALF)  # comes after what it was asked
        wire.pushed.clear()
        assert (await wire.ask(323, {"msgId": answer.ext["msgId"]})).code == 0
        await wire.push(39)


@pytest.mark.parametrize("msg_id", ["", "nonsense", "7F00000100002A9F0000000000000FFF"])
async def test_what_cannot_be_resumed(one: Wire, msg_id: str) -> None:
    assert (await one.ask(323, {"msgId": msg_id})).code == 1
    sent = await one.send("T")
    assert (await one.ask(323, {"msgId": sent.ext["msgId"]})).code == 1


async def test_a_producer_behind_another_node_is_asked(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3, **FAST, transaction_check_max=1_000_000)
    follower, _ = await cluster.followers()
    async with cluster.wire(follower) as wire:
        await wire.ask(34, {}, producer("c"))
        ext = await half(wire, "u")
        asked = await wire.push(39)
        assert asked.ext["commitLogOffset"] == ext["commitLogOffset"]
        opaque = wire.send_request(37, ext | {"commitOrRollback": "0"})
        assert (await end(wire, ext, 8, fromTransactionCheck="true")).code == 0
        assert (await end(wire, ext, 12)).code == 200
        assert not wire.has_answer(opaque)
    await cluster.wait(lambda: same_everywhere(cluster))
    assert alarms(cluster) == []


async def test_a_failover_between_half_commit_and_answer(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        open_one, committed = await half(wire, "u", b"open"), await half(wire, "v", b"done")
        rolled_back = await half(wire, "w", b"never")
        assert (await end(wire, committed, 8)).code == 0
        assert (await end(wire, rolled_back, 12)).code == 0
    await cluster.kill(str(leader.log.node_id))
    after = await cluster.leader()
    async with cluster.wire(after) as wire:
        assert [m.body for m in await visible(wire)] == [b"done"]
        assert (await end(wire, committed, 12)).code == 200
        assert (await end(wire, committed, 8)).code == 0
        assert (await end(wire, rolled_back, 8)).code == 201
        assert await half(wire, "u", b"open") == open_one
        assert (await end(wire, open_one, 8)).code == 0
        assert [m.body for m in await visible(wire)] == [b"done", b"open"]
    await cluster.start(str(leader.log.node_id))
    await cluster.wait(lambda: same_everywhere(cluster))
    assert alarms(cluster) == []


async def test_checks_go_on_after_a_failover_where_they_were(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3, **FAST, transaction_check_max=1_000_000)
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        ext = await half(wire, "u")
    await cluster.wait(lambda: all(t.check_count > 1 for t in leader.state.transactions))
    await cluster.kill(str(leader.log.node_id))
    after = await cluster.leader()
    (now_open,) = after.state.transactions
    assert now_open.check_count > 1
    async with cluster.wire(after) as wire:
        await wire.ask(34, {}, producer("c"))
        asked = await wire.push(39)
        assert asked.ext["commitLogOffset"] == ext["commitLogOffset"]
        assert (await end(wire, ext, 8, fromTransactionCheck="true")).code == 0
        assert len(await visible(wire)) == 1


async def test_a_key_that_cannot_be_a_transaction_id_is_refused(one: Wire) -> None:
    answer = await send_half(one, "a\x01b")
    assert answer.code == 13
    assert "separator" in (answer.remark or "")
