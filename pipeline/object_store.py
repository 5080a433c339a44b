"""Folders in an object store or in HDFS, and what the pipeline builds on there, whichever it is.

It is this (adr/0244, adr/0268): a content appears whole or not at all under a name that `create` gave it, what was
written is listed and read at once, and `create` gives a name to one content, whoever else tries it at the same time.
Nothing is written over. Errors are plain ones that name the place; none repeats a secret.
"""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import pyarrow as pa

from pipeline.locations import GS, HDFS, S3, ObjectPath
from pipeline.objects.api import Objects
from pipeline.objects.errors import plain_errors
from pipeline.objects.gs import GsObjects
from pipeline.objects.hdfs import HdfsObjects
from pipeline.objects.s3 import S3Objects

KINDS: Final[dict[str, Objects]] = {S3: S3Objects(), GS: GsObjects(), HDFS: HdfsObjects()}
"""By the scheme of a place."""


class ObjectFolder:
    """A folder in a store; paths are relative to it. A folder is there as long as something is in it.

    Args:
        place: where it is.
    """

    def __init__(self, place: ObjectPath) -> None:
        self.place = place
        self._objects = KINDS[place.scheme]
        self._takes_conditions = False

    def __str__(self) -> str:
        return str(self.place)

    def full(self, path: str) -> str:
        """Return a file's name for people and for `source_of`."""
        return str(self._at(path))

    def _at(self, path: str) -> ObjectPath:
        """Return where something in the folder is; the folder itself for an empty path."""
        return self.place / path if path else self.place

    def names(self, below: str) -> list[str]:
        """Return the names of what is directly in a folder; nothing when there is no such folder.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with plain_errors(self.full(below)):
            return self._objects.listed(self._at(below), recursive=False)

    def files(self, below: str) -> list[str]:
        """Return the paths of all files in a folder and those below it.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with plain_errors(self.full(below)):
            found = self._objects.listed(self._at(below), recursive=True)
        return [f"{below}/{path}" if below else path for path in found]

    def size_bytes(self, path: str) -> int:
        """Return the size of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer, or refuses.
        """
        with plain_errors(self.full(path)):
            return self._objects.size_bytes(self._at(path))

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer, or refuses.
        """
        with self.source(path) as file, plain_errors(self.full(path)):
            return bytes(file.read())

    def source(self, path: str) -> pa.NativeFile:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer, or refuses.
        """
        with plain_errors(self.full(path)):
            return self._objects.source(self._at(path))

    def sink(self, path: str) -> pa.NativeFile:
        """Open a new file for writing, whose name nobody else has; it is there, and kept, once it is closed.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with plain_errors(self.full(path)):
            return self._objects.sink(self._at(path))

    def create(self, path: str, content: bytes) -> None:
        """Give a name to a content, for good, unless it has one already.

        Raises:
            FileExistsError: another content has it; this one is nowhere.
            OSError: the store does not answer, refuses, or knows no conditional writes; whether the name has this
                content is unknown.
        """
        self.check_conditions()
        try:
            self._put_new(path, content)
        except OSError:
            # A request that was repeated for want of an answer finds itself.
            if not self._holds(path, content):
                raise

    def _holds(self, path: str, content: bytes) -> bool:
        try:
            return self.read(path) == content
        except OSError:
            return False

    def _put_new(self, path: str, content: bytes) -> None:
        with plain_errors(self.full(path)):
            self._objects.put_new(self._at(path), content)

    def check_conditions(self) -> None:
        """Try once whether the store keeps a first content: some take the condition and do not look at it.

        Raises:
            OSError: it does not; or it does not answer, or refuses.
        """
        if self._takes_conditions:
            return
        probe = f".first-wins-{uuid4().hex}"
        self._put_new(probe, b"first")
        try:
            self._put_new(probe, b"second")
        except FileExistsError:
            self._takes_conditions = True
        finally:
            self.remove(probe)
        if not self._takes_conditions:
            raise OSError(
                f"the store of {self} lets a second writer write over the first one (it ignores "
                f"{self._objects.condition}): two runs could destroy each other's work"
            )

    def remove(self, path: str) -> None:
        """Remove a file, if it is there.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with plain_errors(self.full(path)):
            self._objects.remove(self._at(path))
