"""What a table's log says of a file: rows, and the least and greatest values of columns that readers narrow by."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow.parquet as pq

from pipeline.folders import Folder

COLUMNS: Final = ("queueId", "queueOffset", "storeTimestamp", "physicalOffset", "index")
"""None of them is ever null."""

_MS: Final = datetime.timedelta(milliseconds=1)


def statistics_of(folder: Folder, path: str) -> tuple[int, str]:
    """Return the number of rows in a Parquet file, and that with its statistics as JSON; only the footer is read.

    Raises:
        OSError: it cannot be read.
    """
    with folder.source(path) as file:
        footer = pq.read_metadata(file)
    least: dict[str, object] = {}
    greatest: dict[str, object] = {}
    for name in COLUMNS:
        found = list(_of_groups(footer, name))
        # Nothing is said of times that Spark wrote as INT96.
        if found and all(each is not None for each in found):
            least[name] = _written(min(each.min for each in found), ends_later=False)
            greatest[name] = _written(max(each.max for each in found), ends_later=True)
    told = {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": dict.fromkeys(least, 0),
    }
    return footer.num_rows, json.dumps(told)


def _of_groups(footer: pq.FileMetaData, name: str) -> Iterator[Any]:
    """Yield a column's statistics for each row group; None where there are none."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        columns = (group.column(place) for place in range(group.num_columns))
        found = next((each for each in columns if each.path_in_schema == name), None)
        known = found.statistics if found is not None and found.is_stats_set else None
        yield known if known is not None and known.has_min_max else None


def _written(value: Any, *, ends_later: bool) -> object:
    """Return a value as the log has it: of a time the milliseconds around it."""
    if not isinstance(value, datetime.datetime):
        return value
    if ends_later and value.microsecond % 1000:
        value += _MS
    return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
