"""Receiving: pops at one place after the other, and waiting where nothing is. A place is a topic at one broker group.

A place whose broker group does not answer, or has no leader, keeps nobody from the messages of the others: it is asked
again beside them until it answers, and only when there was nothing anywhere it is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from dledger_mq.client.ack_errors import AckError
from dledger_mq.client.acknowledging import Acknowledging
from dledger_mq.client.errors import (
    ClientError,
    ConnectionLostError,
    NameServersUnreachableError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.pop_requests import GroupPops, PopPlace
from dledger_mq.client.pop_watch import PopWatch
from dledger_mq.client.popped_messages import PoppedMessage
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.retry import backoff_s
from dledger_mq.client.session import Session, is_transient
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message.names import is_retry_topic
from dledger_mq.remoting.codes import ResponseCode

RETRY_ROUTE_S: Final = 5.0
"""Between two questions for a retry topic that is not there; a message is a minute late before it is put there."""

ROUTE_PATIENCE_S: Final = 1.0
"""For a topic that is not known: it is announced a moment after its first message is acknowledged."""

ROUTE_RETRY_S: Final = 0.02

log = logging.getLogger(__name__)


class _Search:
    """One call of `receive`: what it wants, and the places that do not answer."""

    def __init__(self, max_messages: int, invisible_ms: int) -> None:
        self.max_messages = max_messages
        self.invisible_ms = invisible_ms
        self.failing: dict[PopPlace, ClientError] = {}


class Receiver:
    """Receives in the name of one group."""

    def __init__(
        self,
        session: Session,
        requests: GroupPops,
        watch: PopWatch,
        acknowledging: Acknowledging,
        *,
        subscriptions: Sequence[TopicSubscription],
        timeout_s: float,
    ) -> None:
        self._session = session
        self._requests = requests
        self._watch = watch
        self._acknowledging = acknowledging
        self._subscriptions = subscriptions
        self._timeout_s = timeout_s
        self._turn = 0
        self._retry_asked_at: float | None = None

    async def receive(
        self, max_messages: int, invisible_ms: int, wait_s: float
    ) -> tuple[PoppedMessage, ...]:
        """Return messages of one place, none when there is none in time.

        Raises:
            ClientError: a place refuses, or could not be asked within `timeout_s` beyond the time.
        """
        now = self._session.loop.now
        deadline = now() + wait_s
        places = await self._places()
        search = _Search(max_messages, invisible_ms)
        asked: Sequence[PopPlace] = places
        in_vain = 0
        while True:
            for place in asked:
                messages = await self._pop(place, search)
                if messages:
                    return messages
            in_vain += 1
            left_s = deadline - now()
            if search.failing:
                if left_s + self._timeout_s <= 0:
                    raise next(iter(search.failing.values()))
                left_s = backoff_s(in_vain)
            elif left_s <= 0:
                return ()
            found = await self._watch.wait(places, left_s)
            if found and in_vain > 1:
                # Others were faster, or what there is cannot be handed out now.
                await anyio.sleep(min(backoff_s(in_vain - 1), max(left_s, 0.0)))
            asked = [*found, *(place for place in search.failing if place not in found)]

    async def _places(self) -> list[PopPlace]:
        """Return where to pop, another one first each time.

        Raises:
            NoRouteError, NameServersUnreachableError: nobody serves a topic.
        """
        places: list[PopPlace] = []
        for wanted in self._subscriptions:
            brokers = await self._brokers(wanted.topic)
            places.extend(PopPlace(wanted, name) for name in brokers)
        if not places:
            raise NoRouteError(self._subscriptions[0].topic, "no queue of it can be read")
        self._turn = (self._turn + 1) % len(places)
        return places[self._turn :] + places[: self._turn]

    async def _brokers(self, topic: str) -> Iterable[str]:
        """Return the broker groups that serve a topic; none for a retry topic that is not there.

        Raises:
            NoRouteError, NameServersUnreachableError: nobody serves it.
        """
        routes, now = self._session.routes, self._session.loop.now
        if is_retry_topic(topic):
            return await self._retry_brokers(topic)
        deadline = now() + min(self._timeout_s, ROUTE_PATIENCE_S)
        while True:
            try:
                return _names(
                    await routes.when_there(lambda: routes.read_queues(topic), self._timeout_s)
                )
            except NoRouteError:
                if now() >= deadline:
                    raise
                await anyio.sleep(ROUTE_RETRY_S)

    async def _retry_brokers(self, topic: str) -> Iterable[str]:
        """Return the broker groups that serve the retry topic, and ask for it now and then while there is none."""
        now = self._session.loop.now
        asked_at = self._retry_asked_at
        if asked_at is not None and now() - asked_at < RETRY_ROUTE_S:
            return ()
        try:
            found = _names(await self._session.routes.read_queues(topic))
        except (NoRouteError, NameServersUnreachableError, RequestFailedError) as error:
            log.debug("nothing is received of %s: %s", topic, error)
            self._retry_asked_at = now()
            return ()
        self._retry_asked_at = None
        return found

    async def _pop(self, place: PopPlace, search: _Search) -> tuple[PoppedMessage, ...]:
        """Return what a place gives now; a place that does not answer is noted."""
        routes = self._session.routes
        address = await routes.find(place.broker_name, ask=place in search.failing)
        if address is None:
            text = f"no node of {place.broker_name} is known"
            search.failing[place] = NoRouteError(place.subscription.topic, text)
            return ()
        try:
            while messages := await self._requests.pop(
                address,
                place,
                max_messages=search.max_messages,
                invisible_ms=search.invisible_ms,
            ):
                search.failing.pop(place, None)
                if wanted := await self._wanted(messages, place):
                    return wanted
        except (ConnectionLostError, RequestTimeoutError) as error:
            search.failing[place] = error
        except RequestFailedError as error:
            if not _may_pass(error.code):
                raise
            search.failing[place] = error
            if error.code == ResponseCode.POLLING_FULL:
                return ()
        else:
            search.failing.pop(place, None)
            return ()
        routes.report_failure(place.broker_name, address)
        return ()

    async def _wanted(
        self, messages: tuple[PoppedMessage, ...], place: PopPlace
    ) -> tuple[PoppedMessage, ...]:
        """Return those with a wanted tag; brokers compare hashes. What else they hand out is done with."""
        wants = place.subscription.wants
        wanted = tuple(message for message in messages if wants(message.tags))
        if len(wanted) < len(messages):
            try:
                await self._acknowledging.acknowledge(
                    message for message in messages if not wants(message.tags)
                )
            except AckError as error:
                log.debug("messages of %s that nobody wants come again: %s", place, error)
        return wanted


def _names(queues: Iterable[MessageQueue]) -> list[str]:
    return sorted({queue.broker_name for queue in queues})


def _may_pass(code: int) -> bool:
    """Return whether a pop that ended so may succeed in a moment: one whose outcome is unknown has code 1."""
    return is_transient(code) or code in (ResponseCode.SYSTEM_ERROR, ResponseCode.POLLING_FULL)
