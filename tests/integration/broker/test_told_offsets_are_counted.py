"""What a consumer tells as it leaves, one way, is in every table that is asked for after its goodbye was answered.

RocketMQ's NormalMessageSendAndRecvIT saw 9 of 10 without that: offsets gather for up to 100 ms before they are
committed.
"""

from __future__ import annotations

from typing import Any

from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.remoting.json_body import read_json
from tests.integration.broker.conftest import ClusterMaker, Wire, send_ext

PLACE = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
GOODBYE = {"clientID": "c", "consumerGroup": "G"}
SENT = 12


async def tell(consumer: Wire, offset: int) -> None:
    """Say where the group is as clients do when they leave: one way, and then goodbye."""
    consumer.send_request(15, {**PLACE, "commitOffset": str(offset)}, flag=2)
    assert (await consumer.ask(35, GOODBYE)).code == 0


async def progress(tool: Wire) -> int:
    stats: Any = read_json((await tool.ask(208, {"consumerGroup": "G"})).body)
    table = stats["offsetTable"]
    (offset,) = [row["consumerOffset"] for queue, row in table.items() if queue.queue_id == 0] or [
        -1
    ]
    return int(offset)


async def listed(tool: Wire) -> int:
    tables: Any = read_json((await tool.ask(43)).body)
    return int(tables["offsetTable"].get("T@G", {}).get(0, -1))


async def cloned(tool: Wire, target: str) -> str | None:
    fields = {"srcGroup": "G", "destGroup": target, "topic": "T", "offline": "true"}
    assert (await tool.ask(314, fields)).code == 0
    return (await tool.ask(14, {**PLACE, "consumerGroup": target})).ext.get("offset")


async def test_tables_of_offsets_count_what_came_before(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1)
    leader = await cluster.leader()
    async with cluster.wire(leader) as consumer, cluster.wire(leader) as tool:
        batch = encode_batch(BatchItem(0, b"x", b"UNIQ_KEY\x01%d\x02" % n) for n in range(SENT))
        assert (await consumer.ask(320, {**send_ext("T"), "m": "true"}, batch)).code == 0
        for at in range(1, SENT, 3):
            await tell(consumer, at)
            assert await progress(tool) == at
            await tell(consumer, at + 1)
            assert await listed(tool) == at + 1
            await tell(consumer, at + 2)
            assert await cloned(tool, f"H{at}") == str(at + 2)
