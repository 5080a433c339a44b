"""The file with a group's secret: read, looked after, and read again when it changes, without a restart.

Connections that are there stay; those that come are judged by what holds then. A file that cannot be used changes
nothing, and is said once.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

import trio

from dledger.errors import ConfigError
from dledger.group_secret import GroupSecret, read_secrets

_log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Between two looks at the file: a look costs some microseconds."""


class SecretFile:
    """A file and what stands in it now.

    Attributes:
        path: of the file.
        secret: what holds now.
    """

    def __init__(self, path: str, option: str) -> None:
        """Read the file.

        Args:
            path: of the file.
            option: what has named it, for errors.

        Raises:
            ConfigError: it cannot be read or holds no secret; names option and file.
        """
        self.path = path
        self._option = option
        self._seen = self._stamp()
        self._problem: tuple[object, str] | None = None
        self.secret = GroupSecret(*self._read())

    def warnings(self) -> list[str]:
        """Return what is risky about the file."""
        try:
            is_open = os.name == "posix" and bool(Path(self.path).stat().st_mode & stat.S_IRWXO)
        except OSError:
            return []
        if not is_open:
            return []
        text = "can be read or changed by everybody on this machine: run chmod o-rwx"
        return [f"{self._option} {self.path} {text} {self.path}"]

    async def run(self) -> None:
        """Look after the file until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Read the file again if it has changed; one that cannot be used leaves everything as it was.

        It is tried again: what was in the way may pass, such as a lack of descriptors.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return
        try:
            self.secret.change(self._read())
        except ConfigError as error:
            if self._problem != (stamp, str(error)):
                self._problem = stamp, str(error)
                _log.error("the group's secret stays as it was: %s", error)
            return
        self._seen, self._problem = stamp, None
        _log.info(
            "%s %s was read again: %d accepted, of which the first is shown",
            self._option,
            self.path,
            len(self.secret.accepted),
        )

    def _read(self) -> tuple[str, ...]:
        """Return the secrets that stand there; raises ConfigError."""
        try:
            return read_secrets(Path(self.path).read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            why = "it is not text in UTF-8"
        except OSError as error:
            why = error.strerror or str(error)
        except ConfigError as error:
            raise ConfigError(f"{self._option} {self.path}: {error}") from None
        raise ConfigError(f"{self._option} {self.path} cannot be read: {why}")

    def _stamp(self) -> tuple[int, int, int]:
        """Return what changes when the file does, a link that is set to another one included."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return 0, 0, 0
        return found.st_ino, found.st_size, found.st_mtime_ns
