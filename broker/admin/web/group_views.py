"""The pages of consumer groups: all of them, and one with its topics, queues and members. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.admin.answers import ConsumerConnections
from broker.admin.web import grid, words
from broker.admin.web.grid import Cell, Column, Grid, NameFilter
from broker.admin.web.progress import (
    PROGRESS_COLUMNS,
    consumed_rate,
    delay_cell,
    delay_of,
    lag_of,
    progress_cells,
)
from broker.admin.web.rendering import address_of
from broker.admin.web.sampler import Sampler
from dledger_mq.message import names

_GROUP_COLUMNS: Final = (
    Column("group", "Consumer group"),
    Column("topics", "Topics", is_number=True),
    *PROGRESS_COLUMNS,
    Column("dead", "Dead letters", is_number=True),
    Column("allowed", "May consume"),
)
_TOPIC_COLUMNS: Final = (Column("topic", "Topic"), *PROGRESS_COLUMNS)
_QUEUE_COLUMNS: Final = (
    Column("topic", "Topic"),
    Column("broker", "Broker group"),
    Column("queue", "Queue", is_number=True),
    Column("consumed", "Next to consume", is_number=True),
    Column("next", "Next to be written", is_number=True),
    Column("lag", "Behind, messages", is_number=True),
)
_MEMBER_COLUMNS: Final = (
    Column("client", "Client"),
    Column("address", "Address"),
    Column("language", "Language"),
    Column("version", "Version", is_number=True),
)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The page of one consumer group.

    Attributes:
        is_known: some broker has it.
        is_told: a broker group has answered, so that who is not there is not known to any that could be asked.
        member_count: of those who consume, in words.
        subscriptions: expression by topic, of those who consume just now.
        dead_letters: how many there are.
        topics_read: those in which it has committed an offset.
    """

    name: str
    is_known: bool
    is_told: bool
    member_count: str
    model: str
    topics: Grid
    queues: Grid
    members: Grid
    subscriptions: Mapping[str, str]
    dead_letters: str
    topics_read: Sequence[str]


def groups_view(sampler: Sampler, query: Mapping[str, str]) -> Grid:
    """Return the table of all consumer groups, those of the system only where they are asked for."""
    found = sorted(_all_groups(sampler))
    wanted = NameFilter(query)
    return Grid(
        "groups",
        "Consumer groups",
        _GROUP_COLUMNS,
        [
            _group_row(sampler, group)
            for group in found
            if wanted.lets(group, is_system=names.is_system_group(group))
        ],
        grid.sorting_of(query, "groups", "-lag"),
        wanted.base,
        nothing="No group is known." if not found else "No group is chosen by this filter.",
    )


def group_view(
    sampler: Sampler, group: str, members: ConsumerConnections | None, query: Mapping[str, str]
) -> GroupView:
    """Return the page of one group.

    Args:
        sampler: what brokers have told.
        group: its name.
        members: who consumes; None: nobody could be asked.
        query: of the request.
    """
    topics = topics_of(sampler, group)
    subscribed = [] if members is None else sorted(members.subscription_table.items())
    return GroupView(
        group,
        group in _all_groups(sampler),
        sampler.has_heard,
        words.number(None if members is None else len(members.connection_set)),
        "" if members is None else (members.message_model or "").lower(),
        _topic_grid(sampler, group, topics, query),
        _queue_grid(sampler, group, query),
        _member_grid(group, members, query),
        {topic: one.sub_string for topic, one in subscribed},
        words.number(dead_letters_of(sampler, group)),
        topics,
    )


def _topic_grid(
    sampler: Sampler, group: str, topics: Sequence[str], query: Mapping[str, str]
) -> Grid:
    """Return the topics of a group as a table."""
    return Grid(
        "topics",
        "Topics",
        _TOPIC_COLUMNS,
        [
            [
                grid.text_cell(topic, address_of("/topic", name=topic)),
                *progress_cells(sampler, group, topic),
            ]
            for topic in topics
        ],
        grid.sorting_of(query, "topics", "-lag"),
        {"name": group},
        nothing="It has committed no offset." if sampler.has_heard else words.NOT_ASKED,
    )


def _queue_grid(sampler: Sampler, group: str, query: Mapping[str, str]) -> Grid:
    """Return the queues in which a group has a place as a table."""
    return Grid(
        "queues",
        "Queues",
        _QUEUE_COLUMNS,
        _queue_rows(sampler, group),
        grid.sorting_of(query, "queues", "-lag"),
        {"name": group},
        nothing="It has committed no offset." if sampler.has_heard else words.NOT_ASKED,
    )


def _member_grid(group: str, members: ConsumerConnections | None, query: Mapping[str, str]) -> Grid:
    """Return who consumes in a group as a table."""
    rows = [
        [
            grid.text_cell(one.client_id),
            grid.text_cell(one.client_addr),
            grid.text_cell(one.language),
            grid.number_cell(one.version),
        ]
        for one in (() if members is None else members.connection_set)
    ]
    return Grid(
        "members",
        "Members that are connected",
        _MEMBER_COLUMNS,
        rows,
        grid.sorting_of(query, "members", "client"),
        {"name": group},
        nothing=words.NOT_ASKED if members is None else "Nobody consumes just now.",
    )


def topics_of(sampler: Sampler, group: str) -> list[str]:
    """Return the topics in which a group has committed an offset."""
    return sorted(
        {
            queue.topic
            for tables in sampler.tables.values()
            for queue in tables.consumed.get(group, {})
        }
    )


def dead_letters_of(sampler: Sampler, group: str) -> int | None:
    """Return how many dead letters of a group are kept; None: it is not known."""
    topic = names.dlq_topic(group)
    having = [tables for tables in sampler.tables.values() if topic in tables.topics]
    if not having:
        return 0 if any(tables.topics for tables in sampler.tables.values()) else None
    queues = [one for tables in having for one in tables.queues.get(topic, {}).values()]
    return sum(one.max_offset - one.min_offset for one in queues) if queues else None


def _all_groups(sampler: Sampler) -> set[str]:
    return {
        group for tables in sampler.tables.values() for group in (*tables.groups, *tables.consumed)
    }


def _group_row(sampler: Sampler, group: str) -> list[Cell]:
    """Return the row of a group, summed over its topics."""
    topics = topics_of(sampler, group)
    lags = [lag for topic in topics if (lag := lag_of(sampler, group, topic)) is not None]
    delays = [delay_of(sampler, group, topic) for topic in topics]
    known = [delay for delay in delays if delay is not None]
    rates = [rate for topic in topics if (rate := consumed_rate(sampler, group, topic)) is not None]
    dead = dead_letters_of(sampler, group)
    return [
        grid.text_cell(group, address_of("/group", name=group)),
        grid.number_cell(len(topics)),
        grid.number_cell(sum(lags) if lags else None),
        delay_cell(max(known) if known else None),
        grid.rate_cell(sum(rates) if rates else None),
        grid.number_cell(dead, mark="warn" if dead else ""),
        _allowed(sampler, group),
    ]


def _allowed(sampler: Sampler, group: str) -> Cell:
    """Return whether brokers let a group consume."""
    settings = [
        tables.groups[group] for tables in sampler.tables.values() if group in tables.groups
    ]
    if not settings:
        return grid.text_cell(words.NOT_KNOWN)
    is_allowed = [one.consume_enable for one in settings]
    if all(is_allowed):
        return grid.text_cell("yes")
    return grid.text_cell("partly" if any(is_allowed) else "no", mark="warn")


def _queue_rows(sampler: Sampler, group: str) -> list[Sequence[Cell]]:
    """Return a row for each queue of the topics in which a group has committed an offset."""
    return [
        [
            grid.text_cell(queue.topic, address_of("/topic", name=queue.topic)),
            grid.text_cell(queue.broker_name),
            grid.number_cell(queue.queue_id),
            grid.number_cell(place.consumer_offset if place.consumer_offset >= 0 else None),
            grid.number_cell(tables.end(queue, place)),
            grid.number_cell(tables.lag(group, queue)),
        ]
        for tables in sampler.tables.values()
        for queue, place in sorted(tables.consumed.get(group, {}).items())
    ]
