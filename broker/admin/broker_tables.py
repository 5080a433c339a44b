"""Questions to one broker about its tables: topics, consumer groups, queues, how far groups are, who is connected.

Each is asked once, for a bounded time: it is for whoever looks again and again. It must not judge the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from broker.admin import answers
from broker.admin.answers import (
    ConsumerConnections,
    GroupPlace,
    Long,
    QueueStats,
    WireGroupConfig,
)
from broker.admin.ask import ServerRefusedError, ask_server, reason_of
from dledger_mq.client.errors import ClientError
from dledger_mq.client.link import Links
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.topic_config import WireTopicConfig

_T = TypeVar("_T")


class NoAnswerError(Exception):
    """A broker gave no answer that can be used; the text says who and why."""


class BrokerRefusedError(NoAnswerError):
    """It has answered with a refusal; `code` says which."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class _TimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    message_queue: WireQueue
    delay_time: Long = 0


class BrokerTables:
    """Asks one broker; what is for the leader to answer, it passes on.

    Args:
        links: the connections to use.
        address: of the broker.
        timeout_s: for one answer, connecting included.
    """

    def __init__(self, links: Links, address: str, *, timeout_s: float) -> None:
        self._links = links
        self._address = address
        self._timeout_s = timeout_s

    async def topics(self) -> dict[str, WireTopicConfig]:
        """Return all topics by name. Raises NoAnswerError."""
        return await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, {}, answers.read_topics)

    async def groups(self) -> dict[str, WireGroupConfig]:
        """Return all consumer groups by name. Raises NoAnswerError."""
        return await self._ask(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, answers.read_groups
        )

    async def queues(self, topic: str) -> dict[int, QueueStats]:
        """Return what the queues of a topic hold, by queue id. Raises NoAnswerError."""
        code, ext = RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
        return await self._ask(code, ext, answers.read_topic_stats)

    async def offsets(self, broker_name: str) -> dict[str, dict[WireQueue, GroupPlace]]:
        """Return the offsets that each group has committed, without the ends of queues. Raises NoAnswerError."""
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return await self._ask(code, {}, lambda body: _read_offsets(body, broker_name))

    async def all_consumed(self) -> dict[str, dict[WireQueue, GroupPlace]]:
        """Return how far each group that has settings is, in the queues of topics where it has committed.

        Raises:
            NoAnswerError: nobody could say, or there are too many queues for one answer.
        """
        code, ext = RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}
        return await self._ask(code, ext, _read_all_consumed)

    async def delays_ms(self, group: str, topic: str) -> dict[int, int]:
        """Return for how long the next message of a group waits in each queue of a topic (0: it has them all).

        Raises:
            NoAnswerError: nobody could say.
        """
        code, ext = RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": group, "topic": topic}
        return await self._ask(code, ext, _read_delays)

    async def members(self, group: str) -> ConsumerConnections:
        """Return who consumes in a group just now; nobody is an answer, too. Raises NoAnswerError."""
        code, ext = RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        try:
            return await self._ask(code, ext, answers.read_consumers)
        except BrokerRefusedError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return ConsumerConnections()
            raise

    async def _ask(self, code: int, ext: Mapping[str, str], read: Callable[[bytes], _T]) -> _T:
        """Ask, and read the answer.

        Raises:
            BrokerRefusedError: the broker refuses.
            NoAnswerError: there is no answer, or it cannot be read.
        """
        timeout_s = self._timeout_s
        try:
            return read(
                await ask_server(self._links, self._address, code, ext, timeout_s=timeout_s)
            )
        except ServerRefusedError as error:
            raise BrokerRefusedError(f"{self._address}: {error}", error.code) from error
        except (ClientError, BodyError) as error:
            why = reason_of(self._address, error, timeout_s)
            raise NoAnswerError(f"{self._address}: {why}") from error


def _read_offsets(body: bytes, broker_name: str) -> dict[str, dict[WireQueue, GroupPlace]]:
    """Read the offsets of all groups (43). Raises BodyError."""
    found: dict[str, dict[WireQueue, GroupPlace]] = {}
    table = _converted(read_object(body).get("offsetTable"), dict[str, dict[Long, Long]])
    for name, queues in table.items():
        topic, _, group = name.partition("@")
        places = found.setdefault(group, {})
        for queue_id, offset in queues.items():
            places[WireQueue(broker_name, queue_id, topic)] = GroupPlace(0, offset)
    return found


def _read_all_consumed(body: bytes) -> dict[str, dict[WireQueue, GroupPlace]]:
    """Read how far all groups are (317). Raises BodyError."""
    found: dict[str, dict[WireQueue, GroupPlace]] = {}
    for groups in _converted(
        read_object(body).get("consumeStatsList"), list[dict[str, list[dict[str, object]]]]
    ):
        for group, tables in groups.items():
            for table in tables:
                queues = _converted(table.get("offsetTable"), dict[WireQueue, GroupPlace])
                found.setdefault(group, {}).update(queues)
    return found


def _read_delays(body: bytes) -> dict[int, int]:
    """Read the delays of a group by queue id (303). Raises BodyError."""
    spans = _converted(read_object(body).get("consumeTimeSpanSet"), list[_TimeSpan])
    return {span.message_queue.queue_id: span.delay_time for span in spans}


def _converted(value: object, kind: type[_T]) -> _T:
    """Return a part of a body as `kind`.

    Raises:
        BodyError: it does not fit.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise BodyError(f"unreadable answer: {error}") from error
