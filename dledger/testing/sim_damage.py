"""Damage to all replicas at once that leaves each entry whole on one of them: which bits are flipped.

It knows disks and the bytes of entries, and nothing of groups or engines: who may be struck, and when, is the
business of `sim_faults.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from dledger.codec.entry import EntryFormatError, decode_header
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.ids import Index
from dledger.testing.sim_disk import SimDisk

EntryKey = tuple[Index, int]
"""Index and chain CRC: the same entry wherever it stands."""

SLICE_ENTRIES = (1, 3, 10)
"""So many entries in a row stay whole on the same replica."""


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of an entry on one disk."""

    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit to flip."""

    path: str
    byte_offset: int
    bit: int


def entry_places(disk: SimDisk) -> dict[EntryKey, EntryPlace]:
    """Return every entry of a log up to the first byte of each data file that begins none."""
    found: dict[EntryKey, EntryPlace] = {}
    for path in disk.paths():
        if not path.startswith("data/"):
            continue
        content, offset = disk.content(path), 0
        while len(head := content[offset : offset + ENTRY_HEADER_BYTES]) == ENTRY_HEADER_BYTES:
            try:
                header = decode_header(head)
            except EntryFormatError:
                break
            found[header.index, header.chain_crc] = EntryPlace(path, offset, header.size_bytes)
            offset += header.size_bytes
    return found


def flips_on_all(
    replicas: Sequence[Mapping[EntryKey, EntryPlace]], share: float, chance: Random
) -> list[list[Flip]]:
    """Choose the bits to flip on each replica, so that one copy of each entry stays whole. Pure.

    The copies that are left alone go round the replicas like the thread of a screw, so that every replica loses
    entries which only others have whole.

    Args:
        replicas: what stands where on each.
        share: how many of the entries that may be struck are.
        chance: draws.
    """
    flips: list[list[Flip]] = [[] for _ in replicas]
    slice_entries = chance.choice(SLICE_ENTRIES)
    names = sorted({name for places in replicas for name in places})
    for number, name in enumerate(names):
        holders = [each for each, places in enumerate(replicas) if name in places]
        keeper = holders[number // slice_entries % len(holders)]
        for each in holders:
            if each != keeper and chance.random() < share:
                place = replicas[each][name]
                byte_offset = place.offset + chance.randrange(place.size_bytes)
                flips[each].append(Flip(place.path, byte_offset, chance.randrange(8)))
    return flips
