"""The routes of topics, as name servers gave them, and which node to try when one fails.

A route that was once known is kept until a newer one comes: while a group elects a leader its route may
have no leader, or be missing, and its nodes are still the right ones to ask, since each of them forwards
to the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.errors import (
    ClientClosedError,
    ClientError,
    NameServersUnreachableError,
    NoRouteError,
    RequestFailedError,
)
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.send_frames import AUTO_CREATE_QUEUES
from dledger_mq.client.shared_answers import SharedAnswers
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.route import (
    LEADER_ID,
    TopicRoute,
    decode_cluster_info,
    decode_route,
)

PERM_READ: Final = 4
PERM_WRITE: Final = 2
REFRESH_S: Final = 30.0  # as every client does
REFRESH_AGAIN_S: Final = 0.01  # tasks that fail together ask once
TEMPLATE_REFRESH_S: Final = 1.0  # a topic that is about to be created appears within moments
FIRST_TRIES: Final = 3  # a second each: as long as the Java client waits for its first answer
ASK_AGAIN_S: Final = 0.1  # while there is nobody to ask, or nobody to send to
LED_FOR_S: Final = 0.2  # a new leader's topics follow its address after some 30 ms
FAILED_FOR_S: Final = 1.0  # a node that failed is tried after the others for so long

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class RouteSource(Protocol):
    """Name servers, as far as routes need them."""

    async def call(self, code: int, ext: dict[str, str]) -> RemotingCommand:
        """Return an answer, or raise NameServersUnreachableError."""
        ...


def publish_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the queues that take messages, in Java's order."""
    return _queues(
        topic,
        ((q.broker_name, q.write_queue_nums) for q in route.queues if q.perm & PERM_WRITE),
        route,
    )


def read_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """Return the queues that can be read, in Java's order."""
    return _queues(
        topic,
        ((q.broker_name, q.read_queue_nums) for q in route.queues if q.perm & PERM_READ),
        route,
    )


def _queues(
    topic: str, counts: Iterable[tuple[str, int]], route: TopicRoute
) -> tuple[MessageQueue, ...]:
    reachable = {broker.broker_name for broker in route.brokers}
    return tuple(
        sorted(
            MessageQueue(topic, name, number)
            for name, count in counts
            if name in reachable
            for number in range(count)
        )
    )


class Routes:
    """All routes that one client uses."""

    def __init__(
        self,
        source: RouteSource,
        nursery: TaskGroup,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        """Know no route yet; questions run in `nursery`, and go on when those who asked have given up."""
        self._source = source
        self._clock = clock
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, tuple[MessageQueue, ...]] = {}
        self._templates: dict[str, float] = {}  # topics not created yet, and when last asked for
        self._brokers: dict[str, dict[int, str]] = {}
        self._refreshing = SharedAnswers(nursery, self._refresh)
        self._loading = SharedAnswers(nursery, self._load_for_publishing)
        self._asked_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self.on_change: Callable[[str], None] = lambda topic: None
        self.default_queues = AUTO_CREATE_QUEUES  # what a topic gets that its first message creates

    def known_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return what is known now without asking, perhaps nothing."""
        return self._publish.get(topic, ())

    def sure_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return what `publish_queues` would without asking; nothing where it might ask, or raise."""
        return () if topic in self._templates else self._publish.get(topic, ())

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a producer may send to; asks when there is no answer yet.

        A topic that does not exist gets the queues that it will have once its first message
        creates it, if the brokers allow that.

        Raises:
            NoRouteError: nobody serves the topic, nor may it be created.
            NameServersUnreachableError: no name server answers.
        """
        queues = self._publish.get(topic)
        if queues is None:
            await self._loading.get(topic)
        elif self._is_stale_template(topic):
            # Failures leave what was borrowed: a send shows whether it is right.
            self._templates[topic] = self._clock()
            with suppress(NoRouteError, NameServersUnreachableError, RequestFailedError):
                await self._loading.get(topic)
        queues = self._publish.get(topic)
        if not queues:
            raise NoRouteError(topic, "no queue of it takes messages")
        return queues

    def _is_stale_template(self, topic: str) -> bool:
        asked = self._templates.get(topic)
        assert asked is None or topic not in self._routes, f"{topic} has a route, and borrows one"
        return asked is not None and self._clock() - asked > TEMPLATE_REFRESH_S

    async def _load_for_publishing(self, topic: str) -> None:
        """Load a route for sends; a topic without one gets that of the template, from which the broker creates it."""
        ask = self.refresh if topic in self._publish else self._first
        try:
            await ask(topic)
        except NoRouteError:
            template = await ask(AUTO_CREATE_TOPIC)
            if topic in self._routes:
                return  # it was created meanwhile
            self._templates[topic] = self._clock()
            self._publish[topic] = tuple(
                queue
                for queue in publish_queues(topic, template)
                if queue.queue_id < self.default_queues
            )

    async def read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a consumer reads.

        Raises:
            NoRouteError, NameServersUnreachableError: as `publish_queues`.
        """
        route = self._routes.get(topic)
        if route is None:
            route = await self._first(topic)
        return read_queues(topic, route)

    async def when_there(self, ask: Callable[[], Awaitable[_T]], timeout_s: float) -> _T:
        """Ask for a route, again and again while no name server answers or those that do know no leader.

        So a program may be started together with its group: its followers register first, then the leader,
        then its topics. A topic that has no route although somebody leads is believed after a moment.

        Raises:
            NoRouteError, NameServersUnreachableError: as the last try ended, `timeout_s` later.
        """
        failure: ClientError | None = None
        led_since: float | None = None
        with anyio.move_on_after(timeout_s):
            while True:
                try:
                    return await ask()
                except NameServersUnreachableError as error:
                    failure = error
                except NoRouteError as error:
                    failure = error
                    now = self._clock()
                    led_since = (led_since or now) if await self._has_leader() else None
                    if led_since is not None and now - led_since >= LED_FOR_S:
                        raise
                await anyio.sleep(ASK_AGAIN_S)
        waited_s = max(timeout_s, 0.0)
        raise failure or NameServersUnreachableError(f"no name server answered in {waited_s:g} s")

    async def _has_leader(self) -> bool:
        """Return whether a name server knows anybody who leads."""
        try:
            answer = await self._source.call(RequestCode.GET_BROKER_CLUSTER_INFO, {})
            return answer.code != ResponseCode.SUCCESS or any(
                LEADER_ID in broker.broker_addrs
                for broker in decode_cluster_info(answer.body).brokers.values()
            )
        except NameServersUnreachableError:
            return False
        except BodyError:
            return True

    async def _first(self, topic: str) -> TopicRoute:
        """Fetch as `refresh` does, with more patience: nothing is known that would do until the next time."""
        for _ in range(FIRST_TRIES - 1):
            try:
                return await self.refresh(topic)
            except NameServersUnreachableError as error:
                log.debug("route of %s is asked for again: %s", topic, error)
        return await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask the name servers for a topic. Tasks that ask at the same time share one answer.

        Raises:
            NoRouteError: there is no such topic.
            NameServersUnreachableError: no name server answers.
            RequestFailedError: the name server does not know.
            ClientClosedError: the client was left.
        """
        return await self._refreshing.get(topic)

    async def _refresh(self, topic: str) -> TopicRoute:
        """Ask, and take in the answer; raises as `refresh`."""
        try:
            answer = await self._source.call(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                {"topic": topic, "acceptStandardJsonOnly": "true"},
            )
        finally:
            if (
                topic in self._routes
            ):  # of what is not there nothing is remembered: anybody may ask a proxy for it
                self._asked_at[topic] = self._clock()
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRouteError(topic, answer.remark or "")
        if answer.code != ResponseCode.SUCCESS:
            raise RequestFailedError(answer.code, answer.remark or "")
        try:
            route = decode_route(answer.body)
        except BodyError as error:
            raise RequestFailedError(answer.code, f"unreadable route: {error}") from error
        self._take(topic, route)
        return route

    def _take(self, topic: str, route: TopicRoute) -> None:
        """Take in a route.

        Addresses of a broker are replaced whole, and a new leader is forgiven what failed before.
        """
        for broker in route.brokers:
            if not broker.broker_addrs:
                continue
            known = self._brokers.get(broker.broker_name, {})
            leader = broker.broker_addrs.get(LEADER_ID)
            if leader is not None and leader != known.get(LEADER_ID):
                self._failed_at.pop(leader, None)  # it leads anew: what failed before is past
            self._brokers[broker.broker_name] = dict(sorted(broker.broker_addrs.items()))
        self._asked_at[topic] = self._clock()
        changed = self._routes.get(topic) != route
        self._routes[topic] = route
        self._templates.pop(topic, None)
        self._publish[topic] = publish_queues(topic, route)
        if changed:
            self.on_change(topic)

    async def keep_fresh(self) -> None:
        """Ask for every known topic again and again; failures leave the old route in place."""
        while True:
            await anyio.sleep(REFRESH_S)
            for topic in list(self._routes):
                await self._try_refresh(topic)

    async def _try_refresh(self, topic: str) -> None:
        try:
            await self.refresh(topic)
        except (
            ClientClosedError,  # to a task that has its turn while the client is left: leaving must not raise for it
            NoRouteError,
            NameServersUnreachableError,
            RequestFailedError,
        ) as error:
            log.debug("route of %s stays as it was: %s", topic, error)

    def addresses(self, broker_name: str) -> list[str]:
        """Return the nodes of a group, the leader first if one is known."""
        return list(self._brokers.get(broker_name, {}).values())

    def knows(self, broker_name: str) -> bool:
        """Return whether an address of the group is known."""
        return broker_name in self._brokers

    def leader(self, broker_name: str) -> str | None:
        """Return the address that the name servers know as the leader's."""
        return self._brokers.get(broker_name, {}).get(LEADER_ID)

    def all_addresses(self) -> frozenset[str]:
        """Return every node of every known group."""
        return frozenset(address for nodes in self._brokers.values() for address in nodes.values())

    def broker_names(self) -> list[str]:
        """Return the names of the known groups."""
        return list(self._brokers)

    async def find(self, broker_name: str, *, ask: bool) -> str | None:
        """Return the node to try next: the leader, unless it has just failed, then the others."""
        if ask:
            await self._ask_about(broker_name)
        now = self._clock()
        best: tuple[float, int, str] | None = None
        for place, address in enumerate(self.addresses(broker_name)):
            failed_at = self._failed_at.get(address, 0.0)
            recent = failed_at if now - failed_at < FAILED_FOR_S else 0.0
            candidate = (recent, place, address)
            if best is None or candidate < best:
                best = candidate
        return best[2] if best else None

    def report_failure(self, broker_name: str, address: str) -> None:
        """Take note that a node of a group could not help just now."""
        if address in self.addresses(broker_name):
            self._failed_at[address] = self._clock()

    async def _ask_about(self, broker_name: str) -> None:
        topic = next(
            (
                topic
                for topic, route in self._routes.items()
                if any(broker.broker_name == broker_name for broker in route.brokers)
            ),
            None,
        )
        if topic is None or self._clock() - self._asked_at[topic] < REFRESH_AGAIN_S:
            return
        await self._try_refresh(topic)
