"""Pops, acknowledgements and changes of time as raw frames, to any node: each asked once, with no retry behind it.

What an answer says is taken literally; without one nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dledger_mq.client.credentials import chosen_credentials
from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.popped_messages import (
    PoppedMessage,
    popped_messages,
    popped_ms_of,
    with_new_time,
)
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode, is_definite
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request
from dledger_mq.remoting.pop_bodies import (
    EACH_FIELD,
    ENDED_FIELD,
    AckMark,
    PoppedBatch,
    encode_batch_ack,
)
from jepsen.clients.raw import raw_connection
from jepsen.history.outcomes import Outcome
from jepsen.history.values import HandleEnd

ANSWER_S: Final = 5.0
"""A node keeps a request for 2.5 s while its group elects, and a pop waits WAIT_MS."""

WAIT_MS: Final = 200

_PARTLY: Final = "messages are acknowledged"
"""A batch that says only that not all of it was in flight; RocketMQ's clients are told no more."""

_MARKS: Final[Mapping[str, HandleEnd]] = {
    AckMark.ENDED: "ok",
    AckMark.NOT_IN_FLIGHT: "gone",
    AckMark.PERHAPS_EARLIER: "info",
}


@dataclass(frozen=True, slots=True)
class RawPop:
    """One pop as it is asked for.

    Attributes:
        attempt: the same for one that repeats a pop in order whose answer was lost.
    """

    group: str
    topic: str
    count_max: int
    invisible_ms: int
    is_ordered: bool
    attempt: str


class RawPops:
    """Asks the nodes of one broker group.

    Args:
        broker_name: of the broker group.
        addresses: of its nodes.
    """

    def __init__(self, broker_name: str, addresses: Sequence[str]) -> None:
        self._broker_name = broker_name
        self._addresses = addresses

    async def pop(self, node: int, asked: RawPop) -> tuple[PoppedMessage, ...] | Outcome:
        """Pop at a node; return what was handed out, nothing if there was nothing, or how it failed."""
        ext = {
            "consumerGroup": asked.group,
            "topic": asked.topic,
            "queueId": "-1",
            "maxMsgNums": str(asked.count_max),
            "invisibleTime": str(asked.invisible_ms),
            "pollTime": str(WAIT_MS),
            "bornTime": str(time.time_ns() // 1_000_000),
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": str(asked.is_ordered).lower(),
            "attemptId": asked.attempt,
        }
        answer = await self._ask(node, RequestCode.POP_MESSAGE, ext)
        if isinstance(answer, Outcome):
            return answer
        if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL):
            return ()
        if answer.code != ResponseCode.SUCCESS:
            return _refused(answer)
        try:
            return popped_messages(answer.body, answer.ext, self._broker_name)
        except ConnectionLostError as error:
            return Outcome("info", error=str(error))

    async def acknowledge(self, node: int, group: str, message: PoppedMessage) -> HandleEnd:
        """Acknowledge one message by its handle."""
        answer = await self._ask(node, RequestCode.ACK_MESSAGE, _fields(group, message))
        return _end(answer)

    async def acknowledge_batch(
        self, node: int, group: str, messages: Sequence[PoppedMessage], *, each: bool
    ) -> list[HandleEnd]:
        """Acknowledge messages of one queue and pop together; with `each` the answer tells of each, else of all."""
        queue, popped_ms = messages[0].queue, popped_ms_of(messages[0])
        offsets = sorted(message.queue_offset for message in messages)
        places = [offsets.index(message.queue_offset) for message in messages]
        batch = PoppedBatch(group, queue.topic, QueueId(queue.queue_id), popped_ms, offsets)
        body = encode_batch_ack(self._broker_name, [batch])
        ext = {EACH_FIELD: "true"} if each else {}
        answer = await self._ask(node, RequestCode.BATCH_ACK_MESSAGE, ext, body)
        if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS and each:
            marks = answer.ext.get(ENDED_FIELD, "")
            if len(marks) == len(messages):
                return [_MARKS.get(marks[place], "info") for place in places]
            return ["info"] * len(messages)
        return [_end(answer)] * len(messages)

    async def change(
        self, node: int, group: str, message: PoppedMessage, invisible_ms: int
    ) -> PoppedMessage | HandleEnd:
        """Ask for another time; return the message with its new handle, or how it failed."""
        ext = _fields(group, message) | {"invisibleTime": str(invisible_ms)}
        answer = await self._ask(node, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if not isinstance(answer, RemotingCommand) or answer.code != ResponseCode.SUCCESS:
            return _end(answer)
        try:
            return with_new_time(message, answer.ext)
        except ConnectionLostError:
            return "info"

    async def _ask(
        self, node: int, code: int, ext: Mapping[str, str], body: bytes = b""
    ) -> RemotingCommand | Outcome:
        """Return the answer of a node, or how it ended without one."""
        credentials = chosen_credentials()
        fields = dict(ext) if credentials is None else credentials.sign(ext, body)
        async with raw_connection(self._addresses[node % len(self._addresses)]) as connection:
            if connection is None:
                return Outcome("fail", error="no connection")
            await connection.write(encode_command(make_request(code, 1, fields, body)))
            await connection.wait_for([1], ANSWER_S)
            answer = connection.answers.get(1)
        return Outcome("info", error="no answer") if answer is None else answer


def _fields(group: str, message: PoppedMessage) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": message.queue.topic,
        "queueId": str(message.queue.queue_id),
        "offset": str(message.queue_offset),
        "extraInfo": message.handle,
    }


def _refused(answer: RemotingCommand) -> Outcome:
    is_fail = is_definite(answer.code)
    return Outcome("fail" if is_fail else "info", error=f"{answer.code}: {answer.remark}")


def _end(answer: RemotingCommand | Outcome) -> HandleEnd:
    """Return what an answer says of a handle, or of all of a batch."""
    if isinstance(answer, Outcome):
        return "fail" if answer.type == "fail" else "info"
    if answer.code == ResponseCode.SUCCESS:
        return "ok"
    if answer.code == ResponseCode.NO_MESSAGE:
        return "info" if _PARTLY in (answer.remark or "") else "gone"
    return "fail" if is_definite(answer.code) else "info"
