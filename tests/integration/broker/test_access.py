"""Access control over sockets: what strangers, thieves and accounts of other topics may do, and what not."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.server.broker import Broker
from broker.server.links.private_codes import PrivateCode, link_proof
from dledger import ConfigError
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.header import RemotingCommand, encode_binary_command, encode_command
from dledger_mq.remoting.signature import SigningKey, sign
from tests.integration.broker.conftest import (
    ANSWER_S,
    Cluster,
    ClusterMaker,
    Wire,
    pull_ext,
    send_ext,
)

pytestmark = pytest.mark.usefixtures("patient")

RULES = """
accounts:
- {accessKey: producer, secretKey: secret-of-p, topicPerms: [T=PUB]}
- {accessKey: consumer, secretKey: secret-of-c, topicPerms: [T=SUB], groupPerms: [G=SUB]}
- {accessKey: admin-1, secretKey: secret-of-1, admin: true}
"""
SECRETS = {"producer": "secret-of-p", "consumer": "secret-of-c", "admin-1": "secret-of-1"}
REFUSED = 16


def signed(key: str, ext: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    return sign(ext, body, access_key=key, key=SigningKey(SECRETS[key]))


async def guarded(
    make_cluster: ClusterMaker, folder: Path, nodes: int = 1, **settings: Any
) -> Cluster:
    """Brokers that go by RULES; the file is one for all of them."""
    rules = folder / "plain_acl.yml"
    rules.write_text(RULES)
    secret = None if nodes == 1 else "the group's own"
    return await make_cluster(nodes, acl_file=str(rules), **({"secret": secret} | settings))


async def send(wire: Wire, key: str, topic: str = "T", body: bytes = b"x") -> RemotingCommand:
    ext = send_ext(topic, properties=f"UNIQ_KEY\x01{body.hex():0>32}\x02")
    return await wire.ask(310, signed(key, ext, body), body)


async def test_only_accounts_with_the_right_are_served(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    cluster = await guarded(make_cluster, tmp_path)
    async with cluster.wire(await cluster.leader()) as wire:
        answers = [
            await wire.send("T"),
            await send(wire, "consumer"),
            await send(wire, "producer", "U"),
            await send(wire, "producer"),
            await wire.pull("T"),
            await wire.ask(11, signed("producer", pull_ext("T"))),
            await wire.ask(11, signed("consumer", pull_ext("T"))),
            await wire.ask(215, signed("producer", {"topic": "T"})),
            await wire.ask(215, {"topic": "T"}),
            await wire.ask(28, {}),
            await wire.ask(28, signed("consumer", {})),
        ]
    assert [answer.code for answer in answers] == [16, 16, 16, 0, 16, 16, 0, 16, 16, 16, 0]
    assert (
        answers[0].remark
        == "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    )
    assert [record.body for record in decode_records(answers[6].body)] == [b"x"]


async def test_bursts_with_wrong_sends_in_them(make_cluster: ClusterMaker, tmp_path: Path) -> None:
    """Plain sends of one read take a lane of their own; each is checked before it."""
    cluster = await guarded(make_cluster, tmp_path)
    async with cluster.wire(await cluster.leader()) as wire:
        assert (await send(wire, "producer", body=b"first")).code == 0
        frames, expected = [], []
        for number in range(60):
            body = b"%d" % number
            ext = send_ext("T", properties=f"UNIQ_KEY\x01{number:032X}\x02")
            ext = ext if number % 7 == 3 else signed("producer", ext, body)
            ext = ext | {"b": "U"} if number % 7 == 5 else ext
            sent = b"altered" if number % 7 == 6 else body
            encode = encode_binary_command if number % 2 else encode_command
            frames.append(encode(RemotingCommand(code=310, opaque=number, ext=ext, body=sent)))
            expected.append(REFUSED if number % 7 in (3, 5, 6) else 0)
        wire.connection.send_nowait(b"".join(frames))
        codes = [(await wire.answer(number)).code for number in range(60)]
        stored = await wire.ask(11, signed("consumer", pull_ext("T") | {"maxMsgNums": "64"}))
    assert codes == expected
    bodies = [record.body for record in decode_records(stored.body)][: 1 + expected.count(0)]
    assert bodies == [b"first", *(b"%d" % n for n in range(60) if not expected[n])][: len(bodies)]
    assert len(bodies) > 1


async def test_what_a_recorded_request_is_good_for(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    """What signatures of 4.x notice, and what they cannot (docs/acl.md): they know no time, no number and no code."""
    cluster = await guarded(make_cluster, tmp_path)
    body = b"recorded"
    ext = send_ext("T", properties=f"UNIQ_KEY\x01{77:032X}\x02") | {"g": "1"}
    recorded = signed("producer", ext, body)
    where = signed("consumer", {"topic": "T", "queueId": "0"})
    leader = await cluster.leader()
    async with cluster.wire(leader) as wire:
        assert (await wire.ask(310, recorded, body)).code == 0
        assert (await wire.ask(30, where)).code == 0
    async with cluster.wire(leader) as thief:
        noticed = [
            await thief.ask(310, recorded | {"g": str(2**40)}, body),
            await thief.ask(310, recorded | {"b": "U"}, body),
            await thief.ask(310, recorded, b"altered"),
            await thief.ask(310, recorded | {"AccessKey": "admin-1"}, body),
        ]
        unnoticed = [
            await thief.ask(310, recorded, body),
            await thief.ask(31, where),
            await thief.ask(310, signed("producer", ext | {"g": str(2**40)}, body), body),
        ]
        end = await thief.ask(30, where)
    assert [answer.code for answer in noticed] == [REFUSED] * 4
    assert [answer.code for answer in unnoticed] == [0] * 3
    # The first and the last: a send that comes again as it was, while it is among the recent ones, is a repeat.
    assert end.ext["offset"] == "2"


async def test_one_way_requests_are_refused_in_silence(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    cluster = await guarded(make_cluster, tmp_path)
    async with cluster.wire(await cluster.leader()) as wire:
        assert (await send(wire, "producer")).code == 0
        oneway = RemotingCommand(code=310, opaque=5, flag=2, ext=send_ext("T"), body=b"stranger's")
        wire.connection.send_nowait(encode_command(oneway))
        commit = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
        wire.connection.send_nowait(
            encode_command(RemotingCommand(code=15, opaque=6, flag=2, ext=commit))
        )
        assert (await send(wire, "producer", body=b"y")).code == 0
        stored = await wire.ask(11, signed("consumer", pull_ext("T")))
        offset = await wire.ask(
            14,
            signed(
                "consumer",
                {"consumerGroup": "G", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"},
            ),
        )
    assert [record.body for record in decode_records(stored.body)] == [b"x", b"y"]
    assert (offset.code, wire.has_answer(5), wire.has_answer(6)) == (22, False, False)


@pytest.mark.slow
async def test_a_member_passes_on_what_it_has_checked(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    cluster = await guarded(make_cluster, tmp_path, 3)
    follower = (await cluster.followers())[0]
    async with cluster.wire(follower) as wire:
        codes = [(await send(wire, key)).code for key in ("producer", "consumer")]
        codes.append((await wire.ask(17, signed("producer", {"topic": "N"}))).code)
        topic = {
            "topic": "N",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        }
        codes.append((await wire.ask(17, signed("admin-1", topic))).code)
    assert codes == [0, REFUSED, REFUSED, 0]


async def test_nobody_speaks_as_a_member_without_the_secret(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    """A forwarded request is not checked again, so what comes before it must be."""
    cluster = await guarded(make_cluster, tmp_path)
    broker = await cluster.leader()
    frame = encode_command(RemotingCommand(code=310, opaque=1, ext=send_ext("T"), body=b"x"))
    async with cluster.wire(broker) as wire:
        nonce = str(broker.log.status.attributes(broker.log.node_id)["link_nonce"])
        proof = link_proof(None, group="broker-a", node_id="n0", nonce=nonce)
        hello = {"group": "broker-a", "node": "n0", "nonce": nonce, "proof": proof}
        answers = [
            await wire.ask(PrivateCode.HELLO, hello),
            await wire.ask(PrivateCode.FORWARD, {"address": "127.0.0.1:1"}, frame),
        ]
    assert [answer.code for answer in answers] == [REFUSED, REFUSED]
    assert "no secret" in str(answers[0].remark)


async def test_changed_rules_hold_without_a_restart(
    make_cluster: ClusterMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "broker.access")
    cluster = await guarded(make_cluster, tmp_path)
    file = tmp_path / "plain_acl.yml"

    async def until(code: int) -> None:
        with trio.fail_after(ANSWER_S):
            while (await send(wire, "producer", "U")).code != code:
                await trio.lowlevel.checkpoint()

    async with cluster.wire(await cluster.leader()) as wire:
        await until(REFUSED)
        file.write_text(RULES.replace("T=PUB", "U=PUB"))
        await until(0)
        file.write_text("accounts: [")
        await cluster.wait(lambda: "THOSE OF BEFORE HOLD" in caplog.text)
        assert (await send(wire, "producer", "U")).code == 0
        file.unlink()
        await cluster.wait(lambda: "is not there" in caplog.text)
        assert (await send(wire, "producer", "U")).code == 0
        (tmp_path / "acl").mkdir()
        (tmp_path / "acl/more.yml").write_text(RULES)
        await until(REFUSED)
    assert "secret-of" not in caplog.text


@pytest.mark.parametrize("text", [None, "accounts: [", "accounts:\n- accessKey: RocketMQ\n"])
async def test_a_broker_does_not_start_without_its_rules(
    make_cluster: ClusterMaker, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "plain_acl.yml").write_text(text)
    with pytest.raises(ConfigError, match=r"aclEnable=true: .*plain_acl\.yml"):
        await make_cluster(acl_file=str(tmp_path / "plain_acl.yml"))


async def test_secrets_are_shown_to_nobody(make_cluster: ClusterMaker, tmp_path: Path) -> None:
    cluster = await guarded(make_cluster, tmp_path, secret="the group's own")
    broker: Broker = await cluster.leader()
    async with cluster.wire(broker) as wire:
        shown = [await wire.ask(code, signed("admin-1", {})) for code in (26, 28)]
    text = (
        json.dumps([answer.body.decode() for answer in shown])
        + repr(broker.config)
        + repr(broker.log.config)
    )
    assert [answer.code for answer in shown] == [0, 0]
    assert ("the group's own" in text, "secret-of" in text) == (False, False)


async def test_tools_change_accounts_and_addresses(
    make_cluster: ClusterMaker, tmp_path: Path
) -> None:
    cluster = await guarded(make_cluster, tmp_path)
    file = tmp_path / "plain_acl.yml"
    file.chmod(0o640)
    SECRETS["newcomer"] = "secret-of-n"
    account = {"accessKey": "newcomer", "secretKey": "secret-of-n", "admin": "false"}

    async def ask(key: str, code: int, ext: Mapping[str, str]) -> RemotingCommand:
        return await wire.ask(code, signed(key, ext))

    async with cluster.wire(await cluster.leader()) as wire:
        by_others = [(await ask("producer", code, account)).code for code in (50, 51, 53, 54)]
        wrong = [
            await ask("admin-1", 50, account | {"topicPerms": "T=ALL"}),
            await ask("admin-1", 50, account | {"secretKey": "short"}),
            await ask("admin-1", 50, account | {"whiteRemoteAddress": "here"}),
            await ask("admin-1", 51, {"accessKey": "nobody-7"}),
            await ask(
                "admin-1", 53, {"globalWhiteAddrs": "10.1.*", "aclFileFullPath": "/etc/passwd"}
            ),
        ]
        assert file.read_text() == RULES
        codes = [(await ask("admin-1", 50, account | {"topicPerms": "T=PUB,U=SUB"})).code]
        codes.append((await send(wire, "newcomer")).code)
        codes.append((await ask("admin-1", 50, account | {"topicPerms": "U=PUB"})).code)
        codes.append((await send(wire, "newcomer")).code)
        codes.append((await send(wire, "newcomer", "U")).code)
        codes.append((await ask("admin-1", 53, {"globalWhiteAddrs": "10.1.*,10.2.0.7"})).code)
        version = await ask("newcomer", 52, {})
        shown = await ask("admin-1", 54, {})
        codes.append((await ask("admin-1", 51, {"accessKey": "newcomer"})).code)
        codes.append((await send(wire, "newcomer", "U")).code)
    assert by_others == [REFUSED] * 4
    assert [answer.code for answer in wrong] == [1] * 5
    assert all("nothing was changed" in str(answer.remark) for answer in wrong)
    assert codes == [0, 0, 0, REFUSED, 0, 0, 0, REFUSED]
    assert json.loads(version.ext["version"])["counter"] == 3
    assert json.loads(version.ext["allAclFileVersion"]).keys() == {str(file)}
    table = json.loads(shown.body)
    assert table["globalWhiteAddrs"] == ["10.1.*", "10.2.0.7"]
    assert table["plainAccessConfigs"][-1]["topicPerms"] == ["U=PUB"]
    assert {row["secretKey"] for row in table["plainAccessConfigs"]} == {"******"}
    left_over = [name for name in os.listdir(tmp_path) if name.startswith(".plain")]  # noqa: PTH208
    assert (file.stat().st_mode & 0o777, left_over) == (0o640, [])


async def test_without_access_control_there_are_no_rules(one: Wire) -> None:
    answers = [
        await one.ask(
            code, {"accessKey": "somebody", "secretKey": "secret-of-s", "globalWhiteAddrs": "*"}
        )
        for code in (50, 51, 52, 53, 54)
    ]
    assert [answer.code for answer in answers] == [1] * 5
    assert all("access control is off" in str(answer.remark) for answer in answers)
