"""`dledger-pipeline table`: an archive as a Delta table, its compaction and its maintenance."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final, TypedDict

from rich.table import Table

from pipeline.errors import EXIT_FINE, PipelineUsageError
from pipeline.jobs.context import JobContext
from pipeline.jobs.tables import new_table

name = "table"
summary = "list an archive's files as a Delta table; compact its small files, remove old ones"

KEEP: Final = "7d"
TARGET_MIB: Final = 128
MIB: Final = 1024 * 1024
KEEP_MS_MAX: Final = 30 * 86_400_000
"""As long as the log of a table goes back (`pipeline.table.delta`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the archive and what is done beside following it."""
    parser.add_argument("archive", help="folder of an archive, or one in s3://")
    parser.add_argument(
        "--compact",
        action="store_true",
        help="also write the small files of each topic and day anew, as larger ones; the archive's own stay",
    )
    parser.add_argument(
        "--target-mib",
        type=int,
        default=TARGET_MIB,
        help=f"MiB of a file that is large enough; one is small below half of it; default: {TARGET_MIB}",
    )
    parser.add_argument(
        "--vacuum",
        action="store_true",
        help="also remove files of compaction that no version reads any more, never one of the archive's",
    )
    parser.add_argument(
        "--keep",
        metavar="DURATION",
        default=KEEP,
        help=f"with --vacuum: versions since then can still be read, 30d at most; default: {KEEP}",
    )


class TableResult(TypedDict):
    """The result as the command reports it."""

    archive: str
    version: int
    lastIndex: int
    addedFiles: int
    addedRows: int
    compactedFiles: int
    intoFiles: int
    removedFiles: int
    removedBytes: int
    seconds: float


def run(context: JobContext) -> int:
    """Bring the table as far as the manifests, and do what else is asked for."""
    from pipeline.folders import understood
    from pipeline.options import OptionReader

    options = context.options
    if options.target_mib < 1:
        raise PipelineUsageError(f"--target-mib {options.target_mib} must be above 0")
    keep_ms = OptionReader({"keep": options.keep}, name).duration_ms("keep", 0)
    if keep_ms > KEEP_MS_MAX:
        raise PipelineUsageError(
            f"--keep {options.keep} is longer than a table keeps versions, 30d"
        )
    where = understood(options.archive)
    started = time.monotonic()
    result = _followed(context, options.archive)
    if options.compact:
        _compact(context, result)
    if options.vacuum:
        _vacuum(options.archive, keep_ms, result)
    result["archive"] = str(where.absolute() if isinstance(where, Path) else where)
    result["seconds"] = round(time.monotonic() - started, 3)
    context.report(result, lambda: _table(result))
    return EXIT_FINE


def _followed(context: JobContext, archive: str) -> TableResult:
    """Bring the table as far as the manifests; returns a result without compaction and vacuum."""
    from pipeline.table.following import follow

    with context.progress() as progress:
        task = progress.add_task("list what manifests list", total=None)
        followed = follow(
            archive, lambda done, total: progress.update(task, completed=done, total=total)
        )
    return {
        "archive": archive,
        "version": followed.version,
        "lastIndex": followed.covered_index,
        "addedFiles": followed.files,
        "addedRows": followed.rows,
        "compactedFiles": 0,
        "intoFiles": 0,
        "removedFiles": 0,
        "removedBytes": 0,
        "seconds": 0.0,
    }


def _compact(context: JobContext, result: TableResult) -> None:
    """Compact the table, and note that in the result."""
    from pipeline.table.compacting import compact

    options = context.options
    with context.progress() as progress:
        task = progress.add_task("compact small files", total=None)
        compacted = compact(
            options.archive,
            options.target_mib * MIB,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    result["version"] = compacted.version
    result["compactedFiles"], result["intoFiles"] = compacted.replaced, compacted.written


def _vacuum(archive: str, keep_ms: int, result: TableResult) -> None:
    from pipeline.table.vacuuming import vacuum

    vacuumed = vacuum(archive, keep_ms)
    result["removedFiles"], result["removedBytes"] = vacuumed.files, vacuumed.bytes


def _table(result: TableResult) -> Table:
    table = new_table(f"table in {result['archive']}", "what", "value", numbers=("value",))
    for key, value in result.items():
        if key != "archive":
            table.add_row(key, str(value))
    return table
