"""A filter that is ready to judge messages, made once of its text.

A message's properties are looked at as they stand in its record, `name 0x01 value 0x02` again and again, and of them
only those that the filter names: nothing else is decoded, and a body never.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dledger_mq.filters.conditions import Condition, MisplacedError, Values, as_condition
from dledger_mq.filters.errors import FilterTextError, UnreadableError
from dledger_mq.filters.syntax import FilterReader
from dledger_mq.message.properties import PAIR_SEPARATOR, find_property

TEXT_LENGTH_MAX: Final = 4096
"""Characters of a filter's text."""

TERMS_MAX: Final = 512
"""Names and constants in it, those in lists included."""

DEPTH_MAX: Final = 32
"""How deep its parts may be nested."""


@dataclass(frozen=True, slots=True)
class PropertyFilter:
    """A compiled filter. Two of the same text are equal.

    Attributes:
        text: that it was made of.
        names: of the properties that it asks for.
    """

    text: str
    names: tuple[bytes, ...] = field(compare=False)
    _condition: Condition = field(compare=False, repr=False)
    _marks: tuple[bytes, ...] = field(compare=False, repr=False)

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these properties is wanted (H20).

        Args:
            properties: as they stand in its record.
        """
        return self.matches_values(self.values(properties))

    def matches_values(self, values: Values) -> bool:
        """Return whether a message is wanted whose properties `names` have these values; None: it has none."""
        try:
            return self._condition(values) is True
        except UnreadableError:  # H11
            return False

    def values(self, properties: bytes) -> list[bytes | None]:
        """Return the values of the properties that the filter asks for, in the order of `names`."""
        found: list[bytes | None] = []
        text = PAIR_SEPARATOR + properties
        for mark in self._marks:
            at = text.rfind(mark)
            if at < 0:
                found.append(None)
                continue
            start = at + len(mark)
            end = text.find(PAIR_SEPARATOR, start)
            value = text[start:] if end < 0 else text[start:end]
            # The last pair of that name is empty and does not count: an earlier one may.
            found.append(value or find_property(properties, mark[1:-1]))
        return found


def compile_filter(text: str) -> PropertyFilter:
    """Read the text of a filter.

    Raises:
        FilterTextError: it is none, or it is too long, has too many terms, or is nested too deep.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise FilterTextError(f"{len(text)} characters, at most {TEXT_LENGTH_MAX}")
    reader = FilterReader(terms_max=TERMS_MAX, depth_max=DEPTH_MAX)
    operand = reader.read(text)
    try:
        condition = as_condition(operand)
    except MisplacedError as error:
        raise FilterTextError(str(error), 1, 1) from None
    names = tuple(name.encode() for name in reader.names)
    return PropertyFilter(text, names, condition, tuple(b"\x02%b\x01" % name for name in names))
