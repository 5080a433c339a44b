"""`dledger-admin messages`: found by id, key, place or time, and printed with their properties and bodies.

Whatever is asked for is bounded: so many messages, so many bytes of each body.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from broker.admin.cluster import Cluster, open_cluster
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import NotThereError
from broker.admin.message_options import (
    add_body_form,
    add_key_kind,
    add_limit,
    add_span,
    offset_id,
)
from broker.admin.message_search import FoundMessage, MessageSearch, ReadingBudget
from broker.admin.message_trace import TRACE
from broker.admin.message_view import BodyForm, message_json, message_lines, record_text
from broker.admin.options import add_broker_names, add_json, add_namesrv, add_topic, count
from broker.admin.printing import number, print_json, print_line, print_text
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.inspector import FOREVER_MS, MATCHES_MAX, SearchedMember
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.numbers import QueueId

COUNT_DEFAULT: Final = 20
COUNT_MAX: Final = 10_000
KEY_COUNT_MAX: Final = 1_000_000
"""Of a key; they are asked for in pages of 64."""
READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that one command reads of queues, at most."""

_OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The messages that were found.

    Attributes:
        messages: some of them, in the order in which they were stored.
        total: how many there are.
        standings: who has answered, by broker group; nobody where that is not said.
    """

    messages: list[FoundMessage]
    total: int
    standings: Mapping[str, Iterable[SearchedMember]] = field(default_factory=dict)


Search = Callable[[Cluster, argparse.Namespace], Awaitable[SearchResult]]


def _add_view_options(command: argparse.ArgumentParser) -> None:
    """Add how messages are shown."""
    add_body_form(command)
    add_broker_names(command)
    add_json(command)


def _add_member(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--broker-id",
        type=count(0, 2**31 - 1),
        metavar="ID",
        help="ask only the member with this id in routes: 0 leads, others follow and know what they have applied",
    )


def _run_with(search: Search, options: argparse.Namespace) -> int:
    """Search, and print what was found."""

    async def run() -> SearchResult:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            return await search(cluster, options)

    result = trio.run(run)
    form = BodyForm(options.body, options.body_bytes)
    if options.json:
        print_json(
            {
                "messages": [message_json(each, form) for each in result.messages],
                "total": result.total,
                "answered_by": [
                    {"broker": broker, **each._asdict()}
                    for broker, standings in sorted(result.standings.items())
                    for each in sorted(standings)
                ],
            }
        )
        return EXIT_OK
    for found in result.messages:
        for line in message_lines(found, form):
            print_text(line)
    for line in _followers(result):
        print_line(line, "yellow")
    shown, total = number(len(result.messages)), number(result.total)
    print_line(f"messages: {shown}" + ("" if shown == total else f" of {total}"), "bold")
    return EXIT_OK


def _followers(result: SearchResult) -> Iterator[str]:
    """Return a line for each member that has answered and does not lead: it knows what it has applied."""
    for broker, standings in sorted(result.standings.items()):
        for each in sorted(standings):
            if not each.leads:
                behind = (
                    f"; {number(each.behind)} entries are not applied yet" if each.behind else ""
                )
                yield f"{broker}: {each.member} has answered, which follows{behind}"


def _search(search: Search) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        return _run_with(search, options)

    return run


def _add_id_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    command.add_argument(
        "-i", "--id", type=offset_id, required=True, metavar="ID", help="32 or 56 hex digits"
    )
    _add_member(command)
    _add_view_options(command)


async def _by_id(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Find the message of an offset message id, wherever its node is now.

    Raises:
        NotThereError: no broker group has it.
    """
    search = _search_in(cluster, options)
    _, _, place = parse_offset_msg_id(options.id)
    standing_there = await search.at_place(place)
    for found in standing_there:
        if found.message_id == options.id:
            return SearchResult([found], 1, search.standings)
    others = len(standing_there)
    why = "; what stands at its place has another id" if others else ""
    raise NotThereError(
        f"there is no message with the id {options.id} on {', '.join(cluster.brokers)}{why} (a unique key, which "
        "producers make, is looked up by `messages unique-key`)"
    )


def _add_unique_key_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_topic(command)
    command.add_argument(
        "-i", "--key", required=True, metavar="KEY", help="UNIQ_KEY, as a send returns it"
    )
    _add_member(command)
    _add_view_options(command)


async def _by_unique_key(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Find the messages that a producer has sent under a unique key: one, or one that came again."""
    search = _search_in(cluster, options)
    found = await search.by_key(options.topic, options.key, kind="U", count_max=MATCHES_MAX)
    same = [each for each in found if record_text(each.record, b"UNIQ_KEY") == options.key]
    return _some(same, f"with the unique key {options.key}", options, search)


def _add_key_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a search by key."""
    add_namesrv(command, required=True)
    add_topic(command)
    command.add_argument("-k", "--key", required=True, metavar="KEY", help="one of its KEYS")
    add_span(command)
    add_key_kind(command)
    add_limit(command, MATCHES_MAX, KEY_COUNT_MAX)
    _add_member(command)
    _add_view_options(command)


async def _by_key(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Find the newest messages with a key."""
    search = _search_in(cluster, options)
    found = await search.by_key(
        options.topic,
        options.key,
        kind={"any": "", "keys": "K", "unique": "U"}[options.kind],
        count_max=options.limit,
        begin_ms=options.begin or 0,
        end_ms=FOREVER_MS if options.end is None else options.end,
        budget=ReadingBudget(READ_BYTES_MAX),
    )
    return _some(found, f"with the key {options.key}", options, search)


def _some(
    found: list[FoundMessage], wanted: str, options: argparse.Namespace, search: MessageSearch
) -> SearchResult:
    """Return what was found.

    Raises:
        NotThereError: nothing.
    """
    if not found:
        raise NotThereError(f"there is no message of {options.topic} {wanted}")
    return SearchResult(found, len(found), search.standings)


def _search_in(cluster: Cluster, options: argparse.Namespace) -> MessageSearch:
    """Return a search in the broker groups that are meant, at the members that are."""
    return MessageSearch(cluster.inspector, cluster.brokers, broker_id=options.broker_id)


def _add_offset_options(command: argparse.ArgumentParser) -> None:
    """Add the place in a queue."""
    add_namesrv(command, required=True)
    add_topic(command)
    command.add_argument(
        "-q",
        "-i",
        "--queue",
        type=count(0, 2**31 - 1),
        required=True,
        metavar="ID",
        help="the queue",
    )
    command.add_argument(
        "-o",
        "--offset",
        type=count(0, _OFFSET_MAX),
        required=True,
        metavar="N",
        help="in the queue",
    )
    add_limit(command, 1, COUNT_MAX)
    _add_view_options(command)


async def _by_offset(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Read a queue from an offset on.

    Raises:
        ClientUsageError: several broker groups have the queue, and none is named.
        NotThereError: there is no such queue, or nothing at the offset.
    """
    held = {broker: await cluster.queues(broker, options.topic) for broker in cluster.brokers}
    having = [broker for broker, queues in held.items() if options.queue in queues]
    if len(having) > 1:
        raise ClientUsageError(
            f"{', '.join(having)} have a queue {options.queue} of {options.topic}: name one with --broker"
        )
    where = f"queue {options.queue} of {options.topic}"
    if not having:
        raise NotThereError(f"there is no {where} on {', '.join(cluster.brokers)}")
    stats = held[having[0]][options.queue]
    if not stats.min_offset <= options.offset < stats.max_offset:
        raise NotThereError(
            f"there is no offset {options.offset} in {where}: it has {stats.min_offset} to {stats.max_offset - 1}"
            if stats.messages
            else f"there is no message in {where}"
        )
    queue = MessageQueue(options.topic, having[0], QueueId(options.queue))
    end = min(stats.max_offset, options.offset + options.limit)
    search = MessageSearch(cluster.inspector, cluster.brokers)
    found = await search.read_queue(queue, options.offset, end, ReadingBudget(READ_BYTES_MAX))
    return SearchResult(found, stats.max_offset - options.offset)


def _add_range_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_topic(command)
    add_span(command)
    command.add_argument("--newest", action="store_true", help="the newest of them, not the oldest")
    add_limit(command, COUNT_DEFAULT, COUNT_MAX)
    _add_view_options(command)


async def _by_time(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Read the messages of all queues that were stored within a time.

    Raises:
        NotThereError: there is no such topic.
        ClientUsageError: they are too much to be read at once.
    """
    reader = cluster.inspector.reader
    search = MessageSearch(cluster.inspector, cluster.brokers)
    budget = ReadingBudget(READ_BYTES_MAX)
    found: list[FoundMessage] = []
    total = 0
    held = {broker: await cluster.queues(broker, options.topic) for broker in cluster.brokers}
    if not any(held.values()):
        raise NotThereError(f"there is no topic {options.topic} on {', '.join(cluster.brokers)}")
    for broker, queues in held.items():
        for queue_id, stats in queues.items():
            queue = MessageQueue(options.topic, broker, QueueId(queue_id))
            start, end = stats.min_offset, stats.max_offset
            if stats.messages and options.begin is not None:
                start = max(start, await reader.offset_at(queue, options.begin))
            if stats.messages and options.end is not None:
                end = min(end, await reader.offset_at(queue, options.end + 1))
            total += max(0, end - start)
            first = max(start, end - options.limit) if options.newest else start
            last = min(end, first + options.limit)
            found += await search.read_queue(queue, first, last, budget)
    found.sort(key=lambda one: one.order)
    chosen = found[-options.limit :] if options.newest else found[: options.limit]
    return SearchResult(chosen, total)


_FIELDS: Final = """\
messages: [topic, broker, queue, offset, physical_offset, message_id, unique_key, keys: [...], tags, born_ms, born_host,
  stored_ms, store_host, reconsume_times, flag, sys_flag, size_bytes, properties: {...}, body_bytes,
  body_encoding (text, hex, base64), body, body_cut, body_packed], total,
  answered_by: [broker, member, leads, behind]"""

MESSAGES = CommandGroup(
    "messages",
    "messages: found by id, key, place or time, and printed",
    (
        Command(
            "id",
            "the message with an offset message id, which the broker makes",
            _add_id_options,
            _search(_by_id),
            "messages id -n 127.0.0.1:9876 -i 7F00000100002A9F00000000000001C2",
            aliases=("queryMsgById",),
            fields=_FIELDS,
        ),
        Command(
            "unique-key",
            "the message with a unique key (UNIQ_KEY), which its producer makes",
            _add_unique_key_options,
            _search(_by_unique_key),
            "messages unique-key -n 127.0.0.1:9876 -t Orders -i 7F0000010B9A18B4AAC216A7A8A60000",
            aliases=("queryMsgByUniqueKey",),
            fields=_FIELDS,
        ),
        Command(
            "key",
            "the newest messages with a key (one of KEYS)",
            _add_key_options,
            _search(_by_key),
            "messages key -n 127.0.0.1:9876 -t Orders -k order-17",
            aliases=("queryMsgByKey",),
            fields=_FIELDS,
        ),
        Command(
            "offset",
            "messages of a queue, from an offset on",
            _add_offset_options,
            _search(_by_offset),
            "messages offset -n 127.0.0.1:9876 -t Orders -q 0 -o 17 --limit 3",
            aliases=("queryMsgByOffset",),
            fields=_FIELDS,
        ),
        Command(
            "range",
            "messages of a topic that were stored within a time, oldest first",
            _add_range_options,
            _search(_by_time),
            "messages range -n 127.0.0.1:9876 -t Orders --begin 15min --newest",
            aliases=("printMsg",),
            fields=_FIELDS,
        ),
        TRACE,
    ),
)
