"""The secrets with which registrations have to be signed: read from files, and read again when these change.

A line of the one file is a broker name (or * for all others), a blank and a secret; a name may stand there twice while
its secret changes. The other file is the one that brokers have, for all names that the first one does not name. A
file that cannot be used changes nothing, and is said once. It must not know what is signed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from broker.command_line import why_unreadable
from broker.namesrv.errors import NameServerConfigError
from dledger.errors import ConfigError
from dledger.group_secret import ACCEPTED_MAX
from dledger.runtime.secret_file import LOOK_S, SecretFile

_log = logging.getLogger(__name__)

ANY_NAME: Final = "*"
"""The secret of all broker names that have none of their own."""

Secrets = Mapping[str, tuple[str, ...]]


class SigningSecrets:
    """The secrets of broker names, as they hold now."""

    def __init__(
        self, by_name: Secrets | None = None, *, file: Path | None = None, group: str | None = None
    ) -> None:
        """Begin with what is given, or stands in files.

        Args:
            by_name: secrets of broker names or ANY_NAME; not looked after.
            file: lines of names and secrets; it must be for its owner's eyes.
            group: path of the file that brokers have.

        Raises:
            NameServerConfigError: a file cannot be used; names it, and no secret.
        """
        self._file = file
        self._stamp = _stamp_of(file)
        self._problem: tuple[object, str] | None = None
        self._by_name = dict(by_name or {}) if file is None else _read(file)
        try:
            self._group = None if group is None else SecretFile(group, "--group-secret-file")
        except ConfigError as error:
            raise NameServerConfigError(str(error)) from None

    def accepted(self, name: str) -> tuple[str, ...]:
        """Return the secrets of which one must have signed a registration of a broker name; none: it need not be."""
        found = self._by_name.get(name) or self._by_name.get(ANY_NAME)
        if found:
            return found
        return () if self._group is None else self._group.secret.accepted

    def warnings(self) -> list[str]:
        """Return what is risky about the files."""
        return [] if self._group is None else self._group.warnings()

    async def run(self) -> None:
        """Look after the files until cancelled; without any it returns at once."""
        while self._file is not None or self._group is not None:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Read files again that have changed."""
        if self._group is not None:
            self._group.look()
        stamp = _stamp_of(self._file)
        if self._file is None or stamp == self._stamp:
            return
        try:
            self._by_name = _read(self._file)
        except NameServerConfigError as error:
            if self._problem != (stamp, str(error)):
                self._problem = stamp, str(error)
                _log.error("the secrets of broker names stay as they were: %s", error)
            return  # and is tried again: what was in the way may pass, such as a lack of descriptors
        self._stamp, self._problem = stamp, None
        _log.warning("--secret-file %s was read again: %d names", self._file, len(self._by_name))


def _stamp_of(path: Path | None) -> tuple[int, int, int]:
    """Return what changes when a file does, a link that is set to another one included."""
    try:
        found = None if path is None else path.stat()
    except OSError:
        found = None
    return (0, 0, 0) if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    """Read broker names with their secrets; an unclear line is refused whole, since a lost one would weaken a name."""
    secrets: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_guarded("--secret-file", path).splitlines(), start=1):
        name, _, secret = line.strip().partition(" ")
        if not name:
            continue
        known = secrets.get(name, ())
        if not secret.strip() or len(known) == ACCEPTED_MAX:
            raise NameServerConfigError(
                f"--secret-file {path}, line {number}: "
                + (
                    f"{name} is named more than twice"
                    if known
                    else f"no secret stands after {name}; a line is a broker name (or *), a blank, and a secret"
                )
            )
        secrets[name] = (*known, secret.strip())
    if not secrets:
        raise NameServerConfigError(
            f"--secret-file {path} names no broker: it has no line with a name and a secret"
        )
    return secrets


def read_guarded(option: str, path: Path) -> str:
    """Read a file that others must not be able to read.

    Raises:
        NameServerConfigError: it cannot be read, or everybody can.
    """
    try:
        text = path.read_text(encoding="utf-8")
        is_open = path.stat().st_mode & 0o007
    except (OSError, UnicodeDecodeError) as error:
        raise NameServerConfigError(
            f"{option} {path} cannot be read: {why_unreadable(error)}"
        ) from error
    if is_open and os.name == "posix":
        raise NameServerConfigError(
            f"{option} {path} can be read or changed by everybody on this machine: run chmod o-rwx {path}"
        )
    return text
