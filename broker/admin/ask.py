"""Questions to name servers and brokers: who is there, and the runtime information of each.

It must not judge what they answer, nor print.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from dledger_mq.client.errors import ClientError, RequestTimeoutError, TooLateError
from dledger_mq.client.link import Link, Links, Opaques
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.route import BrokerData, ClusterInfo, decode_cluster_info

ASK_TIMEOUT_S: Final = 5.0
ASKED_AT_ONCE: Final = 128

_ERRNO: Final = re.compile(r"^\[Errno -?[0-9]+\] ")


class NobodyAnsweredError(Exception):
    """No name server, or no node, could be asked."""


class ServerRefusedError(BodyError):
    """A server refuses a request; `code` says how."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"refused with code {code}: {remark}")
        self.code = code


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of a node, or the reason why there is none.

    Attributes:
        address: host:port of its client port.
        table: names and values of its runtime information; empty when it did not answer.
        problem: why not.
    """

    address: str
    table: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def name(self) -> str:
        """The member's id, or its address when it has not said."""
        return self.table.get("raftNode") or self.address


@dataclass(frozen=True, slots=True)
class NodeReply:
    """The answer of a node to a request of any kind, or the reason why there is none.

    Attributes:
        address: host:port of its client port.
        answer: what it answered; None: nothing.
        problem: why it did not answer; empty: it did, whatever it says.
        may_be_done: without an answer: what was asked for may have been carried out.
    """

    address: str
    answer: RemotingCommand | None = None
    problem: str = ""
    may_be_done: bool = False


async def brokers_of(name_servers: Sequence[str]) -> Mapping[str, BrokerData]:
    """Return the broker groups that name servers know, by broker name.

    Args:
        name_servers: asked in order until one answers.

    Raises:
        NobodyAnsweredError: none answers.
    """
    problems: list[str] = []
    async with trio.open_nursery() as nursery:
        links = make_links(nursery)
        brokers: Mapping[str, BrokerData] | None = None
        for address in name_servers:
            info = await ask_name_server(links, address, timeout_s=ASK_TIMEOUT_S)
            if isinstance(info, str):
                problems.append(f"{address}: {info}")
                continue
            brokers = info.brokers
            break
        nursery.cancel_scope.cancel()
    if brokers is None:
        raise NobodyAnsweredError(f"no name server answers: {'; '.join(problems)}")
    return brokers


async def addresses_of_group(name_servers: Sequence[str], group: str | None) -> list[str]:
    """Return the client ports of the nodes that name servers know, in the order of their broker ids.

    Args:
        name_servers: asked in order until one answers.
        group: broker name; None: the only one there is.

    Raises:
        NobodyAnsweredError: no name server answers, or it does not know the group.
    """
    brokers = await brokers_of(name_servers)
    if group is None and len(brokers) == 1:
        (group,) = brokers
    if group is None or group not in brokers:
        known = ", ".join(sorted(brokers)) or "none"
        wanted = f"no group {group}" if group else "name the group with --group"
        raise NobodyAnsweredError(f"{wanted}; the name server knows: {known}")
    return [address for _, address in sorted(brokers[group].broker_addrs.items())]


async def ask_all(addresses: Sequence[str]) -> list[NodeAnswer]:
    """Ask every node for its runtime information, all at once; return the answers in the given order."""
    answers = [NodeAnswer(address) for address in addresses]
    async with trio.open_nursery() as nursery:
        links = make_links(nursery)

        async def ask(place: int, address: str) -> None:
            answers[place] = await ask_broker(links, address, timeout_s=ASK_TIMEOUT_S)

        async with trio.open_nursery() as asking:
            for place, address in enumerate(addresses):
                asking.start_soon(ask, place, address)
        nursery.cancel_scope.cancel()
    return answers


async def ask_each(
    addresses: Sequence[str], code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
) -> list[NodeReply]:
    """Ask every node for something, ASKED_AT_ONCE at a time; return what they answer in the given order."""
    replies = [NodeReply(address) for address in addresses]
    limiter = trio.CapacityLimiter(ASKED_AT_ONCE)
    async with trio.open_nursery() as nursery:
        links = make_links(nursery)

        async def ask(place: int, address: str) -> None:
            async with limiter:
                try:
                    link = links.get(address)
                    answer = await link.call(code, ext or {}, body, timeout_s=ASK_TIMEOUT_S)
                except ClientError as error:
                    problem = reason_of(address, error, ASK_TIMEOUT_S)
                    replies[place] = NodeReply(address, None, problem, not error.definite)
                else:
                    replies[place] = NodeReply(address, answer)

        async with trio.open_nursery() as asking:
            for place, address in enumerate(addresses):
                asking.start_soon(ask, place, address)
        nursery.cancel_scope.cancel()
    return replies


def make_links(nursery: trio.Nursery) -> Links:
    """Return connections that end with the nursery: a broker that stops waits for those that clients keep open."""
    return Links(nursery, Opaques(), _ignore)


async def ask_name_server(links: Links, address: str, *, timeout_s: float) -> ClusterInfo | str:
    """Ask a name server for all brokers; return the reason if it gives none."""
    try:
        body = await ask_server(
            links, address, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=timeout_s
        )
        return decode_cluster_info(body)
    except (ClientError, BodyError) as error:
        return reason_of(address, error, timeout_s)


async def ask_broker(links: Links, address: str, *, timeout_s: float) -> NodeAnswer:
    """Ask a broker for its runtime information."""
    try:
        body = await ask_server(
            links, address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=timeout_s
        )
        return NodeAnswer(address, _table(body))
    except (ClientError, BodyError) as error:
        return NodeAnswer(address, problem=reason_of(address, error, timeout_s))


def reason_of(address: str, error: Exception, timeout_s: float) -> str:
    """Return in few words why there is no answer; the address is known to whoever reads it."""
    if isinstance(error, TooLateError):
        return f"no connection within {timeout_s:g} s"
    if isinstance(error, RequestTimeoutError):
        return f"no answer within {timeout_s:g} s"
    text = str(error).removeprefix(f"{address}: ").removeprefix(f"{address} ")
    return _ERRNO.sub("", text)


def _table(body: bytes) -> dict[str, str]:
    table = read_object(body).get("table")
    if not isinstance(table, dict):
        raise BodyError("the runtime information has no member `table`: is this a broker?")
    return {str(key): str(value) for key, value in table.items()}


async def ask_server(
    links: Links,
    address: str,
    code: int,
    ext: Mapping[str, str] | None = None,
    *,
    timeout_s: float,
) -> bytes:
    """Return the body of a server's answer to one request.

    Raises:
        ClientError: no answer came.
        ServerRefusedError: it refuses.
    """
    answer = await links.get(address).call(code, ext, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise ServerRefusedError(answer.code, answer.remark or "no reason given")
    return answer.body


def _ignore(link: Link, command: RemotingCommand) -> None:
    """Drop what a node sends by itself: notices of rebalances, and nobody consumes here."""
