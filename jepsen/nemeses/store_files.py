"""The places of things in a node's store, for whoever damages it (docs/formats/segment.md, adr/0021)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger.codec.entry import EntryFormatError, decode_header
from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.storage.hard_state import HARD_STATE_NAME
from dledger.storage.snapshot_parts import number_of


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """One entry in a data file.

    Attributes:
        path: the data file.
        offset: of the header in it.
        size_bytes: header and body.
        index: number of the entry.
    """

    path: Path
    offset: int
    size_bytes: int
    index: int


def data_files(store: Path) -> list[Path]:
    """Return the data files of the log, oldest first."""
    return sorted((store / "data").glob("[0-9]*"))


def entries(store: Path) -> list[EntryLocation]:
    """Return every entry up to the first place that holds none, oldest first."""
    found: list[EntryLocation] = []
    for path in data_files(store):
        with path.open("rb") as file:
            offset = 0
            while True:
                file.seek(offset)
                header = file.read(ENTRY_HEADER_BYTES)
                if len(header) < ENTRY_HEADER_BYTES:
                    break
                try:
                    seen = decode_header(header)
                except EntryFormatError:
                    break
                found.append(EntryLocation(path, offset, seen.size_bytes, seen.index))
                offset += seen.size_bytes
    return found


def settled(places: list[EntryLocation]) -> list[EntryLocation]:
    """Return entries that surely are committed: all but the last tenth, and not the first."""
    return places[1 : max(2, len(places) - max(3, len(places) // 10))]


def index_units(store: Path) -> list[tuple[Path, int]]:
    """Place of each index unit that is not empty."""
    found: list[tuple[Path, int]] = []
    for path in sorted((store / "index").glob("[0-9]*")):
        data = path.read_bytes()
        found += [
            (path, at)
            for at in range(0, len(data) - INDEX_UNIT_BYTES + 1, INDEX_UNIT_BYTES)
            if any(data[at : at + INDEX_UNIT_BYTES])
        ]
    return found


def hard_state(store: Path) -> Path:
    """Return the file with term and vote."""
    return store / HARD_STATE_NAME


def snapshots(store: Path) -> list[Path]:
    """Return snapshots, oldest first."""
    found = (store / "snapshots").glob("[0-9]*")
    return sorted(path for path in found if path.name.isdigit())


def snapshot_parts(store: Path) -> list[Path]:
    """Return the files of the parts that snapshots name: two of each."""
    found = (store / "snapshots").glob("[0-9]*")
    return sorted(path for path in found if number_of(path.name) is not None)


def derived_files(store: Path) -> list[Path]:
    """Return files that are made from the log: consume queues and the key index; without the lock."""
    return sorted(
        each
        for each in (store / "derived").rglob("*")
        if each.is_file() and each.name != "lock" and each.stat().st_size > 0
    )
