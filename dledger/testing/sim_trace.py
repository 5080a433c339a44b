"""The trace of a run: one line per event with fixed columns, and a digest of all of them.

    time  node role term  what
    1042  n1   F    t3    <- n0 append-request term=3 round=17 prev=4@2 [5@3..6@3] commit=4

What stands under `what` is worded in core_trace.py; docs/testing.md explains how to read it. The digest
makes two runs comparable without keeping them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from dledger.engine import Engine
from dledger.raft.effects import Role
from dledger.raft.ids import NodeId

ROLE_LETTERS = {
    Role.FOLLOWER: "F",
    Role.PRE_CANDIDATE: "P",
    Role.CANDIDATE: "C",
    Role.LEADER: "L",
}


class Trace:
    """The lines of one run, written out as they come, and their digest."""

    __slots__ = ("_digest", "_write")

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write
        self._digest = hashlib.sha256()

    def line(self, now_ms: int, node_id: NodeId | str, engine: Engine | None, text: str) -> None:
        """Add a line about a member (its role and term as they are now), or about the world."""
        role, term = (
            ("-", "-")
            if engine is None
            else (ROLE_LETTERS[engine.node.role], f"t{engine.node.term}")
        )
        row = f"{now_ms:>6}  {node_id:<4} {role:<4} {term:<4}  {text}"
        self._digest.update(row.encode())
        if self._write is not None:
            self._write(row)

    def digest(self) -> str:
        """Return the digest of every line so far."""
        return self._digest.hexdigest()
