"""The table of all keys of broker.conf: looked up by name, and by names that are nearly right. Pure."""

from __future__ import annotations

import difflib
from typing import Final

from broker.server.settings.honoured import HONOURED
from broker.server.settings.keys import HonouredKey, Key, NeedlessKeys, RefusedKey
from broker.server.settings.needless_service import NEEDLESS_SERVICE
from broker.server.settings.needless_store import NEEDLESS_STORE
from broker.server.settings.refused import REFUSED

NEEDLESS: Final = (*NEEDLESS_SERVICE, *NEEDLESS_STORE)

_PROTECTION: Final = ("acl", "auth", "tls", "ssl", "secur", "secret", "passw", "encrypt", "cert")
_LIKENESS_MIN: Final = 0.7
"""difflib's ratio, from which on two names look like one that was typed wrong."""

Row = HonouredKey | RefusedKey | NeedlessKeys


def _rows() -> dict[str, tuple[Key, Row]]:
    """Return every key by its name, with its row; a name stands in the table once."""
    single: list[HonouredKey | RefusedKey] = [row for part in HONOURED.values() for row in part]
    single += REFUSED
    found: list[tuple[Key, Row]] = [(row.key, row) for row in single]
    found += [(key, row) for row in NEEDLESS for key in row.keys]
    table = {key.name: (key, row) for key, row in found}
    assert len(table) == len(found), f"{len(found) - len(table)} keys stand in two rows"
    return table


_TABLE: Final = _rows()
_BY_LOWER: Final = {name.lower(): name for name in _TABLE}


def all_keys() -> tuple[Key, ...]:
    """Return every key of the table."""
    return tuple(key for key, _ in _TABLE.values())


def find(name: str) -> tuple[Key, Row] | None:
    """Return a key and its row; None: there is no such key."""
    return _TABLE.get(name)


def nearest(name: str) -> str | None:
    """Return the key that somebody may have meant who wrote an unknown one; None: none is like it."""
    found = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=_LIKENESS_MIN)
    return _BY_LOWER[found[0]] if found else None


def seems_to_protect(name: str) -> bool:
    """Return whether an unknown key speaks of a protection, which must not be passed over in silence."""
    meant = nearest(name)
    row = _TABLE[meant][1] if meant is not None else None
    return isinstance(row, RefusedKey) or any(word in name.lower() for word in _PROTECTION)
