"""Takes samples of processes from outside: memory, handles and threads as the kernel counts them, and stores' disks."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jepsen.soak.flatness import Sample

BLOCK_BYTES: Final = 512
"""The unit of `st_blocks`, whatever the file system's own is."""


def sample(name: str, pid: int, store: Path | None, at_s: float) -> Sample | None:
    """Take a sample of a process; None when it ends meanwhile.

    Args:
        name: of the process.
        pid: its id.
        store: its folder; None: it has none.
        at_s: since the load began.
    """
    process = Path(f"/proc/{pid}")
    try:
        pages = int((process / "statm").read_text(encoding="ascii").split()[1])
        handles = sum(1 for _ in (process / "fd").iterdir())
        threads = sum(1 for _ in (process / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return None
    disk_bytes = sum(_sizes(store)) if store is not None else 0
    return Sample(at_s, name, pid, pages * resource.getpagesize(), disk_bytes, handles, threads)


def _sizes(folder: Path) -> Iterator[int]:
    """Yield the bytes on the disk of each file below a folder; files come and go meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield Path(parent, name).stat().st_blocks * BLOCK_BYTES
            except FileNotFoundError:
                continue
