"""A file view that replaces unreadable bytes (EIO) with bytes that no entry can contain.

Other errors of the disk go up as they are. What the bytes mean is not known here.
"""

from __future__ import annotations

import errno

from dledger.storage.api import File

_SECTOR_BYTES = 4096
_UNREADABLE = b"\x5a"
"""Stands in for bytes that the device does not give: neither zeros nor part of any header."""


class TolerantFile:
    """A file of which every byte can be read; bytes that the device refuses are replaced.

    Attributes:
        has_failed: some bytes were not given.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self.has_failed = False

    def read_at(self, offset: int, size: int) -> bytes:
        """Read as `File.read_at` does."""
        try:
            return self._file.read_at(offset, size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        end = min(offset + size, self._file.size())
        pieces: list[bytes] = []
        while offset < end:
            step = min(_SECTOR_BYTES - offset % _SECTOR_BYTES, end - offset)
            try:
                pieces.append(self._file.read_at(offset, step))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self.has_failed = True
                pieces.append(_UNREADABLE * step)
            offset += step
        return b"".join(pieces)

    def size(self) -> int:
        """Return the size as `File.size` does."""
        return self._file.size()
