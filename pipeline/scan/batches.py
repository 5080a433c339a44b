"""A range of the log as record batches: what `format("commitlog")` and the jobs read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.scan.arrays import numpy_of
from pipeline.scan.columns import GivenColumn, record_batches
from pipeline.scan.control import control_columns, is_control
from pipeline.scan.ranges import Damage, LogRange, OnCorrupt, Piece, RangeScan
from pipeline.scan.records import RecordTable


class RecordSelection(Enum):
    """The selection of records."""

    MESSAGES = "messages"
    CONTROL = "control"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The options of a scan.

    Attributes:
        schema: the wanted columns (pipeline.scan.columns).
        which: messages, control records, or both.
        topics: only these; None: all.
        on_corrupt: what to do with damage. MARK gives a row for each damaged place, which has nulls but
            for `physicalOffset` (where it begins), `size`, `index`, `term`, `segment` and `problem`.
        check_crc: verify the CRC32C of entries' bodies; of headers it always is.
        broker_name: the group's name, which a store does not know.
    """

    schema: pa.Schema
    which: RecordSelection = RecordSelection.MESSAGES
    topics: frozenset[str] | None = None
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    check_crc: bool = True
    broker_name: str | None = None


def scan_batches(range_: LogRange, options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """Read a range.

    Yields:
        Batches of exactly `options.schema`, in the order of the log; rows of damaged places stand after
        those of the entries read with them.

    Raises:
        DamagedLogError: FAIL, and something is wrong.
        UnknownColumnError: a column that there is not.
    """
    for piece in RangeScan(range_, options.on_corrupt, check_crc=options.check_crc).pieces():
        table, given = _selected(piece, options)
        given |= {"segment": range_.segment, "brokerName": options.broker_name}
        yield from record_batches(table, options.schema, given)
        if piece.damages and options.on_corrupt is OnCorrupt.MARK:
            yield _damage_batch(piece.damages, range_.segment, options.schema)


def _selected(piece: Piece, options: ScanOptions) -> tuple[RecordTable, dict[str, GivenColumn]]:
    """Return the wanted records, and the columns that only their entries know."""
    wanted: NDArray[np.bool_] | None = None
    names = options.schema.names
    control: NDArray[np.bool_] | None = None
    if options.which is not RecordSelection.ALL or "op" in names:
        control = is_control(piece.table)
        wanted = {RecordSelection.CONTROL: control, RecordSelection.MESSAGES: ~control}.get(
            options.which
        )
    if options.topics is not None:
        known = piece.table.topics.dictionary_encode()
        flags = np.array([each in options.topics for each in known.dictionary.to_pylist()], bool)
        of_topic = flags[numpy_of(known.indices)]
        wanted = of_topic if wanted is None else wanted & of_topic
    table, entry_of = piece.table, piece.entry_of
    if wanted is not None and not wanted.all():
        table, entry_of = table.select(wanted), entry_of[wanted]
        control = control[wanted] if control is not None else None
    header = piece.entries.header
    given: dict[str, GivenColumn] = {}
    for name in ("index", "term"):
        if name in names:
            given[name] = header[name].astype(np.int64)[entry_of]
    if "crcOk" in names:
        given["crcOk"] = piece.entries.body_ok[entry_of] & table.body_crc_ok()
    given |= control_columns(table, control) if control is not None and "op" in names else {}
    return table, given


def _damage_batch(damages: tuple[Damage, ...], segment: str, schema: pa.Schema) -> pa.RecordBatch:
    """Build one row for each damaged place."""
    known: dict[str, Sequence[int | bool | str | None]] = {
        "physicalOffset": [each.position for each in damages],
        "size": [min(each.size_bytes, 2**31 - 1) for each in damages],
        "index": [each.index or None for each in damages],
        "term": [each.term or None for each in damages],
        "crcOk": [False] * len(damages),
        "segment": [segment] * len(damages),
        "problem": [f"{each.path}, byte {each.byte_offset}: {each.problem}" for each in damages],
    }
    columns = [
        pa.array(known[field.name], field.type)
        if field.name in known
        else pa.nulls(len(damages), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
