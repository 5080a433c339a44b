"""Settings of the group that were changed while it runs: in the log, so that all nodes have the same and keep them.

A key is kept as text, with who has changed it and when. What the keys mean, which there are, and what their values may
be is not known here: that is checked before a change is written (broker/server/handlers/settings_admin.py), and a node
that does not know a key of a newer version passes over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from broker.store.refusals import RefusalKind
from broker.store.topics import DataVersion
from dledger_mq.message.numbers import StoreTimeMs

SETTINGS_MAX: Final = 512
"""More keys than a broker has."""


class GroupSetting(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One setting: its value, the address of who has changed it, and the store time of that."""

    value: str
    by: str
    at_ms: StoreTimeMs


class GroupSettings:
    """The table. `put` is for the fold; everybody else reads.

    Attributes:
        version: changes with every change of the table.
        digest: CRC32C chained over every change.
    """

    def __init__(self) -> None:
        self.version = DataVersion()
        self.digest: int = 0
        self._table: dict[str, GroupSetting] = {}

    def items(self) -> Iterator[tuple[str, GroupSetting]]:
        """Yield the keys with their settings, in the order in which they were first changed."""
        return iter(self._table.items())

    def values(self) -> dict[str, str]:
        """Return the values by their keys."""
        return {key: each.value for key, each in self._table.items()}

    def put(self, values: Mapping[str, str], by: str, now_ms: StoreTimeMs) -> RefusalKind | None:
        """Change settings, all or none; an empty value removes a key. Return the reason if it was refused."""
        added = [key for key, value in values.items() if value and key not in self._table]
        if len(self._table) + len(added) > SETTINGS_MAX:
            return RefusalKind.OUT_OF_RANGE
        for key, value in values.items():
            if value:
                self._table[key] = GroupSetting(value, by, now_ms)
            else:
                self._table.pop(key, None)
        self.version = self.version.next(now_ms)
        what = msgspec.msgpack.encode((list(values.items()), by, now_ms))
        self.digest = crc32c(what, self.digest)
        return None

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        return msgspec.msgpack.encode((list(self._table.items()), self.version, self.digest))

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        table, version, digest = msgspec.msgpack.decode(
            data, type=tuple[list[tuple[str, GroupSetting]], DataVersion, int]
        )
        self._table, self.version, self.digest = dict(table), version, digest
