"""Questions to the nodes of a group: their addresses, and the runtime information of each.

It must not judge what they answer, nor print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from dledger_mq.client.errors import ClientError
from dledger_mq.client.link import Link, Links, Opaques
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_object
from dledger_mq.remoting.route import BrokerData, decode_cluster_info

ASK_TIMEOUT_S: Final = 5.0


class NobodyAnsweredError(Exception):
    """No name server, or no node, could be asked."""


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


async def addresses_of_group(name_servers: Sequence[str], group: str | None) -> list[str]:
    """Return the client ports of the nodes that name servers know, in the order of their broker ids.

    Args:
        name_servers: asked in order until one answers.
        group: broker name; None: the only one there is.

    Raises:
        NobodyAnsweredError: no name server answers, or it does not know the group.
    """
    problems: list[str] = []
    async with trio.open_nursery() as nursery:
        links = Links(nursery, Opaques(), _ignore)
        brokers: Mapping[str, BrokerData] | None = None
        for address in name_servers:
            try:
                body = await _call(links, address, RequestCode.GET_BROKER_CLUSTER_INFO)
                brokers = decode_cluster_info(body).brokers
            except (ClientError, BodyError) as error:
                problems.append(_with_address(address, error))
                continue
            break
        nursery.cancel_scope.cancel()
    if brokers is None:
        raise NobodyAnsweredError(f"no name server answers: {'; '.join(problems)}")
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
        links = Links(nursery, Opaques(), _ignore)

        async def ask(place: int, address: str) -> None:
            try:
                body = await _call(links, address, RequestCode.GET_BROKER_RUNTIME_INFO)
                answers[place] = NodeAnswer(address, _table(body))
            except (ClientError, BodyError) as error:
                problem = str(error).removeprefix(f"{address}: ")
                answers[place] = NodeAnswer(address, problem=problem)

        async with trio.open_nursery() as asking:
            for place, address in enumerate(addresses):
                asking.start_soon(ask, place, address)
        nursery.cancel_scope.cancel()
    return answers


def _with_address(address: str, error: Exception) -> str:
    """Put the address before an error that does not begin with it."""
    text = str(error)
    return text if text.startswith(f"{address}: ") else f"{address}: {text}"


def _table(body: bytes) -> dict[str, str]:
    table = read_object(body).get("table")
    if not isinstance(table, dict):
        raise BodyError("the runtime information has no member `table`: is this a broker?")
    return {str(key): str(value) for key, value in table.items()}


async def _call(links: Links, address: str, code: int) -> bytes:
    answer = await links.get(address).call(code, timeout_s=ASK_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise BodyError(f"refused with code {answer.code}: {answer.remark or 'no reason given'}")
    return answer.body


def _ignore(link: Link, command: RemotingCommand) -> None:
    """Drop what a node sends by itself: notices of rebalances, and nobody consumes here."""
