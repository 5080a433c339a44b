"""The releases that clients name by their ordinals in RocketMQ's MQVersion. Pure."""

from __future__ import annotations

from typing import Final

_FIRST: Final = 213
"""V4_0_0: from there on every release has two ordinals, its snapshot's and its own."""

_LAST: Final = 611
"""V5_9_9, the last that is listed there."""

_AHEAD: Final = 588
"""By so much twice the digits of a release, read as one number, are above its snapshot's ordinal."""


def version_text(ordinal: int) -> str:
    """Return the release of an ordinal as text; one that the rule does not cover as the ordinal itself."""
    if not _FIRST - 1 <= ordinal <= _LAST:
        return f"version {ordinal}"
    digits, is_release = divmod(ordinal + _AHEAD, 2)
    return ".".join(f"{digits:03}") + ("" if is_release else "-SNAPSHOT")
