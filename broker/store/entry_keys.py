"""The keys of an entry's messages, as they gather while it is folded: in columns, as those take them who keep them.

Nearly always a message has its unique key and no other, so the columns of unique keys are those of the key index, too.
What other keys there are is noted beside them, and put in its place when they are taken.

Nothing here knows what is kept of a key.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.properties import split_keys


class KeyColumns(NamedTuple):
    """Keys in the order of the log.

    Attributes:
        texts: the keys.
        seeds: of their topics (`key_seed`).
        offsets: where their records begin.
    """

    texts: list[bytes]
    seeds: list[int]
    offsets: list[PhysicalOffset]


class EntryKeys:
    """The keys of one entry.

    The fold appends to `unique` by itself, without a call per message; all three lists of it together.

    Attributes:
        unique: the unique keys.
    """

    __slots__ = ("_others", "_taken", "unique")

    def __init__(self) -> None:
        self.unique = KeyColumns([], [], [])
        self._taken = 0
        self._others: list[tuple[int, list[bytes], int, PhysicalOffset]] = []

    def add_others(self, keys: bytes, seed: int, physical_offset: PhysicalOffset) -> None:
        """Note the value of KEYS of the message whose unique key, if it has one, was added last."""
        place = len(self.unique.texts)
        self._others.append((place, split_keys(keys), seed, physical_offset))

    def take(self) -> KeyColumns:
        """Return all keys since they were taken last."""
        taken, self._taken = self._taken, len(self.unique.texts)
        others, self._others = self._others, []
        if not others and not taken:
            return self.unique
        columns = KeyColumns([], [], [])
        for place, texts, seed, physical_offset in others:
            _extend(columns, self.unique, taken, place)
            columns.texts.extend(texts)
            columns.seeds.extend([seed] * len(texts))
            columns.offsets.extend([physical_offset] * len(texts))
            taken = place
        _extend(columns, self.unique, taken, self._taken)
        return columns


def _extend(columns: KeyColumns, unique: KeyColumns, first: int, end: int) -> None:
    columns.texts.extend(unique.texts[first:end])
    columns.seeds.extend(unique.seeds[first:end])
    columns.offsets.extend(unique.offsets[first:end])
