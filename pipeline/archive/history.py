"""Topics as an archive holds them, so that archive and brokers can be read as one range.

For each queue the archive holds the offsets that its manifests say; from its end on the queue is read from the
brokers. Nothing is read twice, whatever the brokers still have of it, and a hole between the two is data
loss. A file is read by one task, with pyarrow alone; the archive must be within reach where tasks run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.properties import KEYS, TAGS
from pipeline.archive.manifests import (
    MANIFESTS,
    STAGING,
    Manifest,
    listed_files,
    listed_paths,
    load_manifests,
    topic_of,
)
from pipeline.errors import DataLossError, InconclusiveError, PipelineUsageError
from pipeline.folders import Where, open_folder, source_of, understood
from pipeline.locations import Location
from pipeline.masks import Property, mask_of
from pipeline.offsets import Bounds
from pipeline.ranges import QueueRange
from pipeline.scan.columns import TIME_TYPE
from pipeline.selection import MessageChoice
from pipeline.source_options import SourceOptions

BATCH_ROWS: Final = 8192
_DATE_AT: Final = 1
_LATEST_MS: Final = 253_402_300_799_000
_ARCHIVED_AS: Final = {"commitLogOffset": "physicalOffset"}
"""Columns of the source that the archive has under another name."""

_COLUMN_OF: Final = {TAGS: "tags", KEYS: "keys"}
"""Properties that are columns of an archive, too."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One listed file, with the topic that its folder names."""

    path: str
    topic: str
    bytes: int


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """The input of one task: files, and the ranges of queues to read from them."""

    files: tuple[HistoryFile, ...]
    ranges: tuple[QueueRange, ...]


class History:
    """The content of an archive for some topics.

    Args:
        archive: the folder.
        wants: which topics.
        broker_name: the group whose log it is, for manifests that do not say; "" where nobody knows.

    Raises:
        ArchiveError: a manifest is damaged or missing.
        DataLossError: a queue has a hole inside the archive.
        PipelineUsageError: the folder is no archive, or it may be the log of several groups.
    """

    def __init__(
        self, archive: Where, wants: Callable[[str], bool], broker_name: str | None
    ) -> None:
        self._archive = understood(archive)
        self._broker_name = broker_name
        try:
            self._check_is_archive()
            self._manifests = load_manifests(archive)
        except OSError as error:
            raise InconclusiveError(f"the archive {archive} cannot be read: {error}") from error
        self.bounds = self._bounds(wants, broker_name)

    def _check_is_archive(self) -> None:
        """Raise PipelineUsageError for a folder that is not there, or is none of an archive."""
        archive = self._archive
        if isinstance(archive, Path) and not archive.is_dir():
            raise PipelineUsageError(f"option includeArchive: there is no folder {archive}")
        # A new archive has no manifests yet, and in an object store then nothing at all.
        staging = [STAGING] if isinstance(archive, Path) and (archive / STAGING).is_dir() else []
        if not staging and not open_folder(archive).names(MANIFESTS):
            raise PipelineUsageError(
                f"option includeArchive: {archive} is no archive: it has no {MANIFESTS}"
            )

    def _bounds(
        self, wants: Callable[[str], bool], broker_name: str | None
    ) -> dict[MessageQueue, Bounds]:
        """Return the offsets of each queue over all manifests; raises DataLossError where some are missing."""
        bounds: dict[MessageQueue, Bounds] = {}
        for manifest in self._manifests:
            name = manifest.broker_name or broker_name
            if name is None:
                raise PipelineUsageError(
                    f"the archive {self._archive} does not say which group's log it is, and the topics "
                    "are those of several"
                )
            for each in manifest.queues:
                if not wants(each.topic):
                    continue
                queue = MessageQueue(each.topic, name, each.queue_id)
                known = bounds.get(queue)
                end = each.max_offset + 1
                is_whole = each.count == end - each.min_offset
                if not is_whole or (known is not None and known.end != each.min_offset):
                    raise DataLossError(_hole(self._archive, queue, known, manifest))
                bounds[queue] = Bounds(known.start if known else each.min_offset, QueueOffset(end))
        return bounds

    def files(self, topics: Collection[str]) -> list[HistoryFile]:
        """Return the files that hold rows of the wanted topics, oldest first.

        Raises:
            ArchiveError: one is missing, or has another size.
        """
        listed = [
            file
            for manifest in self._manifests
            for file in manifest.files
            if topic_of(file.path) in topics
        ]
        paths = listed_files(self._archive, frozenset(topics))
        return [
            HistoryFile(path, topic_of(file.path), file.bytes)
            for path, file in zip(paths, listed, strict=False)  # a manifest may come in between
        ]

    def parts(self, ranges: Sequence[QueueRange], bins_max: int) -> list[HistoryPart]:
        """Distribute the files with rows of these ranges over at most `bins_max` tasks of similar size."""
        files = self.files({one.queue.topic for one in ranges})
        bins: list[list[HistoryFile]] = [[] for _ in range(min(bins_max, len(files)))]
        for file in sorted(files, key=lambda file: (-file.bytes, file.path)):
            min(bins, key=lambda held: sum(each.bytes for each in held)).append(file)
        return [
            HistoryPart(
                tuple(sorted(held, key=lambda file: file.path)),
                tuple(one for one in ranges if one.queue.topic in {file.topic for file in held}),
            )
            for held in bins
        ]

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return each queue's first archived offset stored at a time or later; queues without one are left out."""
        wanted = set(queues)
        found: dict[MessageQueue, int] = {}
        at = datetime.fromtimestamp(
            min(time_ms, _LATEST_MS) / 1000, UTC
        )  # no file is of a later day
        for manifest in self._manifests:
            # What is found lies before all that later manifests have of its queue.
            unsettled = self._earlier(manifest, wanted, found)
            files = [
                file
                for file in manifest.files
                if topic_of(file.path) in {queue.topic for queue in unsettled}
                and _date_of(file.path) >= at.strftime("%Y-%m-%d")
            ]
            for path, file in zip(listed_paths(self._archive, files), files, strict=True):
                topic = topic_of(file.path)
                _find_first(path, [each for each in unsettled if each.topic == topic], at, found)
        return found

    def _earlier(
        self,
        manifest: Manifest,
        wanted: Collection[MessageQueue],
        found: Mapping[MessageQueue, int],
    ) -> list[MessageQueue]:
        """Return the queues of which a manifest may have an earlier offset than the one that was found."""
        name = manifest.broker_name or self._broker_name or ""
        least = {
            MessageQueue(each.topic, name, each.queue_id): each.min_offset
            for each in manifest.queues
        }
        return [
            queue
            for queue in wanted
            if queue in least and (queue not in found or least[queue] < found[queue])
        ]


def _find_first(
    path: str, queues: Sequence[MessageQueue], at: datetime, found: dict[MessageQueue, int]
) -> None:
    """Note the first offset of each queue that a file has from a time on, where it is before the one that is noted.

    Row groups that their statistics exclude are not read.
    """
    of_topic = {queue.queue_id: queue for queue in queues}
    with _opened(path) as file:
        for number in range(file.num_row_groups):
            if not _may_be_earlier(file.metadata.row_group(number), of_topic, at, found):
                continue
            table = file.read_row_group(
                number, columns=["queueId", "queueOffset", "storeTimestamp"]
            )
            times = _instants(table["storeTimestamp"].combine_chunks()).cast(pa.int64())
            at_us = int(at.timestamp()) * 1_000_000 + at.microsecond
            young = table.filter(pc.greater_equal(times, at_us)).group_by("queueId")
            for row in young.aggregate([("queueOffset", "min")]).to_pylist():
                queue = of_topic.get(row["queueId"])
                if queue is not None:
                    first = row["queueOffset_min"]
                    found[queue] = min(found.get(queue, first), first)


def _may_be_earlier(
    row_group: pq.RowGroupMetaData,
    of_topic: Mapping[int, MessageQueue],
    at: datetime,
    found: Mapping[MessageQueue, int],
) -> bool:
    """Return whether a row group may have a queue's first offset from a time on; True where it has no statistics."""
    columns = [row_group.column(number) for number in range(row_group.num_columns)]
    bounds = {
        column.path_in_schema: column.statistics
        for column in columns
        if column.statistics is not None and column.statistics.has_min_max
    }
    times, ids, offsets = (
        bounds.get(name) for name in ("storeTimestamp", "queueId", "queueOffset")
    )
    if times is not None and times.max.replace(tzinfo=UTC) < at:
        return False
    if ids is None or offsets is None:
        return True
    here = [queue for number, queue in of_topic.items() if ids.min <= number <= ids.max]
    return any(queue not in found or offsets.min < found[queue] for queue in here)


def _hole(archive: Location, queue: MessageQueue, known: Bounds | None, manifest: Manifest) -> str:
    """Describe where an archive's queue has a gap: what is held before it, and what the next manifest lists."""
    before = f"up to offset {known.end}, then " if known else ""
    of_queue = (
        each
        for each in manifest.queues
        if (each.topic, each.queue_id) == (queue.topic, queue.queue_id)
    )
    text = "; ".join(
        f"{each.count} rows from {each.min_offset} to {each.max_offset}" for each in of_queue
    )
    return (
        f"the archive {archive} does not hold {queue} whole: {before}{text} in the manifest of entries "
        f"{manifest.first_index} to {manifest.last_index}"
    )


def _date_of(path: str) -> str:
    return path.split("/")[_DATE_AT].removeprefix("date=")


def _opened(path: str) -> pq.ParquetFile:
    # Spark writes timestamps as INT96; nanoseconds would not reach from year 1 to 9999.
    return pq.ParquetFile(source_of(path), coerce_int96_timestamp_unit="us")


def _instants(column: pa.Array) -> pa.Array:
    return (
        column.cast(pa.timestamp("us")).cast(TIME_TYPE)
        if column.type.tz is None
        else column.cast(TIME_TYPE)
    )


def read_history(
    part: HistoryPart, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read a task's part of an archive, in batches of exactly that schema.

    Raises:
        DataLossError: files do not hold what manifests say.
        OSError: a file cannot be read.
    """
    wanted = options.selection
    for file in part.files:
        ranges = {one.queue.queue_id: one for one in part.ranges if one.queue.topic == file.topic}
        names = {_ARCHIVED_AS.get(name, name) for name in schema.names} - {"topic", "brokerName"}
        names |= {"queueId", "queueOffset"} | _looked_at(wanted)
        for rows in _opened(file.path).iter_batches(batch_size=BATCH_ROWS, columns=sorted(names)):
            mask = _inside(rows, ranges)
            if not wanted.is_everything:
                mask &= mask_of(wanted, len(rows), _properties_of(rows))
            if mask.any():
                kept = rows.filter(pa.array(mask))
                broker_name = next(iter(ranges.values())).queue.broker_name
                given = {"topic": file.topic, "brokerName": broker_name}
                columns = [_column(kept, field, given) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _looked_at(wanted: MessageChoice) -> set[str]:
    """Return the columns by which a selection chooses; properties, the widest, only where a condition needs them."""
    return {
        *(["tags"] if wanted.tags else []),
        *(["keys"] if wanted.keys else []),
        *(["properties"] if wanted.condition is not None else []),
    }


def _properties_of(rows: pa.RecordBatch) -> Property:
    """Return who knows the properties of rows of an archive."""

    @cache
    def pairs() -> list[dict[str, str]]:
        return [json.loads(text) for text in rows["properties"].to_pylist()]

    def of(name: bytes) -> pa.StringArray:
        column = _COLUMN_OF.get(name)
        if column in rows.schema.names:
            return rows[column]
        return pa.array([each.get(name.decode()) for each in pairs()], pa.string())

    return of


def _inside(rows: pa.RecordBatch, ranges: Mapping[int, QueueRange]) -> pa.Array:
    """Return a mask of the rows that lie in the wanted ranges."""
    ids = rows["queueId"].to_numpy()
    offsets = rows["queueOffset"].to_numpy()
    mask: NDArray[np.bool_] = np.zeros(len(rows), bool)
    for queue_id, one in ranges.items():
        mask |= (ids == queue_id) & (offsets >= one.start) & (offsets < one.end)
    return mask


def _column(rows: pa.RecordBatch, field: pa.Field, given: Mapping[str, str]) -> pa.Array:
    if field.name in given:
        return pa.repeat(pa.scalar(given[field.name], field.type), len(rows))
    column = rows[_ARCHIVED_AS.get(field.name, field.name)]
    if field.type.equals(TIME_TYPE):
        return _instants(column)
    if pa.types.is_map(field.type):
        return pa.array([list(json.loads(text).items()) for text in column.to_pylist()], field.type)
    return column.cast(field.type)
