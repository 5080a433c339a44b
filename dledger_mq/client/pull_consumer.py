"""Reading queues at one's own pace: the caller chooses queue and offset, and keeps track.

    async with PullConsumer(namesrv="127.0.0.1:9876", group="audit") as consumer:
        for queue in await consumer.queues("Orders"):
            offset = await consumer.committed(queue) or await consumer.min_offset(queue)
            pulled = await consumer.pull(queue, offset)
            ...
            await consumer.commit(queue, pulled.next_offset)

It is no member of the group: it gets no share of the queues and takes none from others. The group's name
is only that under which offsets are stored.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import anyio

from dledger_mq.client.arguments import (
    check_credentials,
    check_group,
    check_int,
    check_optional_text,
    check_queue,
    check_seconds,
    check_tls,
    check_topic,
    queue_list,
    queue_offset,
    queue_offsets,
    whole_number,
)
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import (
    ClientClosedError,
    ClientError,
    ClientUsageError,
    ConnectionLostError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.group_requests import (
    PULL_GRACE_S,
    GroupRequests,
    PullAnswer,
    PulledRecords,
)
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.client.poller import Poller
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.retry import backoff_s
from dledger_mq.client.service import BodyFailure
from dledger_mq.client.session import Session, is_transient, raise_for
from dledger_mq.client.subscriptions import EVERYTHING, BySql, TopicSubscription, subscribe
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.route import decode_topic_list

ROUTE_RETRY_S: Final = 0.02
ROUTE_PATIENCE_S: Final = 1.0
AT_ONCE_MAX: Final = 64  # requests about queues under way together
PULL_TIMEOUT_S: Final = 10.0  # beyond `hold_s`; outlives a failover

_T = TypeVar("_T")


class PullConsumer(Lifetime):
    """Reads queues of the caller's choice. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        group: under whose name offsets are stored.
        timeout_s: how long a request is tried, over all nodes and failovers.
        instance: part of the client id; made up when not given.
        tls: encrypts the connections, see `make_tls_context`; None: plain text.
        credentials: the account that signs all requests, see `read_credentials`; None: nothing is signed.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        timeout_s: float = PULL_TIMEOUT_S,
        instance: str | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.group = check_group(group)
        self.timeout_s = check_seconds("timeout_s", timeout_s)
        if self.timeout_s <= 0:
            raise ClientUsageError(f"timeout_s {timeout_s} must be above 0")
        self._name_servers = parse_name_servers(namesrv)
        self._instance = check_optional_text("instance", instance)
        self._tls = check_tls(tls)
        self._credentials = check_credentials(credentials)
        self._session: Session | None = None
        self._requests: GroupRequests | None = None
        self._poller = Poller(
            lambda queue, offset, most, hold_s: self.pull(
                queue, offset, max_messages=most, hold_s=hold_s
            )
        )

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        """Open the session for the body; an error of the body leaves as itself, without the task group's wrapping."""
        failure = BodyFailure()
        async with anyio.create_task_group() as nursery:
            self._session = Session(
                self._name_servers,
                nursery,
                instance=self._instance,
                heartbeat=lambda: None,
                tls=self._tls,
                credentials=self._credentials,
            )
            self._requests = GroupRequests(self._session, self.group, timeout_s=self.timeout_s)
            nursery.start_soon(self._session.routes.keep_fresh, name="routes")
            try:
                with failure:
                    yield
            finally:
                self._session = self._requests = None
            nursery.cancel_scope.cancel()
        failure.raise_again()

    def live_session(self) -> Session:
        """Return the session of the open consumer, for requests of other kinds.

        Raises:
            ClientClosedError: it is not open.
        """
        if self._session is None:
            raise ClientClosedError("not open; use it in an `async with` block")
        return self._session

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that can be read.

        Waits a second for a topic that is not known: brokers announce one that was just created a
        moment after its first message is acknowledged. Name servers that do not answer yet, and the
        first broker, are waited for up to `timeout_s`.

        Raises:
            NoRouteError: nobody serves the topic.
            NameServersUnreachableError: no name server answers.
        """
        return await self._read_queues(check_topic(topic))

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the group's stored offset, None when it has none. Raises ClientError."""
        return await (await self._for(queue)).committed(queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset: everything below it is finished. Raises ClientError."""
        place = queue_offset("offset", offset)
        await (await self._for(queue)).commit(queue, place)

    async def min_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the first offset that is kept. Raises ClientError."""
        return await (await self._for(queue)).min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the next offset to be written. Raises ClientError."""
        return await (await self._for(queue)).max_offset(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the first offset stored at or after a time (ms since 1970). Raises ClientError."""
        timestamp_ms = whole_number("timestamp_ms", timestamp_ms)
        return await (await self._for(queue)).offset_at(queue, timestamp_ms)

    async def topics(self) -> tuple[str, ...]:
        """Return the names of all topics that the name servers know, sorted. Raises ClientError."""
        session = self.live_session()
        answer = raise_for(
            await session.routes.when_there(
                lambda: session.name_servers.call(
                    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}
                ),
                self.timeout_s,
            )
        )
        try:
            return tuple(sorted(decode_topic_list(answer.body)))
        except BodyError as error:
            raise RequestFailedError(answer.code, f"unreadable topic list: {error}") from error

    async def bounds(
        self, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, tuple[QueueOffset, QueueOffset]]:
        """Return min and max offset of queues, all asked at once.

        The max offset is what is committed at the time of the call, never less.

        Raises:
            ClientError: the failure of one that could not be asked.
        """

        async def ask(queue: MessageQueue) -> tuple[QueueOffset, QueueOffset]:
            requests = await self._for(queue)
            end = await requests.max_offset(queue)
            return await requests.min_offset(queue), end

        return await _of_each(queue_list(queues), ask)

    async def commit_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store the group's offsets of several queues. Raises ClientError; then some may be stored."""
        wanted = queue_offsets(offsets)

        async def store(queue: MessageQueue) -> None:
            await (await self._for(queue)).commit(queue, wanted[queue])

        await _of_each(wanted, store)

    async def assign(self, queues: Iterable[MessageQueue] | Mapping[MessageQueue, int]) -> None:
        """Let `poll` read these queues, and no others.

        Args:
            queues: with the offsets to begin at; or without, then each begins where the group has committed,
                or at the first offset that is kept.

        Raises:
            ClientError: an offset could not be found out.
        """
        if isinstance(queues, Mapping):
            self._poller.assign(queue_offsets(queues))
            return

        async def begin(queue: MessageQueue) -> QueueOffset:
            offset = await self.committed(queue)
            return await self.min_offset(queue) if offset is None else offset

        self._poller.assign(await _of_each(queue_list(queues), begin))

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that `poll` reads."""
        return tuple(sorted(self._poller.positions))

    async def poll(
        self, timeout_s: float = 1.0, *, max_messages: int = 32
    ) -> tuple[ReceivedMessage, ...]:
        """Return the next messages of one of the assigned queues, none when none came in time.

        Queues that have messages take turns. Messages are handed out once; `commit_positions` says that
        they are finished. Cancelling loses nothing.

        Raises:
            ClientUsageError: no queue is assigned, or all are paused.
            ClientError: a queue could not be read; its position stays.
        """
        return await self._poller.poll(
            check_int("max_messages", max_messages), check_seconds("timeout_s", timeout_s)
        )

    def position(self, queue: MessageQueue) -> QueueOffset:
        """Return the next offset that `poll` reads of an assigned queue."""
        self._poller.check([queue])
        return self._poller.positions[queue]

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let `poll` go on at another offset of an assigned queue."""
        self._poller.check([queue])
        self._poller.positions[queue] = queue_offset("offset", offset)

    def pause(self, *queues: MessageQueue) -> None:
        """Let `poll` pass over some of the assigned queues."""
        self._poller.check(queues)
        self._poller.paused.update(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Let `poll` read queues again that were paused."""
        self._poller.paused.difference_update(queue_list(queues))

    async def commit_positions(self) -> None:
        """Store the positions of all assigned queues as the group's offsets. Raises ClientError."""
        await self.commit_all(self._poller.positions)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str | BySql = EVERYTHING,
        hold_s: float = 0.0,
    ) -> PullAnswer:
        """Read from a queue, starting at an offset; follows the leader until `timeout_s`.

        Args:
            queue: which one.
            offset: the first one wanted.
            max_messages: at most so many; the broker may send fewer.
            expression: "*", tags joined with "||", or a choice by properties.
            hold_s: how long the broker may wait for a message when there is none.

        Raises:
            ClientError: it did not succeed in time, or was refused.
        """
        subscription = _subscribe(queue, expression)
        place = queue_offset("offset", offset)
        check_int("max_messages", max_messages)
        check_seconds("hold_s", hold_s)
        requests = await self._for(queue)

        async def ask(address: str) -> PullAnswer:
            return await requests.pull(
                address, queue, place, subscription, max_messages=max_messages, hold_s=hold_s
            )

        return await self._at_some_node(queue, ask, hold_s)

    async def pull_records(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str | BySql = EVERYTHING,
        node: int | None = None,
        answer_within_s: float = PULL_GRACE_S,
    ) -> PulledRecords:
        """Read as `pull` does, without waiting for messages, and return the records as they came: for reading in bulk.

        Args:
            queue: which one.
            offset: the first one wanted.
            max_messages: at most so many; the broker may send fewer.
            expression: "*", tags joined with "||", or a choice by properties.
            node: which node of the group to ask, by its place in the route (0 leads; beyond the last it
                starts over), and no other. Each serves only what is committed, and may be behind.
                None: follow the leader until `timeout_s`.
            answer_within_s: how long one node may take.

        Raises:
            ClientError: it did not succeed in time, or was refused.
        """
        subscription = _subscribe(queue, expression)
        place = queue_offset("offset", offset)
        check_int("max_messages", max_messages)
        check_seconds("answer_within_s", answer_within_s)
        if node is not None:
            check_int("node", node)
        requests = await self._for(queue)

        async def ask(address: str) -> PulledRecords:
            return await requests.pull_records(
                address,
                queue,
                place,
                subscription,
                max_messages=max_messages,
                hold_s=0.0,
                grace_s=answer_within_s,
            )

        if node is None:
            return await self._at_some_node(queue, ask, 0.0)
        addresses = self.live_session().routes.addresses(queue.broker_name)
        if not addresses:
            raise NoRouteError(queue.topic, f"no node of {queue.broker_name} is known")
        return await ask(addresses[node % len(addresses)])

    async def _at_some_node(
        self, queue: MessageQueue, ask: Callable[[str], Awaitable[_T]], hold_s: float
    ) -> _T:
        """Ask the leader of a queue, or another node, until one answers or the time is over."""
        session = self.live_session()
        routes, now = session.routes, session.loop.now
        deadline = now() + self.timeout_s + hold_s
        tries = 0
        while True:
            failure: ClientError
            address = await routes.find(queue.broker_name, ask=tries > 0)
            if address is None:
                failure = NoRouteError(queue.topic, f"no node of {queue.broker_name} is known")
            else:
                try:
                    return await ask(address)
                except (ConnectionLostError, RequestTimeoutError) as error:
                    failure = error
                except RequestFailedError as error:
                    if not is_transient(error.code):
                        raise
                    failure = error
                routes.report_failure(queue.broker_name, address)
            tries += 1
            if now() + backoff_s(tries) >= deadline:
                raise failure
            await anyio.sleep(backoff_s(tries))

    async def _read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        routes = self.live_session().routes
        deadline = anyio.current_time() + min(self.timeout_s, ROUTE_PATIENCE_S)
        while True:
            try:
                return await routes.when_there(lambda: routes.read_queues(topic), self.timeout_s)
            except NoRouteError:
                if anyio.current_time() >= deadline:
                    raise
                await anyio.sleep(ROUTE_RETRY_S)

    async def _for(self, queue: MessageQueue) -> GroupRequests:
        """Return the requests of the group, once the nodes of a queue are known."""
        check_queue(queue)
        session, requests = self.live_session(), self._requests
        assert requests is not None, "made with the session"
        if not session.routes.knows(queue.broker_name):
            await self._read_queues(queue.topic)
        return requests


def _subscribe(queue: MessageQueue, expression: str | BySql) -> TopicSubscription:
    return subscribe(check_queue(queue).topic, expression, time.time_ns() // 1_000_000)


async def _of_each(
    queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[_T]]
) -> dict[MessageQueue, _T]:
    """Ask about queues, AT_ONCE_MAX at a time; the first failure ends it."""
    wanted = list(queues)
    found: dict[MessageQueue, _T] = {}
    failures: list[ClientError] = []
    limiter = anyio.CapacityLimiter(AT_ONCE_MAX)

    async def one(queue: MessageQueue) -> None:
        async with limiter:
            try:
                found[queue] = await ask(queue)
            except ClientError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    async with anyio.create_task_group() as nursery:
        for queue in wanted:
            nursery.start_soon(one, queue)
    if failures:
        raise failures[0]
    return {queue: found[queue] for queue in wanted}
