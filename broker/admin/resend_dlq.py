"""The work of `dledger-admin resend-dlq`: give a group's dead letters another chance (rule L20).

A dead letter is sent again under its old UNIQ_KEY with its reconsume times at 0, so the group tries it as
often as at first: to the group's retry topic, where only this group finds it, or with `--to origin` to the
topic it came from, for every group. (A group that consumes in order just now would find it among its dead
letters again, rule L16: use `--to origin` there.)

How far a group's dead letters were sent again is the group's own offset in the dead letter queue: without
filters a second run goes on where the first one stopped, and an interrupted one repeats at most what was
in flight. What can never be sent (its topic is gone, it does not say where it came from) is reported and passed
over; `--msg-id` finds it again. With `--msg-id`, `--topic` or `--all` it looks at everything that is kept, and
moves no offset. It must not print: the command shows the `ResendOutcome`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dledger_mq import (
    ClientUsageError,
    Message,
    MessageQueue,
    NoRouteError,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendError,
)
from dledger_mq.message import properties as names
from dledger_mq.message.names import dlq_topic, retry_topic
from dledger_mq.message.numbers import QueueOffset

TO_RETRY: Final = "retry"
TO_ORIGIN: Final = "origin"
PRODUCER_GROUP: Final = "CID_RMQ_SYS_RESEND_DLQ"

_OF_THE_SYSTEM: Final = frozenset(
    name.decode()
    for name in (
        names.UNIQ_KEY,
        names.TAGS,
        names.KEYS,
        names.WAIT,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QID,
        names.RETRY_TOPIC,
        names.TRAN_MSG,
        names.PGROUP,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.MSG_REGION,
        names.TRACE_ON,
        names.CLUSTER,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.POP_CK,
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
    )
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The dead letters that are meant.

    Attributes:
        origin: only those that were sent to this topic; None for all.
        message_ids: only those with one of these ids (UNIQ_KEY, offset message id of the dead letter or of
            the first delivery); empty for all.
        is_all: also those that were sent again before.
    """

    origin: str | None = None
    message_ids: frozenset[str] = frozenset()
    is_all: bool = False

    @property
    def keeps_progress(self) -> bool:
        """True if what was sent again is remembered, so that a second run goes on after it."""
        return self.origin is None and not self.message_ids and not self.is_all

    def takes(self, letter: ReceivedMessage) -> bool:
        """Return True if a dead letter is among them."""
        if self.origin is not None and origin_of(letter) != self.origin:
            return False
        return not self.message_ids or not self.message_ids.isdisjoint(_ids_of(letter))


@dataclass(slots=True)
class ResendOutcome:
    """The result for the dead letters that were meant.

    Attributes:
        resent: ids of those that are stored again; of a dry run, those that would be.
        failed: why others are not, or may not be, by id.
        examined: how many dead letters were looked at.
    """

    resent: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    examined: int = 0


def origin_of(letter: ReceivedMessage) -> str | None:
    """Return the topic that a dead letter was sent to at first; None when it does not say."""
    return letter.properties.get(names.RETRY_TOPIC.decode())


def again(letter: ReceivedMessage, group: str, *, to: str) -> Message | str:
    """Build the message to send for a dead letter, or return the reason why there can be none.

    Args:
        letter: as it stands in the dead letter topic.
        group: whose it is.
        to: TO_RETRY or TO_ORIGIN.
    """
    origin = origin_of(letter)
    if origin is None:
        return "it does not say which topic it came from (RETRY_TOPIC)"
    if letter.is_packed:
        return "its body is compressed in a way that this client cannot read"
    kept = {name: value for name, value in letter.properties.items() if name not in _OF_THE_SYSTEM}
    topic = origin
    if to == TO_RETRY:
        topic = retry_topic(group)
        kept[names.RETRY_TOPIC.decode()] = origin
    return Message(
        topic,
        letter.body,
        tags=letter.tags,
        keys=letter.keys,
        properties=kept,
        flag=letter.flag,
        unique_key=letter.unique_key,
    )


class Resender:
    """Sends the dead letters of one group again."""

    def __init__(
        self,
        consumer: PullConsumer,
        producer: Producer,
        choice: Choice,
        *,
        to: str = TO_RETRY,
        limit: int | None = None,
        is_dry: bool = False,
    ) -> None:
        """Set up one run.

        Args:
            consumer: reads the dead letters; its group is the one that they are of.
            producer: sends them again.
            choice: which of them.
            to: TO_RETRY, or TO_ORIGIN: the topic in which they were first.
            limit: how many at most.
            is_dry: nothing is sent.
        """
        self._consumer = consumer
        self._producer = producer
        self._choice = choice
        self._to = to
        self._limit = limit
        self._is_dry = is_dry
        self.outcome = ResendOutcome()

    @property
    def _is_enough(self) -> bool:
        return self._limit is not None and len(self.outcome.resent) >= self._limit

    async def resend(self) -> None:
        """Go through all queues; what comes in meanwhile is left for the next time.

        Raises:
            ClientError: the dead letters could not be read; what was sent before stays sent.
        """
        keeps_progress = self._choice.keeps_progress
        for queue in await self._consumer.queues(dlq_topic(self._consumer.group)):
            start = await self._consumer.committed(queue) if keeps_progress else None
            start = QueueOffset(max(start or 0, await self._consumer.min_offset(queue)))
            end = QueueOffset(await self._consumer.max_offset(queue))
            done = await self._resend_queue(queue, first=start, end=end)
            if keeps_progress and done > start and not self._is_dry:
                await self._consumer.commit(queue, done)

    async def _resend_queue(
        self, queue: MessageQueue, *, first: QueueOffset, end: QueueOffset
    ) -> QueueOffset:
        """Send what is meant from `first` to below `end`; return the offset below which all is done."""
        offset = first
        while offset < end and not self._is_enough:
            pulled = await self._consumer.pull(queue, offset)
            for letter in pulled.messages:
                if letter.queue_offset >= end or self._is_enough:
                    return QueueOffset(letter.queue_offset)
                self.outcome.examined += 1
                if self._choice.takes(letter) and not await self._resend_one(letter):
                    return QueueOffset(letter.queue_offset)
            offset = QueueOffset(max(offset + 1, pulled.next_offset))
        return max(first, min(offset, end))

    async def _resend_one(self, letter: ReceivedMessage) -> bool:
        """Send one again; False: it failed, so that what comes after it has to wait."""
        message = again(letter, self._consumer.group, to=self._to)
        if isinstance(message, str):  # it never can be: no reason to keep the others
            self.outcome.failed[letter.unique_key] = message
            return True
        if not self._is_dry:
            try:
                await self._producer.send(message)
            except (SendError, ClientUsageError, NoRouteError) as error:
                self.outcome.failed[letter.unique_key] = str(error)
                return not isinstance(error, SendError)
        self.outcome.resent.append(letter.unique_key)
        return True


async def resend(
    namesrv: str,
    group: str,
    choice: Choice,
    *,
    to: str = TO_RETRY,
    limit: int | None = None,
    is_dry: bool = False,
) -> ResendOutcome:
    """Send a group's dead letters again, in queue order.

    Raises:
        ClientUsageError: the group's name is none, or the limit is below 1.
        ClientError: the dead letters could not be read; what was sent before stays sent.
    """
    if limit is not None and limit < 1:
        raise ClientUsageError(f"--limit {limit} is below 1; nothing was sent")
    async with (
        PullConsumer(namesrv, group) as consumer,
        Producer(namesrv, PRODUCER_GROUP) as producer,
    ):
        resender = Resender(consumer, producer, choice, to=to, limit=limit, is_dry=is_dry)
        await resender.resend()
        return resender.outcome


def _ids_of(letter: ReceivedMessage) -> tuple[str, ...]:
    origin = letter.properties.get(names.ORIGIN_MESSAGE_ID.decode(), "")
    return (letter.unique_key, letter.message_id, origin)
