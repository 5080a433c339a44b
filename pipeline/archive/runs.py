"""The rows of an archive in the order of the log, a bounded stretch at a time; read with pyarrow alone.

A part of the log is written run by run (`pipeline.archive.parts`): the rows of a run are row groups whose places lie
between those of the runs around it, one for each topic and day. So whoever takes the row groups together whose places
overlap, as their statistics say, has the rows of a run, and needs no more room than its writer had.

It must not know what is looked for in the rows.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.archive.manifests import ArchiveError, Manifest, listed_paths, topic_of
from pipeline.folders import Where, source_of

_DAY_MS: Final = 86_400_000
_PLACE: Final = "physicalOffset"
_PLACE_MAX: Final = 2**63 - 1

BytesRead = Callable[[int, int], None]
"""Called now and then with the bytes of files that are done, and those of all that may hold what is meant."""


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of what is read; files, row groups and manifests outside are not opened.

    Attributes:
        topics: says whether a topic is meant.
        first_place, last_place: physical offsets, both included.
        begin_ms, end_ms: days of the store time that lie wholly outside are left out; ms since 1970; None: no bound.
    """

    topics: Callable[[str], bool]
    first_place: int = 0
    last_place: int = _PLACE_MAX
    begin_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one topic and day, by queue and offset.

    Attributes:
        path: the full name of its file.
        topic: of all its rows.
        metadata: of the file.
        number: in the file.
        first_place, last_place: the least and the greatest physical offset, both included.
    """

    path: str
    topic: str
    metadata: pq.FileMetaData
    number: int
    first_place: int
    last_place: int

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Read some columns.

        Raises:
            ArchiveError: they cannot be read.
        """
        with _named(self.path), source_of(self.path) as source:
            file = pq.ParquetFile(source, metadata=self.metadata)
            return file.read_row_group(self.number, columns=list(columns))


def runs(
    archive: Where, manifests: Sequence[Manifest], within: Within, progress: BytesRead | None = None
) -> Iterator[list[RowGroup]]:
    """Yield row groups, those of one run at a time, in the order of the log.

    Args:
        archive: the folder.
        manifests: all of it, or some, in order.
        within: bounds; rows outside may be among what is yielded.
        progress: told how far the files are read.

    Raises:
        ArchiveError: a listed file is missing, has another size, or cannot be read.
    """
    meant = [
        (each, [file for file in each.files if _is_meant(file.path, within)])
        for each in manifests
        if each.first_position <= within.last_place and within.first_place < each.end_position
    ]
    total = sum(file.bytes for _, files in meant for file in files)
    done = 0
    for _, files in meant:
        groups: list[RowGroup] = []
        for path, file in zip(listed_paths(archive, files), files, strict=True):
            groups += _row_groups(path, topic_of(file.path), within)
        groups.sort(key=attrgetter("first_place", "path"))
        yield from _overlapping(groups)
        done += sum(file.bytes for file in files)
        if progress is not None:
            progress(done, total)


def _overlapping(groups: Sequence[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yield row groups, together those whose places overlap; they come by their first places."""
    run: list[RowGroup] = []
    end = -1
    for each in groups:
        if run and each.first_place > end:
            yield run
            run = []
        run.append(each)
        end = max(end, each.last_place)
    if run:
        yield run


def _is_meant(path: str, within: Within) -> bool:
    """Return whether a listed file is of a topic and a day that are meant."""
    if not within.topics(topic_of(path)):
        return False
    day = PurePosixPath(path).parent.name.removeprefix("date=")
    try:
        midnight = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC)
    except ValueError:
        return True
    day_ms = int(midnight.timestamp() * 1000)
    return (within.end_ms is None or day_ms <= within.end_ms) and (
        within.begin_ms is None or day_ms + _DAY_MS > within.begin_ms
    )


def _row_groups(path: str, topic: str, within: Within) -> Iterator[RowGroup]:
    """Yield the row groups of a file whose places may be meant."""
    with _named(path), source_of(path) as source, pq.ParquetFile(source) as file:
        for number in range(file.num_row_groups):
            first, last = _places(file, number)
            if first <= within.last_place and within.first_place <= last:
                yield RowGroup(path, topic, file.metadata, number, first, last)


def _places(file: pq.ParquetFile, number: int) -> tuple[int, int]:
    """Return the least and the greatest physical offset of a row group; whoever copies a file may drop statistics."""
    column = file.metadata.row_group(number).column(file.schema_arrow.get_field_index(_PLACE))
    known = column.statistics
    if known is not None and known.has_min_max:
        return known.min, known.max
    found = pc.min_max(file.read_row_group(number, columns=[_PLACE])[_PLACE]).as_py()
    return found["min"], found["max"]


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the file that could not be read."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{path} cannot be read: {error}") from error
