"""How texts of properties are read where they stand beside a number or a boolean (H9, H10), and compared (H14).

Properties are the bytes that stand in the record: texts are compared without being decoded. As in Java, but for two
forms of floats that nobody sends, hexadecimal ones and `NaN`: they read as no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from dledger_mq.filters.errors import UnreadableError

Value = bytes | int | float | bool | None
"""Of an operand for one message: a text, a number, a boolean, or null."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_INT_DIGITS: Final = 9
"""Any number of so many digits has 32 bits."""

DIGITS_MAX: Final = 64
"""Digits of a whole number that is read; Python refuses thousands of them, and Java's numbers have at most 19."""

FLOAT_BYTES_MAX: Final = 1024
"""Of a float that is read, with its blanks. A client may send 32 767, for each of the 512 terms of a filter."""

_WHOLE: Final = re.compile(rb"[+-]?[0-9]+").fullmatch
# A digit has one place in it, so that a text that is none is found to be so in as many steps as it has characters.
_FLOAT: Final = re.compile(
    rb"[\x00-\x20]*([+-]?(?:Infinity(?![fFdD])|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
    rb"[fFdD]?[\x00-\x20]*"
).fullmatch


def read_int(text: bytes) -> int:
    """Read a whole number of 32 bits.

    Raises:
        UnreadableError: it is none.
    """
    if len(text) <= _INT_DIGITS and text.isdigit():  # most are, and need no further look
        return int(text)
    number = _read_whole(text)
    if -INT_MAX - 1 <= number <= INT_MAX:
        return number
    raise UnreadableError


def read_long(text: bytes) -> int:
    """Read a whole number of 64 bits.

    Raises:
        UnreadableError: it is none.
    """
    number = _read_whole(text)
    if -LONG_MAX - 1 <= number <= LONG_MAX:
        return number
    raise UnreadableError


def _read_whole(text: bytes) -> int:
    if len(text) > DIGITS_MAX or not (text.isdigit() or _WHOLE(text)):
        raise UnreadableError
    return int(text)


def read_float(text: bytes) -> float:
    """Read a float, or a whole number as one.

    Raises:
        UnreadableError: it is none.
    """
    found = _FLOAT(text) if len(text) <= FLOAT_BYTES_MAX else None
    if found is None:
        raise UnreadableError
    return float(found[1])


def read_boolean(text: bytes) -> bool:
    """Read a boolean: anything but `true`, in any case, is false."""
    return text.lower() == b"true"


def reading_beside(value: float) -> Callable[[bytes], float]:
    """Return how a text is read beside a number or a boolean (which is a number to Python)."""
    if type(value) is bool:
        return read_boolean
    if type(value) is float:
        return read_float
    return read_int if -INT_MAX - 1 <= value <= INT_MAX else read_long


def are_equal(left: Value, right: Value) -> bool | None:
    """Compare as `=` does; None: unknown.

    Raises:
        UnreadableError: one is a number, and the other a text that is none.
    """
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if type(left) is type(right):
        return left == right
    if isinstance(left, bytes):
        return are_equal(right, left)
    if isinstance(right, bytes):
        return left == reading_beside(left)(right)
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    return left == right


def numbers(left: bytes | float, right: bytes | float) -> tuple[float, float]:
    """Return two values as `<` and its like compare them.

    Raises:
        UnreadableError: one is a text that does not read as a number.
    """
    if isinstance(left, bytes):
        if isinstance(right, bytes):
            return read_float(left), read_float(right)
        return reading_beside(right)(left), right
    if isinstance(right, bytes):
        return left, reading_beside(left)(right)
    return left, right
