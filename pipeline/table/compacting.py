"""Small files of a topic and day become larger ones, below `_table`; the rows of the table stay what they are.

A new file is written, read back and compared with the rows of the old ones, made durable, and then takes their place in
one version of the table: who reads an older version reads the old files, which stay. The archive's own stay for
good, since manifests list them; so what is compacted is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from dledger.storage.posix import PosixDisk
from pipeline.archive.manifests import ArchiveError, folder_of
from pipeline.errors import PipelineError, PipelineUsageError
from pipeline.folders import Folder, LocalFolder, Where, open_folder
from pipeline.table.delta import (
    COMPACTED,
    FILE_COLUMNS,
    NewFile,
    OvertakenError,
    TableFile,
    TableVersion,
    open_table,
)
from pipeline.table.following import ATTEMPTS
from pipeline.table.statistics import statistics_of

MIB: Final = 1024 * 1024
TARGET_BYTES: Final = 128 * MIB
"""A file is not small when it has half of that."""

RUN_BYTES: Final = 64 * MIB
"""Rows that are held in memory at a time, and make one row group."""

_ORDER: Final = [(name, "ascending") for name in ("queueId", "queueOffset", "physicalOffset")]
_LARGE: Final = ("body", "properties")
_ALIKE: Final = ["brokerName", "queueId", "tags", "bornHost", "storeHost", "term", "sysFlag"]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of compaction: so many files took the place of so many."""

    version: int
    replaced: int
    written: int
    rows: int


def compact(
    archive: Where,
    target_bytes: int = TARGET_BYTES,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Compacted:
    """Write the small files of each topic and day anew, as files of about `target_bytes`.

    Args:
        archive: the folder.
        target_bytes: the size of a file that is large enough.
        progress: is told, again and again, how many files are replaced and how many were to be.

    Raises:
        PipelineUsageError: there is no table.
        ArchiveError: a new file does not hold the rows of the old ones; the table is what it was.
        PipelineError: other runs were faster again and again.
        OSError: the disk or the store failed; the table is what it was, or has the new file.
    """
    folder = open_folder(archive)
    table = table_there(archive)
    lost = replaced = written = rows = 0
    while True:
        groups = _groups(table.files(), target_bytes)
        total = replaced + sum(map(len, groups))
        try:
            for group in groups:
                progress(replaced, total)
                table = table.replace(group, [_written(folder, group, table.number)])
                replaced, written = replaced + len(group), written + 1
                rows += sum(each.rows for each in group)
        except OvertakenError as error:
            # Its file stays: an answer may have been lost. A vacuum sees whether that is so.
            lost += 1
            if lost == ATTEMPTS:
                raise PipelineError(
                    f"other runs have changed the table in {archive} {lost} times meanwhile; run it again"
                ) from error
            table = table_there(archive)
        else:
            progress(replaced, total)
            return Compacted(table.number, replaced, written, rows)


def table_there(archive: Where) -> TableVersion:
    """Open an archive's table, which has to be there.

    Raises:
        PipelineUsageError: there is none.
    """
    table = open_table(archive)
    if table is None:
        raise PipelineUsageError(f"{archive} has no table; `dledger-pipeline table` makes one")
    return table


def _groups(files: Sequence[TableFile], target_bytes: int) -> list[list[TableFile]]:
    """Return which files become one each: small ones of one topic and day, in the order of the log."""
    small = [each for each in files if each.bytes < target_bytes // 2]
    small.sort(key=lambda file: (file.topic, file.date))  # a stable order: that of the log within
    groups: list[list[TableFile]] = []
    for _, alike in groupby(small, key=lambda file: (file.topic, file.date)):
        held: list[TableFile] = []
        for file in alike:
            if held and sum(each.bytes for each in held) + file.bytes > target_bytes:
                groups.append(held)
                held = []
            held.append(file)
        groups.append(held)
    return [group for group in groups if len(group) > 1]


def _written(folder: Folder, group: Sequence[TableFile], version: int) -> NewFile:
    """Write the rows of a group to a new file, which is durable on return and verified.

    Its name begins with the version that was read: it gets into the next version, or into none.
    """
    topic, date = group[0].topic, group[0].date
    below = f"{COMPACTED}/{folder_of(topic, date)}"
    path = f"{below}/{version:020d}-{uuid4().hex}.zstd.parquet"
    if isinstance(folder, LocalFolder):
        PosixDisk(folder.path).make_folder(below)
    with folder.sink(path) as sink, _writer(sink) as writer:
        for run in _runs(folder, group):
            writer.write_table(run, row_group_size=len(run))
    _check(folder, group, path)
    if isinstance(folder, LocalFolder):
        _make_durable(folder.path, below, path)
    rows, statistics = statistics_of(folder, path)
    assert rows == sum(each.rows for each in group), f"{path} has {rows} rows, not those of {group}"
    return NewFile(path, topic, date, folder.size_bytes(path), statistics)


def _writer(sink: pa.NativeFile) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        FILE_COLUMNS,
        compression="zstd",
        use_dictionary=_ALIKE,
        write_statistics=[name for name in FILE_COLUMNS.names if name not in _LARGE],
    )


def _runs(folder: Folder, group: Sequence[TableFile]) -> Iterator[pa.Table]:
    """Yield the rows of files in runs, each by queue and offset; the same ones each time."""
    held: list[pa.Table] = []
    for file in group:
        with folder.source(file.path) as source:
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            for number in range(parquet.num_row_groups):
                held.append(_in_columns(parquet.read_row_group(number, use_threads=False)))
                if sum(each.nbytes for each in held) >= RUN_BYTES:
                    yield pa.concat_tables(held).sort_by(_ORDER)
                    held = []
    if held:
        yield pa.concat_tables(held).sort_by(_ORDER)


def _in_columns(rows: pa.Table) -> pa.Table:
    """Return rows in the columns of an archive now; what Spark or an older version has written may have others."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in FILE_COLUMNS
    ]
    return pa.Table.from_arrays(columns, schema=FILE_COLUMNS)


def _check(folder: Folder, group: Sequence[TableFile], path: str) -> None:
    """Compare a new file with the rows of the old ones, value for value.

    Raises:
        ArchiveError: they are not the same.
    """
    with folder.source(path) as source:
        written = pq.ParquetFile(source)
        count = 0
        for run in _runs(folder, group):
            is_there = count < written.num_row_groups
            if not is_there or not written.read_row_group(count, use_threads=False).equals(run):
                raise ArchiveError(
                    f"{folder.full(path)} does not hold the rows of the files that it was made of; the table is "
                    "what it was"
                )
            count += 1
        if count != written.num_row_groups:
            raise ArchiveError(
                f"{folder.full(path)} has more rows than the files that it was made of"
            )


def _make_durable(archive: Path, below: str, path: str) -> None:
    disk = PosixDisk(archive)
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()
    disk.sync_folder(below)
