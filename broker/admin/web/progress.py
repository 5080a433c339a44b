"""How far consumer groups have come in topics, over all broker groups, and how a table shows it. Pure."""

from __future__ import annotations

from typing import Final

from broker.admin.web import grid, words
from broker.admin.web.grid import Cell, Column
from broker.admin.web.sampler import Sampler

PROGRESS_COLUMNS: Final = (
    Column("lag", "Behind, messages", is_number=True),
    Column("delay", "Behind, time", is_number=True),
    Column("rate", "Consumed per second", is_number=True),
)


def consumed_rate(sampler: Sampler, group: str, topic: str) -> float | None:
    """Return how many messages of a topic a group consumes per second, over all broker groups."""
    rates = [sampler.rates.rate(("consumed", name, group, topic)) for name in sampler.tables]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def lag_of(sampler: Sampler, group: str, topic: str) -> int | None:
    """Return how far a group is behind in a topic, over all broker groups; None: it has committed nothing there."""
    lags = [tables.lags(group).get(topic) for tables in sampler.tables.values()]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def delay_of(sampler: Sampler, group: str, topic: str) -> int | None:
    """Return for how long the next message of a group has waited, in ms; None: it is not known yet."""
    if lag_of(sampler, group, topic) == 0:
        return 0
    delays = [tables.delays_ms.get((group, topic)) for tables in sampler.tables.values()]
    return max((delay for delay in delays if delay is not None), default=None)


def delay_cell(delay_ms: int | None) -> Cell:
    """Return a cell with the time that a group is behind."""
    if delay_ms == 0:
        return Cell("0 s", 0)
    return Cell(words.duration(delay_ms), -1.0 if delay_ms is None else delay_ms)


def progress_cells(sampler: Sampler, group: str, topic: str) -> list[Cell]:
    """Return what stands in PROGRESS_COLUMNS of a group in a topic."""
    return [
        grid.number_cell(lag_of(sampler, group, topic)),
        delay_cell(delay_of(sampler, group, topic)),
        grid.rate_cell(consumed_rate(sampler, group, topic)),
    ]
