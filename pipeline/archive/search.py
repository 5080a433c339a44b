"""Messages of an archive that are meant by a key, an id, a place or a time; read with pyarrow alone, without Spark.

Only files that manifests list are read, of these only the folders of the topic and of the days that are meant, and of
each row group the bodies only where a message is found. It must not know who asks, or how a message is shown.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dledger_mq.message.ids import parse_offset_msg_id
from pipeline.archive.manifests import ArchiveError, listed_files, topic_of
from pipeline.folders import Where, open_folder, source_of

_LOOKED_AT: Final = (
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "physicalOffset",
    "msgId",
    "keys",
    "properties",
)
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values that a message has to have; None: any.

    Attributes:
        topic: it stands in; None only with a message id.
        message_id: its offset message id, in capitals.
        unique_key: its UNIQ_KEY.
        key: one of its KEYS.
        queue_id: of its queue.
        first_offset, last_offset: bounds of its queue offset, both included.
        begin_ms, end_ms: bounds of the time at which it was stored, both included; ms since 1970.
    """

    topic: str | None
    message_id: str | None = None
    unique_key: str | None = None
    key: str | None = None
    queue_id: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None


def find_archived(archive: Where, wanted: Wanted) -> Iterator[dict[str, object]]:
    """Yield the messages of an archive that are meant, in the order of its files; each is a row with `topic`.

    Raises:
        ArchiveError: a manifest is damaged, a listed file is missing, has another size, or cannot be read.
    """
    topics = None if wanted.topic is None else frozenset({wanted.topic})
    before = open_folder(archive).full("")
    for path in listed_files(archive, topics):
        relative = PurePath(path.removeprefix(before).removeprefix("/"))
        if _may_hold(relative, wanted):
            try:
                with source_of(path) as source, pq.ParquetFile(source) as file:
                    for row in _in_file(file, wanted):
                        yield {"topic": topic_of(str(relative)), **row}
            except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
                raise ArchiveError(f"{path} cannot be read: {error}") from error


def _may_hold(path: PurePath, wanted: Wanted) -> bool:
    """Return whether a file's day may have what is meant."""
    day = path.parent.name.removeprefix("date=")
    try:
        midnight = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC)
    except ValueError:
        return True
    begin_ms = int(midnight.timestamp() * 1000)
    return (wanted.end_ms is None or begin_ms <= wanted.end_ms) and (
        wanted.begin_ms is None or begin_ms + _DAY_MS > wanted.begin_ms
    )


def _in_file(file: pq.ParquetFile, wanted: Wanted) -> Iterator[dict[str, object]]:
    """Yield the rows of a file that are meant, one row group at a time."""
    for number in range(file.num_row_groups):
        places = _places(file.read_row_group(number, columns=list(_LOOKED_AT)), wanted)
        if len(places):
            yield from file.read_row_group(number).take(places).to_pylist()


def _places(rows: pa.Table, wanted: Wanted) -> pa.Array:
    """Return the numbers of the rows that are meant."""
    times_ms = pc.divide(rows["storeTimestamp"].cast(pa.int64()), 1000)
    tests = [
        (wanted.queue_id, rows["queueId"], pc.equal),
        (wanted.first_offset, rows["queueOffset"], pc.greater_equal),
        (wanted.last_offset, rows["queueOffset"], pc.less_equal),
        (wanted.begin_ms, times_ms, pc.greater_equal),
        (wanted.end_ms, times_ms, pc.less_equal),
        (wanted.message_id, rows["msgId"], pc.equal),
    ]
    if wanted.message_id is not None:
        place = parse_offset_msg_id(wanted.message_id)[2]
        tests.append((place, rows["physicalOffset"], pc.equal))
    chosen = pa.array([True] * len(rows))
    for value, column, compare in tests:
        if value is not None:
            chosen = pc.and_(chosen, pc.fill_null(compare(column, value), False))
    for text, column in ((wanted.key, "keys"), (wanted.unique_key, "properties")):
        if text is not None:
            found = pc.fill_null(pc.match_substring(rows[column], _spelled(text, column)), False)
            chosen = pc.and_(chosen, found)
    numbers = pc.indices_nonzero(chosen)
    if wanted.key is None and wanted.unique_key is None:
        return numbers
    keys, properties = rows["keys"].take(numbers), rows["properties"].take(numbers)
    exact = [
        _has(wanted, key or "", text or "{}")
        for key, text in zip(keys.to_pylist(), properties.to_pylist(), strict=True)
    ]
    return numbers.filter(pa.array(exact, pa.bool_()))


def _spelled(text: str, column: str) -> str:
    """Return what a column must hold for a text: in JSON, as properties are, other characters may be escaped."""
    if column == "keys" or (text.isascii() and text.isalnum()):
        return text
    return max(
        "".join(c if c.isascii() and c.isalnum() else " " for c in text).split(),
        key=len,
        default="",
    )


def _has(wanted: Wanted, keys: str, properties: str) -> bool:
    """Return whether a message has exactly the keys that are meant; what was found has them somewhere."""
    if wanted.key is not None and wanted.key not in keys.split(" "):
        return False
    return wanted.unique_key is None or json.loads(properties).get("UNIQ_KEY") == wanted.unique_key
