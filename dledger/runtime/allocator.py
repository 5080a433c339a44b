"""Memory that the C library's allocator keeps for threads.

glibc gives each thread that allocates an arena of its own, up to eight for a core. What a thread has freed there is for
that thread alone, so the buffers of a node's few threads, one for the disk and those for reads, are kept several times.
Python's threads take turns at the interpreter lock and gain nothing by arenas.

Nothing here knows what memory is for.
"""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
"""`M_ARENA_MAX` of malloc.h."""


def use_one_arena() -> None:
    """Let all threads of this process allocate from one arena, where the C library has several; before any begins."""
    set_option = getattr(
        ctypes.CDLL(None), "mallopt", None
    )  # glibc's; others have none, and need none
    if set_option is not None:
        set_option(_ARENA_MAX, 1)
