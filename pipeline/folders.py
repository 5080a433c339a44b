"""Folders to read files from, here or in an object store: what an archive's readers need, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

from pipeline.locations import Location, ObjectPath, location
from pipeline.object_store import ObjectFolder

Where: TypeAlias = str | Path | ObjectPath
"""A folder as a user says it, or as it was understood."""


class Folder(Protocol):
    """A folder; paths are relative to it. Every method raises OSError when the disk or the store fails."""

    def full(self, path: str) -> str:
        """Return a file's name for people and for `source_of`."""

    def names(self, below: str) -> list[str]:
        """Return the names of what is directly in a folder; nothing when there is no such folder."""

    def size_bytes(self, path: str) -> int:
        """Return the size of a file; raises FileNotFoundError."""

    def read(self, path: str) -> bytes:
        """Return the content of a file; raises FileNotFoundError."""

    def source(self, path: str) -> pa.NativeFile:
        """Open a file for reading; raises FileNotFoundError."""

    def sink(self, path: str) -> pa.NativeFile:
        """Open a new file for writing."""


class LocalFolder:
    """A folder that the machine sees as a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def full(self, path: str) -> str:
        """Return the path."""
        return str(self.path / path)

    def names(self, below: str) -> list[str]:
        """Return the names of what is directly in a folder; nothing when there is no such folder."""
        folder = self.path / below
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

    def size_bytes(self, path: str) -> int:
        """Return the size of a file."""
        return (self.path / path).stat().st_size

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return (self.path / path).read_bytes()

    def source(self, path: str) -> pa.NativeFile:
        """Open a file for reading."""
        return pa.OSFile(self.full(path), "rb")

    def sink(self, path: str) -> pa.NativeFile:
        """Open a new file for writing; its folder is there."""
        return pa.OSFile(self.full(path), "wb")


def understood(where: Where) -> Location:
    """Return a folder's location.

    Raises:
        LocationError: it is none.
    """
    return location(where) if isinstance(where, str) else where


def open_folder(where: Where) -> LocalFolder | ObjectFolder:
    """Return a folder; nothing is asked yet.

    Raises:
        LocationError: it is none.
    """
    found = understood(where)
    return ObjectFolder(found) if isinstance(found, ObjectPath) else LocalFolder(found)


def source_of(full: str) -> pa.NativeFile:
    """Open a file by its full name for reading.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    folder, _, name = full.rpartition("/")
    return open_folder(folder or "/").source(name)
