"""Folders in which a part of the state stands that left memory, of which there may be two for a while (places.py).

The one that is filled beside the other goes by a number then: `consumequeue.1` beside `consumequeue`. Where they change
places, they change names.

Nothing here knows what the files hold.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Self

from dledger.storage.posix import SpareDescriptors
from dledger.storage.read_errors import is_shortage

OPEN_FILES_MAX: Final = 128

_numbers = count(1)
_BESIDE = re.compile(r"\w+\.[0-9]+")


def folder_beside(folder: Path) -> Path:
    """Return the name of a folder beside another one, which this process gives to no other."""
    return folder.with_name(f"{folder.name.partition('.')[0]}.{next(_numbers)}")


def wipe_folders_beside(parent: Path) -> None:
    """Remove the folders under such names that a process has left which ended meanwhile."""
    for path in parent.iterdir():
        if _BESIDE.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def folder_removal(folder: Path) -> Iterator[None]:
    """Remove a folder, file by file; what cannot be removed stays until the next start."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            yield
            with suppress(OSError):
                Path(place, name).unlink()
        yield
        with suppress(OSError):
            Path(place).rmdir()


class OpenFiles:
    """The files used last, by path; the others are closed, and as many as it takes where descriptors are short.

    One descriptor is held for when none of them is open: the fold reads here, too, and cannot wait.
    """

    def __init__(self, folder: Path) -> None:
        """Begin with none open; the spare descriptor is one of the folder, which is there and keeps its name."""
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._spare = SpareDescriptors(folder, 1)

    def get(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading and writing."""
        descriptor = self._open.get(path)
        if descriptor is None:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = self._open[path] = self._opened(path, create=create)
            if len(self._open) > OPEN_FILES_MAX:
                self._close_oldest()
        else:
            self._open.move_to_end(path)
        return descriptor

    def _opened(self, path: Path, *, create: bool) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while self._open:
            try:
                return os.open(path, flags, 0o640)
            except OSError as error:
                if not is_shortage(error):
                    raise
                self._close_oldest()
        return self._spare.open(path, flags)

    def _close_oldest(self) -> None:
        os.close(self._open.popitem(last=False)[1])

    def close_under(self, folder: Path) -> None:
        """Close what lies in a folder, before it is removed."""
        for path in [path for path in self._open if path.is_relative_to(folder)]:
            os.close(self._open.pop(path))


class FolderPlace:
    """A `PartPlace` that is a folder, which is wiped when this is made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        self._files = OpenFiles(root.parent)  # `root` gets another name

    def take_place_of(self, other: Self) -> None:
        """Change names with another one; see `PartPlace`."""
        place, aside = other._root, folder_beside(self._root)  # it is one of these
        self.close()
        other.close()
        place.rename(aside)
        other._root = aside
        self._root.rename(place)
        self._root = place

    def close(self) -> None:
        """Close all files; see `PartPlace`."""
        self._files.close_under(self._root)

    def removing(self) -> Iterator[None]:
        """Remove all files; see `PartPlace`."""
        self.close()
        return folder_removal(self._root)
