"""The files that access rules stand in: plain_acl.yml and what lies in the folder `acl` beside it, read and watched.

As RocketMQ has them below its conf. A change holds within a second or two; what cannot be read leaves the rules of
before, and is told again and again. It must not know requests.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio

from broker.access.changes import Change
from broker.access.errors import AccessRulesError
from broker.access.plain_acl import AclFile, join_files, parse_file
from broker.access.rules import AccessRules

_log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
REMIND_S: Final = 60.0
FILES_MAX: Final = 1000
_BYTES_MAX: Final = 4 * 1024 * 1024
_SUFFIXES: Final = (".yml", ".yaml")
_FOLDER: Final = "acl"

Stamp = tuple[str, int, int, int, int]
"""A file as a look finds it: path, time of its last change, size, inode, mode."""


class RuleFiles:
    """The files of one node.

    Attributes:
        path: plain_acl.yml, which changes by tools go to.
        files: as they were read last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[AclFile, ...] = ()
        self._seen: tuple[Stamp, ...] = ()
        self._turn = anyio.Lock()
        self._warnings: frozenset[str] = frozenset()

    def read(self) -> AccessRules:
        """Read all files.

        Raises:
            AccessRulesError: there is none, or one cannot be read or cannot hold.
        """
        found = tuple(self._stamps())
        if not found:
            raise AccessRulesError(f"{self.path} is not there, nor is anything in {self._folder}")
        files = tuple(parse_file(path, _text(path)) for path, *_ in found)
        rules, warnings = join_files(files)
        if tuple(self._stamps()) != found:
            raise AccessRulesError(f"{self.path} or a file beside it changes just now")
        self.files, self._seen = files, found
        self._warn([*_readable_by_all(found), *warnings])
        if not (rules.accounts or rules.white_addresses):
            _log.warning("access rules: %s names nobody, so nobody may do anything", self.path)
        return rules

    def _warn(self, warnings: Sequence[str]) -> None:
        """Log what was not there at the last reading."""
        for warning in warnings:
            if warning not in self._warnings:
                _log.warning("access rules: %s", warning)
        self._warnings = frozenset(warnings)

    def has_changed(self) -> bool:
        """Return whether the files are others than those that were read last."""
        return tuple(self._stamps()) != self._seen

    @property
    def _folder(self) -> Path:
        return self.path.parent / _FOLDER

    def _stamps(self) -> Iterator[Stamp]:
        """Yield the files in RocketMQ's order: those of the folder, then plain_acl.yml.

        Raises:
            AccessRulesError: nobody can say now what is there. It must not count as gone: accounts would go with it.
        """
        try:
            paths = sorted(_files_below(self._folder))[:FILES_MAX]
            found = [(path, _status_of(path)) for path in (*paths, self.path)]
        except OSError as error:
            raise AccessRulesError(
                f"{error.filename or self._folder} cannot be read: {error.strerror or error}"
            ) from error
        if found[-1][1] is None and self.path.is_symlink():
            raise AccessRulesError(f"{self.path} is a link to what is not there")
        for path, status in found:
            if status is not None:
                yield str(path), status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

    def change(self, change: Change, now_ms: int) -> AccessRules:
        """Change the files as they are on the disk, and return the rules that hold then.

        Raises:
            AccessRulesError: nothing was changed; says why.
            OSError: the file cannot be written; it is as it was.
        """
        self.read()
        name, text = change(self.files, now_ms)
        _replace(Path(name), text)
        return self.read()

    async def change_beside(self, change: Change, now_ms: int) -> AccessRules:
        """Do what `change` does, without holding up the loop."""
        async with self._turn:
            return await anyio.to_thread.run_sync(self.change, change, now_ms)

    async def watch(self, changed: Callable[[AccessRules], None]) -> None:
        """Call `changed` with the rules each time that they are others, for ever; a disk that hangs holds nobody up."""
        problem, reminded_s = "", 0.0
        while True:
            await anyio.sleep(LOOK_S)
            try:
                rules = await self._look()
            except AccessRulesError as error:
                now_s = anyio.current_time()
                if str(error) != problem or now_s - reminded_s >= REMIND_S:
                    problem, reminded_s = str(error), now_s
                    _log.error("the access rules cannot be read, THOSE OF BEFORE HOLD: %s", error)
                continue
            problem = ""
            if rules is not None:
                _log.warning(
                    "access rules read anew from %s: %d accounts, %d addresses that need none",
                    self.path,
                    len(rules.accounts),
                    len(rules.white_addresses),
                )
                changed(rules)

    async def _look(self) -> AccessRules | None:
        """Return the rules if the files are others, None if they are not."""
        async with self._turn:
            if not await anyio.to_thread.run_sync(self.has_changed, abandon_on_cancel=True):
                return None
            return await anyio.to_thread.run_sync(self.read, abandon_on_cancel=True)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of rules in a folder and in folders of it; raises OSError if one cannot be listed.

    One of its folders that is closed to this process, such as `lost+found`, is none of rules.
    """

    def refuse(error: OSError) -> None:
        is_closed = isinstance(error, PermissionError) and error.filename != str(folder)
        if not is_closed and not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in names if name.endswith(_SUFFIXES))


def _status_of(path: Path) -> os.stat_result | None:
    """Return what is known of a file, None if it is not there; raises OSError for all other reasons."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _readable_by_all(found: Sequence[Stamp]) -> list[str]:
    """Return a warning for each file that any user of the machine may read or change."""
    text = "holds secret keys, and everybody on this machine may read it"
    return [f"{path} {text}" for path, _, _, _, mode in found if mode & 0o007]


def _replace(path: Path, text: str) -> None:
    """Replace a file in one step, durably; it stays readable for the same users."""
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).chmod(mode)
        Path(draft).replace(target)
    except BaseException:  # whatever it was, no draft stays beside the file
        Path(draft).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            raise AccessRulesError(f"{path} has more than {_BYTES_MAX} bytes")
        return data.decode()
    except OSError as error:
        raise AccessRulesError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise AccessRulesError(f"{path} is not UTF-8") from None
