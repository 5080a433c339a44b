"""RocketMQ's own lock of a store: while it is held no broker starts on it.

Where there is no lock file, or it may not be opened for writing, nothing is locked: it is a copy. Nothing here reads
what the store holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.importing.errors import SourceError


@contextmanager
def hold_source(folder: Path) -> Iterator[None]:
    """Hold a store for as long as it is read.

    The lock ends with the first descriptor of its file that this process closes, so nobody else may open it.

    Raises:
        SourceError: a broker runs on it, or its lock cannot be opened.
    """
    path = folder / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EACCES,
            errno.EPERM,
            errno.EROFS,
        ):
            raise SourceError(f"{path}: {error.strerror}") from error
        yield
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            text = f"{folder} is in use: stop its broker first (mqshutdown broker)"
            raise SourceError(text) from error
        yield
    finally:
        os.close(descriptor)
