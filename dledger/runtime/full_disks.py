"""The members whose disks are full, as far as this one knows: why nobody leads, when that is the reason.

A member whose disk is full writes nothing, so it neither votes nor confirms: with too many of them nobody can
lead, and who does loses its term (obstacles.py says how members hear of it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from dledger.raft.ids import NodeId
from dledger.raft.quorum import majority

FULL_ATTRIBUTE: Final = "disk_full"
"""`true`; not there: the store takes more. The reason names files, which a stranger need not know."""


class FullDisks:
    """The members whose disks are known to be full.

    Invariant: of others only what they have reported while this node had no leader, led without a majority, or had a
    full disk itself.

    Attributes:
        own: why the own store takes no more; empty: it does.
    """

    def __init__(self, node_id: NodeId, members: tuple[NodeId, ...]) -> None:
        self.own = ""
        self._node_id = node_id
        self._members = members
        self._others: set[NodeId] = set()
        self._has_leader = False
        self._is_majority_silent = False
        self._wanted = trio.Event()

    def voters_changed(self, voters: tuple[NodeId, ...]) -> None:
        """Count these from now on: the group's voters have changed."""
        self._members = voters
        self._others.intersection_update(voters)

    def own_changed(self, reason: str) -> None:
        """Note that the own disk has no room, with the reason, or has it again."""
        self.own = reason
        self._decide()

    def leader_changed(self, leader_id: NodeId | None) -> None:
        """Note who leads, as far as this node knows."""
        self._has_leader = leader_id is not None
        self._is_majority_silent = False
        self._decide()

    def majority_judged(self, *, is_silent: bool) -> None:
        """Note whether this node leads and hears no majority any more."""
        if is_silent is not self._is_majority_silent:
            self._is_majority_silent = is_silent
            self._decide()

    def _decide(self) -> None:
        is_wanted = bool(self.own) or not self._has_leader or self._is_majority_silent
        if is_wanted and not self._wanted.is_set():
            self._wanted.set()
        elif not is_wanted and self._wanted.is_set():
            self._wanted = trio.Event()
            self._others.clear()

    async def wait_wanted(self) -> None:
        """Wait until the others' reports are needed: nobody leads, this node leads unheard, or its own disk is full."""
        await self._wanted.wait()

    @property
    def are_wanted(self) -> bool:
        """True while `wait_wanted` returns at once."""
        return self._wanted.is_set()

    @property
    def are_pressing(self) -> bool:
        """True while this node leads without a majority: its term is about to end."""
        return self._is_majority_silent

    def own_attributes(self) -> Mapping[str, str]:
        """Return the attribute for handshakes."""
        return {FULL_ATTRIBUTE: "true"} if self.own else {}

    def learn(self, node_id: NodeId, attributes: Mapping[str, str] | None) -> None:
        """Note a member's latest report; None when it could not be asked."""
        is_full = bool((attributes or {}).get(FULL_ATTRIBUTE))
        if is_full and self._wanted.is_set():
            self._others.add(node_id)
        else:
            self._others.discard(node_id)

    @property
    def full(self) -> list[NodeId]:
        """Members whose disks are full, in the order of the configuration."""
        return [
            member
            for member in self._members
            if (self.own if member == self._node_id else member in self._others)
        ]

    @property
    def leave_no_majority(self) -> bool:
        """True if nothing can be stored before one of them has room."""
        if not self.own and not self._others:
            return False
        return len(self._members) - len(self.full) < majority(len(self._members))

    def describe(self) -> str:
        """Return the fact in words; empty when no disk is known to be full."""
        full = self.full
        if not full:
            return ""
        if len(full) == 1:
            return f"the disk of {full[0]} is full"
        return f"the disks of {', '.join(full[:-1])} and {full[-1]} are full"
