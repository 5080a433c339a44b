"""`dledger-pipeline rebuild`: consume queues, key index, offsets and transactions from the log alone."""

from __future__ import annotations

import argparse
from typing import TypedDict

from rich.table import Table

from dledger.raft.ids import Index
from pipeline.errors import EXIT_FINE, EXIT_FOUND
from pipeline.jobs.context import JobContext, counted
from pipeline.jobs.store_arguments import add_bound_arguments, bound_of, store_of
from pipeline.jobs.tables import alarming, new_table

name = "rebuild"
summary = "make derived state again from a store's log, into a new folder"

MIB = 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the store and the folder."""
    parser.add_argument("store", help="folder of a node's store")
    parser.add_argument("folder", help="where to; must not exist")
    add_bound_arguments(parser)
    parser.add_argument(
        "--local",
        action="store_true",
        help="without Spark: consume queues are not computed a second time",
    )


class RebuildResult(TypedDict):
    """The result as the command reports it."""

    folder: str
    index: Index
    knownBy: str
    queues: int
    messages: int
    digests: dict[str, str]
    checkedWithSpark: bool
    differences: list[str]


def run(context: JobContext) -> int:
    """Fold, write, and check the consume queues with Spark."""
    from pipeline.derived.rebuild import described, rebuild
    from pipeline.scan.plan import plan_scan

    options = context.options
    store = store_of(options.store)
    plan = plan_scan(store, bound_of(options, store))
    if not options.local:
        _ = context.spark  # without Java nothing is begun
    with context.progress() as progress:
        task = progress.add_task("fold the log, bytes", total=plan.size_bytes)
        count = counted(progress, task, plan.size_bytes, "write, and compute consume queues again")
        state = rebuild(plan, options.folder, count)
        applied, end = state.applied_index, plan.end.index
        assert applied == end, f"{applied} entries of {end} are in the derived state"
        differing: list[str] = []
        if not options.local:
            from pipeline.spark.consume_queues import checked_queues

            differing = checked_queues(context.spark, store.path, plan.end.index, state)
    result: RebuildResult = {
        "folder": str(options.folder),
        "index": plan.end.index,
        "knownBy": plan.committed.known_by,
        "queues": len(state.queues.by_key),
        "messages": state.put_count,
        "digests": described(state)["digests"],
        "checkedWithSpark": not options.local,
        "differences": differing,
    }
    context.report(result, lambda: _table(result))
    return EXIT_FOUND if differing else EXIT_FINE


def _table(result: RebuildResult) -> Table:
    title = f"derived state at entry {result['index']} ({result['knownBy']})"
    table = new_table(title, "what", "value")
    for key in ("folder", "queues", "messages", "checkedWithSpark"):
        table.add_row(key, str(result[key]))
    for component, digest in result["digests"].items():
        table.add_row(f"digest of {component}", digest)
    for difference in result["differences"]:
        table.add_row(alarming("differs"), difference)
    return table
