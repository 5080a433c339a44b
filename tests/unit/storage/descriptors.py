"""A process that has no descriptors left, for a block of a test."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def no_descriptors() -> Iterator[list[int]]:
    """Take all that this process may have; the block may close some of them, from the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        # Beyond every one that is open: whoever closes one of those may open another.
        beyond = 1 + max(int(each.name) for each in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, max(256, beyond)), hard))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
