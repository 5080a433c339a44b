"""Acknowledging popped messages, and giving them another time: by their handles, following the leaders.

A handle is used up by the first request that is carried out. So a broker's word that nothing is in flight under it
means *expired* only if no earlier try may have been carried out; else nobody can tell, and that is what is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from dledger_mq.client.ack_errors import (
    AckOutcomeUnknownError,
    AckRefusedError,
    HandleExpiredError,
)
from dledger_mq.client.errors import (
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.popped_messages import PoppedMessage, popped_ms_of, with_new_time
from dledger_mq.client.session import Session
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.pop_bodies import (
    EACH_FIELD,
    ENDED_FIELD,
    POPPED_MAX,
    AckMark,
    PoppedBatch,
    encode_batch_ack,
)

BATCH_MESSAGES_MAX: Final = 1024
"""Messages of one request."""

_LOST: Final = (ClientClosedError, ConnectionLostError, RequestTimeoutError, NoRouteError)


@dataclass(slots=True)
class _Ends:
    """The messages of a call for which it did not end as wanted, and the first reason."""

    expired: list[PoppedMessage] = field(default_factory=list)
    unknown: list[PoppedMessage] = field(default_factory=list)
    undone: list[PoppedMessage] = field(default_factory=list)
    cause: ClientError | None = None

    def note(self, messages: Sequence[PoppedMessage], cause: ClientError) -> None:
        """Note messages of a request that ended in an error."""
        (self.undone if cause.definite else self.unknown).extend(messages)
        self.cause = self.cause or cause

    def note_dead(self, messages: Sequence[PoppedMessage], doubt: ClientError | None) -> None:
        """Note messages that are not in flight, after a try that may have ended that itself."""
        if doubt is None:
            self.expired.extend(messages)
        else:
            self.note(messages, doubt)

    def raise_for(self, what: str) -> None:
        """Raise what the caller has to know; nothing if all is done."""
        ends = {"expired": self.expired, "unknown": self.unknown, "undone": self.undone}
        counts = ", ".join(f"{len(found)} {name}" for name, found in ends.items() if found)
        if not counts:
            return
        first = (self.unknown or self.undone or self.expired)[0]
        text = f"{what}: {counts}, such as {first.queue} offset {first.queue_offset}"
        if self.unknown:
            text += f"; done or not, the answer was lost: {self.cause}"
            raise AckOutcomeUnknownError(text, **ends) from self.cause
        if self.undone:
            raise AckRefusedError(f"{text}; nothing was done: {self.cause}", **ends) from self.cause
        text += (
            "; nothing is in flight under the handle: it was used before, or its time was over and somebody else has "
            "the message, or it is in a retry or dead letter topic"
        )
        raise HandleExpiredError(text, **ends)


class Acknowledging:
    """Acknowledges in the name of one consumer group."""

    def __init__(self, session: Session, group: str, *, timeout_s: float) -> None:
        self._session = session
        self._group = group
        self._timeout_s = timeout_s

    async def acknowledge(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages, those of several broker groups at the same time.

        Raises:
            AckError: says of which it was not done, or is not known.
            ClientUsageError: a handle is none; nothing was sent.
        """
        by_broker: dict[str, list[PoppedMessage]] = {}
        for message in {one.handle + one.queue.topic: one for one in messages}.values():
            popped_ms_of(message)
            by_broker.setdefault(message.queue.broker_name, []).append(message)
        ends = _Ends()
        async with anyio.create_task_group() as tasks:
            for broker_name, some in by_broker.items():
                tasks.start_soon(self._acknowledge_at, broker_name, some, ends)
        ends.raise_for("not every message was acknowledged")

    async def change(self, message: PoppedMessage, invisible_ms: int) -> PoppedMessage:
        """Let nobody else get a message for so long from now on; return it with its new handle.

        Raises:
            AckError: its time was not changed, or that is not known.
            ClientUsageError: the handle is none; nothing was sent.
        """
        popped_ms_of(message)
        ends = _Ends()
        ext = self._fields(message) | {"invisibleTime": str(invisible_ms)}
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer = await self._ask(message.queue.broker_name, code, [message], ends, ext=ext)
        changed: PoppedMessage | None = None
        if answer is not None:
            try:
                changed = with_new_time(message, answer.ext)
            except ConnectionLostError as error:
                ends.note([message], error)
        ends.raise_for("the time was not changed")
        assert changed is not None, f"{message.handle} has no new handle, and nothing went wrong"
        return changed

    async def _acknowledge_at(
        self, broker_name: str, messages: list[PoppedMessage], ends: _Ends
    ) -> None:
        """Acknowledge the messages of one broker group: one by itself, several in batches."""
        if len(messages) == 1:
            ext, code = self._fields(messages[0]), RequestCode.ACK_MESSAGE
            await self._ask(broker_name, code, messages, ends, ext=ext)
            return
        messages.sort(key=lambda one: (one.queue, popped_ms_of(one), one.queue_offset))
        for first in range(0, len(messages), BATCH_MESSAGES_MAX):
            some = messages[first : first + BATCH_MESSAGES_MAX]
            body = encode_batch_ack(broker_name, self._batches(some))
            code, ext = RequestCode.BATCH_ACK_MESSAGE, {EACH_FIELD: "true"}
            await self._ask(broker_name, code, some, ends, ext=ext, body=body)

    async def _ask(
        self,
        broker_name: str,
        code: RequestCode,
        messages: list[PoppedMessage],
        ends: _Ends,
        *,
        ext: dict[str, str],
        body: bytes = b"",
    ) -> RemotingCommand | None:
        """Send a request about messages, and note which of them ended otherwise; return a successful answer."""
        try:
            answer, doubt = await self._session.call_group_in_doubt(
                broker_name,
                code,
                ext,
                body,
                timeout_s=self._timeout_s,
                try_timeout_s=self._timeout_s,  # a slow answer is better than one that cannot tell
            )
        except _LOST as error:
            ends.note(messages, error)
            return None
        if answer.code == ResponseCode.NO_MESSAGE:
            ends.note_dead(messages, doubt)
            return None
        if answer.code != ResponseCode.SUCCESS:
            refusal = RequestFailedError(answer.code, answer.remark or "")
            ends.note(messages, doubt or refusal)
            return None
        if marks := answer.ext.get(ENDED_FIELD, ""):
            _note_each(messages, marks, doubt, ends)
        return answer

    def _fields(self, message: PoppedMessage) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": message.queue.topic,
            "queueId": str(message.queue.queue_id),
            "extraInfo": message.handle,
            "offset": str(message.queue_offset),
        }

    def _batches(self, messages: list[PoppedMessage]) -> Iterator[PoppedBatch]:
        """Yield sorted messages pop by pop; one of which they lie far apart in several pieces."""
        batch: PoppedBatch | None = None
        for message in messages:
            queue, popped_ms, offset = message.queue, popped_ms_of(message), message.queue_offset
            place = (self._group, queue.topic, QueueId(queue.queue_id), popped_ms)
            if batch is not None and batch[:4] == place and offset - batch.offsets[0] < POPPED_MAX:
                batch.offsets.append(offset)
                continue
            if batch is not None:
                yield batch
            batch = PoppedBatch(*place, [offset])
        if batch is not None:
            yield batch


def _note_each(
    messages: list[PoppedMessage], marks: str, doubt: ClientError | None, ends: _Ends
) -> None:
    """Note the messages of a batch of which the answer says that it did not acknowledge them."""
    if len(marks) != len(messages):
        text = f"the answer has {len(marks)} marks for {len(messages)} messages"
        ends.note(messages, ConnectionLostError(text))
        return
    for message, mark in zip(messages, marks, strict=True):
        if mark == AckMark.NOT_IN_FLIGHT:
            ends.note_dead([message], doubt)
        elif mark != AckMark.ENDED:
            text = "the broker cannot tell: an earlier try of it may have been carried out"
            ends.note([message], doubt or ConnectionLostError(text))
