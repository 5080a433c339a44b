"""Scenarios of rows 68 and 69: who registers at the name server and is not of the group."""

from __future__ import annotations

import socket
import socketserver
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Final

import trio

from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
    make_response,
)
from dledger_mq.remoting.log_point import COMMITTED_FIELD
from dledger_mq.remoting.registrant import ASK_REGISTRANT, INDEX_FIELD, TOKEN_FIELD
from dledger_mq.remoting.registration import BrokerIdentity, identity_ext
from dledger_mq.remoting.route import LEADER_ID, BrokerData, decode_route
from jepsen.checklist.stage import Catalogue, Stage
from jepsen.processes import Group, Process

NAMES: Final = Catalogue()
ROUTE_WAIT_S: Final = 10.0
LOG_WAIT_S: Final = 10.0
ANSWER_S: Final = 5.0
FOREIGN: Final = "10.66.66.66:10911"
HUGE: Final = 2**63 - 1
LIE: Final = '{"index":4611686018427387904,"term":1,"chain_crc":1}'
"""A committed place that no log has."""


class Stranger:
    """A connection to a name server that says what it likes. A context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"{}") -> RemotingCommand:
        """Ask one question.

        Raises:
            OSError: no answer.
        """
        self._socket.sendall(encode_command(make_request(code, 1, ext, body)))
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionError("the name server closed the connection")
            data += piece
        decoder = FrameDecoder()
        decoder.feed(data)
        frame = decoder.next_frame()
        assert frame is not None, "it is whole"
        return decode_command(frame)

    def lie(self, group: str, addr: str) -> list[int]:
        """Say everything that may take a group out of the route; returns the codes of the answers."""
        identity = BrokerIdentity("DefaultCluster", group, addr, LEADER_ID, term=HUGE)
        ext = {**identity_ext(identity), COMMITTED_FIELD: LIE}
        claims = (ext, {**ext, TOKEN_FIELD: "0" * 32}, {**ext, "brokerName": "another"})
        codes = [self.ask(RequestCode.REGISTER_BROKER, claim).code for claim in claims]
        self.ask(RequestCode.UNREGISTER_BROKER, ext)
        self.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": AUTO_CREATE_TOPIC})
        return codes

    def claim(self, group: str, addr: str) -> int:
        """Claim to lead, with a token that the server at the address is to confirm; returns the code of the answer."""
        identity = BrokerIdentity("DefaultCluster", group, addr, LEADER_ID, term=HUGE)
        ext = {**identity_ext(identity), COMMITTED_FIELD: LIE, TOKEN_FIELD: "0" * 32}
        return self.ask(RequestCode.REGISTER_BROKER, ext).code

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@NAMES.add(68)
async def foreign_registrations(stage: Stage) -> None:
    """Claim the lead in the highest term again and again as a stranger, while leaders come and go."""
    server = stage.broker.group.name_servers[0]
    group = stage.broker.group.group
    with Stranger(server.port) as stranger:
        for _ in range(3):
            leader = await stage.leader()
            node = stage.system.node(leader)
            for addr in (FOREIGN, node.address):
                codes = await trio.to_thread.run_sync(stranger.lie, group, addr)
                stage.expect(all(codes[:2]), f"claims to be {addr} are refused ({codes})")
            stage.note("stranger", f"claims to lead, and to be {leader}")
            await _routed(stage, server, leader)
            await stage.progress(50)
            stage.kill(leader)
            await _routed(stage, server, await stage.leader(other_than=leader))
            stage.start(leader)
            await stage.whole()
    stage.expect(
        not any(b" group-went-back " in node.log.read_bytes() for node in stage.system.nodes),
        "nobody believes what the stranger said of the log",
    )


@NAMES.add(68)
async def a_stranger_was_first(stage: Stage) -> None:
    """Register under the name of a stopped group from outside; the group must get its name back."""
    server = stage.broker.group.name_servers[0]
    await stage.progress(50)
    stage.kill(*stage.names)
    with Stranger(server.port) as stranger:
        stage.expect(
            await stage.until(lambda: not _leader_addr(server), ROUTE_WAIT_S),
            "who was killed is in no route",
        )
        codes = await trio.to_thread.run_sync(stranger.lie, stage.broker.group.group, FOREIGN)
        stage.note("stranger", f"has the name of the group (answers {codes})")
        stage.start(*stage.names)
        await stage.whole()
        await _routed(stage, server, await stage.leader())
        await stage.progress(50)


@NAMES.add(68)
async def a_proven_stranger_between_leaders(stage: Stage) -> None:
    """Register a server that answers as brokers do while a group has no majority; it must not stay in its name."""
    server = stage.broker.group.name_servers[0]
    await stage.progress(50)
    leader = await stage.leader()
    stays, *others = stage.others(leader)
    gone = [leader, *others]
    stage.kill(*gone)
    with pretended_broker(stage.system.node(stays).port) as addr, Stranger(server.port) as stranger:

        async def is_in() -> bool:
            code = await trio.to_thread.run_sync(stranger.claim, stage.broker.group.group, addr)
            return code == 0

        let_in = await stage.until_true(is_in, LOG_WAIT_S)
        stage.expect(let_in, "a node without a leader cannot say who is a member")
        stage.note("stranger", f"has the id 0 at {addr}")
        stage.start(*gone)
        await stage.whole()
        await _routed(stage, server, await stage.leader())
        stage.expect(
            addr not in _addresses(server), "the stranger is in the route no more, nor a follower"
        )
        await stage.progress(50)
    stage.expect(
        not any(b" group-went-back " in node.log.read_bytes() for node in stage.system.nodes),
        "nobody believes what the stranger said of the log",
    )


@NAMES.add(69)
async def a_second_group_of_the_same_name(stage: Stage) -> None:
    """Start a second group from a copied broker.conf: both groups must log it, and the route must stay."""
    server = stage.broker.group.name_servers[0]
    await stage.progress(50)
    with second_group(stage) as other:
        stage.note("second group", f"{other.address} has the name of the group")
        logged = await stage.until(lambda: _is_logged(stage, server, other), LOG_WAIT_S)
        stage.expect(logged, "the name server and nodes of both groups log it as an error")
        leader = await stage.leader()
        await _routed(stage, server, leader)
        shown = (await stage.statuses()).get(leader)
        stage.expect(
            shown is not None and other.address in shown.attributes.get("name_contested", ""),
            "the status of the leader names the other group's broker",
        )
        await stage.progress(50)
        stage.kill(leader)
        await _routed(stage, server, await stage.leader(other_than=leader))
        await stage.progress(50)
        stage.start(leader)
        await stage.whole()
        stage.expect(_leader_addr(server) != other.address, "the route stays with the first group")
    await stage.progress(50)


@contextmanager
def pretended_broker(port: int) -> Iterator[str]:
    """Serve on a loopback port, and confirm every registration; yields the address.

    What it is asked of the log it asks the broker at `port`, which tells everybody.
    """

    class Confirming(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            decoder = FrameDecoder()
            while data := self.request.recv(65536):
                decoder.feed(data)
                for question in map(decode_command, decoder.frames()):
                    if question.code != ASK_REGISTRANT:
                        return  # it takes no send of a client that finds it in the route
                    index = question.ext.get(INDEX_FIELD)
                    ext = {}
                    if index is not None:
                        with Stranger(port) as copier:
                            ext = copier.ask(ASK_REGISTRANT, {INDEX_FIELD: index}, b"").ext
                    answer = make_response(question.opaque, ResponseCode.SUCCESS, ext=ext)
                    self.request.sendall(encode_command(answer))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Confirming) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def second_group(stage: Stage) -> Iterator[Process]:
    """Start a group of one, with a store of its own, under the name of the group; yields its broker."""
    ours = stage.broker.group
    with Group(stage.system.folder / "other", nodes=1, name_servers=0, group=ours.group) as group:
        (node,) = group.nodes
        node.command[node.command.index("--namesrv") + 1] = ours.namesrv
        group.start()
        group.wait_listening()
        yield node


def _is_logged(stage: Stage, server: Process, other: Process) -> bool:
    said = [node.log.read_bytes() for node in (*stage.system.nodes, other)]
    return (
        b" ERROR broker.namesrv.handlers: two groups of the name " in server.log.read_bytes()
        and b" ERROR dledger: name-contested " in said[-1]
        and any(b" ERROR dledger: name-contested " in log for log in said[:-1])
    )


async def _routed(stage: Stage, server: Process, leader: str) -> None:
    """Expect that clients find this leader, or one that came after it."""

    def is_found() -> bool:
        now = stage.system.leader
        names = {leader} if now is None else {leader, now}
        return _leader_addr(server) in {stage.system.node(name).address for name in names}

    stage.expect(
        await stage.until(is_found, ROUTE_WAIT_S), f"the route leads to {leader} or who came after"
    )


def _leader_addr(server: Process) -> str:
    """Return where the name server sends clients; empty for nowhere."""
    return next(
        (addr for each in _brokers(server) if (addr := each.broker_addrs.get(LEADER_ID))), ""
    )


def _addresses(server: Process) -> set[str]:
    """Return all addresses that the name server shows clients."""
    return {addr for each in _brokers(server) for addr in each.broker_addrs.values()}


def _brokers(server: Process) -> Sequence[BrokerData]:
    with Stranger(server.port) as client:
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC}, b"")
    return decode_route(answer.body).brokers if answer.code == 0 else ()
