"""The settings of one node that were changed while it ran: a file in its store's folder, written as a whole.

It must not know which keys there are (broker/server/changes.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dledger import ConfigError
from dledger.storage.posix import PosixDisk
from dledger.storage.whole_file import replace_whole, settle_whole

NAME: Final = "node-settings.json"


class NodeSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting: its value, the address of who has changed it, and when, in ms since 1970."""

    value: str
    by: str
    at_ms: int


class NodeSettings:
    """The file, and what it holds.

    Attributes:
        table: the settings by their keys.
    """

    def __init__(self, folder: str) -> None:
        """Read the file in a store's folder, which is there.

        Raises:
            ConfigError: it cannot be understood.
            OSError: the disk failed.
        """
        self._disk = PosixDisk(folder)
        settle_whole(self._disk, "", NAME)
        path = Path(folder) / NAME
        self.table: dict[str, NodeSetting] = {}
        if path.exists():
            try:
                self.table = msgspec.json.decode(path.read_bytes(), type=dict[str, NodeSetting])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{path} cannot be read: {error}; it holds what mqadmin updateBrokerConfig has changed on this "
                    "node: put it aside, and change that again"
                ) from error

    def values(self) -> dict[str, str]:
        """Return the values by their keys."""
        return {key: each.value for key, each in self.table.items()}

    def changed(self, values: Mapping[str, str], by: str, at_ms: int) -> dict[str, NodeSetting]:
        """Return the table with these changes; an empty value removes a key."""
        table = {key: each for key, each in self.table.items() if key not in values}
        table |= {key: NodeSetting(value, by, at_ms) for key, value in values.items() if value}
        return table

    def write(self, table: dict[str, NodeSetting]) -> None:
        """Make a table durable, and the one that holds; it waits for the disk.

        Raises:
            DiskFullError: there is no room; nothing has changed.
            OSError: the disk failed; which of the two the next start reads is unknown.
        """
        replace_whole(self._disk, "", NAME, msgspec.json.format(msgspec.json.encode(table)))
        self.table = table
