"""The text that a producer gets for a message with a due time, and gives back to recall it (rule N14)."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

HANDLE_VERSION: Final = "v1"
HANDLE_LENGTH_MAX: Final = 4096
_DUE_MS_MAX: Final = 10**17
_DIGITS_MAX: Final = 18


class HandleError(ValueError):
    """A text is no recall handle."""


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The text by which a producer takes a message back, as the answer to the send gives it (N14).

    Attributes:
        due_ms: when the message is to be delivered; the text says one more, as RocketMQ's does (C21).
    """

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the text: URL-safe Base64 of `v1 topic broker timestamp key`."""
        plain = (
            f"{HANDLE_VERSION} {self.topic} {self.broker_name} {self.due_ms + 1} {self.unique_key}"
        )
        return base64.urlsafe_b64encode(plain.encode()).decode()

    @staticmethod
    def decode(text: str) -> RecallHandle:
        """Read a handle; padding may be missing.

        Raises:
            HandleError: it is none.
        """
        if len(text) > HANDLE_LENGTH_MAX or not text.isascii():
            raise HandleError(f"{len(text)} characters")
        try:
            plain = base64.b64decode(
                text + "=" * (-len(text) % 4), altchars=b"-_", validate=True
            ).decode()
        except (binascii.Error, ValueError) as error:
            raise HandleError(str(error)) from error
        parts = plain.split(" ", 4)
        if len(parts) != 5 or parts[0] != HANDLE_VERSION or not all(parts):
            raise HandleError(f"it has not the five parts of a {HANDLE_VERSION} handle")
        stamp = parts[3]
        is_number = stamp.isascii() and stamp.isdigit() and len(stamp) <= _DIGITS_MAX
        if not is_number or not 0 < int(stamp) <= _DUE_MS_MAX:
            raise HandleError(f"its timestamp {stamp[:30]} is none")
        return RecallHandle(parts[1], parts[2], int(stamp) - 1, parts[4])
