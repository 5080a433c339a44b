"""What can be wrong with bytes that claim to be messages. Every reason names the place."""

from __future__ import annotations


class MessageFormatError(ValueError):
    """Bytes are not what the message formats allow, or a field is outside its range.

    Attributes:
        reason: what is wrong, with the values.
        byte_offset: where in the given buffer the faulty piece starts; -1 when there is no such place.
    """

    def __init__(self, reason: str, byte_offset: int = -1) -> None:
        self.reason = reason
        self.byte_offset = byte_offset
        place = f"byte {byte_offset}: " if byte_offset >= 0 else ""
        super().__init__(place + reason)


class RecordError(MessageFormatError):
    """A CommitLog record is torn, damaged or impossible."""


class BatchError(MessageFormatError):
    """The body of a batch send is not a chain of batch items."""


class PropertyError(MessageFormatError):
    """A property cannot be written: reserved separator inside, empty, or the text is too long."""


class MessageIdError(MessageFormatError):
    """A text is not an offset message id."""
