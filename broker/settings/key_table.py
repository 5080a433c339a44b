"""A table of all keys that a file may have: looked up by name, and by names that are nearly right. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from broker.settings.keys import HonouredKey, Key, NeedlessKeys, RefusedKey

_PROTECTION: Final = ("acl", "auth", "tls", "ssl", "secur", "secret", "passw", "encrypt", "cert")
_LIKENESS_MIN: Final = 0.7
"""difflib's ratio, from which on two names look like one that was typed wrong."""

Row = HonouredKey | RefusedKey | NeedlessKeys


class KeyTable:
    """The keys of one kind of file.

    Attributes:
        page: the document that lists them, for people whose key is in none.
        keys: all of them.
    """

    def __init__(self, page: str, rows: Iterable[Row]) -> None:
        """Build the table; a name stands in it once."""
        found: list[tuple[Key, Row]] = []
        for row in rows:
            keys = row.keys if isinstance(row, NeedlessKeys) else (row.key,)
            found += [(key, row) for key in keys]
        self.page = page
        self.keys = tuple(key for key, _ in found)
        self._table = {key.name: (key, row) for key, row in found}
        self._by_lower = {name.lower(): name for name in self._table}
        assert len(self._table) == len(found), f"{len(found) - len(self._table)} keys stand twice"

    def find(self, name: str) -> tuple[Key, Row] | None:
        """Return a key and its row; None: there is no such key."""
        return self._table.get(name)

    def nearest(self, name: str) -> str | None:
        """Return the key that somebody may have meant who wrote an unknown one; None: none is like it."""
        found = difflib.get_close_matches(name.lower(), self._by_lower, n=1, cutoff=_LIKENESS_MIN)
        return self._by_lower[found[0]] if found else None

    def seems_to_protect(self, name: str) -> bool:
        """Return whether an unknown key speaks of a protection, which must not be passed over in silence."""
        meant = self.nearest(name)
        row = self._table[meant][1] if meant is not None else None
        return isinstance(row, RefusedKey) or any(word in name.lower() for word in _PROTECTION)
