"""One part of a stretch of the log, written to Parquet files that are verified against its entries.

This is what one task does, with the scanner and pyarrow alone; it knows no Spark, and of the archive only the
folder that it writes below (in an object store that is the archive itself, since nothing is renamed there). Rows are
taken in runs of bounded size; of each run every topic and day gets one row group, by queue and offset. Then the log is
scanned once more, and each row group is read back and must be equal to the second scan's, value for value. That
arranging rows loses none is seen from totals per queue, over the rows before and after it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dledger_mq.message.numbers import QueueOffset
from pipeline.archive.manifests import QueueTotals, file_crc, folder_of, merged
from pipeline.folders import Folder, LocalFolder, open_folder
from pipeline.object_store import ObjectFolder
from pipeline.scan.arrays import numbers, numpy_of
from pipeline.scan.batches import RecordSelection, ScanOptions, scan_batches
from pipeline.scan.columns import (
    LABEL_COLUMNS,
    LOG_COLUMNS,
    MESSAGE_COLUMNS,
    METADATA_COLUMNS,
    RECORD_COLUMNS,
)
from pipeline.scan.ranges import LogRange

ARCHIVE_COLUMNS: Final = pa.schema(
    [
        *MESSAGE_COLUMNS,
        *(LOG_COLUMNS.field(name) for name in ("physicalOffset", "size", "term", "index")),
        METADATA_COLUMNS.field("msgId"),
        *LABEL_COLUMNS,
        METADATA_COLUMNS.field("reconsumeTimes"),
        *(
            RECORD_COLUMNS.field(name)
            for name in ("sysFlag", "preparedTransactionOffset", "bornHost", "storeHost")
        ),
    ]
)
"""The columns kept of each record, control records included. `topic` and the date are in the files' folders."""

_CRC: Final = "recordCrc"
_FILE_COLUMNS: Final = pa.schema([field for field in ARCHIVE_COLUMNS if field.name != "topic"])
_ALIKE: Final = ["brokerName", "queueId", "tags", "bornHost", "storeHost", "term", "sysFlag"]
"""Columns with few values; the others gain nothing from a dictionary."""
_LARGE: Final = frozenset({"body", "properties"})

RUN_BYTES: Final = 64 * 1024 * 1024
"""Rows that are held in memory at a time: what a row group has when there is one topic."""
_OPEN_FILES_MAX: Final = 128
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the log, for one task.

    Attributes:
        ranges: ranges back to back.
        broker_name: name of the group whose log it is; None: not known.
        staging: an existing folder, in which each attempt makes a new one; or an archive in an object store.
        prefix: for an object store: how the names of its files begin.
    """

    ranges: tuple[LogRange, ...]
    broker_name: str | None
    staging: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A durable Parquet file: its full name, and the folder in the archive that it is for."""

    path: str
    folder: str
    bytes: int
    rows: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The result of writing a part.

    Attributes:
        queues: what the second scan found in the log, sorted.
        files: all of them hold exactly that; each is durable.
        difference: what is not as the log has it, in words; None when all is.
    """

    queues: tuple[QueueTotals, ...]
    files: tuple[StagedFile, ...]
    difference: str | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one topic and day in a run, by queue and offset."""

    folder: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """The place at which a group was written."""

    path: str
    folder: str
    number: int


def stage_part(part: Part) -> StagedPart:
    """Write a part's rows to temporary files, verify them against the log, and make them durable.

    Raises:
        DamagedLogError: the log is damaged.
        OSError: the disk failed, or is full.
    """
    # A second attempt may run while the first still writes.
    written = _files_of(part, uuid4().hex)
    try:
        for run in _runs(part, ARCHIVE_COLUMNS):
            for group in _arranged(run):
                written.add(group)
    finally:
        written.close()
    of_log: list[QueueTotals] = []
    of_groups: list[QueueTotals] = []
    row_groups = iter(written.row_groups)
    for run in _runs(part, ARCHIVE_COLUMNS.append(RECORD_COLUMNS.field(_CRC))):
        of_log += _totals(run)
        for group in _arranged(run):
            difference = _difference(group, next(row_groups, None), written.target)
            if difference is not None:
                return StagedPart((), (), difference)
            of_groups += _totals(group.rows)
    queues = merged(of_log)
    if next(row_groups, None) is not None or queues != merged(of_groups):
        return StagedPart((), (), "a second scan of the log gives other rows per queue")
    return StagedPart(queues, tuple(written.durable()))


def _runs(part: Part, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the part's rows in the order of the log; cut at the same places each time."""
    options = ScanOptions(schema, RecordSelection.ALL, broker_name=part.broker_name)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in chain.from_iterable(scan_batches(each, options) for each in part.ranges):
        held.append(batch)
        size += batch.nbytes
        if size >= RUN_BYTES:
            run = pa.Table.from_batches(held).combine_chunks()
            held, size = [], 0  # now: what was combined is not kept beside the copy
            yield run
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _arranged(run: pa.Table) -> Iterator[_Group]:
    """Sort the rows by topic and day (in UTC, of the store time), then by queue, offset and place in the log."""
    topics = run["topic"].chunk(0).dictionary_encode()
    codes = numpy_of(topics.indices)
    days = numpy_of(run["storeTimestamp"].chunk(0).view(pa.int64())) // _DAY_US
    queue_ids, offsets = (numpy_of(run[name].chunk(0)) for name in ("queueId", "queueOffset"))
    order = np.lexsort((offsets, queue_ids, days, codes))
    for places in _pieces(order, codes, days):
        topic = topics[int(places[0])].as_py()
        day = np.datetime64(int(days[places[0]]), "D")
        yield _Group(folder_of(topic, str(day)), run.take(numbers(places)))


def _pieces(order: NDArray[np.int64], *keys: NDArray[np.generic]) -> list[NDArray[np.int64]]:
    """Cut `order` into pieces, wherever a key changes."""
    changes: NDArray[np.bool_] = np.zeros(len(order) - 1, bool)
    for key in keys:
        changes |= np.diff(key[order]) != 0
    pieces: list[NDArray[np.int64]] = np.split(order, np.flatnonzero(changes) + 1)
    return pieces


def _totals(rows: pa.Table) -> Iterator[QueueTotals]:
    """Yield the totals of each queue, whatever the order of the rows."""
    topics = rows["topic"].combine_chunks().dictionary_encode()
    codes = numpy_of(topics.indices)
    names = ("queueId", "queueOffset", _CRC)
    queue_ids, offsets, crcs = (numpy_of(rows[name].combine_chunks()) for name in names)
    for places in _pieces(np.lexsort((queue_ids, codes)), queue_ids, codes):
        yield QueueTotals(
            topics[int(places[0])].as_py(),
            int(queue_ids[places[0]]),
            len(places),
            QueueOffset(int(offsets[places].min())),
            QueueOffset(int(offsets[places].max())),
            int(np.bitwise_xor.reduce(crcs[places])),
            str(crcs[places].sum()),
        )


class _Files(ABC):
    """The Parquet files of one attempt; few are open at a time, however many topics there are.

    Args:
        target: the folder in which they stand.
    """

    def __init__(self, target: Folder) -> None:
        self.target = target
        self._open: dict[str, tuple[str, pq.ParquetWriter, pa.NativeFile]] = {}
        self._folders: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self.row_groups: list[_RowGroup] = []

    @abstractmethod
    def _path(self, number: int, folder: str) -> str:
        """Return the path of a new file, which is for a folder of the archive."""

    @abstractmethod
    def _make_durable(self, path: str) -> None:
        """Make a file that is closed durable."""

    def add(self, group: _Group) -> None:
        """Write a group as one row group, to the open file for its folder or to a new one."""
        if group.folder not in self._open:
            if len(self._open) == _OPEN_FILES_MAX:
                self.close()
            path = self._path(len(self._folders), group.folder)
            self._folders[path] = group.folder
            sink = self.target.sink(path)
            self._open[group.folder] = path, _writer(sink), sink
        path, writer, _ = self._open[group.folder]
        rows = group.rows.select(_FILE_COLUMNS.names)
        writer.write_table(rows, row_group_size=len(rows))
        self.row_groups.append(_RowGroup(path, group.folder, self._counts[path]))
        self._counts[path] += 1

    def close(self) -> None:
        """Finish the files that are open."""
        while self._open:
            _, (_, writer, sink) = self._open.popitem()
            writer.close()
            sink.close()

    def durable(self) -> Iterator[StagedFile]:
        """Make each file durable, and yield its description."""
        for path, folder in self._folders.items():
            self._make_durable(path)
            with self.target.source(path) as file:
                rows = pq.read_metadata(file).num_rows
            size = self.target.size_bytes(path)
            yield StagedFile(
                self.target.full(path), folder, size, rows, file_crc(self.target, path)
            )


class _StagedFiles(_Files):
    """Files in a folder of their own, to be renamed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalFolder(folder))
        self._folder = folder
        folder.mkdir()

    def _path(self, number: int, folder: str) -> str:
        return f"{number:05d}.zstd.parquet"

    def _make_durable(self, path: str) -> None:
        with (self._folder / path).open("rb") as file:
            os.fsync(file.fileno())


class _PlacedFiles(_Files):
    """Files of an object store, written where they stay; once closed they are durable."""

    def __init__(self, archive: ObjectFolder, prefix: str) -> None:
        super().__init__(archive)
        self._prefix = prefix

    def _path(self, number: int, folder: str) -> str:
        return f"{folder}/{self._prefix}-{number:05d}.zstd.parquet"

    def _make_durable(self, path: str) -> None:
        pass


def _files_of(part: Part, attempt: str) -> _Files:
    target = open_folder(part.staging)
    if isinstance(target, ObjectFolder):
        return _PlacedFiles(target, f"{part.prefix}-{attempt}")
    return _StagedFiles(target.path / attempt)


def _writer(sink: pa.NativeFile) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        _FILE_COLUMNS,
        compression="zstd",
        use_dictionary=_ALIKE,
        write_statistics=[name for name in _FILE_COLUMNS.names if name not in _LARGE],
    )


def _difference(group: _Group, row_group: _RowGroup | None, target: Folder) -> str | None:
    """Describe what a row group has that the log has not; None when they are equal."""
    log = group.rows.select(_FILE_COLUMNS.names)
    if row_group is None or row_group.folder != group.folder:
        return f"{group.folder}: the log has {len(log)} rows that were not written"
    with target.source(row_group.path) as file:
        read = pq.ParquetFile(file).read_row_group(row_group.number, use_threads=False)
    if read.equals(log):
        return None
    where = f"{group.folder}, {target.full(row_group.path)}"
    if len(read) != len(log) or read.schema != log.schema:
        return f"{where}: the log has {len(log)} rows, the file {len(read)}, or other columns"
    for name in log.column_names:
        pairs = zip(log[name].to_pylist(), read[name].to_pylist(), strict=True)
        for place, (one, other) in enumerate(pairs):
            if one != other:
                queue, offset = log["queueId"][place], log["queueOffset"][place]
                return (
                    f"{where}: queue {queue}, offset {offset}, column {name}: the log has {one!r}, "
                    f"the file {other!r}"
                )
    return f"{where}: not equal"
