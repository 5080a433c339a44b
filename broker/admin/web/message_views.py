"""The pages of messages: what a search has found, a queue, and one message with its body. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.admin.message_search import FOUND_MAX, FoundMessage, QueuePage
from broker.admin.web import grid, words
from broker.admin.web.bodies import BodyView, body_view
from broker.admin.web.grid import Cell, Column, Grid
from broker.admin.web.rendering import address_of
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.hosts import unpack_host
from dledger_mq.message.properties import decode_properties

TEXT_SHOWN_MAX: Final = 80
PROPERTIES_MAX: Final = 256
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

_COLUMNS: Final = (
    Column("stored", "Stored (UTC)"),
    Column("topic", "Topic"),
    Column("broker", "Broker group"),
    Column("queue", "Queue", is_number=True),
    Column("offset", "Offset", is_number=True),
    Column("key", "Unique key"),
    Column("keys", "Keys"),
    Column("tags", "Tag"),
    Column("size", "Size", is_number=True),
)


@dataclass(frozen=True, slots=True)
class MessageView:
    """The page of one message: facts by name, its properties, its body."""

    title: str
    facts: Mapping[str, str]
    properties: Mapping[str, str]
    properties_left_out: int
    body: BodyView
    topic_link: str


@dataclass(frozen=True, slots=True)
class QueueView:
    """The page of a queue: some of its messages, and where those before and after are (empty: there are none)."""

    messages: Grid
    first: int
    end: int
    before: str
    after: str


def row_of(message: FoundMessage) -> tuple[Cell, ...]:
    """Return the row of a message; it has nothing of the body, so that rows may be kept."""
    record = message.record
    link = address_of("/message", broker=message.broker, offset=record.physical_offset)
    properties = decode_properties(record.properties)
    return (
        Cell(words.time_of(record.store_timestamp_ms), record.store_timestamp_ms, link),
        grid.text_cell(record.topic),
        grid.text_cell(message.broker),
        grid.number_cell(record.queue_id),
        grid.number_cell(record.queue_offset),
        grid.text_cell(_short(properties.get("UNIQ_KEY", ""))),
        grid.text_cell(_short(properties.get("KEYS", ""))),
        grid.text_cell(_short(properties.get("TAGS", ""))),
        grid.size_cell(record.size_bytes),
    )


def found_grid(rows: Iterable[tuple[Cell, ...]], query: Mapping[str, str]) -> Grid:
    """Return what a search has found as a table."""
    base = {name: value for name, value in query.items() if not name.startswith("found-")}
    return Grid(
        "found",
        "Messages",
        _COLUMNS,
        list(rows),
        grid.sorting_of(query, "found"),
        base,
        nothing="No message was found.",
    )


def queue_view(page: QueuePage, query: Mapping[str, str], offset: int | None) -> QueueView:
    """Return the page of a queue."""
    begin = offset if offset is not None else max(page.first, page.end - FOUND_MAX)
    begin = max(begin, page.first)
    after = begin + FOUND_MAX
    base = {name: query.get(name, "") for name in ("topic", "broker", "queue")}
    return QueueView(
        Grid(
            "messages",
            "Messages",
            _COLUMNS,
            [row_of(each) for each in page.messages],
            nothing="There is no message from here on.",
        ),
        page.first,
        page.end,
        address_of("/queue", **base, offset=max(page.first, begin - FOUND_MAX))
        if begin > page.first
        else "",
        address_of("/queue", **base, offset=after) if after < page.end else "",
    )


def message_view(message: FoundMessage) -> MessageView:
    """Return the page of a message."""
    record = message.record
    properties = decode_properties(record.properties)
    shown = dict(sorted(properties.items())[:PROPERTIES_MAX])
    return MessageView(
        f"{record.topic}, queue {record.queue_id}, offset {record.queue_offset}",
        {
            "Message id": message.message_id,
            "Unique key": properties.get("UNIQ_KEY", words.NOT_KNOWN),
            "Keys": properties.get("KEYS", words.NOT_KNOWN),
            "Tag": properties.get("TAGS", words.NOT_KNOWN),
            "Broker group": message.broker,
            "Place in the log": words.number(record.physical_offset),
            "Born (UTC)": f"{words.time_of(record.born_timestamp_ms)} at {_host(record.born_host)}",
            "Stored (UTC)": f"{words.time_of(record.store_timestamp_ms)} at {_host(record.store_host)}",
            "Sent back": f"{record.reconsume_times} times",
            "Flags": f"{record.flag}, of the system {record.sys_flag}",
            "Size": words.size(record.size_bytes),
        },
        shown,
        len(properties) - len(shown),
        body_view(record.body, record.sys_flag),
        address_of("/topic", name=record.topic),
    )


def time_in(text: str) -> int | None:
    """Read a time of a form, UTC, or ms since 1970; None: it is none."""
    if text.isascii() and text.isdigit() and len(text) < len(str(TIME_MS_MAX)):
        return int(text)
    try:
        at = datetime.datetime.fromisoformat(text)
        at_ms = round(at.replace(tzinfo=at.tzinfo or datetime.UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return at_ms if 0 <= at_ms <= TIME_MS_MAX else None


def whole_number(text: str) -> int | None:
    """Read an offset or the like of an address; None: it is none."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(2**63)) - 1
    return int(text) if is_number else None


def _short(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN_MAX else f"{text[: TEXT_SHOWN_MAX - 3]}..."


def _host(host: bytes) -> str:
    try:
        address, port = unpack_host(host)
    except MessageFormatError:
        return words.NOT_KNOWN
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
