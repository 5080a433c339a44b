"""Looks at the term and vote of a name server before the library does, which takes what it cannot read for none.

PySyncObj keeps them beside its journal as a pickled dict, with no checksum. Who forgot its vote may give another one in
the same term, so that two name servers lead. A pickle may run code, and a damaged one may ask for all of the memory; so
only what the library writes for numbers and names is read. What is in the journal is not known here, but for the term
that it has reached.
"""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Final

import pysyncobj.pickle

SIZE_BYTES_MAX: Final = 4096
"""Two numbers and an address have some hundred."""

_PLAIN: Final = frozenset(
    {
        *("PROTO", "EMPTY_DICT", "MARK", "SETITEM", "SETITEMS", "STOP"),
        *("BINPUT", "BINGET"),
        *("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NONE"),
    }
)
"""The steps of a pickle that make a dict of names and numbers."""


def vote_problem(path: Path, journal_term: int) -> str | None:
    """Return what is wrong with a file of term and vote, or None.

    Args:
        path: of the file; one that is not there is right before the first vote.
        journal_term: term of the journal's last entry. The library keeps a term before it adds an entry of it.

    Raises:
        OSError: it cannot be read.
    """
    if not path.exists():
        return (
            f"it is missing, and the journal has reached term {journal_term}"
            if journal_term
            else None
        )
    with path.open("rb") as file:
        data = file.read(SIZE_BYTES_MAX + 1)
    if not data:
        return "it is empty"
    if len(data) > SIZE_BYTES_MAX:
        return f"it has more than {SIZE_BYTES_MAX} bytes"
    try:
        kept = _read_plain(data)
    except (ValueError, LookupError, TypeError, pickle.UnpicklingError) as error:
        return f"its {len(data)} bytes cannot be read: {error}"
    return _values_problem(kept, journal_term)


def _read_plain(data: bytes) -> object:
    """Read a pickle of plain values.

    Raises:
        ValueError: it has something else, or is cut off.
        LookupError, TypeError, UnpicklingError: it is damaged.
    """
    for step, _, at in pickletools.genops(data):
        if step.name not in _PLAIN:
            raise ValueError(
                f"at byte {at} stands {step.name}, which is no part of numbers and names"
            )
    return pysyncobj.pickle.loads(data)  # of these steps alone: nothing runs, and nothing grows


def _values_problem(kept: object, journal_term: int) -> str | None:
    """Return what is wrong with the values that a file has, or None."""
    if not isinstance(kept, dict):
        return f"it holds {kept!r:.40}, and no table of values"
    if ("currentTerm" in kept) != ("votedForNodeId" in kept):
        return "of term and vote, which are written together, it has one"
    term, vote = kept.get("currentTerm", 0), kept.get("votedForNodeId")
    for number in (term, kept.get("raftCommitIndex", 0)):
        if type(number) is not int or number < 0:
            return f"it holds {number!r:.40} where a number belongs"
    if not (vote is None or isinstance(vote, str)):
        return f"it holds a vote for {vote!r:.40}, which is no address"
    if term < journal_term:
        return f"it is of term {term}, and the journal has reached term {journal_term}"
    return None
