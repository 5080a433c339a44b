"""What an end of TLS offers and whom it believes, from files with certificates and keys.

Whatever is wrong with a file is said with its name, and never with what stands in it. It knows no settings: how files
are named to a server or a tool, and when they are read again, is decided by others.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from dledger_mq.net.tls import why


class TlsFilesError(Exception):
    """A certificate or a key cannot be used; says which and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one end; empty where there is none.

    Attributes:
        certificate: PEM, its own first, then who signed it.
        key: PEM, of the certificate; empty: it stands in the same file.
        key_password: of an encrypted key.
        trust: PEM, of those who sign what the other end shows; empty: those whom the system believes.
    """

    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    trust: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Those that are there."""
        return tuple(filter(None, (self.certificate, self.key, self.trust)))


def server_context(files: TlsFiles, client_auth: ssl.VerifyMode) -> ssl.SSLContext:
    """Return what a server offers: TLS from 1.2 on, every handshake whole, nothing negotiated twice.

    Sessions are not resumed: connections last, and whoever is trusted no more is asked anew.

    Args:
        files: with a certificate.
        client_auth: whether clients have to show certificates that `files.trust` believes.

    Raises:
        TlsFilesError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _load_certificate(context, files)
    if client_auth is not ssl.CERT_NONE:
        _load_trust(context, files)
        context.verify_mode = client_auth
    return context


def client_context(files: TlsFiles, *, checks_server: bool = True) -> ssl.SSLContext:
    """Return what a client offers.

    Args:
        files: with a certificate where servers want one.
        checks_server: whether the server's certificate must be believed, and be for the host that was dialled.

    Raises:
        TlsFilesError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if not checks_server:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif files.trust:
        _load_trust(context, files)
    else:
        context.load_default_certs()
    if files.certificate:
        _load_certificate(context, files)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load what this end shows; raises TlsFilesError."""
    key = files.key or files.certificate
    for path in (files.certificate, key):
        _check_readable(path)
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, key, password=files.key_password)
    except ssl.SSLError as error:
        raise TlsFilesError(_why_unusable(error, files.certificate, key)) from error
    except OSError as error:  # it was taken away just now
        raise _unreadable(f"{files.certificate} or {key}", error) from error
    except ValueError as error:  # a password of 1 KiB
        raise TlsFilesError(f"the password of {key} cannot be used: {error}") from error


def _why_unusable(error: ssl.SSLError, certificate: str, key: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key} does not belong to the first certificate in {certificate}"
    if not error.reason:  # OpenSSL says no more than that reading PEM has failed
        if _is_encrypted(key):
            return f"the key in {key} is encrypted, and its password is missing or wrong"
        return f"{certificate} and {key} do not hold a certificate and its key as PEM"
    return f"{certificate} with the key in {key} cannot be used: {why(error)}"


def _load_trust(context: ssl.SSLContext, files: TlsFiles) -> None:
    _check_readable(files.trust)
    try:
        context.load_verify_locations(files.trust)
    except ssl.SSLError as error:
        raise TlsFilesError(f"{files.trust} holds no certificates as PEM: {why(error)}") from error
    except OSError as error:
        raise _unreadable(files.trust, error) from error


def _check_readable(path: str) -> None:
    """Raise the reason why a file cannot be read; the one of `ssl` names none."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> TlsFilesError:
    return TlsFilesError(f"{path} cannot be read: {error.strerror or error}")


def _is_encrypted(key: str) -> bool:
    try:
        return b"ENCRYPTED" in Path(key).read_bytes()
    except OSError:  # it was taken away just now
        return False
