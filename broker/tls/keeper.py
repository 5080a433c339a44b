"""The certificates of a process: loaded, looked after, and loaded again when their files change, without a restart.

Connections that are there keep what they have; those that come get what holds then. A file that cannot be used
changes nothing, and is said once.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from pathlib import Path
from typing import Final

import trio

from broker.net.tls_door import TlsDoor
from broker.settings.tls import TlsMode, TlsSettings
from dledger import ConfigError
from dledger_mq.net.tls_contexts import TlsFilesError, client_context, server_context

_log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Between two looks at the files: a look costs some microseconds."""

_Stamp = tuple[tuple[str, int, int, int], ...]


class TlsKeeper:
    """What holds of a process's TLS now.

    Attributes:
        door: for its port; None: it takes plain text only.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Load all files.

        Raises:
            ConfigError: one cannot be used.
        """
        self._settings = settings
        self._stamp = _stamp(self._paths)
        try:
            self._server, self._client = self._load()
        except TlsFilesError as error:
            raise ConfigError(f"TLS: {error}") from error
        is_plain_too = settings.mode is not TlsMode.ENFORCING
        self.door = self._server and TlsDoor(self._server_now, takes_plain_text=is_plain_too)

    def client(self) -> ssl.SSLContext | None:
        """Return what encrypts a connection that is opened now; None: plain text."""
        return self._client

    def _server_now(self) -> ssl.SSLContext:
        assert self._server is not None, "a door is made with a context"
        return self._server

    @property
    def _paths(self) -> tuple[str, ...]:
        settings = self._settings
        served = settings.server.paths if settings.is_offered else ()
        return (*served, *(settings.client.paths if settings.dials else ()))

    def _load(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        """Return what the settings name, for the port and for connections that are opened; raises TlsFilesError."""
        settings, server, client = self._settings, None, None
        if settings.is_offered:
            server = server_context(settings.server, settings.client_auth)
        if settings.dials:
            client = client_context(settings.client, checks_server=settings.checks_servers)
        return server, client

    async def run(self) -> None:
        """Look after the files until cancelled; without any it returns at once."""
        while self._paths:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Load the files again if one has changed; one that cannot be used leaves everything as it was."""
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._server, self._client = self._load()
        except TlsFilesError as error:
            _log.error("TLS stays as it was: %s", error)
        else:
            _log.info("TLS: %s were loaded again", ", ".join(self._paths))


def tls_warnings(settings: TlsSettings) -> list[str]:
    """Return what is risky about settings and their files."""
    warnings = []
    keys = {
        files.key or files.certificate
        for files, is_used in (
            (settings.server, settings.is_offered),
            (settings.client, settings.dials),
        )
        if is_used and files.certificate
    }
    warnings += [
        f"{path}, a key, can be read by everybody on this machine: run chmod o-rwx {path}"
        for path in sorted(keys)
        if _is_open(path)
    ]
    if settings.mode is TlsMode.PERMISSIVE and not settings.is_offered:
        warnings.append(
            "tls.server.mode=permissive: without a certificate, tls.server.certPath, only plain text is taken"
        )
    if settings.dials and not settings.checks_servers:
        warnings.append(
            "tls.client.authServer=false: connections are encrypted to whoever answers, who may be anybody"
        )
    return warnings


def _is_open(path: str) -> bool:
    try:
        return os.name == "posix" and bool(Path(path).stat().st_mode & stat.S_IRWXO)
    except OSError:
        return False


def _stamp(paths: tuple[str, ...]) -> _Stamp:
    """Return what changes when a file does, a link that is set to another one included."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[str, int, int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return path, 0, 0, 0
    return path, found.st_ino, found.st_size, found.st_mtime_ns
