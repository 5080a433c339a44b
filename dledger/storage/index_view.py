"""The index of one segment of a damaged log: what its units record of the entries.

Nothing of it is believed here, and the data is not looked at: that is `survey`'s.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dledger.codec.index_unit import (
    INDEX_UNIT_BYTES,
    EntryColumns,
    IndexFormatError,
    IndexUnit,
    decode_sealed,
    decode_unit,
)
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index, Position
from dledger.storage.api import Disk
from dledger.storage.segment import StorePaths
from dledger.storage.tolerant_file import TolerantFile


@dataclass(frozen=True, slots=True)
class IndexView:
    """The units of a segment's index, each judged by itself, since any may be damaged.

    Attributes:
        units: by index, those that fit the majority's numbering.
        sealed: all of them, when the seal is right in every byte.
        has_failed: the device does not give some bytes of it.
    """

    units: dict[Index, IndexUnit]
    sealed: EntryColumns | None
    has_failed: bool = False

    def remembers(self, position: Position) -> bool:
        """Return whether there is a unit of an entry that stands at a position or after it."""
        return any(unit.position >= position for unit in self.units.values())


def read_index_view(disk: Disk, paths: StorePaths, name: Position) -> IndexView:
    """Read the index of the segment that starts at `name`.

    Raises:
        OSError: the disk failed in another way than by not giving some bytes.
    """
    file = disk.open(paths.index_path(name))
    try:
        tolerant = TolerantFile(file)
        data = tolerant.read_at(0, file.size())
    finally:
        file.close()
    sealed: EntryColumns | None = None
    if first := decode_unit(data) if len(data) >= INDEX_UNIT_BYTES else None:
        try:
            sealed = decode_sealed(data, first_index=first.index, first_position=name)
        except IndexFormatError:
            sealed = None
    used_bytes = min(len(data.rstrip(b"\0")) + INDEX_UNIT_BYTES, len(data))
    placed = [
        (place, unit)
        for place in range(used_bytes // INDEX_UNIT_BYTES)
        if (unit := decode_unit(data, place * INDEX_UNIT_BYTES)) is not None
        and unit.index > place
        and unit.position >= name
        and unit.size_bytes >= ENTRY_HEADER_BYTES
    ]
    bases = Counter(unit.index - place for place, unit in placed)
    if not bases:
        return IndexView({}, None, tolerant.has_failed)
    base = bases.most_common(1)[0][0]
    units = {unit.index: unit for place, unit in placed if unit.index - place == base}
    return IndexView(units, sealed, tolerant.has_failed)
