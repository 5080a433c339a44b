"""The properties of many messages at once: as JSON, as a map, or one property of each.

One message's properties are `name 0x01 value 0x02`, again and again (dledger_mq/message/properties.py). A
property-by-property loop in Python would cost more than everything else in a scan, so the bytes of
all messages are handled together: numpy finds the separators, Arrow cuts and copies.

That works for *regular* messages: pairs with a name, a value and both separators, valid UTF-8, no name
twice. The others, which real clients hardly ever send, are read one by one with `decode_properties`, so
that the answer is the same as everywhere else in the project.

JSON and single properties of regular messages are made by compiled code where there is some; `RegularColumn` does the
same, and whatever compiled code declines.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger_mq.message import compiled
from dledger_mq.message.properties import decode_properties, find_property
from pipeline.scan.records import RecordTable

_REGULAR: Final = re.compile(rb"(?:[^\x01\x02]+\x01[^\x01\x02]+\x02)*")
_ROW_END: Final = 3
"""Stands for the last 0x02 of a message while JSON is made; messages that have it are not regular."""

_MAP_TYPE: Final = pa.map_(pa.string(), pa.string())


def property_json(pairs: dict[str, str]) -> str:
    """Return the JSON of one message's properties, as the column has it."""
    return json.dumps(pairs, separators=(",", ":"), ensure_ascii=False)


class PropertyColumn:
    """The properties of some messages.

    Args:
        table: their records.
    """

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        begin = np.ascontiguousarray(table.topic_end + 2)
        self._slices = table.data, begin.data, np.ascontiguousarray(table.end).data

    @cached_property
    def _by_columns(self) -> RegularColumn:
        return RegularColumn(self._table.properties)

    def json(self) -> pa.StringArray:
        """Return one JSON object of texts per message, in the order of the properties."""
        found = compiled.property_json(*self._slices)
        return self._by_columns.json() if found is None else self._texts(None, *found)

    def map(self) -> pa.MapArray:
        """Return one map of texts per message."""
        return self._by_columns.map()

    def value(self, name: bytes) -> pa.StringArray:
        """Return one property of each message; null where it has none."""
        found = compiled.property_values(*self._slices, name)
        return self._by_columns.value(name) if found is None else self._texts(*found)

    def _texts(self, valid: bytes | None, offsets: bytes, text: bytes) -> pa.StringArray:
        parts = [
            None if valid is None else pa.py_buffer(valid),
            *map(pa.py_buffer, (offsets, text)),
        ]
        return pa.Array.from_buffers(pa.string(), len(self._table), parts)


class RegularColumn:
    """The properties of some messages, by numpy and Arrow; those that are not regular one by one.

    Args:
        properties: a binary array without nulls; its values lie back to back in its data buffer.
    """

    def __init__(self, properties: pa.BinaryArray) -> None:
        self._count = len(properties)
        self._column = properties
        self._take(properties)
        self._odd: NDArray[np.int64] = np.empty(0, np.int64)
        if not self._is_regular():
            self._set_aside()

    def _take(self, properties: pa.BinaryArray) -> None:
        _, offsets, data = properties.buffers()
        first, stop = properties.offset, properties.offset + self._count + 1
        self._offsets = np.frombuffer(offsets, np.int32)[first:stop].astype(np.int64)
        begin, end = int(self._offsets[0]), int(self._offsets[-1])
        self._offsets -= begin
        self._bytes = b"" if data is None else data.slice(begin, end - begin).to_pybytes()
        self._data = np.frombuffer(self._bytes, np.uint8)
        separators: NDArray[np.int64] = np.flatnonzero(self._data - np.uint8(1) < 2)
        self._name_ends = separators[0::2]
        self._value_ends = separators[1::2]
        self._separator_counts: NDArray[np.int64] = np.searchsorted(separators, self._offsets)

    def _is_regular(self) -> bool:
        """Return whether every message is regular, seen over all of them at once."""
        names, values, counts = self._name_ends, self._value_ends, self._separator_counts
        if len(names) != len(values) or np.any(counts & 1):
            return False
        if np.any(self._data[names] != 1) or np.any(self._data[values] != 2):
            return False
        starts = self._name_starts
        if np.any(names <= starts) or np.any(values <= names + 1):
            return False
        row_ends = self._offsets[1:]
        is_filled = row_ends > self._offsets[:-1]
        last = counts[1:][is_filled] // 2 - 1
        if np.any(last < 0) or np.any(values[last] != row_ends[is_filled] - 1):
            return False
        return self._is_text() and not self._has_name_twice()

    def _is_text(self) -> bool:
        """Return whether it is UTF-8 without other control characters; a 0x02 ends a message and splits none."""
        control = self._data < 32
        if np.count_nonzero(control) != len(self._name_ends) + len(self._value_ends):
            return False
        try:
            return self._bytes.isascii() or bool(self._bytes.decode())
        except UnicodeDecodeError:
            return False

    def _has_name_twice(self) -> bool:
        """Return whether any message has a name twice; names are first compared by a few of their bytes."""
        starts, ends = self._name_starts, self._name_ends
        if not len(starts):
            return False
        data, lengths = self._data, ends - starts
        signs = (
            lengths
            | data[starts].astype(np.int64) << 32
            | data[ends - 1].astype(np.int64) << 40
            | data[starts + lengths // 2].astype(np.int64) << 48
        )
        rows = self._pair_rows
        for distance in range(1, int(self._pair_counts.max())):
            alike = (signs[distance:] == signs[:-distance]) & (rows[distance:] == rows[:-distance])
            if not alike.any():
                continue
            places = np.flatnonzero(alike)
            first, second = (
                self._names.take(pa.array(places)),
                self._names.take(pa.array(places + distance)),
            )
            if pc.any(pc.equal(first, second)).as_py():
                return True
        return False

    def _set_aside(self) -> None:
        """Empty the messages that are not regular; they are answered one by one."""
        rows: list[bytes] = self._column.to_pylist()
        odd = [place for place, row in enumerate(rows) if not _is_regular_row(row)]
        self._odd = np.array(odd, np.int64)
        self._odd_rows = [rows[place] for place in odd]
        for place in odd:
            rows[place] = b""
        self._take(pa.array(rows, pa.binary()))
        for cached in ("_name_starts", "_pair_counts", "_pair_rows", "_names", "_values"):
            self.__dict__.pop(cached, None)

    @cached_property
    def _name_starts(self) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = np.empty(len(self._name_ends), np.int64)
        if len(starts):
            starts[0] = 0
            starts[1:] = self._value_ends[: len(starts) - 1] + 1
        return starts

    @cached_property
    def _pair_counts(self) -> NDArray[np.int64]:
        return np.diff(self._separator_counts) // 2

    @cached_property
    def _pair_rows(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(self._count), self._pair_counts)

    def _cut(self, part: int) -> pa.StringArray:
        """Return the names (part 0) or values (part 2) of all pairs, in order."""
        count = len(self._name_ends)
        bounds: NDArray[np.int32] = np.empty((count, 4), np.int32)
        bounds[:, 0] = self._name_starts
        bounds[:, 1] = self._name_ends
        bounds[:, 2] = self._name_ends + 1
        bounds[:, 3] = self._value_ends
        pieces = pa.Array.from_buffers(
            pa.string(),
            max(4 * count - 1, 0),
            [None, pa.py_buffer(bounds), pa.py_buffer(self._bytes)],
        )
        return pieces.take(pa.array(np.arange(part, 4 * count, 4)))

    @cached_property
    def _names(self) -> pa.StringArray:
        return self._cut(0)

    @cached_property
    def _values(self) -> pa.StringArray:
        return self._cut(2)

    def _mended(self, column: pa.Array, values: list[object]) -> pa.Array:
        """Return the column with the values of the messages that were set aside."""
        if not len(self._odd):
            return column
        mask: NDArray[np.bool_] = np.zeros(self._count, bool)
        mask[self._odd] = True
        return pc.replace_with_mask(column, pa.array(mask), pa.array(values, column.type))

    def json(self) -> pa.StringArray:
        """Return one JSON object of texts per message, in the order of the properties."""
        return self._mended(
            self._regular_json(),
            [property_json(decode_properties(row)) for row in self._odd_rows]
            if len(self._odd)
            else [],
        )

    def _regular_json(self) -> pa.StringArray:
        """Build the JSON of all rows by replacing bytes in one buffer: 0x01 and 0x02 separate names and values."""
        text = bytearray(self._bytes)
        lengths = np.diff(self._offsets)
        is_filled = lengths > 0
        new_lengths = np.where(is_filled, lengths + 4 * self._pair_counts + 1, 0)
        quotes = np.flatnonzero((self._data == ord('"')) | (self._data == ord("\\")))
        if len(quotes):
            new_lengths += np.diff(np.searchsorted(quotes, self._offsets))
        np.frombuffer(text, np.uint8)[self._offsets[1:][is_filled] - 1] = _ROW_END
        if len(quotes):
            text = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        text = text.replace(b"\x01", b'":"').replace(b"\x02", b'","').replace(b"\x03", b'"}{"')
        offsets: NDArray[np.int32] = np.zeros(self._count + 1, np.int32)
        np.cumsum(new_lengths, out=offsets[1:])
        column = pa.Array.from_buffers(
            pa.string(), self._count, [None, pa.py_buffer(offsets), pa.py_buffer(b'{"' + text)]
        )
        if is_filled.all():
            return column
        return pc.if_else(pa.array(is_filled), column, pa.scalar("{}"))

    def map(self) -> pa.MapArray:
        """Return one map of texts per message."""
        if len(self._odd):
            rows = [list(decode_properties(row).items()) for row in self._column.to_pylist()]
            return pa.array(rows, _MAP_TYPE)
        offsets: NDArray[np.int32] = (self._separator_counts // 2).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), self._names, self._values)

    def value(self, name: bytes) -> pa.StringArray:
        """Return one property of each message; null where it has none."""
        is_it = pc.equal(self._names, name.decode()).to_numpy(zero_copy_only=False)
        places: NDArray[np.int64] = np.full(self._count, -1, np.int64)
        found = np.flatnonzero(is_it)
        places[self._pair_rows[found]] = found
        column = self._values.take(pa.array(places, mask=places < 0))
        if not len(self._odd):
            return column
        texts = [find_property(row, name) for row in self._odd_rows]
        return self._mended(column, [each and each.decode(errors="replace") for each in texts])


def _is_regular_row(row: bytes) -> bool:
    if not _REGULAR.fullmatch(row):
        return False
    try:
        text = row.decode()
    except UnicodeDecodeError:
        return False
    names = [pair.partition("\x01")[0] for pair in text.split("\x02") if pair]
    return len(set(names)) == len(names) and all(each >= " " or each in "\x01\x02" for each in text)
