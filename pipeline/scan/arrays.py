"""Arrow arrays of numpy's, and numpy's of Arrow's, over the same memory.

`pa.array`, `pa.scalar` and `to_numpy` do more, and therefore import pandas where it is installed: 0.2 s of CPU time and
350 modules in each process that reads a log or a topic. What is done for every batch is done with these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[np.generic]) -> pa.Array:
    """Return numbers in native byte order as an array."""
    parts = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), parts)


def flags(values: NDArray[np.bool_]) -> pa.BooleanArray:
    """Return truth values as an array, which has a bit for each."""
    parts = [None, pa.py_buffer(np.packbits(values, bitorder="little"))]
    return pa.Array.from_buffers(pa.bool_(), len(values), parts)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return texts as an array."""
    encoded = [value.encode() for value in values]
    offsets: NDArray[np.int32] = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
    parts = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), parts)


def repeated(text: str, count: int) -> pa.StringArray:
    """Return an array of one text again and again."""
    return texts([text]).take(numbers(np.zeros(count, np.int32)))


def numpy_of(array: pa.Array) -> NDArray[np.generic]:
    """Return the numbers of an array; it has no nulls."""
    assert not array.null_count, f"{array.null_count} nulls are no numbers"
    kind = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, kind)
    values: NDArray[np.generic] = np.frombuffer(
        data, kind, len(array), array.offset * kind.itemsize
    )
    return values
