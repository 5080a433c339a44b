"""Answers that make a client ask again while nobody knows what it asks. Pure.

A consumer that takes up a queue asks who else is in its group (38) and how far the group has come (14). Without a
confirmed leader nobody knows, and clients do not all understand the same answer. An error code for 14 means "there
is no offset" to most clients: they begin at the queue's end, which skips messages, or at its start. Tried with the
clients, see docs/divergence.md. It must not know what was asked, nor how long a question has waited.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

OFFSET_UNKNOWN: Final = -2
"""The C++ and Java clients' own number for "could not be read"; the Node client takes no queue up with it either.
It is no offset and never a place in a queue."""

LATE_MS: Final = 6_000
"""A Java client of release 4 waits 5 s for an offset."""

_NODE_VERSION: Final = 121
"""The Node client calls itself Java of this version; so does a real one of 2016, to which the same may be said."""

_FIRST_JAVA_WITH_REASONS: Final = 413
"""V5_0_0: the first Java client that does not take every error code for "there is no offset"."""


class UnknownOffsetAnswer(Enum):
    """The answer to a question for an offset that no node can give now."""

    REASON = "a code and the reason"
    LATE_REASON = "the same once its own patience has ended, after which it asks again; sooner it would begin anywhere"
    NO_OFFSET = "success, with OFFSET_UNKNOWN"


def unknown_offset_answer(language: str, version: int) -> UnknownOffsetAnswer:
    """Choose the answer that makes a client ask for its offset again; both arguments as in its request's header."""
    if language == "CPP" or (language, version) == ("JAVA", _NODE_VERSION):
        return UnknownOffsetAnswer.NO_OFFSET
    if language == "JAVA" and 0 < version < _FIRST_JAVA_WITH_REASONS:
        return UnknownOffsetAnswer.LATE_REASON
    return UnknownOffsetAnswer.REASON


def wants_empty_list(language: str, version: int) -> bool:
    """Return True for a client that must get an empty list where others get an error.

    The Node client never recovers from an error.
    """
    return (language, version) == ("JAVA", _NODE_VERSION)
