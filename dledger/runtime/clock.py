"""Time and chance, for the parts that take them as arguments."""

from __future__ import annotations

import random
import time
from typing import Final

_CHANCE = random.SystemRandom()

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs on while the machine sleeps, where the system has such a one: a leader that wakes up must see
that its lease is long over (Linux's CLOCK_MONOTONIC stands still, and others were elected meanwhile)."""


def now_ms() -> int:
    """Return the monotonic clock in milliseconds; only differences mean something."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def now_s() -> float:
    """Return the same clock in seconds, for measuring."""
    return time.monotonic()


def draw(low: int, high: int) -> int:
    """Draw a random integer, both bounds included."""
    return _CHANCE.randint(low, high)


def draw_process_number() -> int:
    """Draw a number that no other process of the group has."""
    return _CHANCE.getrandbits(63)
