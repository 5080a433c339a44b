"""Damage to the files of a store; each function returns a description. No process is started or ended here.

Entries that are damaged stand well before the end of the log, so that they surely are committed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dledger.codec.entry import decode_header, seal
from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position
from jepsen.nemeses.preload import DERIVED
from jepsen.nemeses.store_files import (
    EntryLocation,
    data_files,
    derived_files,
    entries,
    hard_state,
    index_units,
    settled,
    snapshot_parts,
    snapshots,
)

Damage = Callable[[Path, random.Random], str]

COPY_CHUNK_BYTES: Final = 1024 * 1024
DAMAGE_ALL_ENTRIES_MAX: Final = 20
NOTHING: Final = "nothing to damage"
GARBAGE: Final = Path("consumequeue/ChaosA/0/00000000000000000000")
"""The place of the workload's first queue; an old file in its place must not be believed."""

GARBAGE_BYTES: Final = 20_000


def flip(path: Path, first: int, end: int, chance: random.Random) -> int:
    """Flip a random bit in bytes [first, end) of a file; returns the byte's offset."""
    at = chance.randrange(first, end)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return at


def _flip_entry(place: EntryLocation, chance: random.Random) -> str:
    at = flip(place.path, place.offset, place.offset + place.size_bytes, chance)
    where = "header" if at < place.offset + ENTRY_HEADER_BYTES else "body"
    return f"flipped a bit in the {where} of entry {place.index} ({place.path.name}, byte {at})"


def _flip_anywhere(paths: list[Path], what: str, chance: random.Random) -> str:
    if not paths:
        return f"{NOTHING}: no {what}"
    path = chance.choice(paths)
    at = flip(path, 0, path.stat().st_size, chance)
    return f"flipped a bit in {what} {path.name}, byte {at}"


def flip_log(store: Path, chance: random.Random) -> str:
    """Flip a bit of a committed entry."""
    places = settled(entries(store))
    return _flip_entry(chance.choice(places), chance) if places else f"{NOTHING}: no entries"


def flip_index(store: Path, chance: random.Random) -> str:
    """Flip a bit of an index unit."""
    units = index_units(store)
    if not units:
        return f"{NOTHING}: no index units"
    path, offset = chance.choice(units)
    at = flip(path, offset, offset + INDEX_UNIT_BYTES, chance)
    return f"flipped a bit in index {path.name}, byte {at}"


def flip_vote(store: Path, chance: random.Random) -> str:
    """Flip a bit of term and vote."""
    path = hard_state(store)
    return _flip_anywhere([path] if path.exists() else [], "hard state", chance)


def flip_snapshot(store: Path, chance: random.Random) -> str:
    """Flip a bit of the newest snapshot, or of one of the two files of a part that snapshots name."""
    parts = snapshot_parts(store)
    if parts and chance.random() < 0.5:
        return _flip_anywhere(parts, "part of snapshots", chance)
    return _flip_anywhere(snapshots(store)[-1:], "snapshot", chance)


def flip_derived(store: Path, chance: random.Random) -> str:
    """Flip a bit of a consume queue or of the key index; in a small store, which has none, leave a file of garbage."""
    if derived_files(store) or not (store / DERIVED).is_dir():
        return _flip_anywhere(derived_files(store), "derived file", chance)
    path = store / DERIVED / GARBAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(chance.randbytes(GARBAGE_BYTES))
    return f"wrote garbage as derived file {GARBAGE}: there was none"


def misdirect(store: Path, chance: random.Random) -> str:
    """Write the bytes of one committed entry over another place."""
    places = settled(entries(store))
    if len(places) < 2:
        return f"{NOTHING}: fewer than two entries"
    one, other = chance.sample(places, 2)
    with one.path.open("rb") as file:
        file.seek(one.offset)
        data = file.read(one.size_bytes)
    with other.path.open("r+b") as file:
        file.seek(other.offset)
        file.write(data[: other.size_bytes])
    return f"entry {one.index} was written over entry {other.index}"


def tear_tail(store: Path, chance: random.Random) -> str:
    """Write the beginning of one more entry after the last: a write that a power cut tore."""
    places = entries(store)
    if not places:
        return f"{NOTHING}: no entries"
    last = places[-1]
    with last.path.open("r+b") as file:
        file.seek(last.offset)
        header = decode_header(file.read(ENTRY_HEADER_BYTES))
        torn = seal(
            Entry(
                Index(header.index + 1),
                header.term,
                Position(header.position + header.size_bytes),
                EntryKind.NORMAL,
                chance.randbytes(2000),
            ),
            header.chain_crc,
        )
        data = (torn.header + torn.body)[: chance.randrange(1, 2000)]
        file.seek(last.offset + last.size_bytes)
        file.write(data)
    return f"{len(data)} bytes of a torn entry stand after entry {last.index}"


def lose_segment(store: Path, chance: random.Random) -> str:
    """Remove a segment's files: of a finished one where there is one."""
    files = data_files(store)
    if not files:
        return f"{NOTHING}: no segments"
    path = chance.choice(files[:-1] or files)
    path.unlink()
    (store / "index" / path.name).unlink(missing_ok=True)
    return f"removed segment {path.name}"


def damage_all(stores: Iterable[Path], chance: random.Random) -> str:
    """Damage entries all over the log, each on one replica only, so that each survives on the others."""
    done: list[str] = []
    count = 0
    paths = list(stores)
    for number, store in enumerate(paths):
        own = [place for place in settled(entries(store)) if place.index % len(paths) == number]
        struck = chance.sample(own, min(len(own), DAMAGE_ALL_ENTRIES_MAX))
        for place in struck:
            _flip_entry(place, chance)
        count += len(struck)
        done.append(f"{len(struck)} on {store.name}")
    if not count:
        return f"{NOTHING}: no entries that surely are committed"
    return f"damaged entries: {', '.join(done)}; none twice"


def wipe(store: Path) -> None:
    """Remove all files of the store."""
    shutil.rmtree(store, ignore_errors=True)


def copy_store(source: Path, target: Path) -> None:
    """Copy a store as a backup does: everything but what is made again at each start; holes stay holes."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if name.parts[0] in {"derived", "lock"}:
            continue
        if path.is_dir():
            (target / name).mkdir(parents=True, exist_ok=True)
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(path, target / name)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file; chunks of zeros become holes."""
    with source.open("rb") as old, target.open("wb") as new:
        while data := old.read(COPY_CHUNK_BYTES):
            if any(data):
                new.write(data)
            else:
                new.seek(len(data), 1)
        new.truncate()
