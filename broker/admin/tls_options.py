"""Options of `dledger-admin` about TLS: whether its connections are encrypted, and who is believed."""

from __future__ import annotations

import argparse
import ssl

from broker.command_line import read_secret
from dledger import ConfigError, MemberTls
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.tls import make_tls_context


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; they stand before the command, since they hold for every connection."""
    group = parser.add_argument_group("encrypted connections (before the command)")
    group.add_argument(
        "--tls", action="store_true", help="encrypt; the servers' certificates are checked"
    )
    group.add_argument(
        "--tls-trust",
        metavar="FILE",
        help="who signs the servers' certificates, PEM (default: those whom the system believes)",
    )
    group.add_argument("--tls-cert", metavar="FILE", help="a certificate to show, PEM")
    group.add_argument("--tls-key", metavar="FILE", help="its key, PEM (default: in --tls-cert)")
    group.add_argument(
        "--tls-key-password-file", metavar="FILE", help="its first line is the key's password"
    )
    group.add_argument(
        "--tls-insecure",
        action="store_true",
        help="encrypt, and talk to whoever answers: only those are kept out who listen and do nothing else",
    )


def tls_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return what encrypts all connections; None: they are plain text.

    Raises:
        ConfigError: a file cannot be used, or options contradict each other.
    """
    files = {
        name: getattr(options, name)
        for name in ("tls_trust", "tls_cert", "tls_key", "tls_key_password_file")
        if getattr(options, name) is not None
    }
    if not (options.tls or options.tls_insecure or files):
        return None
    if options.tls_insecure and options.tls_trust is not None:
        raise ConfigError(
            "--tls-insecure checks nothing, --tls-trust says whom to believe: leave one out"
        )
    if options.tls_cert is None and len(files) > (options.tls_trust is not None):
        raise ConfigError("--tls-key and --tls-key-password-file need --tls-cert")
    try:
        return make_tls_context(
            trust=options.tls_trust or "",
            certificate=options.tls_cert or "",
            key=options.tls_key or "",
            key_password=_password(options),
            checks_server=not options.tls_insecure,
        )
    except ClientUsageError as error:
        raise ConfigError(str(error)) from error


def peer_tls_of(options: argparse.Namespace) -> MemberTls | None:
    """Return what encrypts connections to the port where members meet; None: they are plain text.

    Raises:
        ConfigError: a file cannot be used, or is missing.
    """
    if not options.peer_tls:
        return None
    if options.tls_cert is None or options.tls_trust is None:
        raise ConfigError(
            "--peer-tls needs --tls-cert and --tls-trust: both sides show a certificate"
        )
    return MemberTls.from_files(
        certificate=options.tls_cert,
        key=options.tls_key or "",
        key_password=_password(options),
        trust=options.tls_trust,
    )


def _password(options: argparse.Namespace) -> str:
    path = options.tls_key_password_file
    return "" if path is None else read_secret(path, "--tls-key-password-file")
