"""Which of some messages a selection wants, column by column and before rows are made of them.

Brokers compare hashes of tags, read retry topics without a filter (rules G4, G9) and may have SQL92 switched off, and
archives filter nothing: so whatever was asked for, what came is looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger_mq.filters import PropertyFilter, compile_filter
from dledger_mq.message.properties import KEYS, TAGS
from pipeline.selection import MessageChoice

Mask: TypeAlias = NDArray[np.bool_]
Property: TypeAlias = Callable[[bytes], pa.StringArray]
"""Returns one property of each message, by its name; null where a message has none."""

_KEPT: Final = 16
_compiled: Final[Callable[[str], PropertyFilter]] = lru_cache(_KEPT)(compile_filter)


def mask_of(wanted: MessageChoice, count: int, of: Property) -> Mask:
    """Return which of some messages are wanted.

    Args:
        wanted: the selection.
        count: how many they are.
        of: their properties.
    """
    mask: Mask = np.ones(count, bool)
    if wanted.tags:
        mask &= _bools(pc.is_in(of(TAGS), pa.array(wanted.tags, pa.string())))
    if wanted.keys:
        mask &= _has_key(of(KEYS), wanted.keys)
    if wanted.condition is not None:
        mask &= _matching(_compiled(wanted.condition), count, of)
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
