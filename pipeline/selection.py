"""Which messages of the queues are wanted: by tag, by a condition on properties in SQL92, by key.

A broker is asked for as much of that as one expression says, so that the rest does not travel. Whatever was asked, the
messages that came are looked at here again, column by column and before rows are made of them: brokers compare hashes
of tags, read retry topics without a filter (rules G4, G9) and may have SQL92 switched off, and archives filter nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.subscriptions import EVERYTHING, BySql
from dledger_mq.filters import PropertyFilter, compile_filter
from dledger_mq.message.properties import KEYS, TAGS

Mask: TypeAlias = NDArray[np.bool_]
Property: TypeAlias = Callable[[bytes], pa.StringArray]
"""Returns one property of each message, by its name; null where a message has none."""

_KEPT: Final = 16
_compiled: Final[Callable[[str], PropertyFilter]] = lru_cache(_KEPT)(compile_filter)


@dataclass(frozen=True, slots=True)
class MessageChoice:
    """The messages that are wanted. A message is, if each of the three says so.

    Attributes:
        tags: one of these; none: any.
        condition: on its properties, in SQL92; None: any.
        keys: one of these is among its keys; none: any.
    """

    tags: tuple[str, ...] = ()
    condition: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """True where nothing is left out."""
        return self == MessageChoice()

    @property
    def asked(self) -> str | BySql:
        """The expression that brokers are asked for: all of the selection, or as much as can be said in one."""
        conditions = [
            *([f"TAGS IN ({_texts(self.tags)})"] if self.tags else []),
            *([f"({self.condition}\n)"] if self.condition is not None else []),
            *(
                [f"({' OR '.join(f'KEYS CONTAINS {_text(k)}' for k in self.keys)})"]
                if self.keys
                else []
            ),
        ]
        if self.keys or (self.tags and self.condition is not None):
            try:
                return BySql(" AND ".join(conditions))
            except ClientUsageError:  # too long, or nested too deep, in one
                pass
        return self.asked_plainly

    @property
    def asked_plainly(self) -> str | BySql:
        """The condition, or else the tags: what a broker must be able to judge."""
        if self.condition is not None:
            return BySql(self.condition)
        return " || ".join(self.tags) or EVERYTHING

    def mask(self, count: int, of: Property) -> Mask:
        """Return which of some messages are wanted.

        Args:
            count: how many they are.
            of: their properties.
        """
        mask: Mask = np.ones(count, bool)
        if self.tags:
            mask &= _bools(pc.is_in(of(TAGS), pa.array(self.tags, pa.string())))
        if self.keys:
            mask &= _has_key(of(KEYS), self.keys)
        if self.condition is not None:
            mask &= _matching(_compiled(self.condition), count, of)
        return mask


def _has_key(keys: pa.StringArray, wanted: Sequence[str]) -> Mask:
    """Return who has one of the wanted keys, which stand in one text with blanks between them."""
    single = pc.split_pattern(keys, " ")
    is_it = _bools(pc.is_in(single.flatten(), pa.array(wanted, pa.string())))
    mask: Mask = np.zeros(len(keys), bool)
    mask[pc.list_parent_indices(single).to_numpy()[is_it]] = True
    return mask


def _matching(condition: PropertyFilter, count: int, of: Property) -> Mask:
    """Return whom a condition matches; it is judged as brokers do, on the bytes of the properties that it names."""
    columns = [of(mark[:-1]).cast(pa.binary()).to_pylist() for mark in condition.marks]
    rows: Iterable[Sequence[bytes | None]] = (
        zip(*columns, strict=True) if columns else repeat((), count)
    )
    mask: Mask = np.zeros(count, bool)
    mask[condition.matching(rows)] = True
    return mask


def _bools(column: pa.BooleanArray) -> Mask:
    found: Mask = column.to_numpy(zero_copy_only=False)
    return found


def _text(text: str) -> str:
    """Return a text as SQL92 has it."""
    return "'" + text.replace("'", "''") + "'"


def _texts(texts: Iterable[str]) -> str:
    return ", ".join(map(_text, texts))
