"""Text of others on a line of ours: what cannot be printed is written as an escape, so that it stays in its place.

It must not know where the line goes.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet


def visible(text: str, kept: AbstractSet[str] = frozenset()) -> str:
    """Return text without control characters, changes of direction or line ends, but for those in `kept`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else each.encode("unicode_escape").decode()
        for each in text
    )
