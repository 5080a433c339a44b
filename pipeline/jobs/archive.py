"""`dledger-pipeline archive`: expired log to Parquet, verified and listed in manifests."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from rich.table import Table

from dledger.raft.ids import Index
from pipeline.errors import EXIT_FINE, InconclusiveError, PipelineUsageError
from pipeline.jobs.context import JobContext
from pipeline.jobs.store_arguments import add_bound_arguments, bound_of, store_of
from pipeline.jobs.tables import new_table

if TYPE_CHECKING:
    from pipeline.archive.manifests import Manifest
    from pipeline.archive.pinning import ArchivePin
    from pipeline.archive.writing import OpenArchive
    from pipeline.scan.stores import Store

name = "archive"
summary = (
    "write expired log to Parquet by topic and date, verified, so that retention may delete it"
)

OLDER_THAN: Final = "72h"
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
KEEP: Final = "7d"
KEEP_GIB: Final = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for store, archive and age of expiry."""
    parser.add_argument("store", help="folder of a node's store")
    parser.add_argument(
        "archive",
        help="folder of the archive, created when missing; or one in s3://, gs:// or hdfs://",
    )
    add_bound_arguments(parser)
    parser.add_argument(
        "--older-than",
        metavar="DURATION",
        help=f"only finished segments whose messages are all older, as fileReservedTime counts; default: "
        f"{OLDER_THAN}, and with --up-to: no matter",
    )
    parser.add_argument(
        "--stretch-mib", type=int, default=1024, help="MiB of log in one manifest; default: 1024"
    )
    parser.add_argument(
        "--pin",
        metavar="NAME",
        help="have the group (-n) keep what is not archived yet, under this name, until the next run; at most "
        "for --pin-for and --pin-gib",
    )
    parser.add_argument(
        "--pin-for",
        metavar="DURATION",
        help=f"how long the pin holds after the run; default: {KEEP}",
    )
    parser.add_argument(
        "--pin-gib",
        type=int,
        default=KEEP_GIB,
        help=f"GiB of log that it may keep; default: {KEEP_GIB}",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read every file that manifests list, and archive nothing",
    )
    parser.add_argument(
        "--table",
        action="store_true",
        help="then list what is archived as a Delta table, too, as `dledger-pipeline table` does",
    )


class ArchiveResult(TypedDict):
    """The result as the command reports it."""

    archive: str
    manifests: int
    rows: int
    files: int
    lastIndex: int
    endPosition: int
    addedBytes: int
    pinnedFrom: int
    seconds: float


def run(context: JobContext) -> int:
    """Archive what is expired and not yet archived."""
    from pipeline.archive.writing import open_archive
    from pipeline.folders import understood

    options = context.options
    if options.stretch_mib < 1:
        raise PipelineUsageError(f"--stretch-mib {options.stretch_mib} must be above 0")
    where = understood(options.archive)
    if options.table:
        _check_has_table(options)
    store_of(options.store)  # before an archive is made for one that is none
    pin = _pin(options)
    started = time.monotonic()
    added_bytes = 0
    if options.check:
        manifests = checked(options.archive)
    else:
        with open_archive(options.archive) as archive:
            if pin is not None:  # from here on the store loses nothing that is not archived
                pin.begin(archive.manifests[-1].end_position if archive.manifests else None)
            added_bytes = _add_all(context, archive, store_of(options.store), pin)
            manifests = archive.manifests
        if options.table and manifests:
            _follow(options.archive)
    result: ArchiveResult = {
        "archive": str(where.absolute() if isinstance(where, Path) else where),
        "manifests": len(manifests),
        "rows": sum(each.rows for each in manifests),
        "files": sum(len(each.files) for each in manifests),
        "lastIndex": manifests[-1].last_index if manifests else 0,
        "endPosition": manifests[-1].end_position if manifests else 0,
        "addedBytes": added_bytes,
        "pinnedFrom": -1 if pin is None else pin.position,
        "seconds": round(time.monotonic() - started, 3),
    }
    context.report(result, lambda: _table(result))
    return EXIT_FINE


def _check_has_table(options: argparse.Namespace) -> None:
    """Refuse what cannot be done, before hours are spent on the rest.

    Raises:
        PipelineUsageError: no table can be kept there; or nothing is archived that it could follow.
        InconclusiveError: its library is missing.
    """
    from pipeline.table.delta import supported_place

    if options.check:
        raise PipelineUsageError("--check writes nothing, and --table would")
    supported_place(options.archive)


def _follow(archive: str) -> None:
    from pipeline.table.following import follow

    follow(archive)


def _pin(options: argparse.Namespace) -> ArchivePin | None:
    """Return the pin that the options ask for; None: they ask for none.

    Raises:
        PipelineUsageError: they contradict each other.
    """
    from broker.admin.pins import PinBounds
    from pipeline.archive.pinning import ArchivePin, pin_at_group
    from pipeline.options import OptionReader

    if options.pin is None or options.check:
        return None
    if options.namesrv is None:
        raise PipelineUsageError("--pin needs --namesrv: the group has to be asked")
    if options.pin_gib < 1:
        raise PipelineUsageError(f"--pin-gib {options.pin_gib} must be above 0")
    keep_ms = OptionReader({"pin-for": options.pin_for or KEEP}, "archive").duration_ms(
        "pin-for", 0
    )
    bounds = PinBounds(keep_ms, options.pin_gib * GIB)
    return ArchivePin(pin_at_group(options.namesrv, options.group, options.pin, bounds))


def checked(archive: str) -> list[Manifest]:
    """Verify everything that an archive's manifests list; nothing is written, not even a missing folder.

    Raises:
        ArchiveError: a file or a manifest is not as it was written.
        InconclusiveError: there are no manifests.
    """
    from pipeline.archive.manifests import check_contents, load_manifests

    manifests = load_manifests(archive)
    if not manifests:
        raise InconclusiveError(f"{archive} is no archive, or an empty one: it has no manifests")
    check_contents(archive, manifests)
    return manifests


def _add_all(
    context: JobContext, archive: OpenArchive, store: Store, pin: ArchivePin | None = None
) -> int:
    """Archive stretch by stretch, each of which the pin releases; returns the bytes of log that were added."""
    from pipeline.archive.writing import expired_index
    from pipeline.options import OptionReader
    from pipeline.scan.plan import CommittedBound

    options = context.options
    committed = bound_of(options, store)
    age = options.older_than or (None if options.up_to else OLDER_THAN)
    if age is not None:
        reader = OptionReader({"older-than": age}, "archive")
        cutoff_ms = int(time.time() * 1000) - reader.duration_ms("older-than", 0)
        expired = expired_index(store, cutoff_ms)
        if committed.index is None or expired < committed.index:
            committed = CommittedBound(Index(expired), f"{committed.known_by}; older than {age}")
    found = archive.stretches(store, committed, options.stretch_mib * MIB)
    added = 0
    with context.progress() as progress:
        total = sum(each.size_bytes for each in found)
        task = progress.add_task(f"archive {Path(store.path).name}, bytes", total=total)
        for stretch in found:
            archive.add(
                context.spark,
                store,
                stretch,
                broker_name=options.broker_name or options.group or "",
                known_by=committed.known_by,
                told=partial(progress.advance, task),
            )
            if pin is not None:
                pin.move(stretch.end.position)
            added += stretch.size_bytes
            progress.update(task, completed=added)
    if found:
        first, end = found[0].before.position, found[-1].end.position
        assert added == end - first, f"{added} bytes were archived between {first} and {end}"
    return added


def _table(result: ArchiveResult) -> Table:
    table = new_table(f"archive {result['archive']}", "what", "value", numbers=("value",))
    for key, value in result.items():
        if key != "archive":
            table.add_row(key, str(value))
    return table
