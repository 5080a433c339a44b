"""Receiving, acknowledging, giving messages another time, and dead letters: over pop, as our simple consumer does."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from broker.proxy import checks
from broker.proxy.clients import ProxyClient
from broker.proxy.facts import Facts
from broker.proxy.finishing import Finishing
from broker.proxy.handles import message_of, receipt_of
from broker.proxy.incoming import incoming, set_time
from broker.proxy.protocol import (
    AckMessageResponse,
    ChangeInvisibleDurationResponse,
    ReceiveMessageResponse,
    message_class,
)
from broker.proxy.protocol.numbers import ClientType, Code
from broker.proxy.refusals import CallRefusedError, joined, refusal_of, refused_with, status
from broker.proxy.renewals import INVISIBLE_MS, Renewals
from dledger_mq.client.ack_errors import AckError, AckRefusedError, HandleExpiredError
from dledger_mq.client.acknowledging import Acknowledging
from dledger_mq.client.errors import ClientError
from dledger_mq.client.pop_requests import POP_MAX, GroupPops, PopPlace
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
"""Beyond it the one that was used longest ago is made anew when it is asked for."""

GIVEN_BACK_MS: Final = 1000
WRITE_S: Final = 30.0
"""For a client to take what it has asked for; who does not read keeps messages from others, and memory."""

DEAD_LETTER_MS: Final = 60_000
"""For so long nobody else gets a message that is being made a dead letter."""

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
        self._finishing = Finishing(session.nursery)
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

    async def receive(
        self,
        client: ProxyClient,
        wanted: TopicSubscription,
        request: Any,
        *,
        left_s: float,
        write: Write,
    ) -> None:
        """Answer ReceiveMessage: a status, the messages, and when they left; a status alone where there is none.

        Args:
            client: who receives.
            wanted: the topic, and what of it.
            request: a `ReceiveMessageRequest`.
            left_s: so much is left of the call's time.
            write: takes each part of the answer.

        Raises:
            CallRefusedError, ClientError: a request is refused, or nobody could be asked; nothing was written.
        """
        group, namespace = client.group, request.message_queue.topic.resource_namespace
        is_kept = request.auto_renew and client.kind is ClientType.PUSH_CONSUMER
        invisible_ms = INVISIBLE_MS if is_kept else _milliseconds(request.invisible_duration)
        _check_invisible(invisible_ms)
        if is_kept and self.renewals.is_full_for(client.client_id):
            text = "too many messages are kept for consumers"
            raise CallRefusedError(Code.TOO_MANY_REQUESTS, text)
        receiver = await self._receiver(group, wanted)

        def part_of(message: PoppedMessage) -> Any:
            receipt = receipt_of(message)
            if is_kept:
                self.renewals.keep(client.client_id, group, receipt, message)
            given = incoming(
                message, handle=receipt, invisible_ms=invisible_ms, namespace=namespace
            )
            return ReceiveMessageResponse(message=given)

        batch = min(max(request.batch_size, 1), POP_MAX)
        messages = list(await receiver.receive(batch, invisible_ms, _wait_s(request, left_s)))
        try:
            if client.is_gone:  # nobody would drop what is kept for it
                text = f"client {client.client_id} has left meanwhile"
                raise CallRefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, text)
            with anyio.move_on_after(WRITE_S):
                await _write_parts(messages, part_of, write)
        finally:
            if messages:  # the client is gone, or does not read: they need not wait for their time
                self._give_back(group, messages)

    async def _receiver(self, group: str, wanted: TopicSubscription) -> Receiver:
        """Return what receives a group's messages of a topic, and of its own retries, in order or not."""
        queues = await self._session.routes.read_queues(wanted.topic)
        if not queues:
            raise CallRefusedError(Code.FORBIDDEN, f"no queue of topic {wanted.topic} can be read")
        brokers = sorted({queue.broker_name for queue in queues})
        is_ordered = (await self._facts.group(group, brokers)).is_ordered
        key = (group, is_ordered, wanted.topic, wanted.expression_type, wanted.expression)
        receiver = self._receivers.pop(key, None)
        if receiver is None:
            while len(self._receivers) >= RECEIVERS_MAX:
                del self._receivers[next(iter(self._receivers))]
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
        """Return what pops in the name of a group, and what waits for messages with it."""
        found = self._pops.get((group, is_ordered))
        if found is None:
            requests = _KeptPops(
                self._session,
                group,
                ordered=is_ordered,
                finishing=self._finishing,
                give_back=partial(self._give_back, group),
            )
            found = requests, PopWatch(self._session, requests, self._session.nursery)
            self._pops[group, is_ordered] = found
        return found

    def _give_back(self, group: str, messages: Sequence[PoppedMessage]) -> None:
        """Let messages come again soon that nobody has got; what fails comes when its time is over."""
        for message in messages:
            self.renewals.drop(group, receipt_of(message))
        self._session.nursery.start_soon(self._shorten, group, messages)

    async def _shorten(self, group: str, messages: Sequence[PoppedMessage]) -> None:
        for message in messages:
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
        return await self._finishing.run(partial(self._acknowledge, group, topic, entries))

    async def _acknowledge(self, group: str, topic: str, entries: Sequence[Any]) -> Any:
        """Return the answer, in which each receipt has its own end."""
        held: dict[str, PoppedMessage] = {}
        ends: dict[str, Any] = {}
        error: AckError | None = None
        asked: set[str] = set()
        try:
            for receipt in dict.fromkeys(entry.receipt_handle for entry in entries):
                try:
                    held[receipt] = await self._held(group, topic, receipt, asked)
                except CallRefusedError as refusal:
                    ends[receipt] = status(refusal.code, str(refusal))
            await self.acknowledging(group).acknowledge(held.values())
        except AckError as failure:
            error = failure
        finally:
            for receipt, message in held.items():
                self._end_hold(group, receipt, message, error)
        if error is not None:
            found = _ends(error)
            ends |= {
                receipt: found[key] for receipt, one in held.items() if (key := _key(one)) in found
            }
        answer = AckMessageResponse()
        for entry in entries:
            answer.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=ends.get(entry.receipt_handle) or status(Code.OK),
            )
        answer.status.CopyFrom(joined(entry.status for entry in answer.entries))
        return answer

    async def change(self, request: Any) -> Any:
        """Answer ChangeInvisibleDuration; the answer has the new receipt.

        Raises:
            CallRefusedError, ClientError: it was not changed, or nobody knows.
        """
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        # None at all is as good as a moment: Node's push consumer gives back so what its application refuses.
        invisible_ms = _milliseconds(request.invisible_duration) or 1
        _check_invisible(invisible_ms)

        async def carry_out() -> PoppedMessage:
            change = self.acknowledging(group).change
            return await self._ending(
                group, topic, request.receipt_handle, lambda message: change(message, invisible_ms)
            )

        changed = await self._finishing.run(carry_out)
        return ChangeInvisibleDurationResponse(
            status=status(Code.OK), receipt_handle=receipt_of(changed)
        )

    async def forward_to_dead_letters(self, request: Any) -> Any:
        """Answer ForwardMessageToDeadLetterQueue: sent back as one without further tries, and then acknowledged.

        First its time is changed, so that nothing is sent back that somebody else has, or that was forwarded before.

        Raises:
            CallRefusedError, ClientError: it was not forwarded, or nobody knows; a message may become two dead letters.
        """
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)

        async def forward(message: PoppedMessage) -> None:
            mine = await self.acknowledging(group).change(message, DEAD_LETTER_MS)
            self.renewals.move(group, request.receipt_handle, mine)
            await self._send_to_dead_letters(group, topic, request.message_id, mine)
            try:
                await self.acknowledging(group).acknowledge([mine])
            except AckError as error:
                text = f"the dead letter is stored, but the message may come again: {error}"
                raise CallRefusedError(Code.PROXY_TIMEOUT, text) from error

        async def carry_out() -> None:
            await self._ending(group, topic, request.receipt_handle, forward)

        await self._finishing.run(carry_out)
        return _ForwardAnswer(status=status(Code.OK))

    async def _send_to_dead_letters(
        self, group: str, topic: str, message_id: str, message: PoppedMessage
    ) -> None:
        """Send a message back as one without further tries; raises CallRefusedError or ClientError."""
        ext = {
            "group": group,
            "offset": str(message.physical_offset),
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": topic,
            "unitMode": "false",
            "maxReconsumeTimes": "0",
        }
        answer = await self._session.call_group(
            message.queue.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout_s=TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refused_with(answer.code, answer.remark or "")

    async def _held(self, group: str, topic: str, receipt: str, asked: set[str]) -> PoppedMessage:
        """Return the message of a receipt, with its present handle where the proxy keeps it; `_end_hold` has to follow.

        In `asked` are the topics whose routes this call has asked for, once each: receipts are what clients make them.

        Raises:
            CallRefusedError: it is none, or of another topic; or nobody knows its broker group.
        """
        message = message_of(receipt, topic)
        stands_in = message.queue.topic
        if stands_in not in (topic, retry_topic(group)):
            text = f"the receipt is of topic {stands_in}, not {topic}"
            raise CallRefusedError(Code.INVALID_RECEIPT_HANDLE, text)
        broker_name, routes = message.queue.broker_name, self._session.routes
        if not routes.knows(broker_name) and topic not in asked:
            asked.add(topic)
            try:
                await routes.refresh(topic)
            except ClientError as error:
                raise refusal_of(error) from error
        if not routes.knows(broker_name):
            text = f"nothing was done: no node of {broker_name} is known"
            raise CallRefusedError(Code.HA_NOT_AVAILABLE, text)
        return await self.renewals.hold(group, receipt) or message

    def _end_hold(
        self, group: str, receipt: str, message: PoppedMessage, error: AckError | None
    ) -> None:
        """Keep a message no longer that is done with; go on with one of which nothing was done."""
        if error is not None and message in error.undone:
            self.renewals.resume(group, receipt)
        elif error is not None and message in error.unknown:
            self.renewals.leave(group, receipt)
        else:
            self.renewals.drop(group, receipt)

    async def _ending(
        self,
        group: str,
        topic: str,
        receipt: str,
        carry_out: Callable[[PoppedMessage], Awaitable[_T]],
    ) -> _T:
        """Carry out what ends what a receipt stands for; its failure becomes the refusal that is meant.

        Raises:
            CallRefusedError: says what became of the message.
        """
        message = await self._held(group, topic, receipt, set())
        try:
            done = await carry_out(message)
        except HandleExpiredError as error:
            self.renewals.drop(group, receipt)
            raise CallRefusedError(Code.INVALID_RECEIPT_HANDLE, str(error)) from error
        except AckRefusedError as error:
            self.renewals.resume(group, receipt)
            raise CallRefusedError(Code.HA_NOT_AVAILABLE, str(error)) from error
        except BaseException:
            # Its handle may be another one by now: it is found no more, or for a moment.
            self.renewals.leave(group, receipt)
            raise
        self.renewals.drop(group, receipt)
        return done


async def _write_parts(
    messages: list[PoppedMessage], part_of: Callable[[PoppedMessage], Any], write: Write
) -> None:
    """Write the parts of an answer; those messages that were written leave the list."""
    code = Code.OK if messages else Code.MESSAGE_NOT_FOUND
    await write(ReceiveMessageResponse(status=status(code)))
    while messages:
        await write(part_of(messages[0]))
        messages.pop(0)
    last = ReceiveMessageResponse()
    set_time(last.delivery_timestamp, time.time_ns() // 1_000_000)
    await write(last)


class _KeptPops(GroupPops):
    """Pops that are waited for when the call is gone: what they bring is given back."""

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        ordered: bool,
        finishing: Finishing,
        give_back: Callable[[Sequence[PoppedMessage]], object],
    ) -> None:
        super().__init__(session, group, ordered=ordered, from_end=True, timeout_s=TIMEOUT_S)
        self._finishing = finishing
        self._give_back = give_back

    async def pop(
        self, address: str, place: PopPlace, *, max_messages: int, invisible_ms: int
    ) -> tuple[PoppedMessage, ...]:
        """See `GroupPops`."""
        pop = partial(
            super().pop, address, place, max_messages=max_messages, invisible_ms=invisible_ms
        )
        return await self._finishing.run(pop, unclaimed=self._give_back)


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
