"""A name server between a real group and those who are not of it: one packet, a lie, a secret, another group."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker.namesrv import asking
from broker.namesrv.asking import ANSWER_BYTES_MAX, ask_broker
from broker.namesrv.config import NameServerConfig
from broker.namesrv.server import NameServer
from broker.namesrv.signing_secrets import SigningSecrets
from broker.server.broker import Broker
from dledger import Index
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import decode_command, encode_command, make_response
from dledger_mq.remoting.log_point import COMMITTED_FIELD, FURTHEST_FIELD, LogPoint, write_log_point
from dledger_mq.remoting.registrant import (
    ASK_REGISTRANT,
    CHAIN_FIELD,
    INDEX_FIELD,
    MEMBER_FIELD,
    TOKEN_FIELD,
)
from dledger_mq.remoting.registration import BrokerIdentity, identity_ext
from tests.integration.broker.conftest import Cluster, ClusterMaker, make_cluster
from tests.integration.namesrv.test_server import TIMEOUT_S, Client

__all__ = ["make_cluster"]

HUGE = 2**63 - 1
LOOPBACK = Address("127.0.0.1", 0)


class Place:
    """A name server, and what it routes."""

    def __init__(self, server: NameServer, address: Address, nursery: trio.Nursery) -> None:
        self.address = address
        self._routes = server.routes
        self._nursery = nursery
        self.strangers: list[Client] = []

    async def stranger(self) -> Client:
        client = Client(await connect(self.address, self._nursery, timeout_s=TIMEOUT_S))
        self.strangers.append(client)
        return client

    def brokers(self) -> dict[int, str]:
        group = self._routes.member_group("broker-a")
        return {} if group is None else dict(group.broker_addrs)

    def members(self) -> set[str]:
        return {member.broker_addr for member in self._routes.members("broker-a")}

    def leads(self, broker: Broker) -> bool:
        return self.brokers().get(0) == str(broker.service_address)


@asynccontextmanager
async def name_server(secrets: dict[str, tuple[str, ...]] | None = None) -> AsyncIterator[Place]:
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            server = NameServer(NameServerConfig(listen=LOOPBACK, secrets=SigningSecrets(secrets)))
            address = await nursery.start(server.run)
            place = Place(server, address, nursery)
            yield place
            for client in place.strangers:
                client.connection.close("the test is over")
            nursery.cancel_scope.cancel()


def claim(addr: str, **more: str) -> dict[str, str]:
    """What takes the route, if it is believed."""
    identity = BrokerIdentity("DefaultCluster", "broker-a", addr, 0, term=HUGE)
    return {**identity_ext(identity), **more}


@pytest.mark.slow
async def test_no_packet_takes_a_group_out_of_the_route(make_cluster: ClusterMaker) -> None:
    async with name_server() as place:
        early = await place.stranger()
        lie = '{"index":4611686018427387904,"term":1,"chain_crc":1}'
        answer = await early.call(103, claim("10.6.6.6:10911", **{COMMITTED_FIELD: lie}), b"{}")
        assert (answer.code, place.brokers()) == (0, {0: "10.6.6.6:10911"}), "nobody has the name"

        cluster = await make_cluster(3, namesrvs=(place.address,))
        await cluster.wait(lambda: len(place.members()) == 3)
        leader = await cluster.leader()
        await cluster.wait(lambda: place.leads(leader))
        before, addr = place.brokers(), str(leader.service_address)

        stranger = await place.stranger()
        token = {TOKEN_FIELD: "0" * 32}
        for ext in (
            claim("10.6.6.6:10911"),
            claim(addr),
            claim(addr, **token),
            claim("127.0.0.1:1", **token),
            {**claim(addr), "brokerName": "another"},
            {**claim(addr, **token), "brokerName": "another"},
        ):
            assert (await stranger.call(103, ext, b"{}")).code != 0, ext
        assert (await stranger.call(104, claim(addr))).code == 0, "as for one that is unknown"
        assert (await stranger.call(216, {"topic": "TBW102"})).code == 0
        while (await stranger.call(105, {"topic": "TBW102"})).code != 0:
            pass
        stranger.connection.close("the stranger goes")
        early.connection.close("the first one, too")
        assert place.brokers() == before
        assert not leader.log.status.attributes(leader.log.node_id).get("went_back")

        await cluster.transfer()
        new = await cluster.leader()
        await cluster.wait(lambda: place.leads(new))


@pytest.mark.slow
async def test_who_shows_a_copy_of_the_log_does_not_get_the_name(
    make_cluster: ClusterMaker, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of a stranger that says yes to every token and asks a member of the group for the log."""
    monkeypatch.setattr(asking, "ASK_TIMEOUT_S", TIMEOUT_S)
    async with name_server() as place:
        cluster = await make_cluster(3, namesrvs=(place.address,))
        await cluster.wait(lambda: len(place.members()) == 3)
        leader = await cluster.leader()
        await cluster.wait(lambda: place.leads(leader))
        before = place.brokers()
        index = leader.log.reader.commit_index
        copied = leader.log.reader.committed_fingerprint(index)
        assert copied is not None

        async def pretend(stream: trio.SocketStream) -> None:
            decoder = FrameDecoder()
            while data := await stream.receive_some():
                decoder.feed(data)
                for question in map(decode_command, decoder.frames()):
                    ext = (
                        {CHAIN_FIELD: str(copied.chain_crc)} if INDEX_FIELD in question.ext else {}
                    )
                    await stream.send_all(
                        encode_command(make_response(question.opaque, 0, ext=ext))
                    )

        listeners = await nursery.start(trio.serve_tcp, pretend, 0)
        addr = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        point = LogPoint(index, copied.term, copied.chain_crc)
        shown = {TOKEN_FIELD: "0" * 32, COMMITTED_FIELD: write_log_point(point)}
        stranger = await place.stranger()
        for broker_id in (0, 7):
            refused = await stranger.call(
                103, {**claim(addr, **shown), "brokerId": str(broker_id)}, b"{}"
            )
            assert refused.code == 2
            assert "know of none" in (refused.remark or "")
        assert place.brokers() == before


@pytest.mark.slow
async def test_registrations_with_a_secret_are_signed(
    make_cluster: ClusterMaker, caplog: pytest.LogCaptureFixture
) -> None:
    async with name_server({"broker-a": ("the next secret", "the secret")}) as place:
        stranger = await place.stranger()
        refused = await stranger.call(103, claim("10.6.6.6:10911"), b"{}")
        assert (refused.code, place.brokers()) == (16, {})
        cluster = await make_cluster(1, namesrvs=(place.address,), secret="the secret")
        leader = await cluster.leader()
        await cluster.wait(lambda: place.leads(leader))
        assert (await stranger.call(103, claim("10.6.6.6:10911"), b"{}")).code == 16
        assert place.leads(leader)
        await cluster.stop("n0")
        await cluster.wait(lambda: place.brokers() == {})
    assert not [each for each in caplog.records if "must be signed" in each.getMessage()]


@pytest.mark.slow
async def test_a_broker_without_the_secret_says_so(
    make_cluster: ClusterMaker, caplog: pytest.LogCaptureFixture
) -> None:
    async with name_server({"*": ("the secret",)}) as place:
        cluster = await make_cluster(1, namesrvs=(place.address,))
        await cluster.wait(lambda: "must be signed" in caplog.text)
        assert place.brokers() == {}


@pytest.mark.slow
async def test_two_groups_of_one_name_are_both_told(
    make_cluster: ClusterMaker,
    tmp_path: Path,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with name_server() as place:
        first = await make_cluster(1, namesrvs=(place.address,))
        owner = await first.leader()
        await first.wait(lambda: place.leads(owner))
        second = Cluster(tmp_path / "other", nursery, 1, {"namesrvs": (place.address,)})
        await second.start("n0")
        rival = await second.leader()

        def notice(broker: Broker) -> str:
            return broker.log.status.attributes(broker.log.node_id).get("name_contested", "")

        await first.wait(lambda: bool(notice(owner)) and bool(notice(rival)))
        assert str(rival.service_address) in notice(owner)
        assert str(owner.service_address) in notice(rival)
        lines = [each for each in caplog.records if each.getMessage().startswith("name-contested ")]
        assert [each.levelno for each in lines] == [logging.ERROR] * 2
        errors = [each for each in caplog.records if "two groups of the name" in each.getMessage()]
        assert [each.levelno for each in errors] == [logging.ERROR]
        assert place.brokers() == {0: str(owner.service_address)}

        await first.stop("n0")
        await second.wait(lambda: place.leads(rival) and not notice(rival))
        answer = await (await place.stranger()).call(105, {"topic": "TBW102"})
        assert answer.code == 0


async def test_an_answer_that_is_none_is_no_proof() -> None:
    async def speak(data: bytes) -> object:
        async def serve(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            await stream.send_all(data)

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, serve, 0)
            port = listeners[0].socket.getsockname()[1]
            said = await ask_broker(Address("127.0.0.1", port), token="0" * 32, index=Index(1))
            nursery.cancel_scope.cancel()
        return said

    huge = (ANSWER_BYTES_MAX * 2).to_bytes(4, "big")
    with trio.fail_after(TIMEOUT_S):
        for data in (b"", b"HTTP/1.1 200 OK\r\n\r\n", huge + b"x" * 100, b"\0" * 64):
            assert await speak(data) is None, data


async def test_a_broker_knows_its_own_tokens_only(make_cluster: ClusterMaker) -> None:
    cluster = await make_cluster(1)
    broker = await cluster.leader()
    index = broker.log.reader.commit_index
    name = broker.log.reader.committed_fingerprint(index)
    assert name is not None
    async with trio.open_nursery() as nursery:
        client = Client(await connect(broker.addresses[0], nursery, timeout_s=TIMEOUT_S))
        assert (await client.call(ASK_REGISTRANT, {TOKEN_FIELD: "0" * 32})).code == 16
        assert (await client.call(ASK_REGISTRANT, {TOKEN_FIELD: "é"})).code == 16
        asked = await client.call(ASK_REGISTRANT, {"index": str(index)})
        assert (asked.code, asked.ext) == (0, {"chainCrc": str(name.chain_crc)})
        assert (await client.call(ASK_REGISTRANT, {"index": "4611686018427387904"})).ext == {}
        assert (await client.call(ASK_REGISTRANT, {"index": "-1"})).ext == {}
        assert (await client.call(ASK_REGISTRANT, {"index": "x"})).code == 1
        assert FURTHEST_FIELD not in asked.ext
        for addr, is_member in ((str(broker.service_address), "true"), ("10.6.6.6:1", "false")):
            told = await client.call(ASK_REGISTRANT, {MEMBER_FIELD: addr})
            assert told.ext == {MEMBER_FIELD: is_member}
        client.connection.close("asked enough")
        nursery.cancel_scope.cancel()
