"""The certificates of a process: loaded, looked after, and loaded again when their files change, without a restart.

Connections that are there keep what they have; those that come get what holds then. A file that cannot be used
changes nothing, and is said once.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

from broker.net.tls_door import TlsDoor
from broker.settings.tls import TlsMode, TlsSettings
from dledger import ConfigError, MemberTls
from dledger_mq.net.tls_contexts import TlsFiles, TlsFilesError, client_context, server_context

_log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Between two looks at the files: a look costs some microseconds."""

_Stamp = tuple[tuple[str, int, int, int], ...]


class TlsKeeper:
    """The certificates of a process, as they hold now.

    Attributes:
        door: for its port; None: it takes plain text only.
        members: for the connections between members of a group; None: they are plain text.
    """

    def __init__(self, settings: TlsSettings) -> None:
        """Load all files.

        Raises:
            ConfigError: one cannot be used.
        """
        self._settings = settings
        self._stamp = _stamp(self._paths)
        self._problem: tuple[_Stamp, str] | None = None
        try:
            self._now = _load(settings)
        except TlsFilesError as error:
            raise ConfigError(f"TLS: {error}") from error
        self.door: TlsDoor | None = None
        self.members: MemberTls | None = None
        if settings.is_offered:
            is_plain_too = settings.mode is not TlsMode.ENFORCING
            self.door = TlsDoor(lambda: _held(self._now.server), takes_plain_text=is_plain_too)
        if settings.peer_mode is not TlsMode.DISABLED:
            self.members = MemberTls(
                server=lambda: _held(self._now.peer_server),
                client=lambda: _held(self._now.peer_client),
                takes_plain_text=settings.peer_mode is not TlsMode.ENFORCING,
            )

    def client(self) -> ssl.SSLContext | None:
        """Return what encrypts a connection that is opened now; None: plain text."""
        return self._now.client

    def figures(self) -> ssl.SSLContext | None:
        """Return what encrypts a connection to the port of the figures that comes now; None: plain text."""
        return self._now.server if self._settings.figures else None

    @property
    def _paths(self) -> tuple[str, ...]:
        return tuple(path for files in _used(self._settings) for path in files.paths)

    async def run(self) -> None:
        """Look after the files until cancelled; without any it returns at once."""
        while self._paths:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Load the files again if one has changed; one that cannot be used leaves everything as it was.

        It is tried again: what was in the way may pass, such as a lack of descriptors.
        """
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return
        try:
            self._now = _load(self._settings)
        except TlsFilesError as error:
            if self._problem != (stamp, str(error)):
                self._problem = stamp, str(error)
                _log.error("TLS stays as it was: %s", error)
            return
        self._stamp, self._problem = stamp, None
        _log.info("TLS: %s were loaded again", ", ".join(self._paths))


@dataclass(frozen=True, slots=True)
class _Contexts:
    """The contexts that hold at a time; None: one is not wanted."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None
    peer_server: ssl.SSLContext | None = None
    peer_client: ssl.SSLContext | None = None


def _load(settings: TlsSettings) -> _Contexts:
    """Return what the settings name; all of it or, with TlsFilesError, nothing."""
    found = _Contexts()
    if settings.needs_server:
        found = replace(found, server=server_context(settings.server, settings.client_auth))
    if settings.dials:
        client = client_context(settings.client, checks_server=settings.checks_servers)
        found = replace(found, client=client)
    if settings.peer_mode is not TlsMode.DISABLED:
        found = replace(
            found,
            peer_server=server_context(settings.peer, ssl.CERT_REQUIRED),
            peer_client=client_context(settings.peer),
        )
    return found


def _held(context: ssl.SSLContext | None) -> ssl.SSLContext:
    assert context is not None, "who asks for it was made with it"
    return context


def _used(settings: TlsSettings) -> list[TlsFiles]:
    """Return the files that are used."""
    ends = (
        (settings.server, settings.needs_server),
        (settings.client, settings.dials),
        (settings.peer, settings.peer_mode is not TlsMode.DISABLED),
    )
    return [files for files, is_used in ends if is_used]


def tls_warnings(settings: TlsSettings) -> list[str]:
    """Return what is risky about settings and their files."""
    warnings = []
    keys = {each.key or each.certificate for each in _used(settings) if each.certificate}
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
