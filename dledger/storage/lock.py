"""One process per store: a lock that the kernel drops when the process ends, however it ends.

It knows nothing of what the store holds.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dledger.errors import StoreLockedError
from dledger.storage.posix import make_durable_folder

LOCK_NAME = "lock"


class StoreLock:
    """Holds `<store>/lock`. The file stays after release: removing it would race with another taker."""

    def __init__(self, store_path: str | Path, name: str = LOCK_NAME) -> None:
        """Take the lock at once; the store's folder is created when missing.

        Args:
            store_path: the folder.
            name: of the file, where something else in the same folder may have a lock of its own.

        Raises:
            StoreLockedError: names the file and the process that holds it.
            OSError: the file cannot be made.
        """
        folder = Path(store_path).absolute()
        make_durable_folder(folder)
        self.path = str(folder / name)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            self._take()
        except BaseException:
            self._close()  # open, it might hold the lock for as long as this process lives
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            raise StoreLockedError(
                f"{self.path}: the store is in use by process {holder or 'unknown'}"
            ) from None
        # A member starts with a full disk, too: then people are not told which process it is.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; harmless when already released."""
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
