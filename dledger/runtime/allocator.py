"""Memory that the C library's allocator keeps for a process.

glibc gives each thread that allocates an arena of its own, up to eight for a core. What a thread has freed there is for
that thread alone, so the buffers of a node's few threads, one for the disk and those for reads, are kept several times.
Python's threads take turns at the interpreter lock and gain nothing by arenas.

It gives what is freed at the end of the arena back to the system once that is twice the largest buffer, and gets it
back in pages that have to be made first: with batches, a node would do so for each entry.

Nothing here knows what memory is for.
"""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""`M_ARENA_MAX` and others of malloc.h."""

KEPT_BYTES: Final = 8 * 1024 * 1024
"""At the end of the arena: some buffers as they are read, and entries as they are built, of 1 MiB and more."""

MAPPED_BYTES_MIN: Final = 4 * 1024 * 1024
"""Buffers of this size are rare; each has memory of its own, which goes back when it is freed."""


def tune_allocator() -> None:
    """Let all threads of this process allocate from one arena, which keeps what it frees; before any begins.

    Where the C library has no such options, nothing changes.
    """
    set_option = getattr(
        ctypes.CDLL(None), "mallopt", None
    )  # glibc's; others have none, and need none
    if set_option is not None:
        set_option(_ARENA_MAX, 1)
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
