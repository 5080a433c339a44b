"""What a broker tells name servers, and when; and the second port for old clients."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from broker.net.listener import Listener
from broker.server import registrar
from dledger import ListenError, parse_peers
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import decode_command, encode_command, make_response
from dledger_mq.remoting.registration import (
    BrokerIdentity,
    Registration,
    decode_registration,
    identity_of,
)
from jepsen.ports import free_ports
from tests.integration.broker.conftest import ANSWER_S, ClusterMaker, Wire, send_ext


class NameServer:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.registered: list[tuple[BrokerIdentity, Registration]] = []
        self.left: list[BrokerIdentity] = []
        self.told = trio.Event()
        self.is_silent = False
        self.is_busy = False

    def handle(self, connection: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            command = decode_command(frame)
            identity = identity_of(command.ext)
            if command.code == RequestCode.REGISTER_BROKER:
                content = decode_registration(
                    command.body, ext=command.ext, version=command.version
                )
                self.registered.append((identity, content))
            else:
                self.left.append(identity)
            if not self.is_silent:
                is_busy = self.is_busy and command.code == RequestCode.REGISTER_BROKER
                code = ResponseCode.SYSTEM_BUSY if is_busy else ResponseCode.SUCCESS
                connection.send_nowait(encode_command(make_response(command.opaque, code)))
        told, self.told = self.told, trio.Event()
        told.set()

    def latest(self, address: str) -> tuple[BrokerIdentity, Registration] | None:
        return next(
            (item for item in reversed(self.registered) if item[0].broker_addr == address), None
        )

    async def until_leader(self, address: str) -> tuple[BrokerIdentity, Registration]:
        with trio.fail_after(ANSWER_S):
            while (found := self.latest(address)) is None or found[0].broker_id != 0:
                await self.told.wait()
        return found


@asynccontextmanager
async def listening(server: NameServer, sock: socket.socket) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(Listener(server.handle).run, [sock])
        yield
        nursery.cancel_scope.cancel()


async def test_a_leader_registers_with_every_name_server(make_cluster: ClusterMaker) -> None:
    servers = [NameServer(), NameServer()]
    sockets = [bind(Address("127.0.0.1", 0)) for _ in servers]
    addresses = tuple(bound_address(sock) for sock in sockets)
    async with listening(servers[0], sockets[0]), listening(servers[1], sockets[1]):
        cluster = await make_cluster(1, namesrvs=addresses)
        broker = await cluster.leader()
        for server in servers:
            identity, _ = await server.until_leader(str(broker.service_address))
            assert (identity.broker_name, identity.cluster_name) == ("broker-a", "DefaultCluster")
            assert identity.term == broker.log.term
        async with cluster.wire(broker) as wire:
            await wire.send("Fresh")
        server = servers[0]
        with trio.fail_after(ANSWER_S):
            while "Fresh" not in (server.registered[-1][1].topics or {}):
                await server.told.wait()
        topic = (server.registered[-1][1].topics or {})["Fresh"]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (4, 4, 6)
        await cluster.stop("n0")
        await cluster.wait(lambda: bool(server.left))
        assert [identity.broker_addr for identity in server.left] == [str(broker.service_address)]


@pytest.mark.slow
async def test_followers_register_under_their_own_numbers(make_cluster: ClusterMaker) -> None:
    server = NameServer()
    sock = bind(Address("127.0.0.1", 0))
    async with listening(server, sock):
        cluster = await make_cluster(3, namesrvs=(bound_address(sock),))
        leader = await cluster.leader()
        followers = await cluster.followers()
        await server.until_leader(str(leader.service_address))
        for broker in followers:
            address = str(broker.service_address)
            await cluster.wait(lambda address=address: server.latest(address) is not None)  # type: ignore[misc]
            found = server.latest(address)
            assert found is not None
            assert found[0].broker_id == int(str(broker.log.node_id)[1:]) + 1
        await cluster.transfer()
        new = await cluster.leader()
        await server.until_leader(str(new.service_address))
        old = str(leader.service_address)
        await cluster.wait(lambda: (server.latest(old) or server.registered[0])[0].broker_id != 0)


class ConnectingBack(NameServer):
    """Looks whether brokers that register let it in, as real ones do; `refused` are those that did not."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def handle(self, connection: Connection, frames: list[Frame]) -> None:
        for frame in frames:
            address = identity_of(decode_command(frame).ext).broker_addr
            host, port = address.rsplit(":", 1)
            try:
                socket.create_connection((host, int(port))).close()
            except OSError:
                self.refused.append(address)
        super().handle(connection, frames)


@pytest.mark.slow
async def test_a_broker_that_is_back_registers_when_name_servers_can_connect_back(
    make_cluster: ClusterMaker,
) -> None:
    server = ConnectingBack()
    sock = bind(Address("127.0.0.1", 0))
    async with listening(server, sock):
        cluster = await make_cluster(3, namesrvs=(bound_address(sock),))
        leader = await cluster.leader()
        name = str((await cluster.followers())[0].log.node_id)
        async with cluster.wire(leader) as wire:
            await wire.send("T")
        await cluster.kill(name)
        server.registered.clear()
        address = str((await cluster.start(name)).service_address)
        await cluster.wait(lambda: server.latest(address) is not None)
        assert (
            address not in server.refused
        )  # what it said before it was killed may be read only now


async def test_a_name_server_that_is_down_is_tried_again(
    make_cluster: ClusterMaker, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    address = Address("127.0.0.1", port)
    cluster = await make_cluster(1, namesrvs=(address,))
    broker = await cluster.leader()
    async with cluster.wire(broker) as wire:
        assert (await wire.send("T")).code == 0
    server = NameServer()
    async with listening(server, bind(address)):
        await server.until_leader(str(broker.service_address))
        lines = [r.getMessage() for r in caplog.records if "cannot be reached" in r.getMessage()]
    assert len(lines) == 1


def created(name: str) -> dict[str, str]:
    """The fields of a request that creates a topic, as mqadmin sends them."""
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


@asynccontextmanager
async def a_leader_with_two_name_servers(
    make_cluster: ClusterMaker,
) -> AsyncIterator[tuple[list[NameServer], Wire]]:
    """Start a broker that leads and is registered with two name servers; yields these, and a connection to it."""
    servers = [NameServer(), NameServer()]
    sockets = [bind(Address("127.0.0.1", 0)) for _ in servers]
    addresses = tuple(bound_address(sock) for sock in sockets)
    async with listening(servers[0], sockets[0]), listening(servers[1], sockets[1]):
        # Nothing is told again only because it is time to: what is told is counted.
        cluster = await make_cluster(1, namesrvs=addresses, register_interval_ms=3_600_000)
        broker = await cluster.leader()
        for server in servers:
            await server.until_leader(str(broker.service_address))
        async with cluster.wire(broker) as wire:
            yield servers, wire


@pytest.mark.usefixtures("patient")
async def test_a_topic_is_known_before_its_creation_is_answered(make_cluster: ClusterMaker) -> None:
    async with a_leader_with_two_name_servers(make_cluster) as (servers, wire):
        for number in range(20):
            name = f"New{number}"
            assert (await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, created(name))).code == 0
            known = [name in (server.registered[-1][1].topics or {}) for server in servers]
            assert known == [True, True], f"{name}: {known}"


@pytest.mark.parametrize(
    "half",
    ["", "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01{}\x02"],
    ids=["sends", "half messages"],
)
@pytest.mark.usefixtures("patient")
async def test_a_topic_is_known_before_the_first_send_that_creates_it_is_answered(
    make_cluster: ClusterMaker, half: str
) -> None:
    """All sends that came with it included, whichever is answered first; and half messages."""
    async with a_leader_with_two_name_servers(make_cluster) as (servers, wire):
        for number in range(60):
            name = f"Auto{number}"
            asked = [
                wire.send_request(310, send_ext(name, 0, half.format(key)), b"x")
                for key in range(3)
            ]
            for opaque in reversed(asked):
                assert (await wire.answer(opaque)).code == 0
                known = [name in (server.registered[-1][1].topics or {}) for server in servers]
                assert known == [True, True], f"{name}: {known}"
        begun = [len(server.registered) for server in servers]
        assert (await wire.send("Auto0")).code == 0
        assert [len(server.registered) for server in servers] == begun, "it was known before"


async def test_a_stop_loses_no_answer_that_waits_for_a_name_server(
    make_cluster: ClusterMaker,
) -> None:
    server = NameServer()
    sock = bind(Address("127.0.0.1", 0))
    async with listening(server, sock):
        cluster = await make_cluster(1, namesrvs=(bound_address(sock),))
        broker = await cluster.leader()
        await server.until_leader(str(broker.service_address))
        async with cluster.wire(broker) as wire:
            server.is_busy = True
            opaque = wire.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, created("New"))
            await cluster.wait(lambda: "New" in broker.state.topics)
            await cluster.stop("n0")
            assert (await wire.answer(opaque)).code == 0
        with trio.fail_after(ANSWER_S):
            while not server.left:
                await server.told.wait()


async def test_a_name_server_that_answers_nothing_holds_a_creation_up_for_a_second(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who waited for its answer would wait for longer than any test.
    monkeypatch.setattr(registrar, "_ANSWER_TIMEOUT_S", 2 * ANSWER_S)
    silent, server = NameServer(), NameServer()
    silent.is_silent = True
    sockets = [bind(Address("127.0.0.1", 0)) for _ in range(2)]
    (port,) = free_ports(1)
    addresses = (*(bound_address(sock) for sock in sockets), Address("127.0.0.1", port))
    async with listening(silent, sockets[0]), listening(server, sockets[1]):
        cluster = await make_cluster(1, namesrvs=addresses)
        broker = await cluster.leader()
        await server.until_leader(str(broker.service_address))
        async with cluster.wire(broker) as wire:
            assert (await wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, created("New"))).code == 0
            await cluster.wait(lambda: "New" in (server.registered[-1][1].topics or {}))
            assert (await wire.send("Auto")).code == 0
            await cluster.wait(lambda: "Auto" in (server.registered[-1][1].topics or {}))


@pytest.mark.parametrize("vip_port", [True, None])
async def test_tools_find_the_port_two_below(
    make_cluster: ClusterMaker, vip_port: bool | None
) -> None:
    (port,) = free_ports(1)
    cluster = await make_cluster(1, vip_port=vip_port, listen=Address("127.0.0.1", port))
    broker = await cluster.leader()
    assert [address.port for address in broker.addresses] == [port, port - 2]
    async with trio.open_nursery() as nursery:
        connection = await connect(broker.addresses[1], nursery, timeout_s=ANSWER_S)
        wire = Wire(connection)
        nursery.start_soon(wire.run)
        assert (await wire.send("T")).code == 0
        connection.close("the test is over")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("vip_port", [True, False, None])
async def test_a_port_two_below_that_is_taken_ends_the_start_only_where_it_is_wanted(
    make_cluster: ClusterMaker, vip_port: bool | None
) -> None:
    (port,) = free_ports(1)
    taken = bind(Address("127.0.0.1", port - 2), accepts=False)
    with taken:
        taken.listen()
        if vip_port:
            with pytest.raises(ListenError, match=f"{port - 2} cannot be listened on"):
                await make_cluster(1, vip_port=vip_port, listen=Address("127.0.0.1", port))
        else:
            cluster = await make_cluster(1, vip_port=vip_port, listen=Address("127.0.0.1", port))
            broker = await cluster.leader()
            assert [address.port for address in broker.addresses] == [port]


async def test_a_members_port_is_not_taken_unasked(make_cluster: ClusterMaker) -> None:
    (port,) = free_ports(1)
    peers = parse_peers(f"n0-127.0.0.1:{port - 2}")
    listen = Address("127.0.0.1", port)
    cluster = await make_cluster(1, vip_port=None, listen=listen, peers=peers)
    broker = await cluster.leader()
    assert [address.port for address in broker.addresses] == [port]
