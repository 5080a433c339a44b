"""The errors in what a peer sent, one for each thing that the receiver has to do about it."""

from __future__ import annotations


class RemotingError(ValueError):
    """Root: a peer's bytes are not what the protocol allows.

    Attributes:
        reason: what is wrong, with the values.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class FrameError(RemotingError):
    """The frame or its header cannot be read: nothing after it can be trusted, close the connection."""


class FieldError(RemotingError):
    """A header field is missing or cannot be read: answer SYSTEM_ERROR, keep the connection.

    Attributes:
        field: name of the field as it stands on the wire.
        opaque: of the request, where the reader knows it; 0 otherwise.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.opaque = 0
        super().__init__(f"the field {field} {reason}")


class BodyError(RemotingError):
    """The body of a command cannot be read: answer SYSTEM_ERROR, keep the connection."""
