"""Keys of messages in columns, in the order of the log, as they gather while an entry is folded.

Nearly all of them are unique keys, one of a message. So these columns are what the key index takes, and they are what
the window of recent sends takes, too, unless a message of the entry has other keys.

Nothing here knows what is kept of a key.
"""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple

from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs
from dledger_mq.message.properties import split_keys


class EntryKeys(NamedTuple):
    """The columns, which the fold appends to by itself, without a call per message: one entry's.

    Attributes:
        texts, seeds, offsets, times: what the key index takes; the times are filled in when they change, and at last.
        others: places of those that are no unique keys.
    """

    texts: list[bytes]
    seeds: list[int]
    offsets: list[PhysicalOffset]
    times: list[StoreTimeMs]
    others: list[int]

    def add_others(self, keys: bytes, seed: int, physical_offset: PhysicalOffset) -> None:
        """Add the keys in the KEYS of one message."""
        for text in split_keys(keys) if b" " in keys else (keys,):
            self.others.append(len(self.texts))
            self.texts.append(text)
            self.seeds.append(seed)
            self.offsets.append(physical_offset)

    def fill_times(self, store_ms: StoreTimeMs) -> None:
        """Say when the messages were stored of which that was not said yet."""
        self.times.extend([store_ms] * (len(self.texts) - len(self.times)))

    def unique(self) -> tuple[list[bytes], list[PhysicalOffset]]:
        """Return the unique keys, and where their records begin."""
        if not self.others:
            return self.texts, self.offsets
        are_unique = bytearray(b"\1") * len(self.texts)
        for place in self.others:
            are_unique[place] = False
        return list(compress(self.texts, are_unique)), list(compress(self.offsets, are_unique))
