"""Looks at the journal of configuration values before the library opens it, which takes some garbage for an empty one.

PySyncObj reads the place where its records end from the file, and what it finds up to there, with no checksum: where
that place is damaged it begins anew, and nobody hears that values are gone. The form of the file is checked here; what
a record means is not known here.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<24s8sII")
"""Name, version of the library, version of the format, and where the records end."""

_SIZE: Final = struct.Struct("<I")
"""Stands before and after each record."""

_RECORD: Final = struct.Struct("<QQ")
"""Index and term, with which each record begins."""

_FORMAT: Final = 1


def journal_problem(path: Path) -> str | None:
    """Return what is wrong with a journal, or None; one that is not there is right, an empty file is the library's.

    Raises:
        OSError: it cannot be read.
    """
    if not path.exists() or not (data := path.read_bytes()):
        return None
    if len(data) < _HEADER.size:
        return f"it has {len(data)} bytes, of which {_HEADER.size} are its header"
    name, _, version, end = _HEADER.unpack_from(data)
    if name.rstrip(b"\0") != b"PYSYNCOBJ":
        return f"it begins with {name[:12]!r}, which is no journal of this library"
    if version != _FORMAT:
        return f"it is of format {version}, and {_FORMAT} is known"
    if not _HEADER.size <= end <= len(data):
        return f"its records are said to end at {end}, of {len(data)} bytes"
    return _records_problem(data, end)


def last_term(path: Path) -> int:
    """Return the term of the last record of a journal that is right; 0: there is none.

    Raises:
        OSError: it cannot be read.
    """
    data = path.read_bytes() if path.exists() else b""
    end = _HEADER.unpack_from(data)[3] if data else _HEADER.size
    if end == _HEADER.size:
        return 0
    (size_bytes,) = _SIZE.unpack_from(data, end - _SIZE.size)
    return int(_RECORD.unpack_from(data, end - _SIZE.size - size_bytes)[1])


def _records_problem(data: bytes, end: int) -> str | None:
    """Return what is wrong with the records up to `end`, or None."""
    at, before = _HEADER.size, None
    while at < end:
        if at + _SIZE.size > end:
            return f"the record at byte {at} is cut off at {end}"
        (size_bytes,) = _SIZE.unpack_from(data, at)
        after = at + _SIZE.size + size_bytes
        if size_bytes < _RECORD.size or after + _SIZE.size > end:
            return f"the record at byte {at} has a size of {size_bytes} bytes, and all end at {end}"
        if _SIZE.unpack_from(data, after) != (size_bytes,):
            return f"the record at byte {at} has another size at its end"
        index, _ = _RECORD.unpack_from(data, at + _SIZE.size)
        if before is not None and index <= before:
            return f"the record at byte {at} has index {index}, after {before}"
        at, before = after + _SIZE.size, index
    return None
