"""Columns of records made by compiled code, and by numpy and Arrow: the same, of records of all kinds and of none."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import numpy as np
import pyarrow as pa

from dledger_mq.message import compiled
from dledger_mq.message.errors import RecordError
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import encode_record
from pipeline.scan.columns import (
    LABEL_COLUMNS,
    MESSAGE_COLUMNS,
    METADATA_COLUMNS,
    RECORD_COLUMNS,
    record_batches,
)
from pipeline.scan.properties import RegularColumn
from pipeline.scan.records import read_records
from tests.property.pipeline.test_records_twin import (
    names_twice,
    odd,
    record_with,
    records,
    well_formed,
)
from tests.property.store.test_record_shapes_twin import record_of
from tests.stages import needs_compiled, stage

pytestmark = [pytest.mark.slow, needs_compiled]

EVERY = pa.unify_schemas([MESSAGE_COLUMNS, LABEL_COLUMNS, METADATA_COLUMNS, RECORD_COLUMNS])
QUOTED = encode_properties({'a"b': '\\"', "TAGS": '"', "\\": "é\\", "k": "x" * 300})
MANY = encode_properties({f"name-{number}": "v" for number in range(65)})

flips = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 7)), max_size=3)
property_rows = st.lists(well_formed | names_twice | odd, max_size=12)


def read(data: bytes, spans: list[tuple[int, int]] | None) -> object:
    """All columns and their checks, or the refusal."""
    try:
        table = read_records(data, spans)
    except RecordError as error:
        return error.reason, error.byte_offset
    batches = list(record_batches(table, EVERY))
    for batch in batches:
        batch.validate(full=True)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return rows, table.body_crc_ok().tolist(), len(batches)


def both(data: bytes, spans: list[tuple[int, int]] | None = None) -> object:
    with stage(is_compiled=True):
        found = read(data, spans)
    with stage(is_compiled=False):
        assert read(data, spans) == found
    return found


def slices(rows: list[bytes], gap: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """Properties with something between them, and where they begin and end."""
    ends = np.cumsum([len(row) + len(gap) for row in rows], dtype=np.int64)
    begins = ends - np.array([len(row) for row in rows], np.int64)
    return b"".join(gap + row for row in rows), begins.tobytes(), ends.tobytes()


@given(st.lists(records(), max_size=20), st.booleans(), flips)
def test_of_records_and_of_what_is_none(
    parts: list[bytes], is_one_span_each: bool, flipped: list[tuple[int, int]]
) -> None:
    data = bytearray(b"".join(parts))
    for place, bit in flipped if data else []:
        data[place % len(data)] ^= 1 << bit
    ends = np.cumsum([len(part) for part in parts]).tolist()
    spans = [(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    both(bytes(data), spans if is_one_span_each else None)


@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_of_what_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    both(whole[: data.draw(st.integers(0, len(whole)))])


@given(property_rows)
@example([])
@example([b""])
@example([QUOTED, b"", QUOTED])
@example([MANY, b"a\x01b\x02"])
@example([b"a\x01\xff\x02", b"TAGS\x01t\x02"])
def test_of_properties(rows: list[bytes]) -> None:
    both(b"".join(map(record_of, rows)))


@given(property_rows, st.sampled_from([b"", b"\x02", b'"\x01']))
@example([QUOTED, b"", QUOTED], b"x")
def test_what_is_regular_is_not_declined(rows: list[bytes], gap: bytes) -> None:
    """By what the Python code holds for regular."""
    is_regular = not len(RegularColumn(pa.array(rows, pa.binary()))._odd)
    with stage(is_compiled=True):
        asked = slices(rows, gap)
        assert (compiled.property_json(*asked) is not None) == is_regular
        assert (compiled.property_values(*asked, b"TAGS") is not None) == is_regular


def test_records_of_any_kind_are_not_declined() -> None:
    wide = encode_record(
        topic=b"y" * 200, queue_id=1, queue_offset=2, physical_offset=3, sys_flag=0x30,
        born_timestamp_ms=4, born_host=bytes(20), store_timestamp_ms=5, store_host=bytes(20),
        body=b"b", properties=b"",
    )  # fmt: skip
    data = record_with(b"a") + wide
    with stage(is_compiled=True):
        found = compiled.record_columns(data, np.array([0, len(data)], np.int64).tobytes())
        assert found is not None
        assert [len(each) for each in found] == [2 * 8 * 8, 2 * 48, 2 * 16]


def test_what_is_not_usual_is_declined() -> None:
    record = record_with(b"a")

    def spans(*bounds: int) -> bytes:
        return array("q", bounds).tobytes()

    with stage(is_compiled=True):
        size = len(record)
        for bounds in (
            spans(0, size - 1),
            spans(0, size + 1),
            spans(-1, size),
            spans(size, 2 * size, 0, size),
            spans(0, size)[:-1],
            spans(0),
        ):
            assert compiled.record_columns(record * 2, bounds) is None
        sound = slices([b"a\x01b\x02"])
        assert compiled.property_json(*sound) == (b"\0\0\0\0\x09\0\0\0", b'{"a":"b"}')
        assert compiled.property_values(*sound, b"a") == (b"\1", b"\0\0\0\0\1\0\0\0", b"b")
        for begins, ends in (
            (spans(0), spans(0, 4)),
            (spans(-1), spans(4)),
            (spans(4), spans(3)),
            (spans(0), spans(5)),
            (spans(0)[:-1], spans(4)[:-1]),
        ):
            assert compiled.property_json(sound[0], begins, ends) is None
            assert compiled.property_values(sound[0], begins, ends, b"a") is None
