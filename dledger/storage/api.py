"""The narrow disk interface, the only view that the engine has of files and folders.

Promises: what `sync` returned for is durable; a new or renamed file is durable once its folder was
synced too. Any method may raise OSError; after a failed `sync` the file's content is undefined and
the node must stop (fsync is never retried, house rule 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ReadableFile(Protocol):
    """A file opened for reading."""

    def size(self) -> int:
        """Return the size in bytes, preallocated ones included."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        ...


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """The file's name, for error messages."""
        ...

    def size(self) -> int:
        """Return the size in bytes, preallocated ones included."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        ...

    def read_resident(self, offset: int, size: int) -> bytes | bytearray | None:
        """Read exactly `size` bytes if the system has them in memory; None if not, or it cannot tell. Never waits."""
        ...

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write all parts back to back from `offset`; whole or OSError."""
        ...

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        ...

    def preallocate(self, size: int) -> None:
        """Reserve room up to `size`, reading as zeros; OSError (ENOSPC) when there is none."""
        ...

    def sync(self) -> None:
        """Make data and size durable."""
        ...

    def give_up_pages(self, offset: int, size: int) -> None:
        """Tell the system that it need not keep these bytes in memory. What they are does not change."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class Disk(Protocol):
    """A tree of folders, named by relative paths with `/`."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError when missing and not `create`."""
        ...

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when the folder is missing."""
        ...

    def make_folder(self, folder: str) -> None:
        """Create a folder with its parents, durable."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file is there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target` in one step."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        ...

    def free_bytes(self) -> int:
        """Return the room left on the device, in bytes."""
        ...

    def memory_bytes(self) -> int:
        """Return how much memory the machine has, of which the system gives files what nobody else wants."""
        ...
