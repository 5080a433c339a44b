"""What is asked of a kind of store (adr/0244, adr/0268). Every method raises what its library raises."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from pipeline.locations import ObjectPath

PART_BYTES = 8 * 1024 * 1024
"""Sent or fetched at a time of a large file; S3 takes 10 000 parts, Google's store multiples of 256 KiB."""


class Objects(Protocol):
    """The files of one kind of store, by their places.

    Attributes:
        condition: what lets `put_new` through once only, in the words of the store.
    """

    condition: str

    def listed(self, place: ObjectPath, *, recursive: bool) -> list[str]:
        """Return what is in a folder, relative to it, also what was written just now; nothing when there is none.

        Args:
            place: the folder.
            recursive: files alone, of folders in it as well; else the names of files and folders directly in it.
        """

    def size_bytes(self, place: ObjectPath) -> int:
        """Return the size of a file; raises FileNotFoundError."""

    def source(self, place: ObjectPath) -> pa.NativeFile:
        """Open a file for reading; raises FileNotFoundError, or the library's kind of it."""

    def sink(self, place: ObjectPath) -> pa.NativeFile:
        """Open a new file for writing, whose name nobody else has; it is whole once it is closed."""

    def put_new(self, place: ObjectPath, content: bytes) -> None:
        """Give a name to a content in one step, whole; raises FileExistsError when it has one, whoever gave it."""

    def remove(self, place: ObjectPath) -> None:
        """Remove a file, if it is there."""
