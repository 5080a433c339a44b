"""What stands before the pages: foreign host names, foreign pages, too much at once; and what browsers are told.

A name that a stranger's server resolves to this machine (DNS rebinding) is refused: a request must name an address,
or a name that the operator has allowed. It must not know what the pages show.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX: Final = 64 * 1024
"""Of a request: the longest form has a token and some ids."""

TARGET_BYTES_MAX: Final = 8 * 1024
REQUESTS_AT_ONCE_MAX: Final = 64
BODY_WITHIN_S: Final = 10.0
"""Whoever sends a byte now and then keeps no place for longer."""

_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: with that browsers send `Origin: null` along with the console's own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
"""Of every answer."""

_READS: Final = frozenset({"GET", "HEAD"})


class Guard:
    """An ASGI application around another one.

    Args:
        app: is asked for what is let through.
        host_names: names in `Host` that are allowed beside addresses and `localhost`.
    """

    def __init__(self, app: ASGIApp, host_names: Collection[str] = ()) -> None:
        self._app = app
        self._host_names = frozenset(name.lower() for name in host_names) | {"localhost"}
        self._limiter = trio.CapacityLimiter(REQUESTS_AT_ONCE_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, _with_headers(send))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or refuse it by its head, its length, or for want of room."""
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        try:
            self._limiter.acquire_on_behalf_of_nowait(scope_key := object())
        except trio.WouldBlock:
            await _refuse(send, 503, "Too many requests at once; try again.")
            return
        try:
            body: bytes | None = b""
            with trio.move_on_after(BODY_WITHIN_S) as reading:
                body = await _read_body(receive)
            if reading.cancelled_caught:
                await _refuse(send, 408, "The request did not come to its end in time.")
                return
            if body is None:
                await _refuse(send, 413, "The request is too large.")
                return
            await self._app(scope, _given(body, receive), send)
        finally:
            self._limiter.release_on_behalf_of(scope_key)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason of a refusal by what stands in the head of a request; None: it is let through."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._is_host(hosts[0].decode("latin-1")):
            return (
                421,
                "This console does not go by that name: use its address, or start it with --host-name.",
            )
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > TARGET_BYTES_MAX:
            return 414, "The address is too long."
        if scope["method"] in _READS:
            return None
        if scope["method"] != "POST":
            return 405, "This console knows GET and POST only."
        if not _is_from_here(scope, hosts[0].decode("latin-1")):
            return 403, "This form was not sent from a page of this console."
        return None

    def _is_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._host_names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_from_here(scope: Scope, host: str) -> bool:
    """Return whether a browser says that a page of this console sends the form; other programs say nothing."""
    said = {name: value.decode("latin-1") for name, value in scope["headers"]}
    if said.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = said.get(b"origin")
    try:
        return origin is None or urlsplit(origin).netloc == host
    except ValueError:
        return False


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None: it is longer than allowed."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES_MAX:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _given(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already, and then what comes after it."""
    is_given = False

    async def give() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give


def _with_headers(send: Send) -> Send:
    """Return what adds to each answer what browsers are told."""

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            headers = list(message.get("headers", ()))
            headers += [(name, value) for name, value in HEADERS if name not in names]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return send_more


async def _refuse(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
