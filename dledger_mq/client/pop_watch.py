"""Waiting until there is something to pop at one of several places.

Each place has one question (NOTIFICATION) under way at most, whoever waits, and a caller that has found something does
not end those of the other places: brokers hold few of them for a consumer that receives often. A question hands out
nothing, so nothing is lost with one that nobody waits for any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.pop_requests import GroupPops, PopPlace
from dledger_mq.client.retry import QuickAnswers, backoff_s
from dledger_mq.client.session import Session

PAUSE_S: Final = 0.5
"""After an answer that was no answer to the question: the broker refuses it, or holds too many."""

log = logging.getLogger(__name__)


class _Waiter:
    """One caller that waits, and the places at which there is something."""

    def __init__(self, places: Iterable[PopPlace]) -> None:
        self.places = frozenset(places)
        self.found: list[PopPlace] = []
        self.woken = anyio.Event()


class PopWatch:
    """Asks whether there is something to pop, while somebody waits for it.

    Args:
        nursery: its tasks run there; it ends with the consumer.
    """

    def __init__(self, session: Session, requests: GroupPops, nursery: TaskGroup) -> None:
        self._session = session
        self._requests = requests
        self._nursery = nursery
        self._waiters: set[_Waiter] = set()
        self._asking: set[PopPlace] = set()

    async def wait(self, places: Iterable[PopPlace], timeout_s: float) -> list[PopPlace]:
        """Return places at which there is something to pop; none when the time is over."""
        waiter = _Waiter(places)
        self._waiters.add(waiter)
        for place in waiter.places - self._asking:
            self._asking.add(place)
            self._nursery.start_soon(self._ask_about, place, name=f"notice {place}")
        try:
            with anyio.move_on_after(timeout_s):
                await waiter.woken.wait()
        finally:
            self._waiters.discard(waiter)
        return waiter.found

    def _is_wanted(self, place: PopPlace) -> bool:
        return any(place in waiter.places for waiter in self._waiters)

    async def _ask_about(self, place: PopPlace) -> None:
        """Ask about one place until there is something, or nobody waits for it."""
        failures, quick = 0, QuickAnswers()
        try:
            while self._is_wanted(place):
                pause_s = await self._ask_once(place, failures, quick)
                failures = failures + 1 if pause_s else 0
                if pause_s is None:
                    return
                await anyio.sleep(pause_s)
        finally:
            self._asking.discard(place)

    async def _ask_once(self, place: PopPlace, failures: int, quick: QuickAnswers) -> float | None:
        """Ask once; return the pause before the next time, None when it was found that there is something.

        What a broker refuses counts as something: the pop that follows says it to the caller.
        """
        routes = self._session.routes
        address = await routes.find(place.broker_name, ask=failures > 0)
        if address is None:
            return backoff_s(failures + 1)
        asked_at = self._session.loop.now()
        try:
            notice = await self._requests.notice(address, place)
        except (ConnectionLostError, RequestTimeoutError, ClientClosedError) as error:
            log.debug("notice of %s failed: %s", place, error)
            routes.report_failure(place.broker_name, address)
            return backoff_s(failures + 1)
        except RequestFailedError as error:
            log.debug("notice of %s refused: %s", place, error)
            routes.report_failure(place.broker_name, address)
            self._wake(place)
            return PAUSE_S
        if notice.has_messages:
            self._wake(place)
            return None
        if notice.is_full:
            return PAUSE_S
        await anyio.sleep(quick.pause_s(self._session.loop.now() - asked_at))
        return 0.0  # the node has answered: no failure, for which name servers would be asked

    def _wake(self, place: PopPlace) -> None:
        for waiter in self._waiters:
            if place in waiter.places:
                waiter.found.append(place)
                waiter.woken.set()
