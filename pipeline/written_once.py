"""Small JSON files that are written once: what a query or a sink settled at its start, and must find ever after.

A file appears whole or not at all, and is on disk before its content is used. Of two who write it the first one
wins, and the second one gets what the first one wrote. What the content means is the caller's business.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dledger import DiskFullError
from dledger.storage.posix import PosixDisk
from dledger.storage.whole_file import settle_whole, write_aside
from pipeline.errors import InconclusiveError

NOT_HERE: Final = "it must be a folder that the driver sees"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def written_once(path: Path, what: str, settle: Callable[[], object]) -> object:
    """Return the JSON value in a file; if there is none, write it first with the result of `settle`.

    Args:
        path: the file; its folders are made.
        what: it holds, for errors.
        settle: says the value; what it raises is passed on.

    Raises:
        InconclusiveError: the file cannot be read or written, or holds no JSON.
    """
    try:
        if path.exists():
            return _read(path)
    except (OSError, ValueError) as error:
        raise InconclusiveError(f"{what} in {path} cannot be read: {error}") from error
    value = settle()
    try:
        _write(path, value)
        return _read(path)
    except (OSError, ValueError, DiskFullError) as error:
        raise InconclusiveError(f"{what} cannot be kept in {path}: {error}") from error


def _read(path: Path) -> object:
    """Return what stands in a file, made durable first: whoever wrote it may have been killed before that.

    Raises:
        OSError: it cannot be read, or not be made durable.
        ValueError: it is no JSON.
    """
    settle_whole(PosixDisk(path.parent), "", path.name)
    return json.loads(path.read_bytes())


def _write(path: Path, value: object) -> None:
    """Write a file unless there is one; its name is not durable yet.

    Raises:
        OSError: it cannot be written.
        DiskFullError: there was no room.
    """
    disk = PosixDisk(path.parent)
    # A name of its own, since two may write at once.
    aside = f".{path.name}.{secrets.token_hex(8)}"
    try:
        write_aside(disk, aside, json.dumps(value).encode())
        with suppress(FileExistsError):  # another one was first
            path.hardlink_to(path.with_name(aside))
    finally:
        if disk.exists(aside):
            disk.remove(aside)


def folder_here(text: str) -> str | None:
    """Return the path of a folder as Spark's options have it, `/a/b` or `file:/a/b`; None if it lies elsewhere."""
    for prefix in ("file://", "file:"):
        if text.startswith(f"{prefix}/"):
            return text.removeprefix(prefix)
    return None if _SCHEME.match(text) else text
