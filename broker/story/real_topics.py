"""The topics that waiting messages are for: of a message that waits for its time only its record says it.

The log is read for them, in the order in which they stand there; segments without any are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from broker.story.copies import records_of
from broker.story.errors import StoryError
from broker.story.past import WaitingRow
from broker.story.places import StorePlaces
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Position
from dledger_mq.message.properties import REAL_TOPIC

ROWS_AT_ONCE: Final = 100_000
"""Rows for which the log is read once: some 20 MB."""


def of_topic(
    places: StorePlaces, rows: Iterator[WaitingRow], topic: str, at_once: int = ROWS_AT_ONCE
) -> Iterator[WaitingRow]:
    """Yield the rows of messages that are for a topic, in their order, with the topic.

    Args:
        places: the store whose state the rows are of.
        rows: what waits.
        topic: the topic.
        at_once: for so many rows the log is read once.

    Raises:
        StoryError: the log does not have the record of one.
        CorruptionError: the log is damaged.
        OSError: the disk failed.
    """
    while some := list(islice(rows, at_once)):
        topics = _topics_at(places, {row.physical_offset for row in some})
        for row in some:
            if topics[row.physical_offset] == topic:
                yield replace(row, topic=topic)


def _topics_at(places: StorePlaces, wanted: set[int]) -> dict[int, str]:
    """Return what the messages at physical offsets are for; empty where a record does not say."""
    found: dict[int, str] = {}
    left = sorted(wanted, reverse=True)
    while left:
        start = places.log.segment_before(Position(left[-1]))
        if start is None:
            break
        for some in places.log.entries(start):
            end = some[-1].end_position
            for entry in some:
                found |= _topics_in(entry, wanted)
            while left and left[-1] < end:
                left.pop()
            following = places.log.segment_before(Position(left[-1])) if left else None
            if following is None or following.position > end:
                break
        else:
            break  # the log ends before it
    missing = wanted - found.keys()
    if missing:
        raise StoryError(
            f"{places.path}: the log has no message at {min(missing)}, which waits: what it is for cannot be told"
        )
    return found


def _topics_in(entry: Entry, wanted: set[int]) -> dict[int, str]:
    """Return what the wanted messages in an entry are for."""
    if entry.kind is not EntryKind.NORMAL:
        return {}
    return {
        record.physical_offset: (record.find(REAL_TOPIC) or b"").decode(errors="replace")
        for record in records_of(entry)
        if record.physical_offset in wanted
    }
