"""The numbers that everything else is named by. Mixing them is a type error."""

from __future__ import annotations

from typing import NewType

import msgspec

Term = NewType("Term", int)
"""Number of a leadership; 0 before the first election."""

Index = NewType("Index", int)
"""Place of an entry in the log. The first entry has index 1 (adr/0002)."""

Position = NewType("Position", int)
"""Byte place of an entry's header in the log's endless byte stream. The first entry stands at 0."""

NodeId = NewType("NodeId", str)
"""Name of a member, such as n0."""

NO_TERM = Term(0)
NO_INDEX = Index(0)
"""Before the first entry."""


class EntryId(msgspec.Struct, frozen=True, order=True, gc=False):
    """The unique name of an entry in its group: no two entries share term and index."""

    term: Term
    index: Index

    def __str__(self) -> str:
        return f"{self.index}@{self.term}"
