"""What the subcommands about topics, groups and offsets ask of broker groups, typed; and how they change something.

Everything is asked of the leader of a group, through `dledger_mq`'s inspector. It must not print.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from broker.admin import answers
from broker.admin.answers import GroupPlace, QueueStats, WireGroupConfig
from broker.admin.failures import NotThereError
from dledger_mq.client.errors import ClientError, RequestFailedError
from dledger_mq.client.inspector import Inspector
from dledger_mq.client.session import raise_for
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.topic_config import WireTopicConfig

TIMEOUT_S = 10.0
"""A request is tried for so long, over all nodes and failovers."""

_UNKNOWN = "outcome unknown"
"""Begins the remark of a broker that does not know whether a change was made (docs/guarantees.md, 8)."""

_MISSING = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.QUERY_NOT_FOUND,
    }
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The outcome of a change on one broker group.

    Attributes:
        broker: its name.
        problem: why it was not made, or why that is not known; empty: it was made.
        is_unknown: it may have been made, or may yet be.
    """

    broker: str
    problem: str = ""
    is_unknown: bool = False

    @property
    def state(self) -> str:
        """One word for it: done, refused or unknown."""
        return "unknown" if self.is_unknown else "refused" if self.problem else "done"


def outcome_of_answer(broker: str, answer: RemotingCommand) -> ChangeOutcome:
    """Return what an answer to a change says."""
    if answer.code == ResponseCode.SUCCESS:
        return ChangeOutcome(broker)
    remark = answer.remark or f"response code {answer.code}"
    return ChangeOutcome(broker, remark, remark.startswith(_UNKNOWN))


class Cluster:
    """The broker groups that some name servers know, or those of them that are named.

    Attributes:
        inspector: asks them.
        brokers: their names, sorted.
    """

    def __init__(self, inspector: Inspector, brokers: tuple[str, ...]) -> None:
        self.inspector = inspector
        self.brokers = brokers

    async def topics(self, broker: str) -> dict[str, WireTopicConfig]:
        """Return all topics of a broker group. Raises ClientError."""
        return await self._read(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {}, answers.read_topics)

    async def topic(self, broker: str, topic: str) -> WireTopicConfig | None:
        """Return one topic; None: it is not there. Raises ClientError."""
        return (await self.topics(broker)).get(topic)

    async def queues(self, broker: str, topic: str) -> dict[int, QueueStats]:
        """Return what the queues of a topic hold, by queue id; of one that is not there, none. Raises ClientError."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        found = await self._find(broker, code, {"topic": topic}, answers.read_topic_stats)
        return found or {}

    async def groups_of_topic(self, broker: str, topic: str) -> list[str]:
        """Return the consumer groups that are online for a topic, or have offsets there. Raises ClientError."""
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        return await self._read(broker, code, {"topic": topic}, answers.read_group_list)

    async def groups(self, broker: str) -> dict[str, WireGroupConfig]:
        """Return all consumer groups of a broker group. Raises ClientError."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._read(broker, code, {}, answers.read_groups)

    async def group(self, broker: str, group: str) -> WireGroupConfig | None:
        """Return the settings of one consumer group; None: it has none. Raises ClientError."""
        return (await self.groups(broker)).get(group)

    async def progress(
        self, broker: str, group: str, topic: str | None = None
    ) -> dict[WireQueue, GroupPlace]:
        """Return how far a consumer group is, in a topic or in all that it has offsets for. Raises ClientError."""
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        code = RequestCode.GET_CONSUME_STATS
        return await self._read(broker, code, ext, answers.read_consume_stats)

    async def consumers(self, broker: str, group: str) -> answers.ConsumerConnections:
        """Return the clients of a consumer group that are online, and what they want. Raises ClientError."""
        code, ext = RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
        found = await self._find(broker, code, ext, answers.read_consumers)
        return found or answers.ConsumerConnections()

    async def moves_groups(self, broker: str) -> bool:
        """Return whether a broker group carries out a reset of one queue (222), and its members follow.

        RocketMQ 4.x has the request, too, and passes over the queue that it names: it must not be sent there.
        Raises ClientError.
        """
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        if not (await self._read(broker, code, {}, answers.read_runtime)).get("raftNode"):
            return False
        code, ext = (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "", "group": "", "timestamp": "0"},
        )
        answer = await self.inspector.ask(broker, code, ext)  # without names it can only be refused
        return answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    async def change(
        self, broker: str, code: int, ext: Mapping[str, str], body: bytes = b""
    ) -> ChangeOutcome:
        """Ask for a change that may be carried out twice, and say what became of it."""
        try:
            return outcome_of_answer(broker, await self.inspector.ask(broker, code, ext, body))
        except ClientError as error:
            return ChangeOutcome(broker, str(error), not error.definite)

    async def _find(
        self, broker: str, code: int, ext: Mapping[str, str], read: Callable[[bytes], _T]
    ) -> _T | None:
        """Ask for what may not be there.

        Raises:
            ClientError: nobody could be asked, or the answer cannot be read.
        """
        answer = await self.inspector.ask(broker, code, ext)
        if answer.code in _MISSING:
            return None
        return _readable(read, raise_for(answer).body)

    async def _read(
        self, broker: str, code: int, ext: Mapping[str, str], read: Callable[[bytes], _T]
    ) -> _T:
        return _readable(read, raise_for(await self.inspector.ask(broker, code, ext)).body)


def _readable(read: Callable[[bytes], _T], body: bytes) -> _T:
    try:
        return read(body)
    except BodyError as error:
        raise RequestFailedError(ResponseCode.SUCCESS, f"unreadable answer: {error}") from error


@asynccontextmanager
async def open_cluster(
    namesrv: Iterable[str], brokers: Iterable[str] | None = None
) -> AsyncIterator[Cluster]:
    """Open the broker groups that name servers know.

    Args:
        namesrv: addresses of name servers.
        brokers: the names of those that are meant; None: all.

    Raises:
        NotThereError: the name servers do not know one that was named.
        NameServersUnreachableError: none of them answers.
    """
    async with Inspector(";".join(namesrv), timeout_s=TIMEOUT_S) as inspector:
        known = await inspector.broker_names()
        wanted = known if brokers is None else tuple(sorted(set(brokers)))
        unknown = [name for name in wanted if name not in known]
        if unknown or not wanted:
            missing = f"no broker group {', '.join(unknown)}" if unknown else "no broker group"
            raise NotThereError(
                f"the name servers know {missing}; known are: {', '.join(known) or 'none'}"
            )
        yield Cluster(inspector, wanted)
