"""The far timers on disk: one B-tree file, made by SQLite and used as nothing more.

`timers/pending.sqlite` under the store's folder has one table whose only column is the 16-byte unit, so
that it is a sorted file with cheap insertion anywhere: a million messages that fall due in the same
millisecond cost no more than a million spread over days (docs/adr/0031). It is opened with the first far
unit, wiped then, written without sync or journal, and never read by a later process: the fold writes it
again from the log.

Nothing here knows what a unit means.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from broker.store.errors import NoRoomError
from broker.store.file_places import folder_beside, folder_removal
from dledger.storage.read_errors import is_shortage

_T = TypeVar("_T")

CACHE_KIB: Final = 4096

ROOM_BYTES: Final = 32 * 1024 * 1024
"""Free on the disk before units are written: each of a batch may split a page. Without a journal the file would not
survive that the disk is full in the middle of it."""

_UNIT_ROOM_BYTES: Final = 64

_PRAGMAS: Final = (
    "PRAGMA journal_mode=OFF",
    "PRAGMA synchronous=OFF",
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA temp_store=MEMORY",
    f"PRAGMA cache_size=-{CACHE_KIB}",
)

_NO_FILE: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
"""The primary codes of SQLite where a file cannot be made, or not be filled."""


def free_bytes(path: Path) -> int:
    """Return the bytes that are free on the device where a file is, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


class TimerFiles:
    """A `FarTimers` in a file. Errors of the file are OSErrors that name it."""

    def __init__(self, folder: Path, name: str = "timers") -> None:
        self._path = folder / name / "pending.sqlite"
        self._database: sqlite3.Connection | None = None

    def beside(self) -> TimerFiles:
        """Return an empty one; see `PartPlace`."""
        folder = folder_beside(self._path.parent)
        return TimerFiles(folder.parent, folder.name)

    def take_place_of(self, other: TimerFiles) -> None:
        """Stay where it is, since nobody looks for the file; see `PartPlace`."""

    def removing(self) -> Iterator[None]:
        """Remove the file; see `PartPlace`."""
        self.close()
        return folder_removal(self._path.parent)

    def add(self, units: Sequence[bytes]) -> None:
        """Keep units; see `FarTimers`. Without a descriptor to open the file with there is no room, either."""
        free = free_bytes(self._path)
        if free < ROOM_BYTES + len(units) * _UNIT_ROOM_BYTES:
            raise NoRoomError(f"{self._path}: {free} bytes are free, for {len(units)} units")

        def insert(database: sqlite3.Connection) -> None:
            database.execute("BEGIN")
            database.executemany(
                "INSERT INTO units VALUES (?)", ((unit,) for unit in sorted(units))
            )
            database.execute("COMMIT")

        try:
            self._use(insert)
        except OSError as error:
            if self._database is None and is_shortage(error):
                raise NoRoomError(str(error)) from error
            raise

    def discard(self, unit: bytes) -> bool:
        """Forget one unit; see `FarTimers`."""
        if self._database is None:
            return False
        query = "DELETE FROM units WHERE unit = ?"
        return self._use(lambda database: database.execute(query, (unit,)).rowcount > 0)

    def take_first(self, count: int) -> list[bytes]:
        """Remove the first units; see `FarTimers`."""
        if self._database is None:
            return []

        def take(database: sqlite3.Connection) -> list[bytes]:
            taken = _units(database, "SELECT unit FROM units ORDER BY unit LIMIT ?", (count,))
            if taken:
                gone = database.execute("DELETE FROM units WHERE unit <= ?", (taken[-1],)).rowcount
                assert gone == len(taken), f"{gone} units were removed, {len(taken)} were taken"
            return taken

        return self._use(take)

    def first(self) -> bytes | None:
        """Return the first one; see `FarTimers`."""
        if self._database is None:
            return None
        query = "SELECT unit FROM units ORDER BY unit LIMIT 1"
        return next(iter(self._use(lambda database: _units(database, query, ()))), None)

    def clear(self) -> None:
        """Forget all; see `FarTimers`."""
        if self._database is not None:
            self._use(lambda database: database.execute("DELETE FROM units"))

    def frozen(self) -> Iterator[bytes]:
        """Return all of them, from a copy of the file; see `FarTimers`.

        A copy of a million takes about 30 ms, reading them ten times as long.
        """
        if self._database is None:
            return iter(())
        return self._read_copy(self._use(_copied))

    def _read_copy(self, copy: sqlite3.Connection) -> Iterator[bytes]:
        try:
            for row in copy.execute("SELECT unit FROM units ORDER BY unit"):
                yield row[0]
        except sqlite3.Error as error:
            raise OSError(f"a copy of {self._path}: {error}") from error
        finally:
            copy.close()

    def close(self) -> None:
        """Close the file. It may stay on disk: the next start wipes it."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _use(self, act: Callable[[sqlite3.Connection], _T]) -> _T:
        """Act on the file.

        Raises:
            OSError: the file cannot be read or written.
        """
        try:
            if self._database is None:
                self._database = self._open()
            return act(self._database)
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        """Make the file anew, and its one table.

        Raises:
            OSError, sqlite3.Error: it cannot be made.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        # SQLite says of no failure to open a file why it failed; the system does.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        # The fold may run in another thread than the one that opened the file, but only in one at a time.
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in _PRAGMAS:
                database.execute(pragma).fetchall()
            database.execute("CREATE TABLE units (unit BLOB PRIMARY KEY) WITHOUT ROWID")
        except sqlite3.Error:
            database.close()
            raise
        return database


def _copied(database: sqlite3.Connection) -> sqlite3.Connection:
    """Return a copy: in a nameless file, or, if there is no room or no descriptor for one, in memory.

    Raises:
        sqlite3.Error: it cannot be made.
    """
    try:
        return _copied_to("", database)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _NO_FILE:
            raise
        return _copied_to(":memory:", database)


def _copied_to(place: str, database: sqlite3.Connection) -> sqlite3.Connection:
    """Return a copy in a place, a file's name or another one of SQLite's.

    Raises:
        sqlite3.Error: it cannot be made.
    """
    copy = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
    try:
        copy.execute("PRAGMA synchronous=OFF")
        database.backup(copy)
    except sqlite3.Error:
        copy.close()
        raise
    return copy


def _units(
    database: sqlite3.Connection, query: str, values: tuple[bytes | int, ...]
) -> list[bytes]:
    return [row[0] for row in database.execute(query, values)]
