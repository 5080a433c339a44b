"""`dledger-pipeline profile`: rates, sizes, retry storms and slow groups, hour by hour, with plots."""

from __future__ import annotations

import argparse
import datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from dledger.raft.ids import Index
from pipeline.errors import EXIT_FINE, EXIT_INCONCLUSIVE
from pipeline.jobs.context import JobContext
from pipeline.jobs.store_arguments import add_bound_arguments, last_index_of
from pipeline.jobs.tables import new_table
from pipeline.plots import check_plot_file, plot_profile

if TYPE_CHECKING:
    from pipeline.spark.names import DataFrame

name = "profile"
summary = "rates and sizes per topic, retries per group, slowest groups, by hour, from a log or an archive"

Cell = str | int | float | bool | datetime.datetime | None
"""A value in a row of a profile."""

Rows = list[dict[str, Cell]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the input, and the file to draw into."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", metavar="DIR", help="a broker's store: everything, groups too")
    source.add_argument("--parquet", metavar="DIR", help="an archive, or Parquet files of messages")
    add_bound_arguments(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw it into a file, .png or .svg")


def run(context: JobContext) -> int:
    """Compute, print and draw; exit code 2 when there is no message."""
    from pipeline.spark import profile
    from pipeline.spark.history import log_history, parquet_history
    from pipeline.spark.replay import with_map

    options = context.options
    plot = check_plot_file(options.plot) if options.plot else None
    delays: Rows = []
    with context.progress() as progress:
        task = progress.add_task("traffic", total=3)
        if options.store:
            last_index = last_index_of(options)
            log = log_history(context.spark, options.store, Index(last_index), with_control=True)
            records = profile.slim(with_map(log)).cache()
            messages = records.where("op is null and problem is null")
        else:
            records = None
            messages = profile.slim(with_map(parquet_history(context.spark, options.parquet)))
        hours = profile.traffic(messages)
        traffic = _rows(hours)
        progress.update(task, completed=1, description="retries")
        retries = _rows(profile.retries(messages, hours))
        progress.update(task, completed=2, description="groups")
        if records is not None:
            delays = _rows(profile.delays(records))
            records.unpersist()
    if plot is not None:
        plot_profile(plot, traffic, retries, delays)
    context.report(
        {"traffic": traffic, "retries": retries, "groups": delays},
        lambda: Group(
            _table("messages by topic and hour", traffic),
            _table("retries by group and hour", retries),
            _table("seconds from storing to commit, slowest first", delays),
        ),
    )
    return EXIT_FINE if traffic or retries else EXIT_INCONCLUSIVE


def _rows(frame: DataFrame) -> Rows:
    return [
        {name: _in_utc(value) for name, value in row.asDict().items()} for row in frame.collect()
    ]


def _in_utc(value: Cell) -> Cell:
    """Give an instant the zone UTC: Spark returns it in the zone of this process, without saying so."""
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value


def _table(title: str, rows: Rows) -> Table:
    if not rows:
        return new_table(title, "nothing")
    table = new_table(title, *rows[0], numbers=rows[0].keys() - {"topic", "group"})
    for row in rows:
        style = "bold red" if row.get("is_storm") else None
        table.add_row(*(_text(value) for value in row.values()), style=style)
    return table


def _text(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime.datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return str(value)
