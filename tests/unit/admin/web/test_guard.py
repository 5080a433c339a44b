"""What is refused before a page is asked for, and what browsers are told with every answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx
import pytest
import trio

from broker.admin.web import guard
from broker.admin.web.access import Access
from broker.admin.web.app import make_app
from tests.unit.admin.web.consoles import TOKEN, client_of, console_of, sampler_of, whole_look


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    console = console_of(sampler_of(whole_look()), Access(TOKEN, may_change=True))
    async with client_of(console, "console.example") as asking:
        yield asking


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8088", 200),
        ("localhost:1", 200),
        ("[::1]:8088", 200),
        ("192.0.2.7", 200),
        ("console.example", 200),
        ("CONSOLE.example:443", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8088", 421),
        ("localhost.evil.example", 421),
        ("user@evil.example", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
async def test_a_name_that_others_may_point_here_is_refused(
    client: httpx.AsyncClient, host: str, status: int
) -> None:
    answer = await client.get("/", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/", "/topics", "/absent", "/sign-in", "/static/console.css"])
async def test_every_answer_tells_browsers_what_is_allowed(
    client: httpx.AsyncClient, path: str
) -> None:
    headers = (await client.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "same-origin"


async def test_refusals_have_the_same_headers(client: httpx.AsyncClient) -> None:
    answer = await client.get("/", headers={"host": "evil.example"})
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_form_of_another_page_is_refused(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await client.post("/sign-in", data={"token": TOKEN}, headers=headers)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


async def test_a_form_of_its_own_page_is_taken(client: httpx.AsyncClient) -> None:
    headers = {"origin": "http://127.0.0.1:8088", "sec-fetch-site": "same-origin"}
    answer = await client.post("/sign-in", data={"token": TOKEN}, headers=headers)
    assert answer.status_code == 303


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
async def test_other_methods_are_refused(client: httpx.AsyncClient, method: str) -> None:
    assert (await client.request(method, "/")).status_code == 405


async def test_long_addresses_are_refused(client: httpx.AsyncClient) -> None:
    assert (await client.get("/topics?q=" + "x" * guard.TARGET_BYTES_MAX)).status_code == 414


@pytest.mark.parametrize(
    ("parts", "status"),
    [([guard.BODY_BYTES_MAX], 404), ([guard.BODY_BYTES_MAX, 1], 413), ([40_000] * 1000, 413)],
)
async def test_a_large_body_is_refused_and_not_read_to_its_end(
    parts: list[int], status: int
) -> None:
    console = console_of(sampler_of(whole_look()))
    left, sent = list(parts), []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"x" * left.pop(0), "more_body": bool(left)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("status"))

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sign-in",
        "raw_path": b"/sign-in",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "scheme": "http",
        "server": ("127.0.0.1", 8088),
    }
    await make_app(console)(scope, receive, send)
    assert sent[0] == status
    assert len(parts) - len(left) <= 2


async def test_a_body_that_does_not_come_keeps_no_place(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent: list[object] = []

    async def receive() -> MutableMapping[str, Any]:
        await trio.sleep(9)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("status"))

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "query_string": b"", "headers": headers}
    await make_app(console_of(sampler_of(whole_look())))(scope, receive, send)
    assert sent[0] == 408
    assert trio.current_time() <= guard.BODY_WITHIN_S + 1


async def test_so_many_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REQUESTS_AT_ONCE_MAX", 1)
    console = console_of(sampler_of(whole_look()), Access(TOKEN))
    statuses: list[int] = []
    async with client_of(console) as client, trio.open_nursery() as nursery:
        # A wrong token takes a moment; the lock of the sign-ins shows that it has begun.
        nursery.start_soon(client.post, "/sign-in")
        while not console.sign_ins.is_busy:
            await trio.lowlevel.checkpoint()
        statuses.append((await client.get("/")).status_code)
    async with client_of(console) as client:
        statuses.append((await client.get("/")).status_code)
    assert statuses == [503, 200]
