"""Answers to a member that has lost entries: any member that has an entry under its unique name may send it.

By its name, that is by index and chain CRC: so there is no question of who leads, what is committed or
how healthy the one who answers is otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dledger.raft.entry import Entry
from dledger.raft.ids import Index

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Entries in one answer; a single entry may have more."""

ANSWER_COUNT_MAX: Final = 4096


def first_to_give(size_of: Callable[[Index], int], first_index: Index, last_index: Index) -> Index:
    """Return the first entry of the longest answer that ends at `last_index` and fits the bounds."""
    assert first_index <= last_index, f"entries {first_index} to {last_index} are asked for"
    first = last_index
    size = size_of(first)
    first_index = max(first_index, Index(last_index + 1 - ANSWER_COUNT_MAX))
    while first > first_index:
        size += size_of(Index(first - 1))
        if size > ANSWER_BYTES_MAX:
            break
        first = Index(first - 1)
    return first


def whole_end(
    read: Callable[[Index, Index], Sequence[Entry] | None], first_index: Index, last_index: Index
) -> tuple[Entry, ...]:
    """Return the whole entries at the end of first_index..last_index, as the disk gives them; may be none.

    Args:
        read: gives the entries of a range (end excluded), or None when not all of them are whole.
        first_index: the first that is of interest.
        last_index: the last.
    """
    assert first_index <= last_index, f"entries {first_index} to {last_index} are to be read"
    entries = read(first_index, Index(last_index + 1))
    if entries is not None:
        return tuple(entries)
    found: list[Entry] = []
    for index in map(Index, range(last_index, first_index - 1, -1)):
        one = read(index, Index(index + 1))
        if one is None:
            break
        found[:0] = one
    return tuple(found)
