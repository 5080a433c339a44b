"""A look at a cluster, over real sockets: all at once, in bounded time, whoever answers or does not."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from broker.admin import survey
from broker.admin.ask import NodeAnswer, ask_broker
from broker.admin.survey import look_around
from dledger_mq.client.link import Links
from dledger_mq.net.address import Address
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import decode_command, encode_command, make_response
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.route import BrokerData, ClusterInfo, encode_cluster_info
from tests.unit.admin.runtime_tables import foreign_table, table_of

TIMEOUT_S = 60.0
TABLE = int(RequestCode.GET_BROKER_RUNTIME_INFO)
CLUSTER = int(RequestCode.GET_BROKER_CLUSTER_INFO)

Answers = Callable[[int], bytes | None]
"""Code -> the body of the answer; None: there is none."""


class Server:
    """Something that answers at an address.

    Attributes:
        asked: codes of the requests that came.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.socket = bind(Address("127.0.0.1", 0))
        self.address = str(bound_address(self.socket))

    async def run(self) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.socket))
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.abc.Stream) -> None:
        decoder = FrameDecoder()
        while data := await stream.receive_some():
            decoder.feed(bytes(data))
            for frame in decoder.frames():
                request = decode_command(frame)
                self.asked.append(request.code)
                body = self.answers(request.code)
                if body is not None:
                    answer = make_response(request.opaque, 0, body=body)
                    await stream.send_all(encode_command(answer))


def broker(table: dict[str, str]) -> Server:
    return Server(lambda _code: write_json({"table": table}))


def name_server(groups: dict[str, list[str]]) -> Server:
    brokers = {
        name: BrokerData(dict(enumerate(addresses)), name, "C")
        for name, addresses in groups.items()
    }
    info = encode_cluster_info(ClusterInfo(brokers, {"C": tuple(groups)}))
    return Server(lambda _code: info)


@contextmanager
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield str(Address(*sock.getsockname()))


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked here answers at once, or is not there: when others are given up is for another test."""
    monkeypatch.setattr(survey, "ANSWER_S", TIMEOUT_S)


async def beside(servers: list[Server], act: Callable[[], Awaitable[None]]) -> None:
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(server.run)
            await act()
            nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("_patient")
async def test_members_that_only_other_members_know_are_asked() -> None:
    follower = broker(table_of("n1"))
    leader = broker(
        table_of("n0", raftMemberAddresses=json.dumps({"n1": {"clients": follower.address}}))
    )
    names = name_server({"broker-a": [leader.address]})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert sight.name_servers == {names.address: ""}
        assert sight.registered == {"broker-a": frozenset([leader.address])}
        assert {leader.address, follower.address} <= set(sight.facts)

    await beside([leader, follower, names], act)


async def test_the_dead_delay_nobody_and_each_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey, "ANSWER_S", 2.0)
    lone = broker(table_of("n0", raftMembers="n0", raftMemberAddresses="{}"))
    with silent() as dead, silent() as dead_names:
        names = name_server({"broker-a": [lone.address, *[dead] * 3], "broker-b": ["127.0.0.1:1"]})

        async def act() -> None:
            begun_s = trio.current_time()
            sight = await look_around((dead_names, "127.0.0.1:1", names.address), (), {})
            assert trio.current_time() - begun_s < 60
            assert sight.name_servers == {
                dead_names: "no answer within 2 s",
                "127.0.0.1:1": "Connection refused",
                names.address: "",
            }
            assert sight.problem(dead) == "no answer within 2 s"
            assert sight.problem("127.0.0.1:1") == "Connection refused"
            assert lone.address in sight.facts

        await beside([lone, names], act)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", "body is not UTF-8"),
        (b"[]", "not a JSON object"),
        (b'{"brokerAddrTable":[1]}', "has no member `table`"),
        (b'{"brokerAddrTable":{"a":1},"table":[1]}', "has no member `table`"),
        (b"[" * 10_000, "deep"),
    ],
)
async def test_garbage_is_no_answer(body: bytes, reason: str) -> None:
    liar = Server(lambda _code: body)

    async def act() -> None:
        sight = await look_around((liar.address,), (liar.address,), {})
        assert reason in sight.problem(liar.address)
        assert sight.name_servers[liar.address]
        assert not sight.facts

    await beside([liar], act)


async def test_what_is_no_frame_is_no_answer() -> None:
    async def shout(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, shout, 0, host="127.0.0.1"))
            address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
            sight = await look_around((address,), (address,), {})
            assert "sent no frame" in sight.problem(address)
            assert "sent no frame" in sight.name_servers[address]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("wrong", ["", "nowhere", ":0", "a:70000", "\ud800:1", "é" * 300 + ":1"])
async def test_an_address_that_is_none_is_a_reason_and_ends_nothing(wrong: str) -> None:
    lone = broker(
        table_of(
            "n0", raftMemberAddresses=json.dumps({"n1": {"clients": wrong}}), raftMembers="n0,n1"
        )
    )
    names = name_server({"broker-a": [lone.address, wrong.encode(errors="replace").decode()]})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert list(sight.facts) == [lone.address]
        assert all(sight.problem(one) for one in sight.answers if one != lone.address)

    await beside([lone, names], act)


@pytest.mark.usefixtures("_patient")
async def test_a_broker_that_knows_nothing_of_members_is_no_error() -> None:
    foreign = broker(foreign_table())
    names = name_server({"other": [foreign.address]})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert sight.facts[foreign.address].node_id == ""
        assert sight.facts[foreign.address].version == "V4_9_8"

    await beside([foreign, names], act)


@pytest.mark.usefixtures("_patient")
async def test_who_seems_behind_is_asked_once_more_and_nobody_else() -> None:
    tables = iter([table_of("n1", raftAppliedIndex="39"), table_of("n1")])
    follower = Server(lambda _code: write_json({"table": next(tables)}))
    leader = broker(table_of("n0", raftMemberAddresses="{}"))
    names = name_server({"broker-a": [leader.address, follower.address]})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert sight.facts[follower.address].applied_index == 40
        assert (follower.asked, leader.asked) == ([TABLE] * 2, [TABLE])

    # The addresses that they announce are nobody's here.
    await beside([follower, leader, names], act)


async def test_many_groups_are_asked_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "ASKED_AT_ONCE", 8)
    monkeypatch.setattr(survey, "ANSWER_S", 60.0)  # another test is about that bound
    asked_now = asked_max = 0

    async def counted(links: Links, address: str, *, timeout_s: float) -> NodeAnswer:
        nonlocal asked_now, asked_max
        asked_now += 1
        asked_max = max(asked_max, asked_now)
        try:
            return await ask_broker(links, address, timeout_s=timeout_s)
        finally:
            asked_now -= 1

    monkeypatch.setattr(survey, "ask_broker", counted)
    brokers = [
        broker(table_of("n0", group=f"g{number}", raftMembers="n0", raftMemberAddresses="{}"))
        for number in range(100)
    ]
    names = name_server({f"g{number}": [one.address] for number, one in enumerate(brokers)})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert {one.group for one in sight.facts.values()} == {
            f"g{number}" for number in range(100)
        }
        assert asked_max == 8

    await beside([*brokers, names], act)


@pytest.mark.usefixtures("_patient")
async def test_a_very_long_name_is_cut_alike_wherever_it_comes_from() -> None:
    name = "g" * 5000
    lone = broker(table_of("n0", group=name, raftMembers="n0", raftMemberAddresses="{}"))
    names = name_server({name: [lone.address]})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert {one.group for one in sight.facts.values()} == set(sight.registered)

    await beside([lone, names], act)


async def test_a_liar_cannot_have_everybody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "ADDRESSES_MAX", 10)
    names = name_server({"g": [f"127.0.0.1:{port}" for port in range(1, 60)]})

    async def act() -> None:
        sight = await look_around((names.address,), (), {})
        assert len(sight.answers) == 10

    await beside([names], act)


async def test_connections_end_with_the_look() -> None:
    ended = trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        while await stream.receive_some():
            pass
        ended.set()

    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            await look_around((), (f"127.0.0.1:{listener.socket.getsockname()[1]}",), {})
            await ended.wait()
            assert ended.is_set()
            nursery.cancel_scope.cancel()
