"""A file that is replaced as a whole, durably: after a crash the old one or the new one is there.

For the few small files that a client keeps. It knows nothing of what stands in them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, before: Path) -> None:
    """Write a file aside, sync it, keep the one that it replaces as `before`, and put it in place.

    The folder is made when it is missing. Blocks for the disk.

    Raises:
        OSError: the old file stands, unless only the last sync, that of the folder, has failed.
    """
    make_folder(path.parent)
    aside = path.with_name(f"{path.name}.tmp")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        before.unlink(missing_ok=True)
        before.hardlink_to(path)
    aside.replace(path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder with its parents so that no power cut takes them back.

    Raises:
        OSError: it cannot be made.
    """
    missing = [folder.absolute()]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        with suppress(PermissionError):  # a parent that may not be read is left to its owner
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
