"""Files of libraries that are written in Python, as pyarrow reads and writes them: their errors are plain ones."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from pipeline.objects.errors import plain_errors


def readable(file: Any, place: object) -> pa.NativeFile:
    """Return an open file for reading.

    Args:
        file: has `read`, `seek`, `tell` and `close`.
        place: where it is, for errors.
    """
    return pa.PythonFile(_Source(file, str(place)), mode="r")


def writable(file: Any, place: object) -> pa.NativeFile:
    """Return an open file for writing, which is done once it is closed.

    Args:
        file: has `write` and `close`.
        place: where it is, for errors.
    """
    return pa.PythonFile(_Sink(file, str(place)), mode="w")


class _PlainFile:
    def __init__(self, file: Any, place: str) -> None:
        self._file = file
        self._place = place
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with plain_errors(self._place):
                self._file.close()


class _Source(_PlainFile):
    def read(self, size_bytes: int) -> bytes:
        with plain_errors(self._place):
            return bytes(self._file.read(size_bytes))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> None:
        with plain_errors(self._place):
            self._file.seek(offset, whence)

    def tell(self) -> int:
        with plain_errors(self._place):
            return int(self._file.tell())


class _Sink(_PlainFile):
    def __init__(self, file: Any, place: str) -> None:
        super().__init__(file, place)
        self._written_bytes = 0

    def write(self, data: bytes) -> int:
        with plain_errors(self._place):
            self._file.write(data)
        self._written_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        # Not every library says where it writes.
        return self._written_bytes
