"""Reverts a killed process's unsynced changes, as a power cut does.

`native/faults.c` writes the journal while the process runs; it says what stands in it. Here it is read, after
SIGKILL and before the next start, and the store becomes what a disk may hold after the power went:

- every byte and size that was synced, as it was synced;
- names (made, moved, removed) as of the last sync of their folder;
- of what was not synced nothing, or, with a chance, any sectors of it: the kernel writes back in an order of
  its own, so a write may be torn and a later one may have come through.
"""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

SECTOR_BYTES: Final = 512
_RECORD: Final = Struct("=IIqqq")
_NAMES: Final = "names"


@dataclass(frozen=True, slots=True)
class Undo:
    """One change of a file that was not synced.

    Attributes:
        offset: where the old bytes stood.
        old: what stood there, less than `new_bytes` where the file grew.
        old_size: of the file.
        new_bytes: how many were written there; 0 when the file was cut or grown.
    """

    offset: int
    old: bytes
    old_size: int
    new_bytes: int


@dataclass(frozen=True, slots=True)
class NameChange:
    """One change of a folder: "made", "moved", "removed", "made-folder", "removed-folder", or "synced".

    Attributes:
        kept: number under which the target of a move, or what was removed, is kept; 0: there was none.
    """

    kind: str
    kept: int
    path: Path
    target: Path | None


def read_undos(data: bytes) -> list[Undo]:
    """Return the records of one file, oldest first; one that a kill cut short had not been acted upon."""
    found: list[Undo] = []
    at = 0
    while at + _RECORD.size <= len(data):
        _, length, offset, old_size, new_bytes = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + length > len(data):
            break
        found.append(Undo(offset, data[at : at + length], old_size, new_bytes))
        at += length
    return found


def read_names(text: str) -> Iterator[NameChange]:
    """Yield the changes of names, oldest first."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            kind, kept, path, target = line[:-1].split("\t")
            yield NameChange(kind, int(kept), Path(path), Path(target) if target else None)


def unsynced(changes: Sequence[NameChange]) -> list[NameChange]:
    """Return the changes that no later sync of their folder made durable, newest first."""
    synced: set[Path] = set()
    left: list[NameChange] = []
    for change in reversed(changes):
        if change.kind == "synced":
            synced.add(change.path)
        elif (change.target or change.path).parent not in synced:
            left.append(change)
    return left


def take_back(file: BinaryIO, undos: Sequence[Undo], chance: random.Random | None) -> None:
    """Revert a file to the content that the disk held.

    Args:
        file: open for reading and writing, as it was when the process was killed.
        undos: oldest first.
        chance: draws which sectors came through all the same; None: none of them.
    """
    new_size = file.seek(0, io.SEEK_END)
    new = [(undo.offset, _read(file, undo.offset, undo.new_bytes)) for undo in undos]
    for undo in reversed(undos):
        _resize(file, undo.old_size)
        if undo.old:
            file.seek(undo.offset)
            file.write(undo.old)
    if chance is None or chance.random() < 0.5:
        return
    size = chance.choice([file.seek(0, io.SEEK_END), new_size])
    _resize(file, size)
    for offset, content in new:
        for at in range(0, len(content), SECTOR_BYTES):
            sector = content[at : at + SECTOR_BYTES][: max(0, size - offset - at)]
            if sector and chance.random() < 0.5:
                file.seek(offset + at)
                file.write(sector)


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    if size == 0:
        return b""
    file.seek(offset)
    return file.read(size)


def _resize(file: BinaryIO, size: int) -> None:
    """Cut, or grow by zeros (a BytesIO does not grow in truncate)."""
    grown = size - file.seek(0, io.SEEK_END)
    file.truncate(size)
    if grown > 0:
        file.seek(size - 1)
        file.write(b"\0")


def lose_unsynced(store: Path, journal: Path, chance: random.Random | None) -> str:
    """Revert a store to what a power cut leaves of it, and begin a new journal.

    The process must not run.

    Returns:
        What was lost, for the history.
    """
    names = journal / _NAMES
    lost = unsynced(list(read_names(names.read_text()))) if names.exists() else []
    for change in lost:
        _take_back_name(change, journal)
    bytes_lost = 0
    for path in sorted(each for each in store.rglob("*") if each.is_file()):
        record = journal / str(path.stat().st_ino)
        undos = read_undos(record.read_bytes()) if record.exists() else []
        if undos:
            with path.open("r+b") as file:
                take_back(file, undos, chance)
            bytes_lost += sum(undo.new_bytes for undo in undos)
    for each in journal.iterdir():
        each.unlink()
    return f"{bytes_lost} bytes and {len(lost)} names"


def _take_back_name(change: NameChange, journal: Path) -> None:
    """Undo one change of a folder; nothing when a kill came before it."""
    path, target = change.path, change.target
    kept = journal / f"kept-{change.kept}"
    match change.kind:
        case "made":
            path.unlink(missing_ok=True)
        case "made-folder":
            shutil.rmtree(path, ignore_errors=True)
        case "removed-folder":
            path.mkdir(exist_ok=True)
        case "removed":
            if not path.exists():
                path.hardlink_to(kept)
        case "moved":
            assert target is not None, "a move has a target"
            if not path.exists():
                target.rename(path)
            if change.kept and not target.exists():
                target.hardlink_to(kept)
        case unknown:
            raise AssertionError(unknown)
