"""Rules of groups in a topic (353, 401), replication and terms for tools (907, 1007), codes refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from broker.refused_codes import REFUSED_CODES
from dledger_mq.remoting.codes import RequestCode
from tests.integration.broker.conftest import ANSWER_S, ClusterMaker, Wire

pytestmark = pytest.mark.usefixtures("patient")


async def body_of(one: Wire, code: int, ext: dict[str, str] | None = None) -> Any:
    answer = await one.ask(code, ext)
    assert answer.code == 0, answer.remark
    return json.loads(answer.body)


async def test_353_a_group_is_kept_from_reading_a_topic(one: Wire) -> None:
    await one.send("T")
    assert (await one.ask(353, {"group": "G", "topic": "T"})).code == 26
    await one.ask(200, {}, json.dumps({"groupName": "G"}).encode())
    fields = {"group": "G", "topic": "T"}
    assert await body_of(one, 353, fields) == fields | {"readable": True}
    assert await body_of(one, 353, fields | {"readable": "false"}) == fields | {"readable": False}
    assert await body_of(one, 353, fields) == fields | {"readable": False}
    assert (await body_of(one, 353, fields | {"topic": "U"}))["readable"] is True
    assert await body_of(one, 353, fields | {"readable": "true"}) == fields | {"readable": True}
    assert (await one.ask(353, fields | {"readable": "perhaps"})).code == 1


async def test_401_is_refused_for_what_is_not_there(one: Wire) -> None:
    wanted = {"topic": "nowhere", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    assert (await one.ask(401, {}, json.dumps(wanted).encode())).code == 17
    assert (await one.ask(401, {}, b"{")).code == 1


async def test_907_and_1007_replication_and_terms(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(3)
    leader, (follower, other) = await cluster.leader(), await cluster.followers()
    async with cluster.wire(leader) as one, cluster.wire(follower) as two:
        assert (await one.send("T")).code == 0

        def are_level(rows: list[dict[str, Any]]) -> bool:
            return len(rows) == 2 and all(row["inSync"] and row["diff"] == 0 for row in rows)

        with trio.fail_after(ANSWER_S):
            while not are_level((status := await body_of(one, 907))["haConnectionInfo"]):
                pass
        assert (status["master"], status["inSyncSlaveNums"]) == (True, 2)
        addresses = {row["addr"] for row in status["haConnectionInfo"]}
        assert addresses == {str(each.service_address) for each in (follower, other)}
        end = status["masterCommitLogMaxOffset"]
        assert {row["slaveAckOffset"] for row in status["haConnectionInfo"]} == {end}
        following = await body_of(two, 907)
        assert (following["master"], following["haConnectionInfo"]) == (False, [])
        client = following["haClientRuntimeInfo"]
        assert (client["activated"], client["masterAddr"]) == (True, str(leader.service_address))
        epochs = await body_of(one, 1007)
        assert (epochs["brokerName"], epochs["brokerId"]) == ("broker-a", 0)
        assert epochs["epochList"][-1]["epoch"] == leader.log.term
        assert epochs["epochList"][-1]["endOffset"] == epochs["maxOffset"]
        starts = [row["startOffset"] for row in epochs["epochList"]]
        assert starts[1:] == [row["endOffset"] for row in epochs["epochList"]][:-1]
        await cluster.transfer(str(follower.log.node_id))
        await two.send("T")
        later = await body_of(two, 1007)
        assert later["brokerId"] == 0
        assert [row["epoch"] for row in later["epochList"]][-2:] == [
            epochs["epochList"][-1]["epoch"],
            follower.log.term,
        ]


@pytest.mark.parametrize("code", [154, 902, 1005, 2003, 354, 200_052, 60, 3001, 3010])
async def test_what_has_no_meaning_here_is_refused_with_a_reason(one: Wire, code: int) -> None:
    answer = await one.ask(code)
    assert (answer.code, answer.remark) == (1, REFUSED_CODES[code])


async def test_what_nobody_knows_is_not_supported(one: Wire) -> None:
    assert (await one.ask(4711)).code == 3


def test_what_is_refused_is_answered_by_nobody() -> None:
    assert not REFUSED_CODES.keys() & {RequestCode.GET_BROKER_HA_STATUS, 1007, 401, 353, 222}
