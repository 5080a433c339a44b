"""What a port makes of a connection's first byte: TLS, plain text, or neither.

It knows no settings and no files: who offers the context, and changes it while connections come, is `TlsKeeper`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from dledger_mq.net.tls import TlsEnd, TlsError
from dledger_mq.remoting.frame import TLS_BYTE

_PLAIN_TEXT: Final = "plain text on a port that takes TLS only (tls.server.mode=enforcing)"


class TlsDoor:
    """The offer of a port to those that connect.

    Args:
        context: returns what holds for a connection that begins now.
        takes_plain_text: whether a connection may go on without TLS.
    """

    def __init__(self, context: Callable[[], ssl.SSLContext], *, takes_plain_text: bool) -> None:
        self.context = context
        self.takes_plain_text = takes_plain_text

    def meet(self) -> Newcomer:
        """Return what decides over a new connection."""
        return Newcomer(self)


class Newcomer:
    """The `Cipher` of a connection that was accepted: undecided until its first byte, then plain text or an end of TLS.

    A connection that has sent nothing costs no more than it does without TLS.
    """

    __slots__ = ("_door", "_end", "is_plain")

    def __init__(self, door: TlsDoor) -> None:
        self._door = door
        self._end: TlsEnd | None = None
        self.is_plain = False

    @property
    def is_open(self) -> bool:
        """See `Cipher`."""
        return self.is_plain or (self._end is not None and self._end.is_open)

    @property
    def has_ended(self) -> bool:
        """See `Cipher`."""
        return self._end is not None and self._end.has_ended

    def decrypt(self, data: bytes, /) -> bytes:
        """See `Cipher`; the first bytes decide.

        Raises:
            TlsError: it is no TLS where that is required, or a handshake that fails.
        """
        if self._end is None:
            if data[0] != TLS_BYTE:
                if not self._door.takes_plain_text:
                    raise TlsError(_PLAIN_TEXT)
                self.is_plain = True
                return data
            self._end = TlsEnd(self._door.context(), is_server=True)
        return self._end.decrypt(data)

    def encrypt(self, data: bytes, /) -> bytes:
        """See `Cipher`."""
        assert self._end is not None, "nobody is sent anything before it has asked for something"
        return self._end.encrypt(data)

    def take_output(self) -> bytes:
        """See `Cipher`."""
        return b"" if self._end is None else self._end.take_output()

    def farewell(self) -> bytes:
        """See `Cipher`."""
        return b"" if self._end is None else self._end.farewell()
