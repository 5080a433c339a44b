"""Small JSON files that are written once: what a query or a sink settled at its start, and must find ever after.

They stand in a folder of this machine, or in an object store (adr/0244). A file appears whole or not at all, and is
durable before its content is used. Of two who write it the first one wins, and the second one gets what the first one
wrote. What the content means is the caller's business.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dledger import DiskFullError
from dledger.storage.posix import PosixDisk
from dledger.storage.whole_file import settle_whole, write_aside
from pipeline.errors import InconclusiveError
from pipeline.locations import Location, ObjectPath


def written_once(file: Location, what: str, settle: Callable[[], object]) -> object:
    """Return the JSON value in a file; if there is none, write it first with the result of `settle`.

    Args:
        file: where; its folders are made.
        what: it holds, for errors.
        settle: says the value; what it raises is passed on.

    Raises:
        InconclusiveError: the file cannot be read or written, or holds no JSON.
    """
    try:
        with suppress(FileNotFoundError):
            return _read(file)
    except (OSError, ValueError) as error:
        raise InconclusiveError(f"{what} in {file} cannot be read: {error}") from error
    value = settle()
    try:
        _write(file, value)
        return _read(file)
    except (OSError, ValueError, DiskFullError) as error:
        raise InconclusiveError(f"{what} cannot be kept in {file}: {error}") from error


def _read(file: Location) -> object:
    return _read_object(file) if isinstance(file, ObjectPath) else _read_here(file)


def _write(file: Location, value: object) -> None:
    content = json.dumps(value).encode()
    return (
        _write_object(file, content) if isinstance(file, ObjectPath) else _write_here(file, content)
    )


def _read_object(file: ObjectPath) -> object:
    from pipeline.object_store import ObjectFolder

    return json.loads(ObjectFolder(file.parent).read(file.name))


def _write_object(file: ObjectPath, content: bytes) -> None:
    from pipeline.object_store import ObjectFolder

    with suppress(FileExistsError):  # another one was first
        ObjectFolder(file.parent).create(file.name, content)


def _read_here(path: Path) -> object:
    """Return what stands in a file, made durable first: whoever wrote it may have been killed before that.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or not be made durable.
        ValueError: it is no JSON.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    settle_whole(PosixDisk(path.parent), "", path.name)
    return json.loads(path.read_bytes())


def _write_here(path: Path, content: bytes) -> None:
    """Write a file unless there is one; its name is not durable yet.

    Raises:
        OSError: it cannot be written.
        DiskFullError: there was no room.
    """
    disk = PosixDisk(path.parent)
    # A name of its own, since two may write at once.
    aside = f".{path.name}.{secrets.token_hex(8)}"
    try:
        write_aside(disk, aside, content)
        with suppress(FileExistsError):  # another one was first
            path.hardlink_to(path.with_name(aside))
    finally:
        if disk.exists(aside):
            disk.remove(aside)
