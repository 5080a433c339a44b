"""Compiled SQL92 filters, kept for the next pull: each names its text, or its group's heartbeat does. Pure.

What was refused is kept as well: whoever asks with a wrong text asks again. What is kept is bounded by the texts'
lengths, to which what they are compiled to is in proportion.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dledger_mq.filters import FilterTextError, PropertyFilter, compile_filter

KEPT_CHARACTERS_MAX: Final = 1 << 20
"""Of all texts together; some ten thousand usual ones."""

_ENTRY_CHARACTERS: Final = 64
"""By which each counts as longer: what is kept of a text however short it is."""

SWITCHED_OFF: Final = "The broker does not support consumer to filter message by SQL92"
"""RocketMQ's text while enablePropertyFilter is false; tools look for it."""

SWITCHED_OFF_HERE: Final = f"{SWITCHED_OFF}: enablePropertyFilter is false"

CLASS_FILTERS_REFUSED: Final = (
    "filter classes are not supported: code of clients is not run here; filter by tags, or by properties "
    "with SQL92"
)


class CompiledFilters:
    """The filters that were asked for lately."""

    def __init__(self, characters_max: int = KEPT_CHARACTERS_MAX) -> None:
        self._kept: OrderedDict[str, PropertyFilter | FilterTextError] = OrderedDict()
        self._characters = 0
        self._characters_max = characters_max

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, text: str) -> PropertyFilter:
        """Return the filter of a text.

        Raises:
            FilterTextError: it is none.
        """
        found = self._kept.get(text)
        if found is None:
            found = self._compile(text)
        else:
            self._kept.move_to_end(text)
        if isinstance(found, FilterTextError):
            raise found.with_traceback(None)
        return found

    def _compile(self, text: str) -> PropertyFilter | FilterTextError:
        """Return the filter of a text, or its error, and keep it; the oldest go where there are too many."""
        found: PropertyFilter | FilterTextError
        try:
            found = compile_filter(text)
        except FilterTextError as error:
            found = error
        cost = len(text) + _ENTRY_CHARACTERS
        if cost <= self._characters_max:
            self._kept[text] = found
            self._characters += cost
        while self._characters > self._characters_max:
            oldest, _ = self._kept.popitem(last=False)
            self._characters -= len(oldest) + _ENTRY_CHARACTERS
        return found
