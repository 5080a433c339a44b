"""Reading single fields of a header's ext map, as text, numbers and booleans.

Values are text whatever the client sent; booleans come as "true"/"false" from most and as "0"/"1" from
C++. A field that is missing or unreadable raises FieldError with its name, which the answer's remark
shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, overload

from dledger_mq.remoting.errors import FieldError

_NUMBER_CHARS_MAX: Final = 20
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


def text(ext: Mapping[str, str], name: str) -> str:
    """Return a field that has to be there.

    Raises:
        FieldError: it is missing.
    """
    value = ext.get(name)
    if value is None:
        raise FieldError(name, "is missing")
    return value


def optional_text(ext: Mapping[str, str], name: str) -> str | None:
    """Return a field that may be missing; an empty one (C++ sends "") counts as missing."""
    return ext.get(name) or None


@overload
def int32(ext: Mapping[str, str], name: str) -> int: ...
@overload
def int32(ext: Mapping[str, str], name: str, default: int) -> int: ...
@overload
def int32(ext: Mapping[str, str], name: str, default: None) -> int | None: ...
def int32(
    ext: Mapping[str, str], name: str, default: int | type[FieldError] | None = FieldError
) -> int | None:
    """Return a 32-bit number; without a default it has to be there.

    Raises:
        FieldError: missing, no number, or out of range.
    """
    return _number(ext, name, default, INT32_MAX)


@overload
def int64(ext: Mapping[str, str], name: str) -> int: ...
@overload
def int64(ext: Mapping[str, str], name: str, default: int) -> int: ...
@overload
def int64(ext: Mapping[str, str], name: str, default: None) -> int | None: ...
def int64(
    ext: Mapping[str, str], name: str, default: int | type[FieldError] | None = FieldError
) -> int | None:
    """Return a 64-bit number; without a default it has to be there.

    Raises:
        FieldError: missing, no number, or out of range.
    """
    return _number(ext, name, default, INT64_MAX)


def _number(
    ext: Mapping[str, str], name: str, default: int | type[FieldError] | None, largest: int
) -> int | None:
    """Read a whole number of `-largest - 1` to `largest`; FieldError as the default means that it must be there."""
    value = ext.get(name)
    if not value:
        if default is None or isinstance(default, int):
            return default
        raise FieldError(name, "is missing")
    digits = value[1:] if value[0] == "-" else value
    # int() alone would also take "1_0", blanks and digits of other scripts.
    if len(value) > _NUMBER_CHARS_MAX or not (digits.isascii() and digits.isdigit()):
        raise FieldError(name, f"is {value[:40]!r}, not a whole number")
    number = int(value)
    if not -largest - 1 <= number <= largest:
        raise FieldError(name, f"is {number}, outside its range")
    return number


def boolean(ext: Mapping[str, str], name: str, default: bool | None = None) -> bool:
    """Return a truth value; without a default it has to be there.

    Raises:
        FieldError: missing, or neither true/false nor 1/0.
    """
    value = ext.get(name)
    if not value:
        if default is None:
            raise FieldError(name, "is missing")
        return default
    result = _BOOLEANS.get(value.lower())
    if result is None:
        raise FieldError(name, f"is {value[:40]!r}, not true or false")
    return result
