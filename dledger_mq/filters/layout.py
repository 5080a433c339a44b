"""Conditions laid out in bytes, by which compiled code judges what it can (dledger_mq/message/_conditions.c). Pure.

A condition is a part; big-endian:
    0  uint8  kind
    1  int32  bytes of it, these five included
    5  what it holds, by kind

    &  |        its parts, of which all, or one, has to be true
    !           the part that has to be false
    N  V        a name that has to have no value; a name by itself
    =           a name, and the text that is its value
    I           a name, and the texts of which one is its value, each a uint16 length and its bytes
    <  {  >  }  #  a name, and the int32 that its value, read as a number, is below, at most, above, at least, equal to
    ?           what is not laid out

A name is a uint16: where it stands among the marks of the filter. The functions that make the Python conditions
(`conditions`) make these beside them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from dledger_mq.filters.readings import INT_MAX

_HEAD: Final = struct.Struct(">cI")
_NAME: Final = struct.Struct(">H")
_NUMBER: Final = struct.Struct(">i")
_COMPARISONS: Final = {"<": b"<", "<=": b"{", ">": b">", ">=": b"}", "=": b"#"}

TEXTS_MAX: Final = 32
"""Of a list: they are looked at one after the other, and Python looks into a set."""


def _part(kind: bytes, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, _HEAD.size + len(content)) + content


NOT_LAID_OUT: Final = _part(b"?")


def every(parts: Sequence[bytes]) -> bytes:
    """Lay out AND."""
    return _part(b"&", b"".join(parts))


def one_of(parts: Sequence[bytes]) -> bytes:
    """Lay out OR."""
    return _part(b"|", b"".join(parts))


def constant(*, is_true: bool) -> bytes:
    """Lay out TRUE or FALSE: AND or OR of nothing."""
    return every(()) if is_true else one_of(())


def opposite(part: bytes) -> bytes:
    """Lay out NOT."""
    return _part(b"!", part)


def has_no_value(name: int) -> bytes:
    """Lay out IS NULL of a name."""
    return _part(b"N", _NAME.pack(name))


def lone_name(name: int) -> bytes:
    """Lay out a name that is a condition."""
    return _part(b"V", _NAME.pack(name))


def is_text(name: int, text: bytes) -> bytes:
    """Lay out that a name's value is a text."""
    return _part(b"=", _NAME.pack(name) + text)


def is_among(name: int, texts: Sequence[bytes]) -> bytes:
    """Lay out IN of a name."""
    if len(texts) > TEXTS_MAX:
        return NOT_LAID_OUT
    return _part(b"I", _NAME.pack(name) + b"".join(_NAME.pack(len(one)) + one for one in texts))


def is_number(name: int, symbol: str, number: float) -> bytes:
    """Lay out that a name's value is equal to a number, or compares with it as `<` and its like say."""
    if type(number) is not int or not -INT_MAX - 1 <= number <= INT_MAX:
        return NOT_LAID_OUT
    return _part(_COMPARISONS[symbol], _NAME.pack(name) + _NUMBER.pack(number))
