"""Settings changed while brokers run, as mqadmin does it: codes 25 and 26."""

from __future__ import annotations

import json

import pytest

from broker.server.broker import Broker
from broker.server.config import read_config
from tests.integration.broker.conftest import Cluster, ClusterMaker, Wire

pytestmark = pytest.mark.usefixtures("patient")

UPDATE, SHOW = 25, 26


async def change(cluster: Cluster, broker: Broker, text: str) -> tuple[int, str]:
    async with cluster.wire(broker) as wire:
        answer = await wire.ask(UPDATE, body=text.encode())
        return answer.code, answer.remark or ""


async def shown(cluster: Cluster, broker: Broker) -> tuple[dict[str, str], list[str], int]:
    """What holds, the comments, and the version's counter."""
    async with cluster.wire(broker) as wire:
        answer = await wire.ask(SHOW)
    lines = answer.body.decode().splitlines()
    values = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    comments = [line for line in lines if line.startswith("#")]
    return values, comments, json.loads(answer.ext["version"])["counter"]


async def send_code(cluster: Cluster, broker: Broker, body: bytes = b"x") -> int:
    async with cluster.wire(broker) as wire:
        return (await wire.send("T", body)).code


async def test_a_change_at_a_follower_holds_on_all_nodes_and_after_restarts(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3)
    follower = (await cluster.followers())[0]
    assert await send_code(cluster, await cluster.leader()) == 0
    assert await change(cluster, follower, "brokerPermission=4\nmaxMessageSize=100\n") == (0, "")
    await cluster.wait(
        lambda: all(each.config.permission == 4 for each in cluster.brokers.values())
    )
    assert await send_code(cluster, await cluster.leader()) == 16
    values, comments, counter = await shown(cluster, follower)
    assert (values["brokerPermission"], values["maxMessageSize"], counter) == ("4", "100", 1)
    assert len(comments) == 2
    assert "brokerPermission was changed by 127.0.0.1:" in comments[0]
    assert comments[0].endswith(", for the group")
    node = str(follower.log.node_id)
    await cluster.kill(node)
    again = await cluster.start(node)
    await cluster.wait(lambda: again.config.permission == 4)
    await cluster.transfer(node)
    assert await send_code(cluster, again) == 16
    assert await change(cluster, again, "brokerPermission=\n") == (0, "")
    assert await send_code(cluster, again, b"y" * 101) == 13
    assert await send_code(cluster, again) == 0


async def test_a_nodes_own_setting_holds_there_and_lasts(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1)
    lone = await cluster.leader()
    assert await change(cluster, lone, "stopForwardSec=3\n") == (0, "")
    values, comments, counter = await shown(cluster, lone)
    assert (values["stopForwardSec"], counter) == ("3", 0)
    assert comments[0].endswith(", on this node")
    await cluster.kill("n0")
    again = await cluster.start("n0")
    assert again.config.stop_forward_s == 3
    assert await change(cluster, again, "stopForwardSec=\n") == (0, "")
    assert again.config.stop_forward_s == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the body names 0 keys"),
        ("brokerPermision=4", "is brokerPermission meant?"),
        ("brokerPermission=4\nlistenPort=1", "listenPort is read at the start only"),
        ("brokerPermission=4\nstopForwardSec=1", "stopForwardSec is this node's own"),
        ("a=\\u12", "line 1"),
    ],
)
async def test_what_is_refused_changes_nothing(one: Wire, text: str, reason: str) -> None:
    before = (await one.ask(SHOW)).body
    answer = await one.ask(UPDATE, body=text.encode())
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("nothing was changed: ")
    assert reason in answer.remark
    assert (await one.ask(SHOW)).body == before


async def test_bytes_that_are_no_text_are_refused(one: Wire) -> None:
    answer = await one.ask(UPDATE, body=b"brokerPermission=\xff")
    assert (answer.code, answer.remark) == (
        1,
        "nothing was changed: the body is not text in UTF-8: byte 17",
    )


async def test_topics_are_created_once_that_is_allowed(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1, auto_create_topics=False)
    lone = await cluster.leader()
    assert await send_code(cluster, lone) == 17
    assert await change(cluster, lone, "autoCreateTopicEnable=true") == (0, "")
    await cluster.wait(lambda: "TBW102" in lone.state.topics)
    assert await send_code(cluster, lone) == 0


async def test_all_that_holds_is_shown_and_no_secret(make_cluster: ClusterMaker) -> None:
    config, _ = read_config({"brokerName": "b", "storePathRootDir": "s", "secret": "hush"}, {})
    cluster = await make_cluster(1, texts=config.texts, secret="hush")
    values, _, _ = await shown(cluster, await cluster.leader())
    assert values["raftLeaseMs"] == "300"
    assert values["transactionCheckInterval"] == "30000"
    assert "hush" not in str(values)
    assert "secret" not in values
