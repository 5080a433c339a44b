"""Follows one message through a broker: delays, transactions, retries per group, dead letters, offsets.

The copies that a message leaves keep its UNIQ_KEY, and every topic has an index of unique keys; so the story is
put together from look-ups in the topics where a copy can be. Where groups stand shows who is done with it. What clients
themselves have told of it stands beside that, by their own clocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import trio

from dledger_mq import ClientError, NoRouteError
from dledger_mq.client.inspector import GroupOffsets, Inspector
from dledger_mq.client.trace_reader import ClientTrace, read_trace
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.ids import offset_msg_id, parse_offset_msg_id
from dledger_mq.message.names import (
    CHECK_MAX_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    is_dlq_topic,
    is_retry_topic,
)
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset
from dledger_mq.message.properties import REAL_TOPIC, TIMER_OUT_MS, UNIQ_KEY, find_property
from dledger_mq.message.record import StoredMessage
from pipeline.errors import InconclusiveError, PipelineUsageError

WAITING: Final = (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC)
MESSAGES_MAX: Final = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the story.

    Attributes:
        what: in words.
        group: the consumer group whose doing it is; empty for the producer's.
    """

    at_ms: int
    what: str
    broker_name: str
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    message_id: str
    group: str
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The place of a consumer group in a queue that holds the message, or a copy for it."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: QueueOffset
    committed: int

    @property
    def is_done(self) -> bool:
        """True when the group has consumed the message, or has sent it back."""
        return self.committed > self.queue_offset


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """Everything that is known of one message.

    Attributes:
        steps: what brokers have stored, in order.
        standings: where groups stand.
        told: what clients have told; empty where none writes, or nobody keeps it.
    """

    unique_key: str
    topic: str
    told: ClientTrace
    steps: list[Step] = field(default_factory=list)
    standings: list[GroupProgress] = field(default_factory=list)


def trace(
    name_server: str,
    wanted: str,
    *,
    topic: str | None = None,
    trace_topic: str = TRACE_TOPIC,
    timeout_s: float = 10.0,
) -> list[MessageTrace]:
    """Trace a message by its id, or all messages with a key.

    Args:
        name_server: host:port, several joined with ";".
        wanted: an offset message id; or, with a topic, a unique key or a key.
        topic: the topic that the message was sent to.
        trace_topic: where clients write what they tell; there need be none.
        timeout_s: for each question.

    Raises:
        PipelineUsageError: no such id, a key without a topic, or no such topic.
        InconclusiveError: name servers or brokers do not answer.
    """

    async def ask() -> list[MessageTrace]:
        """Fetch what all stories share only once, then build them one by one."""
        async with Inspector(name_server, timeout_s=timeout_s) as inspector:
            names = await inspector.broker_names()
            offsets = {name: await inspector.consumer_offsets(name) for name in names}
            topics = await inspector.reader.topics()
            keys = await _unique_keys(inspector, names, wanted, topic)
            if not keys and topic is not None and topic not in topics:
                raise PipelineUsageError(
                    f"topic {topic} does not exist (name server {name_server})"
                )
            if len(keys) > MESSAGES_MAX:
                log.warning(
                    "%d messages have %s, %d of them are traced", len(keys), wanted, MESSAGES_MAX
                )
            copies = [each for each in topics if is_retry_topic(each) or is_dlq_topic(each)]
            stories: list[MessageTrace] = []
            for its_topic, key in keys[:MESSAGES_MAX]:
                told = await _clients_trace(inspector, key, trace_topic)
                stories += [await _story(inspector, offsets, copies, told=told, topic=its_topic)]
            return stories

    try:
        return trio.run(ask)
    except ClientError as error:
        raise InconclusiveError(f"{wanted} cannot be traced: {error}") from error


async def _unique_keys(
    inspector: Inspector, names: Iterable[str], wanted: str, topic: str | None
) -> list[tuple[str, str]]:
    """Return topic and unique key of the messages that are meant, oldest first, each once."""
    found: dict[tuple[str, str], None] = {}
    if topic is None:
        try:
            _, _, physical_offset = parse_offset_msg_id(wanted)
        except MessageFormatError as error:
            raise PipelineUsageError(
                f"{wanted!r} is no offset message id ({error}); a key needs --topic"
            ) from error
        for name in names:
            for message in (await inspector.view(name, physical_offset)).messages:
                if offset_msg_id(message.store_host, message.physical_offset) == wanted.upper():
                    found[_own_topic(message), _unique_key(message)] = None
        return list(found)
    for name in names:
        for holder in (topic, *WAITING):
            for message in (await inspector.find(name, holder, wanted)).messages:
                if _own_topic(message) == topic:
                    found[topic, _unique_key(message)] = None
    return list(found)


async def _clients_trace(inspector: Inspector, key: str, trace_topic: str) -> ClientTrace:
    """Return what clients have told of a message: nothing where there is no such topic."""
    try:
        return await read_trace(inspector, key, topic=trace_topic)
    except NoRouteError:
        return ClientTrace(key)


async def _story(
    inspector: Inspector,
    offsets: dict[str, GroupOffsets],
    copies: Iterable[str],
    *,
    told: ClientTrace,
    topic: str,
) -> MessageTrace:
    """Put a story together; `copies` are all topics of retries and dead letters."""
    key = told.message_id
    story = MessageTrace(key, topic, told)
    for name, groups in offsets.items():
        # A group that gave a message back may have committed nothing yet.
        of_groups = {prefix + group for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)}
        for place in (topic, *WAITING, CHECK_MAX_TOPIC, *sorted(of_groups.union(copies))):
            for message in (await inspector.find(name, place, key)).messages:
                if _unique_key(message) == key:
                    story.steps.append(_step(name, message, topic))
    story.steps.sort(key=lambda step: (step.at_ms, step.broker_name, step.physical_offset))
    for step in story.steps:
        story.standings.extend(_standings(step, offsets[step.broker_name]))
    return story


def _own_topic(message: StoredMessage) -> str:
    """Return the topic that the message is for."""
    if message.topic in WAITING:
        return (message.find(REAL_TOPIC) or b"").decode(errors="replace")
    return message.topic


def _unique_key(message: StoredMessage) -> str:
    key = find_property(message.properties, UNIQ_KEY)
    if key is None:
        return offset_msg_id(message.store_host, message.physical_offset)
    return key.decode(errors="replace")


def _step(broker_name: str, message: StoredMessage, topic: str) -> Step:
    """Build the step of one stored record; its id names the place in the log, so it differs for each copy."""
    what, group = _what(message, topic)
    return Step(
        message.store_timestamp_ms,
        what,
        broker_name,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        offset_msg_id(message.store_host, message.physical_offset),
        group,
        message.reconsume_times,
    )


def _what(message: StoredMessage, topic: str) -> tuple[str, str]:
    """Describe the record in words, and name the consumer group that it concerns."""
    place = message.topic
    real = (message.find(REAL_TOPIC) or b"").decode(errors="replace")
    if place == HALF_TOPIC:
        return "prepared in a transaction", ""
    if place == CHECK_MAX_TOPIC:
        return "given up: nobody said how its transaction ended", ""
    if place in (SCHEDULE_TOPIC, TIMER_TOPIC):
        due = (message.find(TIMER_OUT_MS) or b"").decode()
        wait = f"delay level {message.queue_id + 1}" if place == SCHEDULE_TOPIC else f"until {due}"
        if is_retry_topic(real):
            group = real.removeprefix(RETRY_PREFIX)
            return f"given back by {group}, waits ({wait})", group
        return f"waits ({wait})", ""
    if is_retry_topic(place):
        group = place.removeprefix(RETRY_PREFIX)
        return f"retry {message.reconsume_times} for {group}", group
    if is_dlq_topic(place):
        group = place.removeprefix(DLQ_PREFIX)
        times = message.reconsume_times
        return f"dead letter of {group}, which gave it back {times} times", group
    if place == topic and message.find(REAL_TOPIC) is not None:
        return "delivered after its wait", ""
    return "stored", ""


def _standings(step: Step, groups: GroupOffsets) -> list[GroupProgress]:
    return [
        GroupProgress(
            group, step.topic, step.broker_name, step.queue_id, step.queue_offset, committed
        )
        for group, topics in sorted(groups.items())
        if (committed := topics.get(step.topic, {}).get(step.queue_id)) is not None
    ]
