"""Looking into broker groups from outside: their names, where consumer groups stand, which messages have a key.

For tools. Everything is asked of the leader of each group, as `dledger_mq.PullConsumer` asks for queues.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, cast

import anyio
import msgspec

from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import (
    ConnectionLostError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.lifetime import Lifetime
from dledger_mq.client.pull_consumer import PULL_TIMEOUT_S, PullConsumer
from dledger_mq.client.retry import backoff_s
from dledger_mq.client.session import is_transient, raise_for
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.message_queries import (
    ANSWERED_BY_FIELD,
    BEFORE_FIELD,
    BEHIND_FIELD,
    LEADS_FIELD,
)
from dledger_mq.remoting.route import decode_cluster_info

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Every pull names a group; this one exists on every broker."""
MATCHES_MAX: Final = 64
FOREVER_MS: Final = 2**62

GroupOffsets = dict[str, dict[str, dict[int, QueueOffset]]]
"""Group, topic, queue id, and the next queue offset that the group will consume."""

GroupCounts = dict[str, dict[str, dict[int, int]]]
"""Group, topic, queue id, and how many messages it has popped there and not acknowledged; none: nothing."""


class SearchedMember(NamedTuple):
    """The member that has answered a search.

    Attributes:
        member: its id.
        leads: whether it led.
        behind: entries that it knew to be committed and had not applied; what they hold is not in its answer.
    """

    member: str
    leads: bool
    behind: int


class Found(NamedTuple):
    """The messages that a search has found, in log order; `standing`: who says so, None: it is not said."""

    messages: list[StoredMessage]
    standing: SearchedMember | None


class Inspector(Lifetime):
    """Asks what tools want to know. Use as an async context manager.

    Attributes:
        reader: for questions about topics, queues and their offsets.
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
        self.reader = PullConsumer(
            namesrv, TOOLS_GROUP, timeout_s=timeout_s, tls=tls, credentials=credentials
        )
        self.timeout_s = self.reader.timeout_s

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with self.reader:
            yield

    async def broker_names(self) -> tuple[str, ...]:
        """Return the names of all broker groups, sorted. Raises ClientError."""
        return tuple(sorted(await self.addresses()))

    async def consumer_offsets(self, broker_name: str) -> GroupOffsets:
        """Return where every consumer group stands on a broker group. Raises ClientError."""
        return (await self.consumer_places(broker_name))[0]

    async def consumer_places(self, broker_name: str) -> tuple[GroupOffsets, GroupCounts | None]:
        """Return where every consumer group stands on a broker group, and what it has in flight at that moment.

        Brokers of RocketMQ, and older ones of ours, do not say what is in flight: None. Raises ClientError.
        """
        answer = raise_for(await self.ask(broker_name, RequestCode.GET_ALL_CONSUMER_OFFSET, {}))
        try:
            found = read_object(answer.body)
            offsets = cast("GroupOffsets", _by_group(found.get("offsetTable")))
            said = found.get("inFlightTable")
            return offsets, None if said is None else _by_group(said)
        except (BodyError, msgspec.ValidationError) as error:
            raise RequestFailedError(answer.code, f"unreadable offsets: {error}") from error

    async def find(
        self,
        broker_name: str,
        topic: str,
        key: str,
        *,
        count_max: int = MATCHES_MAX,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        kind: str = "",
        before: int | None = None,
        broker_id: int | None = None,
    ) -> Found:
        """Return the newest messages of a topic with a key or unique key, in log order. Raises ClientError.

        There may be more, which `before` asks for; groups of RocketMQ do not know it, and give the newest again.

        Args:
            broker_name: the broker group.
            topic: whose messages are looked at.
            key: one of KEYS, or the UNIQ_KEY.
            count_max: at most so many.
            begin_ms: stored from then on; ms since 1970.
            end_ms: stored until then.
            kind: `K` for KEYS alone, `U` for unique keys alone; empty: both.
            before: only messages before this place of the log: where the oldest one that was found stands.
            broker_id: only the member with this id in routes is asked; None: the leader first.
        """
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        }
        if kind:
            ext["indexType"] = kind
        if before is not None:
            ext[BEFORE_FIELD] = str(before)
        answer = await self.ask(broker_name, RequestCode.QUERY_MESSAGE, ext, broker_id=broker_id)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return Found([], None)
        return Found(_records(raise_for(answer)), _standing(answer))

    async def view(
        self, broker_name: str, physical_offset: int, *, broker_id: int | None = None
    ) -> Found:
        """Return the message at a place in the log; none when there is none. Raises ClientError."""
        ext = {"offset": str(physical_offset)}
        answer = await self.ask(
            broker_name, RequestCode.VIEW_MESSAGE_BY_ID, ext, broker_id=broker_id
        )
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return Found([], None)
        return Found(_records(raise_for(answer))[:1], _standing(answer))

    async def addresses(self) -> Mapping[str, Mapping[int, str]]:
        """Ask a name server for the nodes of all groups: broker id to address, by broker name. Raises ClientError."""
        session = self.reader.live_session()
        answer = raise_for(
            await session.routes.when_there(
                lambda: session.name_servers.call(RequestCode.GET_BROKER_CLUSTER_INFO, {}),
                self.timeout_s,
            )
        )
        try:
            brokers = decode_cluster_info(answer.body).brokers
        except BodyError as error:
            raise RequestFailedError(answer.code, f"unreadable cluster table: {error}") from error
        return {name: data.broker_addrs for name, data in brokers.items()}

    async def ask(
        self,
        broker_name: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        broker_id: int | None = None,
    ) -> RemotingCommand:
        """Ask a group, its leader first, until there is an answer that stands or the time is over.

        With a `broker_id` only the member that has it in routes is asked.

        Only for requests that may be carried out twice.

        Raises:
            ConnectionLostError, RequestTimeoutError: no answer stands, and a try may have been carried out.
            NoRouteError, RequestFailedError: as the last try ended; none was carried out.
            NameServersUnreachableError: no name server answers.
        """
        deadline = anyio.current_time() + self.timeout_s
        tries = 0
        unknown: ConnectionLostError | RequestTimeoutError | None = None
        while True:
            addresses = (await self.addresses()).get(broker_name, {})
            if broker_id is not None:
                if broker_id not in addresses:
                    text = f"no node of this group has the id {broker_id} in routes"
                    raise NoRouteError(broker_name, text)
                addresses = {broker_id: addresses[broker_id]}
            failure: NoRouteError | RequestFailedError
            failure = NoRouteError(broker_name, "no node of this group is known")
            for _, address in sorted(addresses.items()):
                link = self.reader.live_session().links.get(address)
                try:
                    answer = await link.call(code, ext, body, timeout_s=self.timeout_s)
                except (ConnectionLostError, RequestTimeoutError) as error:
                    unknown = unknown if error.definite else error
                    failure = RequestFailedError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
                    continue
                if not is_transient(answer.code):
                    return answer
                failure = RequestFailedError(answer.code, answer.remark or "")
            tries += 1
            if anyio.current_time() + backoff_s(tries) >= deadline:
                raise unknown or failure
            await anyio.sleep(backoff_s(tries))


def _standing(answer: RemotingCommand) -> SearchedMember | None:
    """Return who has answered; None: it does not say (RocketMQ)."""
    ext = answer.ext
    if ANSWERED_BY_FIELD not in ext:
        return None
    try:
        return SearchedMember(
            ext[ANSWERED_BY_FIELD],
            fields.boolean(ext, LEADS_FIELD),
            fields.int64(ext, BEHIND_FIELD, 0),
        )
    except FieldError as error:
        raise RequestFailedError(answer.code, f"unreadable answer: {error}") from error


def _records(answer: RemotingCommand) -> list[StoredMessage]:
    try:
        return decode_records(answer.body)
    except RecordError as error:
        raise RequestFailedError(answer.code, f"unreadable messages: {error}") from error


def _by_group(table: object) -> GroupCounts:
    """Return numbers that stand by topic and group, and by queue, by group first.

    Raises:
        msgspec.ValidationError: they do not.
    """
    found: GroupCounts = {}
    for name, queues in msgspec.convert(table, dict[str, dict[int, int]], strict=False).items():
        topic, _, group = name.partition("@")
        found.setdefault(group, {})[topic] = queues
    return found
