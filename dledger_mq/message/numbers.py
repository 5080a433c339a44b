"""The numbers that a message is found by. Mixing them is a type error.

They cost nothing while a program runs. What is read from bytes is annotated where it is read (`struct`
gives `Any`), so that no call is made for it on the hot path; a literal or the result of arithmetic is
wrapped, `QueueOffset(first + count)`. Arguments of the client's public methods stay `int`: an
application owes us no wrapping, and what we return to it is an `int` as well.
"""

from __future__ import annotations

from typing import NewType

QueueId = NewType("QueueId", int)
"""Number of a queue within its topic, from 0. Requests may carry -1: the broker is to choose."""

QueueOffset = NewType("QueueOffset", int)
"""Ordinal of a message in its queue, from 0."""

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte place of a message in the commit log, from 0."""

StoreTimeMs = NewType("StoreTimeMs", int)
"""Time at which a message was stored, in milliseconds since 1970; never falls along the log."""
