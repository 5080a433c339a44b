"""Descriptors of this process: how many it may have, and which of them clients do not get.

A store needs some to go on: a segment that cannot be begun, or a vote that cannot be kept, ends the node. So clients
are turned away before there are none (adr/0206).
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

WANTED_COUNT: Final = 65_536
"""As many as a server asks for: six times the connections that it lets in (connectionsMax)."""

KEPT_COUNT: Final = 256
"""Those that no client gets, or a quarter of all where they are few: units of queues have 128 open at most, the
index, segments, snapshots and members the rest."""


def raise_limit() -> None:
    """Allow this process as many descriptors as a server wants, or as many as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_COUNT if hard == resource.RLIM_INFINITY else min(WANTED_COUNT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A hard limit above the system's own (fs.nr_open, lowered since) lets nothing be set, not even less.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int | None:
    """Return how many descriptors this process may have; None: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def is_kept(descriptor: int) -> bool:
    """Return whether a descriptor is among the last ones, which no client gets: the system gives the lowest first."""
    count = limit()
    return count is not None and descriptor >= count - min(KEPT_COUNT, count // 4)
