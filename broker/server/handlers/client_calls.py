"""Requests of the broker to one client, and the client's answer: on the node where it is connected.

A client may be connected to any node, so the leader asks those that are connected to it, and has another node ask the
rest (ASK_CLIENT, CLIENT_ANSWERED; docs/formats/broker_link.md). An answer counts only if it comes over the connection
that was asked, with the number of the request; everything else that looks like one is dropped. Calls are bounded in
number and time, their answers in size; whoever asked hears of each end exactly once.

A consumer is known by its group and id, to the leader as well. One that waits for a reply is known by its id alone, to
the node where it is connected (requesters.py): in ASK_CLIENT the group is empty then, and without a frame only whether
it is there is asked.

What is asked is not known here (client_tools.py, replies.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from broker.server.handlers.members import Members
from broker.server.handlers.requesters import Requesters
from broker.server.links.link import LeaderLink
from broker.server.links.private_codes import PrivateCode
from broker.server.requests.origin import ClientOrigin
from broker.service.refusal import Refusal
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
    make_response,
)

CALLS_MAX: Final = 64
"""Calls of one node for tools that are open at a time; who else asks has a bound of its own."""

ANSWER_BYTES_MAX: Final = 4 << 20
"""Of an answer's body; the longest real ones show the stacks of all threads."""

CALL_MS: Final = 8_000
"""Wait for a client's answer: shorter than that of a node which passed the tool's request on."""

NODE_CALL_MS: Final = 9_000
"""Wait for another node that asks its client."""

CALL_FIELD: Final = "call"
PROBLEM_FIELD: Final = "problem"
CODE_FIELD: Final = "code"

End = RemotingCommand | Refusal
"""A client's answer, or why there is none."""

Then = Callable[[End], None]

_OPAQUE_MASK: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class _Call:
    """An open call; `then` hears of its end."""

    who: str
    deadline_ms: int
    then: Then
    is_of_tool: bool


class ClientCalls:
    """The open calls of one node."""

    def __init__(
        self,
        link: LeaderLink,
        members: Members,
        requesters: Requesters,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the calls; no client is asked.

        Args:
            link: to the leader, which has clients of this node asked.
            members: knows to which node a consumer is connected.
            requesters: knows the clients that are connected to this node by their ids.
            now_ms: a clock that never goes back.
        """
        self._link = link
        self._members = members
        self._requesters = requesters
        self._now_ms = now_ms
        self._numbers = count(1)
        self._open: dict[tuple[int, int], _Call] = {}
        """By the number of a connection and the call's own, which a client sees as the request's opaque."""
        link.register(PrivateCode.ASK_CLIENT, self._asked_by_leader)

    @property
    def open_count(self) -> int:
        """The count of calls that wait for an answer."""
        return len(self._open)

    def ask(
        self,
        group: str,
        client_id: str,
        wanted: RemotingCommand,
        *,
        then: Then,
    ) -> None:
        """Ask a member of a consumer group, wherever it is connected; this node leads."""
        if sum(call.is_of_tool for call in self._open.values()) >= CALLS_MAX:
            text = f"{CALLS_MAX} requests wait for answers of clients; ask again later"
            then(Refusal(ResponseCode.SYSTEM_BUSY, text))
            return
        origin = self._members.consumer_origin(group, client_id)
        if origin is not None:
            self.ask_at(origin, client_id, wanted, wait_ms=CALL_MS, then=then, is_of_tool=True)
            return
        link = self._members.exchange.link_of(group, client_id)
        if link is None:
            then(_not_online(group, client_id))
        else:
            self.ask_node(
                link,
                client_id,
                wanted,
                group=group,
                wait_ms=NODE_CALL_MS,
                then=then,
                is_of_tool=True,
            )

    def ask_at(
        self,
        origin: ClientOrigin,
        client_id: str,
        wanted: RemotingCommand,
        *,
        wait_ms: int,
        then: Then,
        is_of_tool: bool = False,
    ) -> None:
        """Ask a client over its connection to this node."""
        number = self._begin(origin, client_id, wait_ms, then, is_of_tool=is_of_tool)
        request = make_request(wanted.code, number, wanted.ext, wanted.body)
        origin.send(encode_command(request))

    def ask_node(
        self,
        link: ClientOrigin,
        client_id: str,
        wanted: RemotingCommand | None,
        *,
        group: str = "",
        wait_ms: int,
        then: Then,
        is_of_tool: bool = False,
    ) -> None:
        """Have another node ask a client of its own; None: only whether it is connected there."""
        number = self._begin(link, client_id, wait_ms, then, is_of_tool=is_of_tool)
        asked = {CALL_FIELD: str(number), "group": group, "clientId": client_id}
        frame = b""
        if wanted is not None:
            frame = encode_command(make_request(wanted.code, number, wanted.ext, wanted.body))
        link.send(
            encode_command(make_request(PrivateCode.ASK_CLIENT, 0, asked, frame, is_oneway=True))
        )

    def _begin(
        self, origin: ClientOrigin, client_id: str, wait_ms: int, then: Then, *, is_of_tool: bool
    ) -> int:
        """Note a call over a connection, and return its number."""
        number = next(self._numbers) & _OPAQUE_MASK
        deadline_ms = self._now_ms() + wait_ms
        self._open[origin.number, number] = _Call(client_id, deadline_ms, then, is_of_tool)
        return number

    # Answers.

    def answered(self, connection: int, response: RemotingCommand) -> None:
        """Take what came as an answer over a client's connection; it may be to nothing that was asked there."""
        call = self._open.pop((connection, response.opaque), None)
        if call is None:
            return
        if len(response.body) > ANSWER_BYTES_MAX:
            text = f"the answer of {call.who} has {len(response.body)} bytes"
            call.then(Refusal(ResponseCode.SYSTEM_ERROR, text))
        else:
            call.then(response)

    def answered_by_node(self, link: ClientOrigin, command: RemotingCommand) -> None:
        """Take the answer of a client that another node has asked.

        Raises:
            FieldError: the call is missing.
            FrameError: its answer cannot be read.
        """
        call = self._open.pop((link.number, fields.int32(command.ext, CALL_FIELD)), None)
        if call is None:
            return
        problem = command.ext.get(PROBLEM_FIELD)
        if problem is None:
            call.then(_command_in(command.body))
        else:
            code = ResponseCode(fields.int32(command.ext, CODE_FIELD))
            call.then(Refusal(code, problem))

    def connection_closed(self, number: int) -> None:
        """End the calls over a connection that ended."""
        for key in [key for key in self._open if key[0] == number]:
            call = self._open.pop(key)
            text = f"the connection of {call.who} ended before its answer came"
            call.then(Refusal(ResponseCode.SYSTEM_ERROR, text))

    def expire(self, now_ms: int) -> None:
        """End the calls whose time is over."""
        if self._open:
            for key in [key for key, call in self._open.items() if call.deadline_ms <= now_ms]:
                call = self._open.pop(key)
                text = f"{call.who} did not answer in time"
                call.then(Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, text))

    # For the leader.

    def _asked_by_leader(self, command: RemotingCommand) -> None:
        """Ask a client of this node, and give the leader its answer."""
        group, client_id = (command.ext.get(name, "") for name in ("group", "clientId"))
        reply = partial(self._reply_to_leader, command.ext.get(CALL_FIELD, ""))
        if group:
            origin = self._members.consumer_origin(group, client_id)
        else:
            origin = next(iter(self._requesters.origins(client_id)), None)
        if origin is None:
            reply(_not_online(group, client_id))
        elif command.body:
            wanted = _command_in(command.body)
            self.ask_at(origin, client_id, wanted, wait_ms=CALL_MS, then=reply)
        else:
            reply(make_response(0, ResponseCode.SUCCESS))

    def _reply_to_leader(self, call: str, end: End) -> None:
        ext = {CALL_FIELD: call}
        body = b""
        if not isinstance(end, Refusal):
            body = encode_command(end)
            if not self._link.has_room(len(body)):
                end = Refusal(ResponseCode.SYSTEM_BUSY, "too much is on its way to the leader")
        if isinstance(end, Refusal):
            ext |= {PROBLEM_FIELD: end.remark or "", CODE_FIELD: str(int(end.code))}
            body = b""
        self._link.send(PrivateCode.CLIENT_ANSWERED, ext=ext, body=body)


def _not_online(group: str, client_id: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")


def _command_in(frame: bytes) -> RemotingCommand:
    """Read a frame that another node sends whole.

    Raises:
        FrameError: it is none.
    """
    decoder = FrameDecoder()
    decoder.feed(frame)
    found = decoder.frames()
    if len(found) != 1:
        raise FrameError(f"{len(found)} frames of a client in place of one")
    return decode_command(found[0])
