"""The text format of broker.conf and namesrv.conf: java.util.Properties. Pure; it must not know any key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dledger.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


@dataclass(frozen=True, slots=True)
class Property:
    """A key and its value, with the number of the line where they begin."""

    key: str
    value: str
    line: int


def read_properties(text: str) -> dict[str, str]:
    r"""Read `key=value` lines as java.util.Properties does; the last value of a key wins.

    A line that starts with `#` or `!` is a comment; `=`, `:` or blanks end a key; an odd number of
    backslashes at the end of a line joins it with the next. Unlike Java, blanks at the end of a value
    are dropped: in a broker.conf they are never meant.

    Raises:
        ConfigError: a `\u` escape without four hexadecimal digits, or half a character; names the line.
    """
    return {each.key: each.value for each in read_property_lines(text)}


def read_property_lines(text: str) -> list[Property]:
    r"""Read the lines as `read_properties` does, and keep all of them, in their order.

    Raises:
        ConfigError: a `\u` escape without four hexadecimal digits, or half a character; names the line.
    """
    return [
        Property(*_split_pair(line, number), line=number) for number, line in _logical_lines(text)
    ]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with content, continuations joined, with the number of their first line."""
    parts: list[str] = []
    first = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip(_BLANKS)
        if not parts:
            first = number
            if not line or line[0] in "#!":
                continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 == 1:
            parts.append(line[:-1])
            continue
        parts.append(line)
        yield first, "".join(parts)
        parts = []
    if parts:
        yield first, "".join(parts)


def _split_pair(line: str, number: int) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    end = min(end, len(line))
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(line[:end], number), _unescape(rest, number).rstrip()


def _unescape(text: str, number: int) -> str:
    """Undo the escapes of one logical line, as `java.util.Properties.load` does; an unknown escape is its character."""
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        escaped = text[position]
        position += 1
        if escaped != "u":
            out.append(_ESCAPES.get(escaped, escaped))
            continue
        out.append(_unicode_char(text[position : position + 4], number))
        position += 4
    return _characters("".join(out), number)


def _characters(text: str, number: int) -> str:
    """Join the halves of characters, as Java writes those beyond its 16 bits."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ConfigError(f"line {number}: an escape names one half of a character") from error


def _unicode_char(digits: str, number: int) -> str:
    if len(digits) == 4 and all(char in "0123456789abcdefABCDEF" for char in digits):
        return chr(int(digits, 16))
    raise ConfigError(f"line {number}: \\u{digits} is not an escape of four hexadecimal digits")
