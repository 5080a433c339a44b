"""Messages found by key, id, time and place, as they are stored; bodies are not unpacked here.

Every search is bounded: so many messages, so many queues, so many bytes. It must not know how a message is shown, nor
who asks: `dledger-admin messages` and the console do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from dledger_mq.client.errors import (
    ClientError,
    ClientUsageError,
    NoRouteError,
    RequestFailedError,
)
from dledger_mq.client.inspector import FOREVER_MS, MATCHES_MAX, Found, Inspector, SearchedMember
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.trace_reader import ClientTrace, read_trace
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import offset_msg_id, parse_offset_msg_id
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting.codes import ResponseCode

FOUND_MAX: Final = 64
QUEUES_MAX: Final = 64
"""Queues of a topic that a search by time looks into."""

_PULLED_AT_ONCE: Final = 32

_ABOUT_ACCESS: Final = "AclException"

REQUEST_S: Final = 5.0
SEARCH_S: Final = 15.0


class SearchError(Exception):
    """A search could not be carried out, or was not for anything; the text says why."""


class SearchFormError(SearchError):
    """A search that makes no sense; nobody was asked."""


class NoSuchQueueError(SearchError):
    """There is no such queue."""


class SearchForbiddenError(SearchError):
    """A server lets whoever asks not see it."""


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A stored message, and the broker group that has it."""

    broker: str
    record: StoredMessage

    @property
    def message_id(self) -> str:
        """Its offset message id."""
        return offset_msg_id(self.record.store_host, self.record.physical_offset)

    @property
    def order(self) -> tuple[int, str, int]:
        """Its key to sort by: the time at which it was stored decides, then its place."""
        return self.record.store_timestamp_ms, self.broker, self.record.physical_offset


@dataclass(frozen=True, slots=True)
class QueuePage:
    """Some messages of a queue, and the bounds of all of it."""

    messages: tuple[FoundMessage, ...]
    first: int
    end: int


class ReadingBudget:
    """The bytes that one search may read: not more than a machine has room for."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._bytes_left = bytes_max

    def take(self, size_bytes: int) -> None:
        """Count bytes that were read.

        Raises:
            ClientUsageError: they are too many.
        """
        self._bytes_left -= size_bytes
        if self._bytes_left < 0:
            raise ClientUsageError(
                f"they have more than {self._bytes_max >> 20} MiB: ask for fewer with --limit"
            )


class MessageSearch:
    """Searches in broker groups.

    Attributes:
        standings: who has answered so far, of members that say so, by broker group.
    """

    def __init__(
        self,
        inspector: Inspector,
        brokers: Sequence[str] | None = None,
        *,
        broker_id: int | None = None,
    ) -> None:
        """Set up searches.

        Args:
            inspector: asks the groups.
            brokers: names of those that are meant; None: all that its name servers know.
            broker_id: only members with this id in routes are asked for messages by id and key; None: leaders first.
        """
        self._inspector = inspector
        self._brokers = brokers
        self._broker_id = broker_id
        self.standings: dict[str, set[SearchedMember]] = {}

    async def _names(self) -> Sequence[str]:
        return await self._inspector.broker_names() if self._brokers is None else self._brokers

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        kind: str = "",
        count_max: int = FOUND_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        budget: ReadingBudget | None = None,
    ) -> list[FoundMessage]:
        """Return the newest messages of a topic with a key, in the order in which they were stored. Raises ClientError.

        A group is asked page by page, each of which goes on where the one before has ended: so each message is there
        once, and none is left out, whatever is stored meanwhile.
        """
        found: list[FoundMessage] = []
        for broker in await self._names():
            of_broker: list[FoundMessage] = []
            before: int | None = None
            while len(of_broker) < count_max:
                page = await self._inspector.find(
                    broker,
                    topic,
                    key,
                    count_max=min(MATCHES_MAX, count_max - len(of_broker)),
                    begin_ms=begin_ms,
                    end_ms=end_ms,
                    kind=kind,
                    before=before,
                    broker_id=self._broker_id,
                )
                self._note(broker, page)
                if budget is not None:
                    budget.take(sum(each.size_bytes for each in page.messages))
                of_broker += [FoundMessage(broker, each) for each in reversed(page.messages)]
                if not page.messages or page.standing is None:
                    break  # whoever does not say who answers does not know pages either
                before = page.messages[0].physical_offset
            found += of_broker
        found.sort(key=lambda one: one.order)
        return found[-count_max:]

    async def by_id(self, message_id: str) -> list[FoundMessage]:
        """Return the message with an offset message id, wherever its node is now; none: no group has it.

        Raises:
            SearchFormError: that is no offset message id.
            ClientError: a group could not be asked.
        """
        try:
            _, _, place = parse_offset_msg_id(message_id)
        except MessageIdError as error:
            raise SearchFormError(f"{error}; a unique key is looked up as a key") from error
        found = await self.at_place(place)
        return [message for message in found if message.message_id == message_id.upper()]

    async def at_place(self, physical_offset: int) -> list[FoundMessage]:
        """Return what begins at a place of each group's log. Raises ClientError."""
        found = [await self.at(broker, physical_offset) for broker in await self._names()]
        return [message for message in found if message is not None]

    async def trace(self, message_id: str) -> ClientTrace | None:
        """Return what clients have told of the message with a unique key; None: no broker has the trace topic.

        Raises:
            ClientError: nobody could be asked.
        """
        try:
            return await read_trace(self._inspector, message_id)
        except NoRouteError:
            return None

    async def at(self, broker: str, physical_offset: int) -> FoundMessage | None:
        """Return the message at a place of a group's log; None: none begins there. Raises ClientError."""
        found = await self._inspector.view(broker, physical_offset, broker_id=self._broker_id)
        self._note(broker, found)
        return FoundMessage(broker, found.messages[0]) if found.messages else None

    def _note(self, broker: str, found: Found) -> None:
        if found.standing is not None:
            self.standings.setdefault(broker, set()).add(found.standing)

    async def by_time(self, topic: str, begin_ms: int) -> list[FoundMessage]:
        """Return the first messages of a topic that were stored at a time or later, in order. Raises ClientError."""
        reader = self._inspector.reader
        found: list[FoundMessage] = []
        for queue in (await reader.queues(topic))[:QUEUES_MAX]:
            offset = await reader.offset_at(queue, begin_ms)
            found += (await self.from_queue(queue, offset)).messages
        found.sort(key=lambda one: one.order)
        return [one for one in found if one.record.store_timestamp_ms >= begin_ms][:FOUND_MAX]

    async def newest(self, topic: str) -> list[FoundMessage]:
        """Return the newest messages of a topic, the newest first. Raises ClientError."""
        found: list[FoundMessage] = []
        for queue in (await self._inspector.reader.queues(topic))[:QUEUES_MAX]:
            found += (await self.from_queue(queue, None)).messages
        found.sort(key=lambda one: one.order)
        return found[: -FOUND_MAX - 1 : -1]

    async def from_queue(self, queue: MessageQueue, offset: int | None) -> QueuePage:
        """Return the messages of a queue from an offset on; None: the newest.

        Raises:
            NoSuchQueueError: there is no such queue.
            ClientError: nobody could be asked.
        """
        reader = self._inspector.reader
        if queue not in await reader.queues(queue.topic):
            raise NoSuchQueueError(
                f"{queue.broker_name} has no queue {queue.queue_id} of {queue.topic}"
            )
        end = await reader.max_offset(queue)
        if offset is None:
            offset = max(0, end - FOUND_MAX)
        first = max(offset, await reader.min_offset(queue))
        found = await self.read_queue(queue, first, min(end, first + FOUND_MAX))
        return QueuePage(tuple(found), await reader.min_offset(queue), end)

    async def read_queue(
        self, queue: MessageQueue, start: int, end: int, budget: ReadingBudget | None = None
    ) -> list[FoundMessage]:
        """Read the messages of a queue from `start` to before `end`.

        Raises:
            ClientUsageError: they are more than the budget has room for.
            ClientError: the queue could not be read.
        """
        found: list[FoundMessage] = []
        place = start
        while place < end:
            most = min(_PULLED_AT_ONCE, end - place)
            pulled = await self._inspector.reader.pull_records(queue, place, max_messages=most)
            if budget is not None:
                budget.take(len(pulled.records))
            found += [
                FoundMessage(queue.broker_name, each)
                for each in _read(pulled.records)
                if each.queue_offset < end
            ]
            if pulled.next_offset <= place:
                break
            place = pulled.next_offset
        return found


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
        SearchForbiddenError: a server refuses it.
        SearchError: nobody could be asked, or it took too long.
    """
    try:
        with trio.fail_after(SEARCH_S):
            async with Inspector(namesrv, timeout_s=REQUEST_S) as inspector:
                yield MessageSearch(inspector)
    except trio.TooSlowError as error:
        raise SearchError(f"it took longer than {SEARCH_S:g} s") from error
    except ClientError as error:
        kind = SearchForbiddenError if is_forbidden(error) else SearchError
        raise kind(str(error)) from error


def is_forbidden(error: ClientError) -> bool:
    """Return whether a server refuses what it could do; RocketMQ 4.9 says so in its words alone."""
    return isinstance(error, RequestFailedError) and (
        error.code == ResponseCode.NO_PERMISSION or _ABOUT_ACCESS in error.remark
    )
