"""Errors of the name server: refusals, and changes of unknown outcome.

They must not know the protocol: `handlers` gives each its code.
"""

from __future__ import annotations


class NameServerError(Exception):
    """Root of the name server's own errors."""


class RefusedRegistrationError(NameServerError):
    """A registration was not taken; nothing has changed."""


class NotYetError(RefusedRegistrationError):
    """Nothing is known against a registration; it is to be tried again soon."""


class StrangerError(NotYetError):
    """Those who have the name know of no member at the address that registers."""


class UnsignedRegistrationError(RefusedRegistrationError):
    """A registration had to be signed and was not, or with another secret.

    Attributes:
        nonce: what signatures on this connection have to be over.
    """

    def __init__(self, reason: str, nonce: str) -> None:
        self.nonce = nonce
        super().__init__(reason)


class NameTakenError(RefusedRegistrationError):
    """The broker name belongs to another group.

    Attributes:
        holder_addr: one of that group's brokers.
    """

    def __init__(self, reason: str, holder_addr: str) -> None:
        self.holder_addr = holder_addr
        super().__init__(reason)


class NameServerConfigError(NameServerError):
    """The name server refuses to start with these settings; the message names the values."""


class KvUnavailableError(NameServerError):
    """A configuration change was not made, or nobody can say whether it was.

    Attributes:
        definite: it was surely not made and never will be.
    """

    def __init__(self, reason: str, *, definite: bool) -> None:
        self.definite = definite
        super().__init__(reason)


class KvLimitError(NameServerError):
    """A configuration value, or their number, is over its bound; nothing was changed."""
