"""CRC32C of many short, equally long pieces at once, with numpy.

A checksum of 44 bytes costs a call for each piece however fast the call is; entry headers come by the
million. A CRC is linear over its bits, so the checksum of a piece is the exclusive or of one table entry per
byte, chosen by the byte and its distance from the end ("slicing by N": Kounavis and Berry, "A systematic
approach to building high performance software-based CRC generators", 2005). Numpy looks up one column of
bytes of all pieces at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Uint32s: TypeAlias = NDArray[np.uint32]
Octets: TypeAlias = NDArray[np.uint8]

_POLYNOMIAL: Final = 0x82F6_3B78
"""CRC32C (Castagnoli), bits reflected."""


@lru_cache(maxsize=4)
def _tables(length: int) -> Uint32s:
    """Build the tables. Row k: what a byte that has k bytes after it contributes, by its value."""
    value: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = np.where(value & 1, (value >> 1) ^ np.uint32(_POLYNOMIAL), value >> 1)
    first: NDArray[np.uint32] = value.astype(np.uint32)
    rows = [first]
    for _ in range(length - 1):
        last = rows[-1]
        rows.append(first[last & 0xFF] ^ (last >> 8))
    return np.stack(rows)


def crc32c_columns(pieces: Octets, before: Uint32s) -> Uint32s:
    """Return the CRC32C of each row of `pieces`, each started with its own checksum, as `crc32c(row, before)`.

    Args:
        pieces: shape (count, length), length at least 4.
        before: checksums of what stands before; 0 to begin anew.
    """
    length = pieces.shape[1]
    assert length >= 4, "the start value is folded into the first four bytes"
    tables = _tables(length)
    start = ~before
    total: NDArray[np.uint32] = np.zeros(len(pieces), np.uint32)
    for place in range(length):
        octet = pieces[:, place]
        if place < 4:
            octet = octet ^ (start >> np.uint32(8 * place)).astype(np.uint8)
        total ^= tables[length - 1 - place].take(octet)
    return ~total
