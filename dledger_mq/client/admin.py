"""Topics, groups and offsets: made, listed, described, changed and removed.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", queues=8)
        print(await admin.describe_group("billing"))

What is made or removed is made or removed on every broker group that the name servers know, unless some are
named. Every request may be repeated: one that failed half-way is called again.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal

import anyio
import msgspec

from dledger_mq.client.arguments import (
    check_group,
    check_int,
    check_topic,
    check_truth,
    queue_offsets,
    text_list,
    whole_number,
)
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import (
    ClientUsageError,
    NoRouteError,
    RequestFailedError,
)
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.client.inspector import Inspector
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.pull_consumer import PULL_TIMEOUT_S, ROUTE_RETRY_S
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.session import raise_for
from dledger_mq.message.names import (
    is_control_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    system_topic_problem,
)
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.group_bodies import decode_consumer_list
from dledger_mq.remoting.json_body import read_object, write_json
from dledger_mq.remoting.topic_config import PERM_READ, PERM_WRITE

QUEUES: Final = 8
RETRIES: Final = 16
NAME_SERVER_TIMEOUT_S: Final = 3.0

Place = Literal["first", "last"] | int
"""A place in a topic: the first offset that is kept, the end, or the first at or after a time (ms since 1970)."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as brokers serve it.

    Attributes:
        queues: of all broker groups, with min and max offset; max is the next offset to be written.
    """

    topic: str
    queues: dict[MessageQueue, tuple[QueueOffset, QueueOffset]]

    @property
    def messages(self) -> int:
        """The number of messages that are kept, all queues together."""
        return sum(end - start for start, end in self.queues.values())


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group: its members and its offsets.

    Attributes:
        members: client ids of those online, sorted.
        offsets: what is committed, by queue, retry topics included.
    """

    group: str
    members: tuple[str, ...]
    offsets: dict[MessageQueue, QueueOffset]


class Admin(Lifetime):
    """Administers the broker groups that some name servers know. Use as an async context manager.

    Args:
        namesrv: name servers, "host:port", several joined with ";".
        timeout_s: how long a request is tried, over all nodes and failovers.
        tls: encrypts the connections, see `make_tls_context`; None: plain text.
        credentials: the account that signs all requests, see `read_credentials`; None: nothing is signed.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float = PULL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._inspector = Inspector(namesrv, timeout_s=timeout_s, tls=tls, credentials=credentials)
        self._reader = self._inspector.reader
        self.timeout_s = self._inspector.timeout_s

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with self._inspector:
            yield

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        is_readable: bool = True,
        is_writable: bool = True,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Make a topic, or change one that exists; then its route is known, too.

        Args:
            topic: its name.
            queues: on each broker group.
            is_readable: whether consumers may read it.
            is_writable: whether producers may send to it.
            brokers: names of broker groups; None: all.

        Raises:
            ClientUsageError: the name is invalid or the system's.
            NoRouteError: it is made, but the name servers do not show it yet.
            ClientError: a broker refused, or did not answer in time; others may have done it.
        """
        _check_changeable(topic)
        check_int("queues", queues)
        check_truth("is_readable", is_readable)
        check_truth("is_writable", is_writable)
        perm = PERM_READ * is_readable + PERM_WRITE * is_writable
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        names = await self._everywhere(brokers, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        await self._wait_for_route(topic, {(name, queues, perm) for name in names})

    async def list_topics(self) -> tuple[str, ...]:
        """Return the topics of applications, without the system's, retry and dead letter topics. Raises ClientError."""
        tests = (is_system_topic, is_control_topic, is_retry_topic, is_dlq_topic)
        return tuple(
            name for name in await self._reader.topics() if not any(test(name) for test in tests)
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic's queues and what they hold.

        Raises:
            NoRouteError: nobody serves it.
            ClientError: brokers did not answer in time.
        """
        check_topic(topic)
        return TopicDescription(topic, await self._reader.bounds(await self._reader.queues(topic)))

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic and its messages from all brokers, and its route from all name servers.

        One that does not exist is a success.

        Raises:
            ClientUsageError: it is the system's.
            ClientError: a server refused, or did not answer in time; others may have done it.
        """
        _check_changeable(topic)
        await self._everywhere(None, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        session = self._reader.live_session()
        for address in session.name_servers.addresses:
            raise_for(
                await session.links.get(address).call(
                    RequestCode.DELETE_TOPIC_IN_NAMESRV,
                    {"topic": topic},
                    timeout_s=NAME_SERVER_TIMEOUT_S,
                )
            )

    async def create_group(
        self,
        group: str,
        *,
        retries: int = RETRIES,
        ordered: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Make a consumer group, or change one that exists.

        Args:
            group: its name.
            retries: deliveries of a message that fails, before the dead letter topic.
            ordered: what its simple consumers, and clients behind a proxy, receive of a queue comes in order (FIFO).
            brokers: names of broker groups; None: all.

        Raises:
            ClientUsageError: the name is invalid.
            ClientError: a broker refused, or did not answer in time; others may have done it.
        """
        check_group(group)
        check_int("retries", retries)
        check_truth("ordered", ordered)
        settings = {"groupName": group, "retryMaxTimes": retries, "consumeMessageOrderly": ordered}
        body = write_json(settings)
        await self._everywhere(brokers, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    async def list_groups(self) -> tuple[str, ...]:
        """Return the groups of applications, those with offsets only included. Raises ClientError."""
        found: set[str] = set()
        for name in await self._inspector.broker_names():
            answer = raise_for(
                await self._inspector.ask(name, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
            )
            found |= _table(answer.body, "subscriptionGroupTable").keys()
            found |= (await self._inspector.consumer_offsets(name)).keys()
        return tuple(sorted(name for name in found if not is_system_group(name)))

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's members and offsets; of a group that nobody knows, none. Raises ClientError."""
        check_group(group)
        members: set[str] = set()
        offsets: dict[MessageQueue, QueueOffset] = {}
        for name in await self._inspector.broker_names():
            members.update(await self._members(group, name))
            for topic, queues in (
                (await self._inspector.consumer_offsets(name)).get(group, {}).items()
            ):
                for queue_id, offset in queues.items():
                    offsets[MessageQueue(topic, name, queue_id)] = offset
        return GroupDescription(group, tuple(sorted(members)), offsets)

    async def delete_group(self, group: str, *, with_offsets: bool = False) -> None:
        """Remove a group's configuration, and its offsets where asked; one that does not exist is a success.

        Raises:
            ClientError: a broker refused, or did not answer in time; others may have done it.
        """
        check_group(group)
        check_truth("with_offsets", with_offsets)
        ext = {"groupName": group, "cleanOffset": "true" if with_offsets else "false"}
        await self._everywhere(None, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)

    async def reset_offsets(
        self, group: str, topic: str, to: Place | Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, QueueOffset]:
        """Let a group begin elsewhere in a topic, and return where. Nobody of the group may be online.

        A member that runs knows its own offsets and would store them again: there, use its `seek`.

        Args:
            group: its name.
            topic: all its queues, unless `to` names some.
            to: "first", "last", a time in ms since 1970, or offsets by queue.

        Raises:
            ClientUsageError: a member is online; nothing was changed.
            ClientError: an offset could not be found out or stored; others may be stored.
        """
        check_topic(topic)
        _check_place(to)
        members = (await self.describe_group(group)).members
        if members:
            raise ClientUsageError(f"{group} has members online: {', '.join(members)}")
        if isinstance(to, Mapping):
            wanted = queue_offsets(to)
        elif to in ("first", "last"):
            bounds = await self._reader.bounds(await self._reader.queues(topic))
            wanted = {queue: ends[to == "last"] for queue, ends in bounds.items()}
        else:
            wanted = {
                queue: await self._reader.offset_at(queue, whole_number("to", to))
                for queue in await self._reader.queues(topic)
            }
        session = self._reader.live_session()
        requests = GroupRequests(session, group, timeout_s=self.timeout_s)
        for queue, offset in wanted.items():
            if not session.routes.knows(queue.broker_name):
                await self._reader.queues(queue.topic)
            await requests.commit(queue, offset)
        return wanted

    async def _everywhere(
        self,
        brokers: Iterable[str] | None,
        code: RequestCode,
        ext: Mapping[str, str],
        body: bytes = b"",
    ) -> tuple[str, ...]:
        """Ask broker groups, all or those named, one after the other; return their names."""

        async def all_names() -> tuple[str, ...]:
            names = await self._inspector.broker_names()
            if not names:
                raise NoRouteError(ext.get("topic", "any"), "the name servers know no broker")
            return names

        if brokers is None:
            brokers = await self._reader.live_session().routes.when_there(all_names, self.timeout_s)
        names = tuple(text_list("brokers", brokers))
        for name in names:
            raise_for(await self._inspector.ask(name, code, ext, body))
        return names

    async def _wait_for_route(self, topic: str, wanted: set[tuple[str, int, int]]) -> None:
        """Wait until the name servers know a topic with so many queues and that perm on these brokers."""
        routes = self._reader.live_session().routes
        with anyio.move_on_after(self.timeout_s):
            while True:
                with suppress(NoRouteError):
                    route = await routes.refresh(topic)
                    known = {
                        (one.broker_name, one.write_queue_nums, one.perm) for one in route.queues
                    }
                    if wanted <= known:
                        return
                await anyio.sleep(ROUTE_RETRY_S)
        raise NoRouteError(topic, "it is made, and not known to the name servers yet")

    async def _members(self, group: str, broker_name: str) -> list[str]:
        answer = await self._inspector.ask(
            broker_name, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
        )
        if answer.code != ResponseCode.SUCCESS:
            return []  # no member is an error in this protocol
        try:
            return decode_consumer_list(answer.body)
        except BodyError as error:
            raise RequestFailedError(answer.code, f"unreadable members: {error}") from error


def _check_changeable(topic: str) -> None:
    problem = system_topic_problem(check_topic(topic))
    if problem is not None:
        raise ClientUsageError(problem)


def _check_place(to: object) -> None:
    is_known = isinstance(to, Mapping | int) and not isinstance(to, bool)
    if not is_known and to not in ("first", "last"):
        raise ClientUsageError(f"{to!r} is not 'first', 'last', a time or offsets")


def _table(body: bytes, name: str) -> dict[str, object]:
    try:
        return msgspec.convert(read_object(body).get(name), dict[str, object])
    except (BodyError, msgspec.ValidationError) as error:
        raise RequestFailedError(ResponseCode.SUCCESS, f"unreadable {name}: {error}") from error
