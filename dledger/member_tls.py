"""How the connections between members, and those of log clients, are encrypted: by both sides' certificates.

It knows no sockets: contexts of `ssl` are given by whoever keeps the certificates, and asked for at each connection, so
that they can change while a member runs.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dledger.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MemberTls:
    """The certificates of one side, and of those whom it believes.

    Attributes:
        server: returns the context for whoever connects; it must demand a certificate.
        client: returns the context for connections that are opened; it must check the other side and its host.
        takes_plain_text: plain text is taken, too, and spoken where the other side has no TLS: only while a group
            changes over.
    """

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]
    takes_plain_text: bool = False

    @classmethod
    def from_files(
        cls, *, certificate: str, key: str = "", key_password: str = "", trust: str
    ) -> MemberTls:
        """Read certificates once.

        Args:
            certificate: PEM of this side, and who signed it.
            key: PEM of its key; empty: it stands in the same file.
            key_password: of an encrypted key.
            trust: PEM of those who sign the certificates of the group, and of nobody else.

        Raises:
            ConfigError: a file cannot be used.
        """
        try:
            server, client = (
                _context(purpose, certificate, key, key_password=key_password, trust=trust)
                for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
            )
        except OSError as error:
            raise ConfigError(
                f"TLS: {certificate}, {key or certificate} and {trust} cannot be used: {error}"
            ) from error
        return cls(partial(_same, server), partial(_same, client))


def _same(context: ssl.SSLContext) -> ssl.SSLContext:
    return context


def _context(
    purpose: int, certificate: str, key: str, *, key_password: str, trust: str
) -> ssl.SSLContext:
    """Return what one side offers: TLS from 1.2 on, with certificates of both sides; raises OSError."""
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    if purpose == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes a session whose certificate is believed no more
    # Without a password OpenSSL would ask for one at the terminal.
    context.load_cert_chain(certificate, key or certificate, password=key_password)
    context.load_verify_locations(trust)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
