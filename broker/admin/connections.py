"""`dledger-admin connections`: who is connected to the nodes, as producer or as consumer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from broker.admin.answers import ConsumerConnections, read_consumers, read_groups, read_producers
from broker.admin.ask import NodeReply, ask_each
from broker.admin.client_versions import version_text
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK, EXIT_UNKNOWN
from broker.admin.failures import NotThereError
from broker.admin.nodes import all_addresses
from broker.admin.options import (
    add_broker_names,
    add_consumer_group,
    add_json,
    add_namesrv_or_brokers,
)
from broker.admin.printing import at, print_json, print_line, print_table
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError

_T = TypeVar("_T")


@dataclass(slots=True)
class ConnectedClient:
    """A client of one group.

    Attributes:
        nodes: the addresses of the nodes that say so.
        seen_ms: when one of them heard of it last, in ms since 1970; None: they do not say.
        topics: what it wants of each, if it consumes.
    """

    group: str
    client_id: str
    address: str
    language: str
    version: int
    nodes: list[str] = field(default_factory=list)
    seen_ms: int | None = None
    topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConnectionsFound:
    """All clients, and why the list may not be whole."""

    clients: list[ConnectedClient]
    problems: list[str]


class _Gathered:
    """Clients as one node after the other names them, each once."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], ConnectedClient] = {}
        self._problems: dict[str, None] = {}

    def add(self, client: ConnectedClient, node: str, seen_ms: int | None = None) -> None:
        known = self._clients.setdefault((client.group, client.client_id), client)
        known.nodes.append(node)
        if seen_ms is not None:
            known.seen_ms = max(seen_ms, known.seen_ms or 0)

    def read(
        self, reply: NodeReply, read: Callable[[bytes], _T], none_codes: Sequence[int] = ()
    ) -> _T | None:
        """Return what a node answered; None: nothing, which is a problem unless the code says that there is nothing."""
        problem = reply.problem
        if reply.answer is not None:
            if reply.answer.code in none_codes:
                return None
            if reply.answer.code == ResponseCode.SUCCESS:
                try:
                    return read(reply.answer.body)
                except BodyError as error:
                    problem = str(error)
            else:
                problem = f"refused with code {reply.answer.code}: {reply.answer.remark or ''}"
        self._problems[f"{reply.address}: {problem}"] = None
        return None

    def found(self) -> ConnectionsFound:
        return ConnectionsFound(
            [self._clients[key] for key in sorted(self._clients)], list(self._problems)
        )


async def _producers(options: argparse.Namespace) -> ConnectionsFound:
    """Ask all nodes for their producers."""
    gathered = _Gathered()
    addresses = await all_addresses(options)
    for reply in await ask_each(addresses, RequestCode.GET_ALL_PRODUCER_INFO):
        for group, clients in (gathered.read(reply, read_producers) or {}).items():
            if options.consumer_group in (None, group):
                for one in clients:
                    client = ConnectedClient(
                        group, one.client_id, one.remote_ip, one.language, one.version
                    )
                    gathered.add(client, reply.address, one.last_update_timestamp)
    return gathered.found()


async def _consumers(options: argparse.Namespace) -> ConnectionsFound:
    """Ask all nodes for the members of one consumer group, or of all that they know."""
    gathered = _Gathered()
    addresses = await all_addresses(options)
    groups = {options.consumer_group}
    if options.consumer_group is None:
        replies = await ask_each(addresses, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        groups = {name for each in replies for name in gathered.read(each, read_groups) or ()}
        addresses = [each.address for each in replies if each.answer is not None]
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    for group in sorted(groups):
        for reply in await ask_each(addresses, code, {"consumerGroup": group}):
            found = gathered.read(reply, read_consumers, (ResponseCode.CONSUMER_NOT_ONLINE,))
            _add_members(gathered, group, reply.address, found or ConsumerConnections())
    return gathered.found()


def _add_members(gathered: _Gathered, group: str, node: str, found: ConsumerConnections) -> None:
    topics = {name: each.sub_string for name, each in found.subscription_table.items()}
    for one in found.connection_set:
        client = ConnectedClient(
            group, one.client_id, one.client_addr, one.language, one.version, topics=topics
        )
        gathered.add(client, node)


def _add_options(command: argparse.ArgumentParser) -> None:
    add_namesrv_or_brokers(command)
    add_consumer_group(command, required=False, text="this group only")
    add_broker_names(command)
    add_json(command)


def _run_producers(options: argparse.Namespace) -> int:
    return _show("producers", trio.run(_producers, options), options)


def _run_consumers(options: argparse.Namespace) -> int:
    return _show("consumers", trio.run(_consumers, options), options)


def _show(what: str, found: ConnectionsFound, options: argparse.Namespace) -> int:
    """Print a row for each client; return EXIT_UNKNOWN if a node could not be asked.

    Raises:
        NotThereError: nobody of the group that was named is connected.
    """
    if options.json:
        print_json({what: [_json(one) for one in found.clients], "problems": found.problems})
    else:
        headings = (
            "group",
            "client id",
            "address",
            "language",
            "version",
            "nodes",
            "subscriptions",
        )
        last = "heard of" if what == "producers" else headings[-1]
        cells = [
            (
                one.group,
                one.client_id,
                one.address,
                one.language,
                version_text(one.version),
                str(len(one.nodes)),
                at(one.seen_ms)
                if what == "producers"
                else "; ".join(f"{name}: {wanted}" for name, wanted in sorted(one.topics.items())),
            )
            for one in found.clients
        ]
        print_table(f"{what}: {len(cells)}", (*headings[:-1], last), cells, right=("nodes",))
        for problem in found.problems:
            print_line(problem, "yellow")
    if found.problems:
        return EXIT_UNKNOWN
    if options.consumer_group is not None and not found.clients:
        raise NotThereError(f"nobody of {options.consumer_group} is connected to any node")
    return EXIT_OK


def _json(one: ConnectedClient) -> dict[str, object]:
    return {
        "group": one.group,
        "client_id": one.client_id,
        "address": one.address,
        "language": one.language,
        "version": version_text(one.version),
        "nodes": one.nodes,
        "seen_ms": one.seen_ms,
        "topics": dict(one.topics),
    }


CONNECTIONS = CommandGroup(
    "connections",
    "who is connected: producers, consumers",
    (
        Command(
            "producers",
            "the producers of all nodes: address, language, release, when they were heard of",
            _add_options,
            _run_producers,
            "connections producers -n 127.0.0.1:9876",
            fields="producers: [group, client_id, address, language, version, nodes: [...], seen_ms, topics: {...}],\n"
            "problems: [...]",
            aliases=("producerConnection",),
        ),
        Command(
            "consumers",
            "the consumers of all nodes: address, language, release, what they subscribe to",
            _add_options,
            _run_consumers,
            "connections consumers -n 127.0.0.1:9876",
            fields="consumers: [group, client_id, address, language, version, nodes: [...], seen_ms, topics: {...}],\n"
            "problems: [...]",
            aliases=("consumerConnection",),
        ),
    ),
)
