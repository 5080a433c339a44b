"""TLS between a socket and its frames: bytes of the network on one side, plain bytes on the other.

It knows no socket, no clock and no mode: who reads and writes, for how long a handshake may last, and whether a port
takes plain text as well is decided by others. Contexts of `ssl` say what is offered and who is believed.
"""

from __future__ import annotations

import re
import ssl
from contextlib import suppress
from typing import Final

from dledger_mq.remoting.errors import FrameError

_RECORD_BYTES: Final = 16 * 1024
"""The largest piece that TLS encrypts as one."""

_REASONS: Final = {
    "APP_DATA_IN_HANDSHAKE": "it sent plain data within the handshake",
    "BAD_SIGNATURE": "its certificate is not its own: the signature is wrong",
    "CERTIFICATE_REQUIRED": "the other end wants a certificate, and none was shown",
    "HTTPS_PROXY_REQUEST": "it speaks HTTP to a proxy, not TLS",
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
    "NO_SHARED_CIPHER": "it offers no cipher that is allowed here",
    "NO_RENEGOTIATION": "it wants to renegotiate, which is refused",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, and one is required",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end refuses the certificate that it was shown",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other end finds the certificate expired that it was shown",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end does not believe the certificate that it was shown",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other end found no way that both allow, or wants a certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other end wants a certificate, and none was shown",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other end does not allow the TLS versions that were offered",
    "TLSV1_ALERT_UNKNOWN_CA": "the other end does not know who signed the certificate that it was shown",
    "UNSUPPORTED_PROTOCOL": "it offers no TLS version from 1.2 on",
    "VERSION_TOO_LOW": "it offers no TLS version from 1.2 on",
    "WRONG_VERSION_NUMBER": "what it sent is no TLS",
}
"""The causes that are met in practice: OpenSSL's names, and words for them."""

_PLACE: Final = re.compile(r" \(_ssl\.c:[0-9]+\)$")


class TlsError(FrameError):
    """The bytes are no TLS, or the two ends do not agree; the connection has to be closed."""


class TlsEnd:
    """One end of an encrypted connection.

    Invariant: plain bytes come out in the order in which the other end put them in, and none before the handshake is
    done. After a TlsError it is used only to take what is to be sent last, an alert.

    Attributes:
        is_open: True once the handshake is done.
        is_plain: never; see `Cipher`.
        has_ended: the other end has said that it sends no more.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "has_ended", "is_open", "is_plain")

    def __init__(
        self, context: ssl.SSLContext, *, is_server: bool, host: str | None = None
    ) -> None:
        """Take part in a connection.

        Args:
            context: what is offered and who is believed.
            is_server: whether the other end begins.
            host: whom a client means to reach; its certificate must be for it if the context checks that.
        """
        self.is_open = self.is_plain = self.has_ended = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=host
        )

    def begin(self) -> bytes:
        """Return what a client sends first."""
        self._shake()
        return self.take_output()

    def decrypt(self, data: bytes) -> bytes:
        """Take in what came from the network, and return the plain bytes that are whole now.

        What is to be sent because of it is there for `take_output`, after an error, too.

        Raises:
            TlsError: says why the connection cannot go on.
        """
        self._incoming.write(data)
        if not self.is_open and not self._shake():
            return b""
        # OpenSSL takes record by record: without anything on either side of it no whole one is left, and asking would
        # cost an exception for each read.
        incoming, plain = self._incoming, self._object
        pieces: list[bytes] = []
        try:
            while incoming.pending or plain.pending():
                piece = plain.read(_RECORD_BYTES)
                if not piece:
                    self.has_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            raise TlsError(f"TLS: {why(error)}") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _shake(self) -> bool:
        """Go on with the handshake; return whether it is done.

        Raises:
            TlsError: it has failed.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsError(f"TLS handshake: {why(error)}") from error
        self.is_open = True
        return True

    def encrypt(self, data: bytes) -> bytes:
        """Return plain bytes as they travel, and whatever else is to be sent, in order.

        Raises:
            TlsError: the connection is broken.
        """
        assert self.is_open, "nothing is sent before the handshake is done"
        write, rest = self._object.write, memoryview(data)
        try:
            while rest:
                rest = rest[write(rest[:_RECORD_BYTES]) :]
        except ssl.SSLError as error:
            raise TlsError(f"TLS: {why(error)}") from error
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """Return what is to be sent by itself: parts of a handshake, alerts; mostly nothing."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def farewell(self) -> bytes:
        """Return what says to the other end that nothing follows; nothing after this is sent."""
        if self.is_open:
            with suppress(
                ssl.SSLError
            ):  # the other end has not said the same, and is not waited for
                self._object.unwrap()
        return self.take_output()


def why(error: ssl.SSLError) -> str:
    """Return the cause of an error of `ssl` in words, without places in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the other end is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "it ended in the middle"
    reason = error.reason or ""
    return _REASONS.get(reason) or reason.replace("_", " ").lower() or _PLACE.sub("", str(error))
