"""Messages found by key, id, time and place, as they are stored; bodies are not unpacked here.

Every search is bounded: so many messages, so many queues. It must not know how a message is shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from dledger_mq.client.errors import ClientError, NoRouteError, RequestFailedError
from dledger_mq.client.inspector import Inspector
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.trace_reader import ClientTrace, read_trace
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import offset_msg_id, parse_offset_msg_id
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting.codes import ResponseCode

FOUND_MAX: Final = 64
QUEUES_MAX: Final = 64
"""Queues of a topic that a search by time looks into."""

REQUEST_S: Final = 5.0
SEARCH_S: Final = 15.0


class SearchError(Exception):
    """A search could not be carried out, or was not for anything; the text says why."""


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """A stored message, and the broker group that has it."""

    broker: str
    record: StoredMessage

    @property
    def message_id(self) -> str:
        """Its offset message id."""
        return offset_msg_id(self.record.store_host, self.record.physical_offset)


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some messages of a queue, and the bounds of all of it."""

    messages: tuple[BrokerMessage, ...]
    first: int
    end: int


class MessageSearch:
    """Searches in all broker groups that the name servers of an inspector know."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector

    async def by_key(self, topic: str, key: str) -> list[BrokerMessage]:
        """Return the newest messages of a topic with a key or unique key, the newest first. Raises ClientError."""
        found = [
            BrokerMessage(broker, record)
            for broker in await self._inspector.broker_names()
            for record in await self._inspector.find(broker, topic, key)
        ]
        return _newest_first(found)[:FOUND_MAX]

    async def by_id(self, message_id: str) -> list[BrokerMessage]:
        """Return the message with an offset message id, wherever its node is now; none: no group has it.

        Raises:
            SearchError: that is no offset message id.
            ClientError: a group could not be asked.
        """
        try:
            _, _, place = parse_offset_msg_id(message_id)
        except MessageIdError as error:
            raise SearchError(f"{error}; a unique key is looked up as a key") from error
        found = [
            message
            for broker in await self._inspector.broker_names()
            if (message := await self.at(broker, place)) is not None
        ]
        return [message for message in found if message.message_id == message_id.upper()]

    async def at(self, broker: str, physical_offset: int) -> BrokerMessage | None:
        """Return the message at a place of a group's log; None: none begins there. Raises ClientError."""
        record = await self._inspector.view(broker, physical_offset)
        return None if record is None else BrokerMessage(broker, record)

    async def trace(self, message_id: str) -> ClientTrace | None:
        """Return what clients have told of the message with a unique key; None: no broker has the trace topic.

        Raises:
            ClientError: nobody could be asked.
        """
        try:
            return await read_trace(self._inspector, message_id)
        except NoRouteError:
            return None

    async def by_time(self, topic: str, begin_ms: int) -> list[BrokerMessage]:
        """Return the first messages of a topic that were stored at a time or later, in order. Raises ClientError."""
        reader = self._inspector.reader
        found: list[BrokerMessage] = []
        for queue in (await reader.queues(topic))[:QUEUES_MAX]:
            offset = await reader.offset_at(queue, begin_ms)
            found += (await self.from_queue(queue, offset)).messages
        found.sort(key=lambda one: (one.record.store_timestamp_ms, one.record.physical_offset))
        return [one for one in found if one.record.store_timestamp_ms >= begin_ms][:FOUND_MAX]

    async def newest(self, topic: str) -> list[BrokerMessage]:
        """Return the newest messages of a topic, the newest first. Raises ClientError."""
        found: list[BrokerMessage] = []
        for queue in (await self._inspector.reader.queues(topic))[:QUEUES_MAX]:
            found += (await self.from_queue(queue, None)).messages
        return _newest_first(found)[:FOUND_MAX]

    async def from_queue(self, queue: MessageQueue, offset: int | None) -> QueuePage:
        """Return the messages of a queue from an offset on; None: the newest.

        Raises:
            ClientError: nobody could be asked.
        """
        reader = self._inspector.reader
        known = await reader.queues(queue.topic)
        if queue not in known:
            raise SearchError(f"{queue.broker_name} has no queue {queue.queue_id} of {queue.topic}")
        end = await reader.max_offset(queue)
        if offset is None:
            offset = max(0, end - FOUND_MAX)
        found: list[BrokerMessage] = []
        first = place = max(offset, await reader.min_offset(queue))
        while place < min(end, first + FOUND_MAX):
            pulled = await reader.pull_records(queue, place, max_messages=FOUND_MAX - len(found))
            found += [BrokerMessage(queue.broker_name, each) for each in _read(pulled.records)]
            if pulled.is_empty or pulled.next_offset <= place:
                break
            place = pulled.next_offset
        return QueuePage(tuple(found[:FOUND_MAX]), await reader.min_offset(queue), end)


def _newest_first(found: list[BrokerMessage]) -> list[BrokerMessage]:
    return sorted(
        found,
        key=lambda one: (one.record.store_timestamp_ms, one.record.physical_offset),
        reverse=True,
    )


def _read(records: bytes) -> list[StoredMessage]:
    try:
        return decode_records(records, check_crc=False)
    except RecordError as error:
        text = f"unreadable messages: {error}"
        raise RequestFailedError(ResponseCode.SUCCESS, text) from error


@asynccontextmanager
async def open_search(namesrv: str) -> AsyncIterator[MessageSearch]:
    """Open a search for a bounded time; its connections end with it.

    Raises:
        SearchError: nobody could be asked, or it took too long.
    """
    try:
        with trio.fail_after(SEARCH_S):
            async with Inspector(namesrv, timeout_s=REQUEST_S) as inspector:
                yield MessageSearch(inspector)
    except trio.TooSlowError as error:
        raise SearchError(f"it took longer than {SEARCH_S:g} s") from error
    except ClientError as error:
        raise SearchError(str(error)) from error
