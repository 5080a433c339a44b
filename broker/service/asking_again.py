"""How to make a client ask again: what it does with each answer to the questions by which it takes up a queue.

A consumer that takes up a queue asks who else is in its group (38) and how far the group has come (14). Without a
confirmed leader nobody knows, and there is no one way to say so. An error code for 14 means "there is no offset" to
most clients: they begin at the queue's end, which skips messages, or at its start. Tried with the clients, see
docs/divergence.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

OFFSET_UNTOLD: Final = -2
"""The C++ and Java clients' own number for "could not be read"; the Node client takes no queue up with it either.
It is no offset and never a place in a queue."""

LATE_MS: Final = 6_000
"""A Java client of release 4 waits 5 s for an offset."""

_NODE_VERSION: Final = 121
"""The Node client calls itself Java of this version; so does a real one of 2016, to which the same may be said."""

_FIRST_JAVA_WITH_REASONS: Final = 413
"""V5_0_0: the first Java client that does not take every error code for "there is no offset"."""


class Untold(Enum):
    """How to answer a question for an offset that nobody can tell."""

    REASON = "a code and the reason"
    LATE_REASON = "the same once its own patience has ended, after which it asks again; sooner it would begin anywhere"
    NO_OFFSET = "success, with OFFSET_UNTOLD"


def offset_untold(language: str, version: int) -> Untold:
    """What makes a client ask for its offset again; both arguments as its request's header says."""
    if language == "CPP" or (language, version) == ("JAVA", _NODE_VERSION):
        return Untold.NO_OFFSET
    if language == "JAVA" and 0 < version < _FIRST_JAVA_WITH_REASONS:
        return Untold.LATE_REASON
    return Untold.REASON


def wants_empty_list(language: str, version: int) -> bool:
    """Whether a client must get an empty list where others get an error: the Node client never recovers from one."""
    return (language, version) == ("JAVA", _NODE_VERSION)
