"""What tools ask of clients, through the broker: offsets (223), running info (307), consuming one message (309).

The leader asks, and hands on what the client says. How a client is found and awaited is not known here
(client_calls.py), nor how it is told of a reset (resets.py).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.server.handlers.client_calls import ClientCalls, End
from broker.server.handlers.members import Members
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.connections import consumer_status
from broker.service.refusal import Refusal
from broker.store.kept_log import KeptLog
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.state import BrokerState
from dledger import LogServer
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_request

STATUS_CLIENTS_MAX: Final = 16
"""Clients whose offsets one answer shows."""


class ClientTools:
    """Asks clients for tools."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        router: Router,
        *,
        members: Members,
        calls: ClientCalls,
        broker_name: str,
    ) -> None:
        """Set up the requests.

        Args:
            log: from which the message to be consumed is read.
            state: what of the log is shown.
            router: waits for the disk.
            members: the live clients of all nodes.
            calls: asks a client.
            broker_name: of the group in routes.
        """
        self._log = log
        self._state = state
        self._router = router
        self._members = members
        self._calls = calls
        self._broker_name = broker_name

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, read = RequestCode, RequestKind.READ
        return tuple(
            Handler(each, serve, kind, is_confirmed=True)
            for each, serve, kind in (
                (code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.status, read),
                (code.GET_CONSUMER_RUNNING_INFO, self.running_info, read),
                (code.CONSUME_MESSAGE_DIRECTLY, self.consume, RequestKind.ADMIN),
            )
        )

    def running_info(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_CONSUMER_RUNNING_INFO with what the client says.

        Raises:
            FieldError: a field is missing.
        """
        self._hand_on(request, command)

    def consume(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CONSUME_MESSAGE_DIRECTLY: the client gets the message, and says what came of it.

        Raises:
            FieldError: a field is missing.
        """
        ext = command.ext
        try:
            offset = parse_offset_msg_id(fields.text(ext, "msgId"))[2]
            log = KeptLog(self._log.reader, self._state.retention)
            reader = RecordReader(log, only_memory=self._router.may_wait_for_disk(request))
            message = bytes(reader.read_at(offset))
        except (MessageFormatError, MessageGoneError) as error:
            request.answer(ResponseCode.SYSTEM_ERROR, f"no such message: {error}")
            return
        named = {**ext, "brokerName": self._broker_name}
        self._hand_on(request, make_request(command.code, 0, named, message))

    def _hand_on(self, request: PendingRequest, wanted: RemotingCommand) -> None:
        ext = wanted.ext
        group, client_id = fields.text(ext, "consumerGroup"), fields.text(ext, "clientId")
        self._calls.ask(group, client_id, wanted, then=partial(_answer, request))

    def status(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer INVOKE_BROKER_TO_GET_CONSUMER_STATUS with the offsets that the members of a group say they are at.

        Raises:
            FieldError: a field is missing.
        """
        ext = command.ext
        group, topic = fields.text(ext, "group"), fields.text(ext, "topic")
        only = ext.get("clientAddr", "")
        ids = [each for each in self._members.members(group) if only in ("", each)]
        if not ids:
            text = f"No Any Consumer online in the consumer group: [{group}]"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        elif len(ids) > STATUS_CLIENTS_MAX:
            text = f"the group has {len(ids)} members; name one of them, or ask for no more than {STATUS_CLIENTS_MAX}"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        else:
            gathered = _Statuses(request, len(ids))
            code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            wanted = make_request(code, 0, {"topic": topic, "group": group})
            for client_id in ids:
                self._calls.ask(group, client_id, wanted, then=partial(gathered.add, client_id))


class _Statuses:
    """The answers of some clients to one tool, which is answered once all have come."""

    def __init__(self, request: PendingRequest, wanted: int) -> None:
        self._request = request
        self._wanted = wanted
        self._bodies: dict[str, bytes] = {}
        self._problems: list[str] = []

    def add(self, client_id: str, end: End) -> None:
        """Take a client's answer, or why there is none."""
        if isinstance(end, Refusal):
            self._problems.append(end.remark or "")
        elif end.code != ResponseCode.SUCCESS:
            self._problems.append(f"{client_id} answered {end.code}: {end.remark}")
        else:
            self._bodies[client_id] = end.body
        if len(self._bodies) + len(self._problems) == self._wanted:
            self._answer()

    def _answer(self) -> None:
        remark = "; ".join(self._problems) or None
        if self._bodies:
            body = consumer_status(self._bodies)
            self._request.answer(ResponseCode.SUCCESS, remark, body=body)
        else:
            self._request.answer(ResponseCode.SYSTEM_ERROR, remark)


def _answer(request: PendingRequest, end: End) -> None:
    """Answer a tool with what the client has answered, or why it did not."""
    if isinstance(end, Refusal):
        request.answer(end.code, end.remark)
    else:
        request.answer(end.code, end.remark, end.ext, end.body)
