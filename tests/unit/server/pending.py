"""Requests as services get them, and a router that parks them all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from broker.server.handlers.send_operations import SendOperation
from broker.server.requests.commits import Commits
from broker.server.requests.questions import Question
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand

KINDS = {
    10: RequestKind.SEND,
    310: RequestKind.SEND,
    320: RequestKind.SEND,
    36: RequestKind.SEND_BACK,
    14: RequestKind.QUESTION,
    38: RequestKind.QUESTION,
    17: RequestKind.ADMIN,
    30: RequestKind.READ,
}
"""Others change something, and twice is as once."""


def pending(
    origin: Any,
    code: int,
    *,
    body: bytes = b"",
    command: Any = None,
    serve: Callable[..., None] = lambda _request, _command: None,
    deadline_ms: int = 10**9,
    is_oneway: bool = False,
    opaque: int = 9,
    request_type: type[PendingRequest] = PendingRequest,
    **more: Any,
) -> PendingRequest:
    """A request of that code."""
    kind = KINDS.get(code, RequestKind.UPDATE)
    if kind is RequestKind.QUESTION:
        request_type = Question
    elif kind is RequestKind.SEND:
        request_type = SendOperation
    handler: Handler[Any] = Handler(code, serve, kind, request_type=request_type)
    command = command or RemotingCommand(code=code, opaque=opaque, version=409)
    frame = Frame(0, b"{}", body)
    return request_type(origin, handler, frame, command, opaque, is_oneway, deadline_ms, **more)


class Confirmed:
    """Reads of a leader that holds its lease."""

    def read(self, act: Callable[[], None], failed: Callable[..., None]) -> None:
        act()


class NoResets:
    """Nobody has reset an offset, or is a tool that would."""

    def admit_first(
        self, _request: PendingRequest, _place: object, _given_id: str, act: Callable[[], None]
    ) -> None:
        act()

    def is_by_tool(self, _group: str, _address: str) -> bool:
        return False


class ParkingRouter(Router):
    """Parks everything; `held` is what it has."""

    def __init__(self, commits: Commits, linear: object | None = None) -> None:
        super().__init__(
            cast("Any", SimpleNamespace(reader=None)),
            MagicMock(),
            cast("Any", linear or Confirmed()),
            commits,
            waiting_max=10,
            now_ms=lambda: 0,
        )
        self.held: list[PendingRequest] = []

    def route(self, request: PendingRequest) -> None:
        self.park(request)

    def park(self, request: PendingRequest) -> None:
        self.held.append(request)
