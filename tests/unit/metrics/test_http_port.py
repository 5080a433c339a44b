"""The HTTP port over real sockets: what is answered, and what hostile clients get."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from broker.metrics import endpoint as endpoint_module
from broker.metrics import http_port
from broker.metrics.endpoint import Endpoint, Readiness
from broker.metrics.http_port import CONNECTIONS_MAX, HttpPort, MakePage, Page, plain
from dledger_mq.net.address import Address
from dledger_mq.net.listening import bind, bound_address
from tests.certificates import HOST, client_side, server_side
from tests.waiting import wait_until

PATIENCE_S = 120.0


async def _hello() -> Page:
    return plain(200, "hello")


async def _broken() -> Page:
    raise ZeroDivisionError("a mistake of ours")


@asynccontextmanager
async def serving(
    pages: Mapping[str, MakePage] | None = None,
    idle_s: float = PATIENCE_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[HttpPort, Address]]:
    sock = bind(Address("127.0.0.1", 0))
    address = bound_address(sock)
    pages = pages or {"/hello": _hello, "/broken": _broken}
    port = HttpPort(sock, pages, idle_s=idle_s, tls=lambda: tls)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(port.run)
            yield port, address
            nursery.cancel_scope.cancel()


async def dial(address: Address) -> trio.SocketStream:
    return await trio.open_tcp_stream(address.host, address.port)


async def exchange(address: Address, sent: bytes) -> bytes:
    """All that comes back until the server closes, which it is asked to."""
    async with await dial(address) as stream:
        await stream.send_all(sent)
        return b"".join([data async for data in stream])


def request(path: str, method: str = "GET", more: str = "Connection: close\r\n") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (request("/hello"), 200, b"hello\n"),
        (request("/hello?x=1"), 200, b"hello\n"),
        (request("/hello", "HEAD"), 200, b""),
        (b"GET /hello HTTP/1.0\r\n\r\n", 200, b"hello\n"),
        (request("/"), 404, b"there is /hello, /broken\n"),
        (request("/hello", "POST"), 405, b"GET and HEAD only\n"),
        (request("/broken"), 500, b"internal error; the log says more\n"),
    ],
)
async def test_a_page_for_each_path(sent: bytes, status: int, body: bytes) -> None:
    async with serving() as (_, address):
        answer = await exchange(address, sent)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert rest == body


async def exchange_over_tls(address: Address, sent: bytes, tls: ssl.SSLContext) -> bytes:
    """All that comes back until the server closes."""
    transport = await dial(address)
    stream = trio.SSLStream(transport, tls, server_hostname=HOST, https_compatible=True)
    async with transport:
        await stream.send_all(sent)
        return b"".join([bytes(data) async for data in stream])


async def test_pages_over_tls_and_nothing_for_who_speaks_plain_text(tmp_path: Path) -> None:
    client = client_side(tmp_path)
    refused = request("/hello", "POST", "Content-Length: 3\r\n") + b"abc"
    async with serving(tls=server_side(tmp_path)) as (port, address):
        answer = await exchange_over_tls(address, request("/hello"), client)
        assert answer.startswith(b"HTTP/1.1 200")
        assert (await exchange_over_tls(address, refused, client)).startswith(b"HTTP/1.1 413")
        try:
            answer = await exchange(address, request("/hello"))
        except trio.BrokenResourceError:
            answer = b""
        assert b"hello" not in answer
        await wait_until(lambda: not port.open_count)


async def test_who_never_ends_his_handshake_makes_room_for_others(tmp_path: Path) -> None:
    client = client_side(tmp_path)
    async with serving(tls=server_side(tmp_path)) as (port, address), AsyncExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 3):
            silent = await stack.enter_async_context(await dial(address))
            await silent.send_all(b"\x16\x03\x01")
        answer = await exchange_over_tls(address, request("/hello"), client)
        assert answer.endswith(b"hello\n")
        assert port.refused_count == 0


async def test_many_requests_come_over_one_connection_also_at_once() -> None:
    async with serving() as (_, address):
        answer = await exchange(address, request("/hello", more="") * 9 + request("/hello"))
    assert answer.count(b"HTTP/1.1 200") == answer.count(b"\r\n\r\nhello\n") == 10


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100) + b"\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /hello HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000, 431),
        (request("/hello", more="Content-Length: 5\r\n") + b"12345", 413),
        (
            request("/hello", more="Transfer-Encoding: chunked\r\n") + b"5\r\n12345\r\n0\r\n\r\n",
            413,
        ),
        (request("/hello", more="Content-Length: 9999999999999999999999999\r\n") + b"x", 400),
        (request("/hello", more="Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
        (request("/hello", "POST", "Content-Length: 3\r\nConnection: close\r\n") + b"abc", 413),
        (request("/hello", "HEAD", "Content-Length: 3\r\n") + b"abc", 413),
        (request("/hello", "HEAD", "Transfer-Encoding: chunked\r\n") + b"no size\r\n", 400),
    ],
)
async def test_what_is_no_request_is_refused_and_others_are_served(
    sent: bytes, status: int
) -> None:
    async with serving() as (_, address):
        answer = await exchange(address, sent)
        again = await exchange(address, request("/hello"))
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert answer.count(b"HTTP/1.1") == 1
    assert again.endswith(b"hello\n")


async def test_a_page_that_cannot_be_written_ends_its_connection_and_no_other() -> None:
    async def impossible() -> Page:
        return Page(b"", "two\r\nlines")

    async with serving({"/impossible": impossible, "/hello": _hello}) as (_, address):
        assert await exchange(address, request("/impossible")) == b""
        assert (await exchange(address, request("/hello"))).endswith(b"hello\n")


async def test_who_sends_no_whole_request_is_cut_off() -> None:
    async with serving(idle_s=0.05) as (_, address), await dial(address) as stream:
        await stream.send_all(b"GET /hello HTT")
        assert await stream.receive_some() == b""


async def test_idle_connections_make_room_those_that_began_first() -> None:
    async with serving() as (port, address):
        streams = [await dial(address) for _ in range(CONNECTIONS_MAX)]
        for stream in streams:
            await stream.send_all(request("/hello", more=""))
            await stream.receive_some()
        await streams[0].send_all(request("/hello", more=""))
        await streams[0].receive_some()  # it is the last to have become idle
        assert (await exchange(address, request("/hello"))).endswith(b"hello\n")
        assert await streams[1].receive_some() == b""
        await streams[0].send_all(request("/hello"))
        assert (await streams[0].receive_some()).startswith(b"HTTP/1.1 200")
        assert port.refused_count == 0
        for stream in streams:
            await stream.aclose()


async def test_connections_are_turned_away_while_all_are_being_answered() -> None:
    going_on = trio.Event()
    asked = 0

    async def slow() -> Page:
        nonlocal asked
        asked += 1
        await going_on.wait()
        return plain(200, "slow")

    async with serving({"/slow": slow}) as (port, address):
        streams = [await dial(address) for _ in range(CONNECTIONS_MAX)]
        for stream in streams:
            await stream.send_all(request("/slow"))
        await wait_until(lambda: asked == CONNECTIONS_MAX)
        async with await dial(address) as one_more:
            assert await one_more.receive_some() == b""
        assert port.refused_count == 1
        going_on.set()
        for stream in streams:
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
            await stream.aclose()


async def test_who_takes_no_answer_holds_a_connection_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_port, "WRITE_S", 0.05)
    begun = trio.Event()

    async def large() -> Page:
        assert port.open_count == 1
        begun.set()
        return Page(bytes(64 << 20), "application/octet-stream")

    async with serving({"/large": large}) as (port, address), await dial(address) as stream:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await stream.send_all(request("/large", more=""))
        await begun.wait()
        await wait_until(lambda: port.open_count == 0)


async def test_who_reads_a_page_slowly_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_port, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(http_port, "UNHURRIED_S", PATIENCE_S)
    monkeypatch.setattr(http_port, "WRITE_S", PATIENCE_S)

    async def large() -> Page:
        return Page(bytes(16 << 20), "application/octet-stream")

    pages = {"/large": large, "/hello": _hello}
    async with serving(pages) as (port, address), AsyncExitStack() as stack:
        for _ in range(2):
            slow = await stack.enter_async_context(await dial(address))
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await slow.send_all(request("/large", more=""))
        await wait_until(lambda: len(port._reading) == 2)
        async with await dial(address) as one_more:
            assert await one_more.receive_some() == b"", "they may be no slower than others"
        monkeypatch.setattr(http_port, "UNHURRIED_S", 0.0)
        for _ in range(3):
            assert (await exchange(address, request("/hello"))).endswith(b"hello\n")
        assert port.refused_count == 1


# The pages of a server.


@asynccontextmanager
async def endpoint(
    readiness: Callable[[], Readiness], registry: CollectorRegistry
) -> AsyncIterator[Address]:
    sock = bind(Address("127.0.0.1", 0))
    address = bound_address(sock)
    async with trio.open_nursery() as nursery:
        await nursery.start(Endpoint(sock, registry, readiness).run)
        yield address
        nursery.cancel_scope.cancel()


async def test_readiness_is_a_status_with_its_causes_and_health_is_that_it_answers() -> None:
    states = [Readiness(facts={"leader": "n1"}), Readiness(("no leader", "full"), {"leader": ""})]
    async with endpoint(lambda: states.pop(0), CollectorRegistry()) as address:
        answers = [await exchange(address, request("/readyz")) for _ in range(2)]
        health = await exchange(address, request("/healthz"))
    heads, bodies = zip(*(answer.split(b"\r\n\r\n") for answer in answers), strict=True)
    assert [head.split()[1] for head in heads] == [b"200", b"503"]
    assert [json.loads(body) for body in bodies] == [
        {"ready": True, "causes": [], "leader": "n1"},
        {"ready": False, "causes": ["no leader", "full"], "leader": ""},
    ]
    assert health.endswith(b"\r\n\r\nok\n")


async def test_figures_are_made_once_for_all_who_ask_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_module, "FRESH_S", PATIENCE_S)

    class Counting(CollectorRegistry):
        count = 0

        def collect(self) -> Iterator[Metric]:
            self.count += 1
            return iter(super().collect())

    registry = Counting()
    async with endpoint(Readiness, registry) as address, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(exchange, address, request("/metrics"))
    assert registry.count == 1
