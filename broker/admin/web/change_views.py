"""The tables of changes: what a reset would do queue by queue, and dead letters. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from broker.admin.message_search import MessageSearch
from broker.admin.offset_reset import PlannedMove
from broker.admin.web import grid, message_views
from broker.admin.web.grid import Cell, Column, Grid
from broker.admin.web.resets import ResetPreview

Rows = tuple[tuple[Cell, ...], ...]
Look = Callable[[MessageSearch], Awaitable[Rows]]

_COLUMNS: Final = (
    Column("broker", "Broker group"),
    Column("queue", "Queue", is_number=True),
    Column("now", "Next to consume, now", is_number=True),
    Column("wanted", "and then", is_number=True),
    Column("again", "Consumed again", is_number=True),
    Column("skipped", "Not consumed", is_number=True),
)


def reset_grid(preview: ResetPreview, query: Mapping[str, str]) -> Grid:
    """Return what a reset would change as a table; another page or order of it is a preview of its own."""
    return Grid(
        "moves",
        "What would change",
        _COLUMNS,
        [*map(_move_row, preview.moves)],
        grid.sorting_of(query, "moves"),
        {name: query[name] for name in ("name", "topic", "to", "time") if name in query},
        nothing="The topic has no queue.",
    )


def _move_row(move: PlannedMove) -> list[Cell]:
    """Return the row of a queue: how many messages would be consumed again, and how many would not."""
    place = move.position
    begin = place.start if place.committed is None else max(place.start, place.committed)
    again = 0 if place.committed is None else max(0, min(place.committed, place.end) - move.to)
    skipped = max(0, move.to - begin)
    return [
        grid.text_cell(place.queue.broker_name),
        grid.number_cell(place.queue.queue_id),
        grid.number_cell(place.committed),
        grid.number_cell(move.to),
        grid.number_cell(again, mark="warn" if again else ""),
        grid.number_cell(skipped, mark="warn" if skipped else ""),
    ]


def letters_grid(rows: Rows, query: Mapping[str, str]) -> Grid:
    """Return dead letters as a table."""
    found = message_views.found_grid(rows, query)
    return Grid(
        found.name,
        "The newest dead letters",
        found.columns,
        found.rows,
        found.sorting,
        found.base,
        nothing="There are no dead letters.",
    )
