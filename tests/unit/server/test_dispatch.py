"""Every code has one handler; what another node passes on is taken like what a client sends itself."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from broker.server.handlers.link_server import LinkServer
from broker.server.links.private_codes import TRIED_FIELD, WAITED_FIELD, PrivateCode, link_proof
from broker.server.requests.dispatch import Dispatch
from broker.server.requests.origin import ClientOrigin
from broker.server.requests.request import HOLD_MS, Handler, PendingRequest, Where
from broker.service.conclusions import RequestKind
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
    make_response,
)

NONCE = "abc"


def frames_of(*commands: RemotingCommand) -> list[Frame]:
    decoder = FrameDecoder()
    decoder.feed(b"".join(map(encode_command, commands)))
    return decoder.frames()


class Bench:
    """A dispatch whose router remembers what it gets; `link` is a connection that has said nothing yet."""

    def __init__(self) -> None:
        self.router = MagicMock()
        self.served: list[RemotingCommand] = []
        self.dispatch = Dispatch(self.router, lambda: 100)
        self.delivered: list[str] = []
        server = LinkServer(
            group="g",
            is_member={"n1"}.__contains__,
            secret=None,
            nonce=NONCE,
            needs_secret=False,
            frame_bytes_max=1 << 20,
            handle=self.dispatch.handle,
            delivered=self.delivered.append,
            sync_clients=MagicMock(),
            read_point=MagicMock(),
            client_answered=MagicMock(),
        )
        self.dispatch.register(server.handlers())
        self.dispatch.register(
            [
                Handler(41, MagicMock(), RequestKind.UPDATE),
                Handler(28, self._serve, RequestKind.READ, Where.HERE),
            ]
        )
        self.link = MagicMock(spec=ClientOrigin, number=7, is_forwarded=False, address="h:1")

    def _serve(self, request: PendingRequest, command: RemotingCommand) -> None:
        self.served.append(command)
        request.answer(0)

    def exchange(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        """Commands on the link; gives what was answered."""
        self.link.send.reset_mock()
        self.dispatch.handle(self.link, frames_of(*commands))
        decoder = FrameDecoder()
        decoder.feed(b"".join(call.args[0] for call in self.link.send.call_args_list))
        return [decode_command(frame) for frame in decoder.frames()]

    def send_hello(self) -> None:
        proof = link_proof(None, group="g", node_id="n1", nonce=NONCE)
        hello = {"group": "g", "node": "n1", "nonce": NONCE, "proof": proof}
        (answer,) = self.exchange(make_request(PrivateCode.HELLO, 1, hello))
        assert answer.code == 0

    def routed(self) -> Any:
        (request,) = self.router.route.call_args.args
        return request


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("was_tried", [False, True])
@pytest.mark.parametrize("waited_ms", [None, 700])
def test_what_the_clients_node_knows_comes_with_the_request(
    bench: Bench, *, was_tried: bool, waited_ms: int | None
) -> None:
    bench.send_hello()
    ext = {"address": "1.2.3.4:5"} | ({TRIED_FIELD: "true"} if was_tried else {})
    if waited_ms is not None:
        ext[WAITED_FIELD] = str(waited_ms)
    body = encode_command(make_request(41, 2, body=b"{}"))
    bench.exchange(make_request(PrivateCode.FORWARD, 3, ext, body))
    request = bench.routed()
    assert (request.handler.code, request.origin.is_forwarded) == (41, True)
    assert (request.may_be_done, request.was_held) == (was_tried, waited_ms is not None)
    assert request.waited_ms == (waited_ms or 0)


def test_nobody_speaks_between_nodes_without_a_hello(bench: Bench) -> None:
    (answer,) = bench.exchange(make_request(PrivateCode.FORWARD, 3, {"address": "1.2.3.4:5"}))
    assert answer.code == 16
    bench.send_hello()
    bench.exchange(make_request(PrivateCode.DELIVERED, 4, {"msgId": "x"}))
    assert bench.delivered == ["x"]


def test_frames_are_taken_in_their_order_with_one_deadline(bench: Bench) -> None:
    bench.exchange(make_request(41, 1), make_request(41, 2))
    requests = [call.args[0] for call in bench.router.route.call_args_list]
    assert [(each.opaque, each.deadline_ms) for each in requests] == [
        (1, 100 + HOLD_MS),
        (2, 100 + HOLD_MS),
    ]


def test_what_needs_no_leader_is_done_at_once_and_oneway_is_not_answered(bench: Bench) -> None:
    (answer,) = bench.exchange(make_request(28, 1), make_request(28, 2, is_oneway=True))
    assert (answer.opaque, len(bench.served)) == (1, 2)


def test_answers_are_no_requests_and_unknown_codes_are_refused(bench: Bench) -> None:
    (answer,) = bench.exchange(make_response(1, 28), make_request(9999, 2))
    assert (answer.code, answer.opaque) == (3, 2)
    assert answer.remark == " request type 9999 not supported"
    assert bench.served == []


def test_a_bad_field_of_one_request_does_not_keep_the_next(bench: Bench) -> None:
    refused, done = bench.exchange(make_request(11, 1, {"topic": "T"}), make_request(28, 2))
    assert (refused.code, refused.opaque, done.opaque) == (1, 1, 2)


def test_a_code_has_one_handler(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="two services handle 41"):
        bench.dispatch.register([Handler(41, MagicMock(), RequestKind.READ)])


def test_what_a_turn_has_no_time_for_is_left_to_the_next(bench: Bench) -> None:
    """One read may bring hundreds of requests that take 0.1 s each: a leader that did all of them would be deposed."""
    frames = frames_of(*(make_request(28, opaque) for opaque in (1, 2, 3)))
    assert bench.dispatch.handle(bench.link, frames, lambda: True) == 1
    assert bench.dispatch.handle(bench.link, frames[1:], lambda: True) == 1
    assert bench.dispatch.handle(bench.link, frames[2:], lambda: True) == 1
    assert [each.opaque for each in bench.served] == [1, 2, 3]


def test_a_guard_looks_once_at_each_whatever_a_turn_has_time_for(bench: Bench) -> None:
    looked: list[int] = []

    def refusal(_address: str, _frame: Frame, command: RemotingCommand) -> str | None:
        looked.append(command.opaque)
        return "no" if command.opaque % 2 else None

    bench.dispatch.guard = MagicMock(refusal=refusal)
    frames = frames_of(*(make_request(28, opaque) for opaque in range(1, 7)))
    answered = []
    while frames:
        bench.link.send.reset_mock()
        taken = bench.dispatch.handle(bench.link, frames, lambda: True)
        frames = frames[taken:]
        decoder = FrameDecoder()
        decoder.feed(b"".join(call.args[0] for call in bench.link.send.call_args_list))
        answered.append([decode_command(frame).opaque for frame in decoder.frames()])
    assert answered == [[1], [2], [3], [4], [5], [6]]
    assert looked == [1, 2, 3, 4, 5, 6]
    assert [each.opaque for each in bench.served] == [2, 4, 6]


def test_what_came_before_a_bad_header_is_carried_out_with_a_guard_too(bench: Bench) -> None:
    bench.dispatch.guard = MagicMock(refusal=lambda *_: None)
    frames = [*frames_of(make_request(28, 1)), Frame(0, b"{", b"")]
    with pytest.raises(FrameError):
        bench.dispatch.handle(bench.link, frames)
    assert [each.opaque for each in bench.served] == [1]
