"""Receiving, acknowledging, giving messages another time, and dead letters: over pop, as our simple consumer does."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from broker.proxy import checks
from broker.proxy.clients import ProxyClient, subscription_of
from broker.proxy.facts import Facts
from broker.proxy.handles import message_of, receipt_of
from broker.proxy.incoming import incoming, set_time
from broker.proxy.protocol import (
    AckMessageResponse,
    ChangeInvisibleDurationResponse,
    ReceiveMessageResponse,
    message_class,
)
from broker.proxy.protocol.numbers import ClientType, Code
from broker.proxy.refusals import CallRefusedError, joined, refused_with, status
from broker.proxy.renewals import INVISIBLE_MS, Renewals
from dledger_mq.client.ack_errors import AckError
from dledger_mq.client.acknowledging import Acknowledging
from dledger_mq.client.errors import ClientError
from dledger_mq.client.pop_requests import POP_MAX, GroupPops
from dledger_mq.client.pop_watch import PopWatch
from dledger_mq.client.popped_messages import PoppedMessage
from dledger_mq.client.receiving import Receiver
from dledger_mq.client.session import Session
from dledger_mq.client.subscriptions import EVERYTHING, TopicSubscription, subscribe
from dledger_mq.message.names import retry_topic
from dledger_mq.remoting.codes import RequestCode, ResponseCode

TIMEOUT_S: Final = 10.0
WAIT_S_MAX: Final = 20.0
ANSWER_S: Final = 0.5
"""Of a call's time: kept for its answer."""

INVISIBLE_MS_MAX: Final = 3 * 24 * 3_600_000
ENTRIES_MAX: Final = 1024
RECEIVERS_MAX: Final = 10_000
GIVEN_BACK_MS: Final = 1000

_T = TypeVar("_T")
Write = Callable[[Any], Awaitable[None]]
_ForwardAnswer: Final = message_class("ForwardMessageToDeadLetterQueueResponse")


class Consuming:
    """Carries out what consumers ask for."""

    def __init__(self, session: Session, facts: Facts) -> None:
        self._session = session
        self._facts = facts
        self._acknowledging: dict[str, Acknowledging] = {}
        self._pops: dict[tuple[str, bool], tuple[GroupPops, PopWatch]] = {}
        self._receivers: dict[tuple[str, bool, str, str, str], Receiver] = {}
        self.renewals = Renewals(self.acknowledging, session.loop.now)

    def acknowledging(self, group: str) -> Acknowledging:
        """Return what acknowledges in the name of a group."""
        found = self._acknowledging.get(group)
        if found is None:
            found = Acknowledging(self._session, group, timeout_s=TIMEOUT_S)
            self._acknowledging[group] = found
        return found

    def forget_groups(self, groups: set[str]) -> None:
        """Forget what is kept for groups of which no client is left; `groups` are the others."""
        self._pops = {key: found for key, found in self._pops.items() if key[0] in groups}
        self._receivers = {key: found for key, found in self._receivers.items() if key[0] in groups}
        self._acknowledging = {
            group: found for group, found in self._acknowledging.items() if group in groups
        }

    async def receive(self, client: ProxyClient, request: Any, left_s: float, write: Write) -> None:
        """Answer ReceiveMessage: a status, the messages, and when they left; a status alone where there is none.

        Args:
            client: who receives.
            request: a `ReceiveMessageRequest`.
            left_s: so much is left of the call's time.
            write: takes each part of the answer.

        Raises:
            CallRefusedError, ClientError: a request is refused, or nobody could be asked; nothing was written.
        """
        topic, group = checks.topic_of(request.message_queue.topic), checks.group_of(request.group)
        is_kept = request.auto_renew and client.kind is ClientType.PUSH_CONSUMER
        invisible_ms = INVISIBLE_MS if is_kept else _milliseconds(request.invisible_duration)
        _check_invisible(invisible_ms)
        wanted = subscription_of(topic, request.filter_expression, time.time_ns() // 1_000_000)
        if is_kept and self.renewals.is_full:
            raise CallRefusedError(
                Code.TOO_MANY_REQUESTS, "too many messages are kept for consumers"
            )
        receiver = await self._receiver(group, wanted)
        batch = min(max(request.batch_size, 1), POP_MAX)
        messages = list(await receiver.receive(batch, invisible_ms, _wait_s(request, left_s)))
        try:
            code = Code.OK if messages else Code.MESSAGE_NOT_FOUND
            await write(ReceiveMessageResponse(status=status(code)))
            while messages:
                message = messages[0]
                receipt = receipt_of(message)
                if is_kept:
                    self.renewals.keep(client.client_id, group, receipt, message)
                given = incoming(message, handle=receipt, invisible_ms=invisible_ms)
                await write(ReceiveMessageResponse(message=given))
                messages.pop(0)
        finally:
            if messages:  # the client is gone: they need not wait for their time
                self._session.nursery.start_soon(self._give_back, group, messages)
        last = ReceiveMessageResponse()
        set_time(last.delivery_timestamp, time.time_ns() // 1_000_000)
        await write(last)

    async def _receiver(self, group: str, wanted: TopicSubscription) -> Receiver:
        """Return what receives a group's messages of a topic, and of its own retries, in order or not."""
        queues = await self._session.routes.read_queues(wanted.topic)
        if not queues:
            raise CallRefusedError(Code.FORBIDDEN, f"no queue of topic {wanted.topic} can be read")
        is_ordered = (await self._facts.group(group, queues[0].broker_name)).is_ordered
        key = (group, is_ordered, wanted.topic, wanted.expression_type, wanted.expression)
        receiver = self._receivers.get(key)
        if receiver is None:
            if len(self._receivers) >= RECEIVERS_MAX:
                raise CallRefusedError(
                    Code.TOO_MANY_REQUESTS, "too many subscriptions are served here"
                )
            requests, watch = self._pops_of(group, is_ordered=is_ordered)
            receiver = Receiver(
                self._session,
                requests,
                watch,
                self.acknowledging(group),
                # What nobody has received for a minute goes to the group's retry topic, of whatever topic it is.
                subscriptions=(wanted, subscribe(retry_topic(group), EVERYTHING, wanted.version)),
                timeout_s=TIMEOUT_S,
            )
            self._receivers[key] = receiver
        return receiver

    def _pops_of(self, group: str, *, is_ordered: bool) -> tuple[GroupPops, PopWatch]:
        found = self._pops.get((group, is_ordered))
        if found is None:
            requests = GroupPops(
                self._session, group, ordered=is_ordered, from_end=True, timeout_s=TIMEOUT_S
            )
            found = requests, PopWatch(self._session, requests, self._session.nursery)
            self._pops[group, is_ordered] = found
        return found

    async def _give_back(self, group: str, messages: Sequence[PoppedMessage]) -> None:
        """Let messages come again soon that nobody has got; what fails comes when its time is over."""
        for message in messages:
            self.renewals.drop(group, receipt_of(message))
            try:
                await self.acknowledging(group).change(message, GIVEN_BACK_MS)
            except ClientError:
                return

    async def acknowledge(self, request: Any) -> Any:
        """Answer AckMessage: each receipt has its own result.

        Raises:
            CallRefusedError: nothing was done.
        """
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        entries = request.entries
        if not 0 < len(entries) <= ENTRIES_MAX:
            text = f"the call has {len(entries)} receipts, not 1 to {ENTRIES_MAX}"
            raise CallRefusedError(Code.BAD_REQUEST, text)
        messages = [await self._held(group, topic, entry.receipt_handle) for entry in entries]
        ends: dict[str, Any] = {}
        undone: Sequence[PoppedMessage] = ()
        try:
            await self.acknowledging(group).acknowledge(messages)
        except AckError as error:
            ends, undone = _ends(error), error.undone
        finally:
            for entry, message in zip(entries, messages, strict=True):
                self._end_hold(group, entry.receipt_handle, is_done=message not in undone)
        answer = AckMessageResponse()
        for entry, message in zip(entries, messages, strict=True):
            answer.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=ends.get(_key(message)) or status(Code.OK),
            )
        answer.status.CopyFrom(joined(entry.status for entry in answer.entries))
        return answer

    async def change(self, request: Any) -> Any:
        """Answer ChangeInvisibleDuration; the answer has the new receipt.

        Raises:
            CallRefusedError, ClientError: it was not changed, or nobody knows.
        """
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        invisible_ms = _milliseconds(request.invisible_duration)
        _check_invisible(invisible_ms)
        message = await self._held(group, topic, request.receipt_handle)
        changed = await self._ending(
            group, request.receipt_handle, self.acknowledging(group).change(message, invisible_ms)
        )
        return ChangeInvisibleDurationResponse(
            status=status(Code.OK), receipt_handle=receipt_of(changed)
        )

    async def forward_to_dead_letters(self, request: Any) -> Any:
        """Answer ForwardMessageToDeadLetterQueue: sent back as one without further tries, and then acknowledged.

        Raises:
            CallRefusedError, ClientError: it was not forwarded, or nobody knows; a message may become two dead letters.
        """
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        message = await self._held(group, topic, request.receipt_handle)
        ext = {
            "group": group,
            "offset": str(message.physical_offset),
            "delayLevel": "-1",
            "originMsgId": request.message_id,
            "originTopic": topic,
            "unitMode": "false",
            "maxReconsumeTimes": "0",
        }
        answer = await self._session.call_group(
            message.queue.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout_s=TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_with(answer.code, answer.remark or "")
        await self._ending(
            group, request.receipt_handle, self.acknowledging(group).acknowledge([message])
        )
        return _ForwardAnswer(status=status(Code.OK))

    async def _held(self, group: str, topic: str, receipt: str) -> PoppedMessage:
        """Return the message of a receipt, with its present handle where the proxy keeps it.

        Raises:
            CallRefusedError: it is none, or of another topic.
        """
        message = message_of(receipt, topic)
        stands_in = message.queue.topic
        if stands_in != topic and not stands_in.startswith(retry_topic(group)):
            text = f"the receipt is of topic {stands_in}, not {topic}"
            raise CallRefusedError(Code.INVALID_RECEIPT_HANDLE, text)
        if not self._session.routes.knows(message.queue.broker_name):
            await self._session.routes.refresh(topic)
        return await self.renewals.hold(group, receipt) or message

    def _end_hold(self, group: str, receipt: str, *, is_done: bool) -> None:
        """Prolong a message no more that is done with, and go on with one of which nothing was done."""
        if is_done:
            self.renewals.drop(group, receipt)
        else:
            self.renewals.resume(group, receipt)

    async def _ending(self, group: str, receipt: str, request: Awaitable[_T]) -> _T:
        """Await a request that ends what a receipt stands for; its failure becomes the refusal that is meant.

        Raises:
            CallRefusedError: says what became of the message.
        """
        is_done = True
        try:
            return await request
        except AckError as error:
            is_done = not error.undone
            found = next(iter(_ends(error).values()))
            raise CallRefusedError(Code(found.code), found.message) from error
        finally:
            self._end_hold(group, receipt, is_done=is_done)


def _ends(error: AckError) -> dict[str, Any]:
    """Return the statuses of messages for which a call did not end as wanted, by their keys."""
    kinds = (
        (error.expired, Code.INVALID_RECEIPT_HANDLE),
        (error.unknown, Code.PROXY_TIMEOUT),
        (error.undone, Code.HA_NOT_AVAILABLE),
    )
    return {
        _key(message): status(code, str(error)) for messages, code in kinds for message in messages
    }


def _key(message: PoppedMessage) -> str:
    return f"{message.handle} {message.queue.topic}"


def _milliseconds(duration: Any) -> int:
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def _check_invisible(invisible_ms: int) -> None:
    if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
        text = f"the invisible time is {invisible_ms} ms, not 1 to {INVISIBLE_MS_MAX}"
        raise CallRefusedError(Code.ILLEGAL_INVISIBLE_TIME, text)


def _wait_s(request: Any, left_s: float) -> float:
    """Return how long to wait for a message: as asked for, and so that the answer comes in time."""
    wait_s = WAIT_S_MAX
    if request.HasField("long_polling_timeout"):
        wait_s = min(wait_s, _milliseconds(request.long_polling_timeout) / 1000)
    return max(min(wait_s, left_s - ANSWER_S), 0.0)
