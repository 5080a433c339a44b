"""A name server over sockets: what clients, brokers and tools get, and how it starts and stops."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from broker.namesrv.config import NameServerConfig
from broker.namesrv.errors import NameServerConfigError
from broker.namesrv.kv import LocalKv
from broker.namesrv.routes import RouteTable
from broker.namesrv.server import NameServer
from dledger_mq.net.address import Address, parse_address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command
from dledger_mq.remoting.registrant import TOKEN_FIELD
from dledger_mq.remoting.registration import (
    BrokerIdentity,
    encode_compressed_registration,
    encode_registration,
    identity_ext,
)
from dledger_mq.remoting.route import decode_route
from dledger_mq.remoting.topic_config import WireDataVersion, WireTopicConfig

TIMEOUT_S = 180.0
"""Nothing takes that long; a test that waits for more has failed."""

LOOPBACK = Address("127.0.0.1", 0)
FRAMES = Path(__file__).resolve().parents[2] / "golden" / "frames"
LEADER = BrokerIdentity("DefaultCluster", "broker-a", "10.0.0.1:10911", 0, "10.0.0.1:10912", 3)
TOPICS = [
    WireTopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)
    for name in ("TopicA", "TBW102")
]


class Client:
    """Calls over one connection, one at a time."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 409
    ) -> RemotingCommand:
        request = RemotingCommand(code=code, opaque=code, version=version, ext=ext or {}, body=body)
        self.connection.send_nowait(encode_command(request))
        (frame,) = await self.connection.receive()
        answer = decode_command(frame)
        assert answer.is_response
        assert answer.opaque == code
        return answer

    async def register(
        self, identity: BrokerIdentity = LEADER, counter: int = 1
    ) -> RemotingCommand:
        body = encode_registration(WireDataVersion(counter), TOPICS)
        return await self.call(103, identity_ext(identity), body)


@asynccontextmanager
async def server_and_clients(
    count: int = 1, config: NameServerConfig | None = None
) -> AsyncIterator[list[Client]]:
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            server = NameServer(config or NameServerConfig(listen=LOOPBACK))
            address = await nursery.start(server.run)
            clients = [
                Client(await connect(address, outer, timeout_s=TIMEOUT_S)) for _ in range(count)
            ]
            yield clients
            for client in clients:
                client.connection.close("test over")
            nursery.cancel_scope.cancel()


async def test_requests_for_which_a_turn_has_no_time_are_answered_in_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.namesrv.server.TURN_S", 0.0)
    async with server_and_clients() as (client,):
        requests = [RemotingCommand(code=206, opaque=number) for number in range(1000)]
        client.connection.send_nowait(b"".join(map(encode_command, requests)))
        found: list[int] = []
        while len(found) < len(requests):
            found += [decode_command(each).opaque for each in await client.connection.receive()]
    assert found == list(range(1000))


async def test_changes_that_wait_keep_no_broker_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_ever(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(LocalKv, "put", wait_for_ever)
    monkeypatch.setattr("broker.namesrv.server.SLOW_REQUESTS_MAX", 4)
    value = {"namespace": "N", "key": "k", "value": "v"}
    put = encode_command(RemotingCommand(code=100, ext=value))
    async with server_and_clients(2) as (tool, broker):
        tool.connection.send_nowait(put * 2)
        assert (await tool.call(100, value)).code == 2
        mine = msgspec.structs.replace(LEADER, broker_addr="127.0.0.1:1")
        ext = {**identity_ext(mine), TOKEN_FIELD: "0" * 32}
        answer = await broker.call(103, ext, encode_registration(WireDataVersion(1), TOPICS))
    assert answer.code == 1, "it was asked back"
    assert "when it was asked to confirm this registration" in str(answer.remark)


async def test_recorded_route_requests_of_real_clients() -> None:
    async with server_and_clients() as (client,):
        await client.register()
        for name, quoted in (("cpp-get-route", False), ("node-get-route", False)):
            client.connection.send_nowait((FRAMES / f"{name}.bin").read_bytes())
            (frame,) = await client.connection.receive()
            answer = decode_command(frame)
            assert answer.code == 0
            assert (b'{0:"10.0.0.1:10911"}' in answer.body) is not quoted
            assert b" " not in answer.body
            (broker,) = decode_route(answer.body).brokers
            assert broker.broker_addrs == {0: "10.0.0.1:10911"}


async def test_a_topic_that_nobody_serves() -> None:
    async with server_and_clients() as (client,):
        answer = await client.call(105, {"topic": "X"})
        assert answer.code == 17
        assert answer.remark is not None
        assert answer.remark.startswith("No topic route info in name server for the topic: X")
        assert answer.remark.endswith("has it")
        off = "Message trace is off here: traceTopicEnable=true"
        answer = await client.call(105, {"topic": "RMQ_SYS_TRACE_TOPIC"})
        assert (answer.code, off in (answer.remark or "")) == (17, False), "no broker is there"
        await client.register()
        answer = await client.call(105, {"topic": "RMQ_SYS_TRACE_TOPIC"})
        assert (answer.code, off in (answer.remark or "")) == (17, True)


async def test_new_clients_get_legal_json_and_old_ones_ask_for_it() -> None:
    async with server_and_clients() as (client,):
        await client.register()
        for version, ext, quoted in (
            (409, {}, True),
            (63, {}, False),
            (63, {"acceptStandardJsonOnly": "true"}, True),
        ):
            answer = await client.call(105, {"topic": "TopicA", **ext}, version=version)
            assert (b'{"0":"10.0.0.1:10911"}' in answer.body) is quoted


async def test_compressed_registration_and_data_version() -> None:
    async with server_and_clients() as (client,):
        version = WireDataVersion(7, 0, 9)
        body = encode_compressed_registration(version, TOPICS)
        answer = await client.call(103, {**identity_ext(LEADER), "compressed": "true"}, body)
        assert (answer.code, answer.body) == (0, b'{"table":{}}')
        same = await client.call(322, identity_ext(LEADER), b'{"counter":7,"timestamp":9}')
        assert same.ext == {"changed": "false"}
        other = await client.call(322, identity_ext(LEADER), b'{"counter":8,"timestamp":9}')
        assert other.ext == {"changed": "true"}
        assert b'"counter":7' in other.body


async def test_a_broker_leaves_with_its_connection() -> None:
    async with server_and_clients(2) as (broker, client):
        await broker.register()
        assert (await client.call(105, {"topic": "TopicA"})).code == 0
        broker.connection.close("killed")
        while (await client.call(105, {"topic": "TopicA"})).code != 17:
            pass


async def test_a_deposed_leader_is_refused_and_told_why() -> None:
    async with server_and_clients(2) as (old, new):
        await old.register()
        await new.register(BrokerIdentity("DefaultCluster", "broker-a", "10.0.0.2:10911", 0, "", 4))
        answer = await old.register()
        assert answer.code == 1
        assert answer.remark is not None
        assert "term 3" in answer.remark
        route = decode_route((await old.call(105, {"topic": "TopicA"})).body)
        assert route.brokers[0].broker_addrs == {0: "10.0.0.2:10911"}
        follower = await old.register(
            BrokerIdentity("DefaultCluster", "broker-a", LEADER.broker_addr, 1, "", 4)
        )
        assert follower.ext["masterAddr"] == "10.0.0.2:10911"


async def test_tools() -> None:
    async with server_and_clients() as (client,):
        await client.register()
        assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in (await client.call(106)).body
        assert (await client.call(206)).body == b'{"topicList":["TopicA","TBW102"]}'
        assert b"TopicA" in (await client.call(224, {"cluster": "DefaultCluster"})).body
        system = await client.call(304)
        assert (
            system.body
            == b'{"brokerAddr":"10.0.0.1:10911","topicList":["DefaultCluster","broker-a"]}'
        )
        for code in (311, 312, 313):
            assert (await client.call(code)).body == b'{"topicList":[]}'
        assert (await client.call(205, {"brokerName": "broker-a"})).ext == {"wipeTopicCount": "2"}
        assert b'"perm":4' in (await client.call(105, {"topic": "TopicA"})).body
        assert (await client.call(327, {"brokerName": "broker-a"})).ext == {"addTopicCount": "2"}
        group = await client.call(901, {"brokerName": "broker-a", "clusterName": "DefaultCluster"})
        assert b'"brokerMemberGroup":{"brokerAddrs":{0:' in group.body
        assert (await client.call(901, {"brokerName": "x"})).code == 0
        assert (await client.call(904, {"brokerAddr": LEADER.broker_addr})).code == 0
        assert (await client.call(216, {"topic": "TopicA"})).code == 0
        assert (await client.call(105, {"topic": "TopicA"})).code == 17
        assert b"listenPort" in (await client.call(319)).body
        assert (await client.call(318, body=b"a=b")).code == 16
        assert (await client.call(104, identity_ext(LEADER))).code == 0
        assert (await client.call(206)).body == b'{"topicList":[]}'


async def test_configuration_values(tmp_path: Path) -> None:
    config = NameServerConfig(listen=LOOPBACK, folder=tmp_path, orders_messages=True)
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA"}
    async with server_and_clients(config=config) as (client,):
        await client.register()
        assert (await client.call(101, key)).code == 22
        assert (await client.call(219, key)).code == 22
        assert (await client.call(100, {**key, "value": "broker-a:4"})).code == 0
        assert (await client.call(101, key)).ext == {"value": "broker-a:4"}
        assert (await client.call(219, key)).body == b'{"table":{"TopicA":"broker-a:4"}}'
        assert (
            b'"orderTopicConf":"broker-a:4"' in (await client.call(105, {"topic": "TopicA"})).body
        )
        assert (await client.register()).body == b'{"table":{"TopicA":"broker-a:4"}}'
        assert (await client.call(100, key)).code == 1
        with pytest.raises(
            NameServerConfigError, match=r"the store is in use by process \d+, another"
        ):
            await NameServer(config).run()
    async with server_and_clients(config=config) as (client,):
        assert (await client.call(101, key)).ext == {"value": "broker-a:4"}
        assert (await client.call(102, key)).code == 0
        assert (await client.call(101, key)).code == 22


async def test_unknown_and_faulty_requests_are_answered_and_the_connection_lives() -> None:
    async with server_and_clients() as (client,):
        answer = await client.call(12345)
        assert (answer.code, answer.remark) == (3, " request type 12345 not supported")
        missing = await client.call(105)
        assert (missing.code, missing.remark) == (1, "the field topic is missing")
        bad_body = await client.call(103, identity_ext(LEADER), b"{")
        assert bad_body.code == 1
        bad_crc = await client.call(103, {**identity_ext(LEADER), "bodyCrc32": "5"}, b"{}")
        assert (bad_crc.code, bad_crc.remark) == (1, "crc32 not match")


async def test_several_requests_of_one_read_and_oneways() -> None:
    async with server_and_clients() as (client,):
        oneway = RemotingCommand(code=206, opaque=1, flag=2)
        asked = [RemotingCommand(code=206, opaque=number) for number in (2, 3, 4)]
        client.connection.send_many([encode_command(item) for item in (oneway, *asked)])
        opaques: list[int] = []
        while len(opaques) < 3:
            opaques += [decode_command(frame).opaque for frame in await client.connection.receive()]
        assert opaques == [2, 3, 4]


async def test_what_came_before_a_bad_header_is_answered() -> None:
    async with server_and_clients() as (client,):
        good = encode_command(RemotingCommand(code=206, opaque=9))
        client.connection.send_nowait(good + b"\x00\x00\x00\x08\x00\x00\x00\x04{]{]")
        (frame,) = await client.connection.receive()
        assert decode_command(frame).opaque == 9
        assert await client.connection.receive() == []


async def test_hostile_bytes_cost_one_connection() -> None:
    async with server_and_clients(2) as (bad, good):
        bad.connection.send_nowait(b"\x00\x00\x00\x08\x00\x00\x00\x04{]{]")
        assert await bad.connection.receive() == []
        assert (await good.call(206)).code == 0


@pytest.mark.parametrize(
    ("code", "ext", "broken"),
    [
        (904, {"brokerAddr": "x"}, (RouteTable, "note_alive")),
        (100, {"namespace": "n", "key": "k", "value": "v"}, (LocalKv, "put")),
    ],
)
async def test_a_fault_of_our_own_costs_one_connection(
    code: int,
    ext: dict[str, str],
    broken: tuple[type, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(*broken, fail)
    async with server_and_clients(2) as (unlucky, other):
        before = encode_command(RemotingCommand(code=206, opaque=1))
        request = encode_command(RemotingCommand(code=code, opaque=2, ext=ext))
        unlucky.connection.send_many([before, request])
        frames = await unlucky.connection.receive()
        assert [decode_command(frame).opaque for frame in frames] == [1]
        assert await unlucky.connection.receive() == []
        assert (await other.call(206)).code == 0
    assert f"internal error in request {code} of" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def start_process(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "broker.namesrv.cli", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "40"},
    )


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_when_it_is_ready_and_stops_when_told(stop: int) -> None:
    process = start_process("--listen", "127.0.0.1:0")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("name server ready on 127.0.0.1:")
        address = parse_address(line.split()[4])
        with socket.create_connection(address, timeout=TIMEOUT_S):
            process.send_signal(stop)
            assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.integration
@pytest.mark.slow
def test_a_taken_port_ends_the_start_with_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start_process("--listen", str(port))
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert errors == (
        f"dledger-namesrv: --listen 127.0.0.1:{port}: cannot listen there: Address already in use\n"
    )
