"""Forgets much in short steps: to free a million objects at once holds up the loop as long as to make them.

Nothing here knows what they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from sortedcontainers import SortedList

STEP_ITEMS: Final = 1024
"""Things that are forgotten in one step: less than a millisecond, unless each of them holds many others."""


def emptied(
    held: dict[Any, Any] | list[Any] | deque[Any] | SortedList[Any],
) -> Iterator[None]:
    """Empty what nobody uses any more."""
    forget = held.popitem if isinstance(held, dict) else held.pop
    while held:
        for _ in range(min(len(held), STEP_ITEMS)):
            forget()
        yield
