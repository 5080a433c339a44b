"""A filter that is ready to judge messages, made once of its text.

A message's properties are looked at as they stand in its record, `name 0x01 value 0x02` again and again, and of them
only those that the filter names: nothing else is decoded, and a body never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dledger_mq.filters.conditions import (
    Condition,
    MisplacedError,
    Values,
    as_condition,
    as_layout,
)
from dledger_mq.filters.errors import FilterTextError, UnreadableError
from dledger_mq.message.properties import NAME_VALUE_SEPARATOR, find_property

TEXT_LENGTH_MAX: Final = 4096
"""Characters of a filter's text."""

TERMS_MAX: Final = 512
"""Names and constants in it, those in lists included."""

DEPTH_MAX: Final = 32
"""The depth to which its parts may be nested."""


@dataclass(frozen=True, slots=True)
class PropertyFilter:
    """A compiled filter. Two of the same text are equal.

    Attributes:
        text: that it was made of.
        marks: the names of the properties that it asks for, each with the separator behind it.
        looks: by which the work of one verdict grows: names and constants that are looked at for each message. A list
            is one look, however long; a search in a text counts as one more.
        layout: its condition, for compiled code (`layout`).
    """

    text: str
    marks: tuple[bytes, ...] = field(compare=False)
    looks: int = field(compare=False)
    layout: bytes = field(compare=False, repr=False)
    _condition: Condition = field(compare=False, repr=False)

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these properties is wanted (H20).

        Args:
            properties: as they stand in its record.
        """
        return bool(self.matching([self.values(properties)]))

    def matching(self, rows: Iterable[Values]) -> list[int]:
        """Return the numbers of those messages that are wanted, from 0.

        Args:
            rows: of each message its values in the order of `marks`; None: it has none of that name.
        """
        condition = self._condition
        found: list[int] = []
        for number, values in enumerate(rows):
            try:
                if condition(values) is True:
                    found.append(number)
            except UnreadableError:  # H11
                continue
        return found

    def values(self, properties: bytes) -> list[bytes | None]:
        """Return the values of the properties that the filter asks for, in the order of `marks`."""
        return [find_property(properties, mark[:-1]) for mark in self.marks]


def compile_filter(text: str) -> PropertyFilter:
    """Read the text of a filter.

    Raises:
        FilterTextError: it is none, or it is too long, has too many terms, or is nested too deep.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise FilterTextError(f"{len(text)} characters, at most {TEXT_LENGTH_MAX}")
    # Who filters by properties needs a parser; all others start a tenth of a second sooner without one.
    from dledger_mq.filters.syntax import FilterReader

    reader = FilterReader(terms_max=TERMS_MAX, depth_max=DEPTH_MAX)
    operand = reader.read(text)
    try:
        condition = as_condition(operand)
    except MisplacedError as error:
        raise FilterTextError(str(error), 1, 1) from None
    marks = tuple(name.encode() + NAME_VALUE_SEPARATOR for name in reader.names)
    return PropertyFilter(text, marks, reader.looks, as_layout(operand), condition)
