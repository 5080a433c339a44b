"""How the connections of clients are encrypted: a context of `ssl`, and the one that all clients of a program share.

A producer or consumer is given its context by its argument `tls`. A tool whose parts open connections of their own
chooses one for all of them, once.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.net.tls_contexts import TlsFiles, TlsFilesError, client_context

_CHOSEN: Final[ContextVar[ssl.SSLContext | None]] = ContextVar("tls_for_all", default=None)


def make_tls_context(
    *,
    trust: str | Path = "",
    certificate: str | Path = "",
    key: str | Path = "",
    key_password: str = "",
    checks_server: bool = True,
) -> ssl.SSLContext:
    """Return what `tls` of a client takes: TLS from 1.2 on. Any other client context of `ssl` does, too.

    Args:
        trust: PEM of those who sign the certificates of servers; default: those whom the system believes.
        certificate: PEM to show to servers that want one.
        key: PEM of its key; default: it stands in the same file.
        key_password: of an encrypted key.
        checks_server: False: talk to whoever answers, as RocketMQ's clients do by default; that keeps only those out
            who listen and do not interfere.

    Raises:
        ClientUsageError: a file cannot be used.
    """
    files = TlsFiles(str(certificate), str(key), key_password, str(trust))
    try:
        return client_context(files, checks_server=checks_server)
    except TlsFilesError as error:
        raise ClientUsageError(str(error)) from error


@contextmanager
def tls_for_all(context: ssl.SSLContext | None) -> Iterator[None]:
    """Encrypt all connections of clients that are made within the block and were not given a context of their own."""
    token = _CHOSEN.set(context)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def chosen_tls() -> ssl.SSLContext | None:
    """Return what `tls_for_all` says here; None: plain text."""
    return _CHOSEN.get()
