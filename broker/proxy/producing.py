"""Sends, ends of transactions, and recalls.

A message without a group goes to the queue that its id chooses, so a client that sends it again comes to the same
queue, where the broker recognises it. With a group it goes to the queue that Apache's proxy would choose.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import anyio

from broker.proxy import checks
from broker.proxy.facts import Facts
from broker.proxy.handles import OpenTransaction
from broker.proxy.outgoing import MessageToSend, outgoing
from broker.proxy.protocol import (
    EndTransactionResponse,
    RecallMessageResponse,
    SendMessageResponse,
    SendResultEntry,
)
from broker.proxy.protocol.numbers import SOURCE_SERVER_CHECK, Code, TransactionResolution
from broker.proxy.refusals import CallRefusedError, joined, refusal_of, refused_with, status
from dledger_mq.client.errors import ClientError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.session import Session
from dledger_mq.client.transaction_producer import TransactionState
from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.hashes import consistent_hash, java_hash
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.recall_handle import HandleError, RecallHandle
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

SEND_TIMEOUT_S: Final = 10.0
"""Outlives a failover; a client that has given up before sends the same message again."""

MESSAGES_MAX: Final = 128
"""Of one call."""

BYTES_MAX: Final = 256 * 1024 * 1024
"""Of calls that wait for brokers; beyond it they are refused, which frees their memory."""

THREAD_BYTES: Final = 64 * 1024
"""Larger calls are read beside the loop: packing takes 20 ms for a MiB."""

_STATUS_CODES: Final = {
    int(ResponseCode.FLUSH_DISK_TIMEOUT): Code.MASTER_PERSISTENCE_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): Code.SLAVE_PERSISTENCE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): Code.HA_NOT_AVAILABLE,
}
_ENDS: Final = {
    int(TransactionResolution.COMMIT): TransactionState.COMMIT,
    int(TransactionResolution.ROLLBACK): TransactionState.ROLLBACK,
}


class Producing:
    """Carries out what producers ask for."""

    def __init__(self, session: Session, facts: Facts) -> None:
        self._session = session
        self._facts = facts
        self._bytes = 0

    async def send(self, request: Any, client_host: str) -> Any:
        """Answer SendMessage: each message has its own result.

        Raises:
            CallRefusedError: none was sent.
        """
        if not 0 < len(request.messages) <= MESSAGES_MAX:
            text = f"the call has {len(request.messages)} messages, not 1 to {MESSAGES_MAX}"
            raise CallRefusedError(Code.MESSAGE_CORRUPTED, text)
        size = request.ByteSize()
        if self._bytes + size > BYTES_MAX:
            text = f"sends of {self._bytes} bytes are under way, at most {BYTES_MAX}"
            raise CallRefusedError(Code.TOO_MANY_REQUESTS, text)
        self._bytes += size
        try:
            read = partial(_messages_of, request, client_host)
            messages = await anyio.to_thread.run_sync(read) if size > THREAD_BYTES else read()
            return await self._send_all(messages)
        finally:
            self._bytes -= size

    async def _send_all(self, messages: Sequence[MessageToSend]) -> Any:
        """Send messages at the same time, but those of one message group one after the other."""
        if len(messages) == 1:  # without tasks, which cost as much as the send
            entry = await self._entry(messages[0])
            return SendMessageResponse(status=entry.status, entries=[entry])
        entries: list[Any] = [None] * len(messages)
        rows: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            rows.setdefault(message.group or f" {place}", []).append(place)

        async def send_row(places: list[int]) -> None:
            for place in places:
                entries[place] = await self._entry(messages[place])
                if entries[place].status.code != Code.OK:
                    break  # what follows must not come before it

        async with anyio.create_task_group() as tasks:
            for places in rows.values():
                tasks.start_soon(send_row, places)
        text = "not sent: a message of its group before it was not"
        entries = [
            SendResultEntry(status=status(Code.HA_NOT_AVAILABLE, text)) if one is None else one
            for one in entries
        ]
        return SendMessageResponse(status=joined(one.status for one in entries), entries=entries)

    async def _entry(self, message: MessageToSend) -> Any:
        try:
            return await self._send(message)
        except ClientError as error:
            refusal = refusal_of(error)
            return SendResultEntry(status=status(refusal.code, str(refusal)))
        except CallRefusedError as error:
            return SendResultEntry(status=status(error.code, str(error)))

    async def _send(self, message: MessageToSend) -> Any:
        """Return the result of one message.

        Raises:
            CallRefusedError, ClientError: it is not stored, or nobody knows.
        """
        routes = self._session.routes
        queues = routes.sure_publish_queues(message.topic) or await routes.publish_queues(
            message.topic
        )
        await self._check_kind(message, queues)
        queue = queues[_place(message, len(queues))]
        ext = {
            "a": message.topic,
            "b": message.topic,
            "c": "TBW102",
            "d": str(routes.default_queues),
            "e": str(queue.queue_id),
            "f": str(message.sys_flag),
            "g": str(message.born_ms),
            "h": "0",
            "i": message.properties.decode(),
            "j": "0",
            "k": "false",
            "m": "false",
        }
        answer, doubt = await self._session.call_group_in_doubt(
            queue.broker_name,
            RequestCode.SEND_MESSAGE_V2,
            ext,
            message.body,
            timeout_s=SEND_TIMEOUT_S,
            try_timeout_s=SEND_TIMEOUT_S,
            is_gathered=True,
        )
        if answer.code == ResponseCode.SUCCESS:
            return _sent(message, queue, answer)
        if answer.code in _STATUS_CODES:
            raise CallRefusedError(
                _STATUS_CODES[answer.code], answer.remark or "stored, with less certainty"
            )
        if doubt is not None:
            raise refusal_of(doubt)
        raise refused_with(answer.code, answer.remark or "")

    async def _check_kind(self, message: MessageToSend, queues: Sequence[MessageQueue]) -> None:
        """Refuse a message of a kind that its topic does not take; where no broker tells it may be sent."""
        kinds = self._facts.known_kinds(message.topic)
        if not kinds:
            brokers = sorted({queue.broker_name for queue in queues})
            try:
                kinds = await self._facts.kinds(message.topic, brokers)
            except (CallRefusedError, ClientError):
                return
        if message.kind not in kinds:
            text = f"topic {message.topic} takes {', '.join(one.name for one in kinds)}, not {message.kind.name}"
            raise CallRefusedError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)

    async def end(self, request: Any) -> Any:
        """Answer EndTransaction. A resolution that decides nothing is noted by nobody: brokers ask again.

        Raises:
            CallRefusedError, ClientError: it has ended otherwise, or nobody knows.
        """
        topic = checks.topic_of(request.topic)
        found = OpenTransaction.decode(request.transaction_id)
        state = _ENDS.get(request.resolution)
        if state is None:
            return EndTransactionResponse(status=status(Code.OK))
        await self._known(topic, found.broker_name)
        ext = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": str(found.queue_offset),
            "commitLogOffset": str(found.physical_offset),
            "msgId": found.unique_key,
            "transactionId": found.unique_key,
            "commitOrRollback": str(state.value),
            "fromTransactionCheck": str(request.source == SOURCE_SERVER_CHECK).lower(),
        }
        answer = await self._session.call_group(
            found.broker_name, RequestCode.END_TRANSACTION, ext, timeout_s=SEND_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_with(answer.code, answer.remark or "")
        return EndTransactionResponse(status=status(Code.OK))

    async def recall(self, request: Any) -> Any:
        """Answer RecallMessage.

        Raises:
            CallRefusedError, ClientError: it is too late, or nobody knows.
        """
        topic = checks.topic_of(request.topic)
        try:
            meant = RecallHandle.decode(request.recall_handle)
        except HandleError as error:
            text = f"{request.recall_handle[:80]!r} is no recall handle: {error}"
            raise CallRefusedError(Code.INVALID_RECEIPT_HANDLE, text) from error
        if meant.topic != topic:
            text = f"the recall handle is of topic {meant.topic}, not {topic}"
            raise CallRefusedError(Code.INVALID_RECEIPT_HANDLE, text)
        await self._known(topic, meant.broker_name)
        ext = {"producerGroup": topic, "topic": topic, "recallHandle": request.recall_handle}
        answer = await self._session.call_group(
            meant.broker_name, RequestCode.RECALL_MESSAGE, ext, timeout_s=SEND_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_with(answer.code, answer.remark or "")
        return RecallMessageResponse(status=status(Code.OK), message_id=meant.unique_key)

    async def _known(self, topic: str, broker_name: str) -> None:
        """Let the addresses of a topic's broker groups be known, if this one's are not."""
        if not self._session.routes.knows(broker_name):
            await self._session.routes.refresh(topic)


def _messages_of(request: Any, client_host: str) -> list[MessageToSend]:
    """Read the messages of a call.

    Raises:
        CallRefusedError: one is none, or they are of several topics.
    """
    now_ms = time.time_ns() // 1_000_000
    found = [outgoing(one, client_host=client_host, now_ms=now_ms) for one in request.messages]
    if len({one.topic for one in found}) > 1:
        raise CallRefusedError(Code.MESSAGE_CORRUPTED, "the messages of one call are of one topic")
    return found


def _sent(message: MessageToSend, queue: MessageQueue, answer: RemotingCommand) -> Any:
    """Return the result of a message that is stored.

    Raises:
        CallRefusedError: the answer says not where; it is stored all the same.
    """
    said = answer.ext
    try:
        offset = int(said["queueOffset"])
        physical_offset = parse_offset_msg_id(said["msgId"])[2]
    except (KeyError, ValueError, MessageIdError) as error:
        text = f"it may have been done: {queue} answered without its place: {error}"
        raise CallRefusedError(Code.PROXY_TIMEOUT, text) from error
    entry = SendResultEntry(
        status=status(Code.OK),
        message_id=message.unique_key,
        offset=offset,
        recall_handle=said.get("recallHandle", ""),
    )
    if message.is_half:
        place = OpenTransaction(message.unique_key, queue.broker_name, offset, physical_offset)
        entry.transaction_id = place.encode()
    return entry


def _place(message: MessageToSend, count: int) -> int:
    """Return the place of a message's queue among `count`."""
    return consistent_hash(java_hash(message.group or message.unique_key), count)
