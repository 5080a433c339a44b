"""msgpack that is put together from parts, each encoded for itself.

Encoding something large in one go holds up the loop, and makes the garbage collector go through the whole heap for the
tuples that it is made of. Parts are encoded one after the other, with turns for everybody else between them.

Nothing here knows what the parts are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

STEP_ROWS: Final = 1024
"""Rows that are encoded as one part: a millisecond or two."""

_LENGTH: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD
_MAP_32: Final = 0xDF

_encode = msgspec.msgpack.Encoder().encode


def pack(*values: Any) -> bytes:
    """Return values one behind the other."""
    return b"".join(map(_encode, values))


def array_head(count: int) -> bytes:
    """Return how an array of so many values begins; they follow."""
    return _LENGTH.pack(_ARRAY_32, count)


def map_head(count: int) -> bytes:
    """Return how a map of so many keys, each with its value, begins; they follow."""
    return _LENGTH.pack(_MAP_32, count)


def packed_rows(rows: Iterable[object], step: int = STEP_ROWS) -> Iterator[bytes]:
    """Yield the rows of an array, `step` of them in each part; without the array's head."""
    encoded = map(_encode, rows)
    while part := b"".join(islice(encoded, step)):
        yield part
