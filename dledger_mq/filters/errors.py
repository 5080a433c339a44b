"""Errors of filter texts."""

from __future__ import annotations


class FilterTextError(ValueError):
    """The text of a filter cannot be used. Its message says why, and where.

    Attributes:
        line, column: of the mistake, from 1; 0 and 0 if the whole text is meant.
    """

    def __init__(self, why: str, line: int = 0, column: int = 0) -> None:
        place = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{place}{why}")
        self.line = line
        self.column = column


class UnreadableError(Exception):
    """Raised when a property is to be compared with a number and reads as none: the message does not match (H11)."""
