"""The table follows the manifests: what they list and it lacks is listed by it, in the order of the log.

The log of the table says itself up to which entry it goes (its transaction of the archive), in the very version that
lists the files. So a run that was killed is repeated, and of several runs each version is made by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pipeline.archive.manifests import (
    ArchivedFile,
    ArchiveError,
    Manifest,
    manifests_there,
    topic_of,
)
from pipeline.errors import PipelineError
from pipeline.folders import Folder, Where, open_folder
from pipeline.table.delta import NewFile, OvertakenError, open_or_create_table, supported_place
from pipeline.table.statistics import statistics_of

FILES_MAX: Final = 1000
"""About as many files are listed with one version."""

ATTEMPTS: Final = 20
_FOOTERS_AT_ONCE: Final = 8
_DATE_AT: Final = 1


@dataclass(frozen=True, slots=True)
class Followed:
    """The result of following.

    Attributes:
        version: of the table now.
        covered_index: the last entry of the log whose archived rows the table has.
        files, rows: what this run has added.
    """

    version: int
    covered_index: int
    files: int
    rows: int


def follow(archive: Where, progress: Callable[[int, int], None] = lambda _, __: None) -> Followed:
    """Bring the table of an archive as far as its manifests; without a table, make one.

    Args:
        archive: the folder.
        progress: is told, again and again, how many manifests are done and how many were to be.

    Raises:
        PipelineUsageError: there is no archive, or no table can be kept there.
        ArchiveError: the archive is not as its manifests say; or the table is not of this archive.
        PipelineError: other runs were faster again and again.
        OSError: the disk or the store failed; the next run goes on.
    """
    supported_place(archive)
    folder = open_folder(archive)
    manifests_there(archive)  # before a table is made for what is no archive
    table = open_or_create_table(archive)
    lost = files = rows = 0
    total: int | None = None
    while True:
        manifests = manifests_there(archive)
        pending = _pending(archive, manifests, table.covered_index)
        total = len(pending) if total is None else total
        progress(total - len(pending), total)
        if not pending:
            return Followed(table.number, table.covered_index, files, rows)
        chosen = _first(pending)
        added = _described(folder, [file for each in chosen for file in each.files])
        try:
            table = table.add(added, chosen[-1].last_index)
        except OvertakenError as error:
            lost += 1
            if lost == ATTEMPTS:
                raise PipelineError(
                    f"other runs have changed the table in {archive} {lost} times meanwhile; run it again"
                ) from error
            table = open_or_create_table(archive)
        else:
            files += len(added)
            rows += sum(each.rows for each in chosen)


def _pending(
    archive: Where, manifests: Sequence[Manifest], covered_index: int
) -> Sequence[Manifest]:
    """Return the manifests that the table lacks."""
    if covered_index and covered_index not in {each.last_index for each in manifests}:
        raise ArchiveError(
            f"the table in {archive} goes up to entry {covered_index}, with which no manifest ends: it is of "
            "another archive, or a manifest is missing"
        )
    return [each for each in manifests if each.last_index > covered_index]


def _first(pending: Sequence[Manifest]) -> list[Manifest]:
    """Return the manifests for one version: at least one."""
    chosen: list[Manifest] = []
    count = 0
    for each in pending:
        count += len(each.files)
        if chosen and count > FILES_MAX:
            break
        chosen.append(each)
    return chosen


def _described(folder: Folder, files: Sequence[ArchivedFile]) -> list[NewFile]:
    def described(file: ArchivedFile) -> NewFile:
        return _one_described(folder, file)

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        return list(pool.map(described, files))


def _one_described(folder: Folder, file: ArchivedFile) -> NewFile:
    """Describe a listed file.

    Raises:
        ArchiveError: it is missing, or is not what the manifest says.
        OSError: it cannot be read.
    """
    try:
        size = folder.size_bytes(file.path)
        rows, statistics = statistics_of(folder, file.path)
    except FileNotFoundError:
        raise ArchiveError(
            f"{folder.full(file.path)} is missing, and a manifest lists it"
        ) from None
    if (size, rows) != (file.bytes, file.rows):
        raise ArchiveError(
            f"{folder.full(file.path)} has {size} bytes and {rows} rows, the manifest says {file.bytes} and "
            f"{file.rows}"
        )
    date = file.path.split("/")[_DATE_AT].removeprefix("date=")
    return NewFile(file.path, topic_of(file.path), date, size, statistics)
