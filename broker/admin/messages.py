"""`dledger-admin messages`: found by id, key, place or time, and printed with their properties and bodies.

Whatever is asked for is bounded: so many messages, so many bytes of each body.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from broker.admin.cluster import Cluster, open_cluster
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import NotThereError
from broker.admin.message_trace import TRACE
from broker.admin.message_view import (
    BODY_BYTES,
    BODY_BYTES_MAX,
    BodyForm,
    FoundMessage,
    message_json,
    message_lines,
    record_text,
)
from broker.admin.moments import FORMS
from broker.admin.options import add_broker_names, add_json, add_namesrv, add_topic, count, moment
from broker.admin.printing import number, print_json, print_line, print_text
from dledger_mq.client.errors import ClientUsageError, RequestFailedError
from dledger_mq.client.inspector import FOREVER_MS, MATCHES_MAX
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import offset_msg_id, parse_offset_msg_id
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.codes import ResponseCode

COUNT_DEFAULT: Final = 20
COUNT_MAX: Final = 10_000
READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that one command reads of queues, at most."""

_PULLED_AT_ONCE: Final = 32
_OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The messages that were found; `total` is how many there are, of which only some are here."""

    messages: list[FoundMessage]
    total: int


Search = Callable[[Cluster, argparse.Namespace], Awaitable[SearchResult]]


def _add_view_options(command: argparse.ArgumentParser) -> None:
    """Add how messages are shown."""
    command.add_argument(
        "--body",
        choices=("text", "hex", "base64", "none"),
        default="text",
        help="how bodies are shown; text: what is no text in hex (default)",
    )
    command.add_argument(
        "--body-bytes",
        type=count(0, BODY_BYTES_MAX),
        default=BODY_BYTES,
        metavar="N",
        help="at most so many bytes of each body (%(default)s)",
    )
    add_broker_names(command)
    add_json(command)


def _add_limit(command: argparse.ArgumentParser, default: int, most: int) -> None:
    command.add_argument(
        "-c",
        "--limit",
        type=count(1, most),
        default=default,
        metavar="N",
        help="at most so many messages (%(default)s)",
    )


def _add_span(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-b", "--begin", type=moment, metavar="TIME", help=f"stored then or later: {FORMS}"
    )
    command.add_argument("-e", "--end", type=moment, metavar="TIME", help="stored then or earlier")


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
            }
        )
        return EXIT_OK
    for found in result.messages:
        for line in message_lines(found, form):
            print_text(line)
    shown, total = number(len(result.messages)), number(result.total)
    print_line(f"messages: {shown}" + ("" if shown == total else f" of {total}"), "bold")
    return EXIT_OK


def _search(search: Search) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        return _run_with(search, options)

    return run


def _add_id_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    command.add_argument(
        "-i", "--id", type=_offset_id, required=True, metavar="ID", help="32 or 56 hex digits"
    )
    _add_view_options(command)


def _offset_id(text: str) -> str:
    """Read an offset message id.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        parse_offset_msg_id(text)
    except MessageIdError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text.upper()


async def _by_id(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Find the message of an offset message id, wherever its node is now.

    Raises:
        NotThereError: no broker group has it.
    """
    _, _, place = parse_offset_msg_id(options.id)
    others = 0
    for broker in cluster.brokers:
        record = await cluster.inspector.view(broker, place)
        if record is not None:
            if offset_msg_id(record.store_host, record.physical_offset) == options.id:
                return SearchResult([FoundMessage(broker, record)], 1)
            others += 1
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
    _add_view_options(command)


async def _by_unique_key(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Find the messages that a producer has sent under a unique key: one, or one that came again."""
    found = await _with_key(cluster, options, MATCHES_MAX, 0, end_ms=FOREVER_MS)
    same = [each for each in found if record_text(each.record, b"UNIQ_KEY") == options.key]
    return _some(same, f"with the unique key {options.key}", options)


def _add_key_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_topic(command)
    command.add_argument("-k", "--key", required=True, metavar="KEY", help="one of its KEYS")
    _add_span(command)
    _add_limit(command, MATCHES_MAX, MATCHES_MAX)
    _add_view_options(command)


async def _by_key(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Find the newest messages with a key."""
    end_ms = FOREVER_MS if options.end is None else options.end
    found = await _with_key(cluster, options, options.limit, options.begin or 0, end_ms=end_ms)
    return _some(found[-options.limit :], f"with the key {options.key}", options)


async def _with_key(
    cluster: Cluster, options: argparse.Namespace, count_max: int, begin_ms: int, *, end_ms: int
) -> list[FoundMessage]:
    """Return the messages of a topic with a key, in the order in which they were stored."""
    found = [
        FoundMessage(broker, record)
        for broker in cluster.brokers
        for record in await cluster.inspector.find(
            broker,
            options.topic,
            options.key,
            count_max=count_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
    ]
    return sorted(found, key=_order)


def _some(found: list[FoundMessage], wanted: str, options: argparse.Namespace) -> SearchResult:
    """Return what was found.

    Raises:
        NotThereError: nothing.
    """
    if not found:
        raise NotThereError(f"there is no message of {options.topic} {wanted}")
    return SearchResult(found, len(found))


def _order(found: FoundMessage) -> tuple[int, str, int, int]:
    record = found.record
    return record.store_timestamp_ms, found.broker, record.queue_id, record.queue_offset


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
    _add_limit(command, 1, COUNT_MAX)
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
    return SearchResult(
        await _Reading(cluster).read(queue, options.offset, end), stats.max_offset - options.offset
    )


def _add_range_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_topic(command)
    _add_span(command)
    command.add_argument("--newest", action="store_true", help="the newest of them, not the oldest")
    _add_limit(command, COUNT_DEFAULT, COUNT_MAX)
    _add_view_options(command)


async def _by_time(cluster: Cluster, options: argparse.Namespace) -> SearchResult:
    """Read the messages of all queues that were stored within a time.

    Raises:
        NotThereError: there is no such topic.
        ClientUsageError: they are too much to be read at once.
    """
    reader, reading = cluster.inspector.reader, _Reading(cluster)
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
            found += await reading.read(queue, first, min(end, first + options.limit))
    found.sort(key=_order)
    chosen = found[-options.limit :] if options.newest else found[: options.limit]
    return SearchResult(chosen, total)


class _Reading:
    """Reads queues for one command, and not more of them than a machine has room for."""

    def __init__(self, cluster: Cluster) -> None:
        self._reader = cluster.inspector.reader
        self._bytes_left = READ_BYTES_MAX

    async def read(self, queue: MessageQueue, start: int, end: int) -> list[FoundMessage]:
        """Read the messages of a queue from `start` to before `end`.

        Raises:
            ClientUsageError: all that was asked for is too much.
            ClientError: the queue could not be read.
        """
        found: list[FoundMessage] = []
        place = start
        while place < end:
            most = min(_PULLED_AT_ONCE, end - place)
            pulled = await self._reader.pull_records(queue, place, max_messages=most)
            self._bytes_left -= len(pulled.records)
            if self._bytes_left < 0:
                raise ClientUsageError(
                    f"they have more than {READ_BYTES_MAX >> 20} MiB: ask for fewer with --limit"
                )
            found += [
                each for each in _found(queue, pulled.records) if each.record.queue_offset < end
            ]
            if pulled.next_offset <= place:
                break
            place = pulled.next_offset
        return found


def _found(queue: MessageQueue, records: bytes) -> list[FoundMessage]:
    """Return the messages of a pull.

    Raises:
        RequestFailedError: they cannot be read.
    """
    try:
        return [FoundMessage(queue.broker_name, each) for each in decode_records(records)]
    except RecordError as error:
        text = f"unreadable messages: {error}"
        raise RequestFailedError(ResponseCode.SUCCESS, text) from error


_FIELDS: Final = """\
messages: [topic, broker, queue, offset, physical_offset, message_id, unique_key, keys: [...], tags, born_ms, born_host,
  stored_ms, store_host, reconsume_times, flag, sys_flag, size_bytes, properties: {...}, body_bytes,
  body_encoding (text, hex, base64), body, body_cut, body_packed], total"""

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
