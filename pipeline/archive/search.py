"""Messages of an archive that are meant by a key, an id, a place or a time; read with pyarrow alone, without Spark.

Only files that manifests list are read, of these only the folders of the topic and of the days that are meant, of an id
only the stretch of the log that has its place, and of each row group the bodies only where a message is found. It must
not know who asks, or how a message is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.admin.archive_search import ArchiveSearch
from dledger_mq.message.ids import parse_offset_msg_id
from pipeline.archive.manifests import Manifest, manifests_there
from pipeline.archive.parts import ARCHIVE_COLUMNS
from pipeline.archive.runs import RowGroup, Within, runs
from pipeline.folders import Where

ROW_COLUMNS: Final = tuple(name for name in ARCHIVE_COLUMNS.names if name != "topic")

_GIVEN_OUT_AT_ONCE: Final = 256
_PLACE: Final = "physicalOffset"


def find_archived(
    archive: Where, wanted: ArchiveSearch, manifests: list[Manifest] | None = None
) -> Iterator[dict[str, object]]:
    """Yield the messages of an archive that are meant, in the order of the log; each is a row with `topic`.

    Args:
        archive: the folder.
        wanted: what is meant.
        manifests: all of the archive, if they are known.

    Raises:
        PipelineUsageError: there is no archive.
        ArchiveError: a manifest is damaged, a listed file is missing, has another size, or cannot be read.
    """
    known = manifests_there(archive) if manifests is None else manifests
    for run in runs(archive, known, _within(wanted)):
        found = [rows for group in run if len(rows := _found(group, wanted))]
        if found:
            ordered = pa.concat_tables(found).sort_by(_PLACE)
            for batch in ordered.to_batches(max_chunksize=_GIVEN_OUT_AT_ONCE):
                yield from batch.to_pylist()


def _within(wanted: ArchiveSearch) -> Within:
    """Return the bounds of what has to be looked at."""
    topic = wanted.topic
    first = 0 if wanted.after_place is None else wanted.after_place + 1
    bounds: dict[str, Any] = {"begin_ms": wanted.begin_ms, "end_ms": wanted.end_ms}
    if wanted.message_id is not None:
        place = int(parse_offset_msg_id(wanted.message_id)[2])
        first, bounds["last_place"] = max(first, place), place
    return Within(lambda name: topic in {None, name}, first, **bounds)


def _found(group: RowGroup, wanted: ArchiveSearch) -> pa.Table:
    """Return the rows of a row group that are meant."""
    places = _places(group.read(_looked_at(wanted)), wanted)
    if not len(places):
        return pa.table({})
    rows = group.read(ROW_COLUMNS).take(places)
    return rows.add_column(0, "topic", pa.repeat(pa.scalar(group.topic, pa.string()), len(rows)))


def _looked_at(wanted: ArchiveSearch) -> list[str]:
    """Return the columns that say which rows are meant; properties, the widest, only where a unique key is."""
    keys = (wanted.key, wanted.any_key)
    return [
        *("queueId", "queueOffset", "storeTimestamp", _PLACE),
        *(["msgId"] if wanted.message_id is not None else []),
        *(["keys"] if any(each is not None for each in keys) else []),
        *(["properties"] if wanted.unique_key is not None or wanted.any_key is not None else []),
    ]


def _places(rows: pa.Table, wanted: ArchiveSearch) -> pa.Array:
    """Return the numbers of the rows that are meant."""
    times_ms = pc.divide(rows["storeTimestamp"].cast(pa.int64()), 1000)
    tests: list[tuple[int | str | None, pa.ChunkedArray, Callable[..., pa.ChunkedArray]]] = [
        (wanted.queue_id, rows["queueId"], pc.equal),
        (wanted.first_offset, rows["queueOffset"], pc.greater_equal),
        (wanted.last_offset, rows["queueOffset"], pc.less_equal),
        (wanted.begin_ms, times_ms, pc.greater_equal),
        (wanted.end_ms, times_ms, pc.less_equal),
        (wanted.after_place, rows[_PLACE], pc.greater),
    ]
    if wanted.message_id is not None:
        tests.append((wanted.message_id.upper(), rows["msgId"], pc.equal))
        tests.append((parse_offset_msg_id(wanted.message_id)[2], rows[_PLACE], pc.equal))
    chosen = pa.array([True] * len(rows))
    for value, column, compare in tests:
        if value is not None:
            chosen = pc.and_(chosen, pc.fill_null(compare(column, value), False))
    if wanted.key is not None:
        chosen = pc.and_(chosen, _holds(rows["keys"], wanted.key))
    if wanted.unique_key is not None:
        chosen = pc.and_(chosen, _holds(rows["properties"], in_json(wanted.unique_key)))
    if wanted.any_key is not None:
        in_either = pc.or_(
            _holds(rows["keys"], wanted.any_key),
            _holds(rows["properties"], in_json(wanted.any_key)),
        )
        chosen = pc.and_(chosen, in_either)
    numbers = pc.indices_nonzero(chosen)
    if {wanted.key, wanted.unique_key, wanted.any_key} == {None}:
        return numbers
    exact = [_has(wanted, *each) for each in _keys_of(rows, numbers)]
    return numbers.filter(pa.array(exact, pa.bool_()))


def _holds(column: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """Return where a text stands somewhere in a column."""
    return pc.fill_null(pc.match_substring(column, text), False)


def in_json(text: str) -> str:
    """Return what JSON, as properties are, must hold for a text: other characters may be escaped there."""
    if text.isascii() and text.isalnum():
        return text
    return max(
        "".join(c if c.isascii() and c.isalnum() else " " for c in text).split(),
        key=len,
        default="",
    )


def _keys_of(rows: pa.Table, numbers: pa.Array) -> Iterator[tuple[str, str]]:
    """Yield KEYS and properties of some rows; empty: they are not looked at, or there are none."""
    columns = [
        rows[name].take(numbers).to_pylist() if name in rows.column_names else [""] * len(numbers)
        for name in ("keys", "properties")
    ]
    for keys, properties in zip(*columns, strict=True):
        yield keys or "", properties or ""


def _has(wanted: ArchiveSearch, keys: str, properties: str) -> bool:
    """Return whether a message has exactly the keys that are meant; what was found has them somewhere."""
    each_key = keys.split(" ")
    if wanted.key is not None and wanted.key not in each_key:
        return False
    if wanted.unique_key is None and wanted.any_key is None:
        return True
    unique_key = json.loads(properties or "{}").get("UNIQ_KEY")
    if wanted.any_key is not None and wanted.any_key not in {*each_key, unique_key}:
        return False
    return wanted.unique_key is None or unique_key == wanted.unique_key
