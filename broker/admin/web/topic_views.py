"""The pages of topics: all of them, and one with its queues. Pure: tables in, what is shown out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.admin.web import grid, words
from broker.admin.web.grid import Cell, Column, Grid, NameFilter
from broker.admin.web.progress import PROGRESS_COLUMNS, lag_of, progress_cells
from broker.admin.web.rendering import address_of
from broker.admin.web.sampler import GroupTables, Sampler
from dledger_mq.message import names
from dledger_mq.remoting.topic_config import PERM_READ, PERM_WRITE

_PERMISSIONS: Final = ((PERM_READ, "read"), (PERM_WRITE, "write"))
_TOPIC_COLUMNS: Final = (
    Column("topic", "Topic"),
    Column("kind", "Kind"),
    Column("brokers", "Broker groups", is_number=True),
    Column("queues", "Queues", is_number=True),
    Column("allowed", "Allowed"),
    Column("messages", "Messages kept", is_number=True),
    Column("rate", "Written per second", is_number=True),
    Column("groups", "Consumer groups", is_number=True),
    Column("last", "Last stored (UTC)"),
)
_SETTING_COLUMNS: Final = (
    Column("broker", "Broker group"),
    Column("read", "Read queues", is_number=True),
    Column("write", "Write queues", is_number=True),
    Column("allowed", "Allowed"),
    Column("ordered", "Ordered"),
    Column("attributes", "Attributes"),
)
_QUEUE_COLUMNS: Final = (
    Column("broker", "Broker group"),
    Column("queue", "Queue", is_number=True),
    Column("first", "First offset", is_number=True),
    Column("next", "Next offset", is_number=True),
    Column("messages", "Messages kept", is_number=True),
    Column("last", "Last stored (UTC)"),
    Column("look", "Messages"),
)
_CONSUMER_COLUMNS: Final = (Column("group", "Consumer group"), *PROGRESS_COLUMNS)


@dataclass(frozen=True, slots=True)
class TopicView:
    """The page of one topic; `is_known` is False where no broker has it, `is_told` where none has answered."""

    name: str
    kind: str
    is_known: bool
    is_told: bool
    settings: Grid
    queues: Grid
    consumers: Grid


def kind_of(topic: str) -> str:
    """Return the kind of a topic."""
    if names.is_retry_topic(topic):
        return "retry"
    if names.is_dlq_topic(topic):
        return "dead letters"
    if names.is_system_topic(topic) or names.is_control_topic(topic):
        return "system"
    return "application"


def topics_view(sampler: Sampler, query: Mapping[str, str]) -> Grid:
    """Return the table of all topics, those of the system only where they are asked for."""
    found = sorted({topic for tables in sampler.tables.values() for topic in tables.topics})
    wanted = NameFilter(query)
    return Grid(
        "topics",
        "Topics",
        _TOPIC_COLUMNS,
        [
            _topic_row(sampler, topic)
            for topic in found
            if wanted.lets(topic, is_system=kind_of(topic) == "system")
        ],
        grid.sorting_of(query, "topics", "topic"),
        wanted.base,
        nothing="No topic is known." if not found else "No topic is chosen by this filter.",
    )


def topic_view(sampler: Sampler, topic: str, query: Mapping[str, str]) -> TopicView:
    """Return the page of one topic."""
    having = {name: tables for name, tables in sampler.tables.items() if topic in tables.topics}
    base = {"name": topic}
    return TopicView(
        topic,
        kind_of(topic),
        bool(having),
        sampler.has_heard,
        Grid("settings", "Settings", _SETTING_COLUMNS, _setting_rows(having, topic)),
        Grid(
            "queues",
            "Queues",
            _QUEUE_COLUMNS,
            _queue_rows(having, topic),
            grid.sorting_of(query, "queues"),
            base,
            nothing="The offsets of its queues are not known yet.",
        ),
        Grid(
            "groups",
            "Consumer groups",
            _CONSUMER_COLUMNS,
            _consumer_rows(sampler, topic),
            grid.sorting_of(query, "groups", "-lag"),
            base,
            nothing="No group has committed an offset here."
            if sampler.has_heard
            else words.NOT_ASKED,
        ),
    )


def _topic_row(sampler: Sampler, topic: str) -> list[Cell]:
    """Return the row of a topic, summed over the broker groups that have it."""
    having = {name: tables for name, tables in sampler.tables.items() if topic in tables.topics}
    queues = [one for tables in having.values() for one in tables.queues.get(topic, {}).values()]
    rates = [sampler.rates.rate(("written", name, topic)) for name in having]
    known = [rate for rate in rates if rate is not None]
    groups = {group for tables in having.values() for group in tables.groups_of.get(topic, ())}
    kept = sum(one.max_offset - one.min_offset for one in queues)
    return [
        grid.text_cell(topic, address_of("/topic", name=topic)),
        grid.text_cell(kind_of(topic)),
        grid.number_cell(len(having)),
        grid.number_cell(sum(tables.topics[topic].read_queue_nums for tables in having.values())),
        grid.text_cell(" / ".join(sorted({_allowed(tables, topic) for tables in having.values()}))),
        grid.number_cell(kept if queues else None),
        grid.rate_cell(sum(known) if known else None),
        grid.number_cell(len(groups)),
        grid.time_cell(max((one.last_update_timestamp for one in queues), default=None)),
    ]


def _allowed(tables: GroupTables, topic: str) -> str:
    perm = tables.topics[topic].perm
    return " and ".join(word for bit, word in _PERMISSIONS if perm & bit) or "nothing"


def _setting_rows(having: Mapping[str, GroupTables], topic: str) -> list[Sequence[Cell]]:
    """Return a row of settings for each broker group."""
    rows: list[Sequence[Cell]] = []
    for name, tables in sorted(having.items()):
        config = tables.topics[topic]
        attributes = config.attributes if isinstance(config.attributes, dict) else {}
        rows.append(
            [
                grid.text_cell(name),
                grid.number_cell(config.read_queue_nums),
                grid.number_cell(config.write_queue_nums),
                grid.text_cell(_allowed(tables, topic)),
                grid.text_cell("yes" if config.order else "no"),
                grid.text_cell(", ".join(f"{key}={attributes[key]}" for key in sorted(attributes))),
            ]
        )
    return rows


def _queue_rows(having: Mapping[str, GroupTables], topic: str) -> list[Sequence[Cell]]:
    """Return a row for each queue of each broker group."""
    return [
        [
            grid.text_cell(name),
            grid.number_cell(queue_id),
            grid.number_cell(bounds.min_offset),
            grid.number_cell(bounds.max_offset),
            grid.number_cell(bounds.max_offset - bounds.min_offset),
            grid.time_cell(bounds.last_update_timestamp),
            grid.text_cell(
                "newest",
                address_of("/queue", topic=topic, broker=name, queue=queue_id),
            ),
        ]
        for name, tables in sorted(having.items())
        for queue_id, bounds in sorted(tables.queues.get(topic, {}).items())
    ]


def _consumer_rows(sampler: Sampler, topic: str) -> list[Sequence[Cell]]:
    """Return a row for each group that has committed an offset in a topic."""
    groups = {
        group for tables in sampler.tables.values() for group in tables.groups_of.get(topic, ())
    }
    return [
        [
            grid.text_cell(group, address_of("/group", name=group)),
            *progress_cells(sampler, group, topic),
        ]
        for group in sorted(groups)
        if lag_of(sampler, group, topic) is not None
    ]
