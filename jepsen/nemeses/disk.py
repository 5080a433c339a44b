"""Faults of disks: full, slow, failing, read-only, and power cuts. They need the preload library (`preload.py`)."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass
from typing import Final

from jepsen.nemeses.api import Fault, Scope
from jepsen.nemeses.journal import lose_unsynced
from jepsen.nemeses.preload import (
    CHANGES,
    Operation,
    Rule,
    attach,
    control_of,
    lacking_preload,
    side_folder,
)
from jepsen.nemeses.process import Down, revive, struck
from jepsen.systems.api import System

NEEDS_ROOM: Final = Operation.WRITE | Operation.CREATE | Operation.RESERVE
SLOW_SYNC_MS: Final = 500
STUCK_SYNC_MS: Final = 2500

FULL: Final = Rule(NEEDS_ROOM, error=errno.ENOSPC, growing=True)
FULL_THIN: Final = Rule(NEEDS_ROOM, error=errno.ENOSPC)
FULL_AT_VOTE: Final = Rule(NEEDS_ROOM, error=errno.ENOSPC, growing=True, contains="hard_state")
FULL_AT_SEGMENT: Final = Rule(NEEDS_ROOM, error=errno.ENOSPC, growing=True, contains="/data/")
FULL_AT_INDEX: Final = Rule(NEEDS_ROOM, error=errno.ENOSPC, growing=True, contains="/index/")
SLOW_SYNC: Final = Rule(Operation.SYNC, delay_ms=SLOW_SYNC_MS)
STUCK_SYNC: Final = Rule(Operation.SYNC, delay_ms=STUCK_SYNC_MS)
SYNC_FAILS_ONCE: Final = Rule(Operation.SYNC, error=errno.EIO, count=1)
SYNC_FAILS: Final = Rule(Operation.SYNC, error=errno.EIO)
READ_FAILS: Final = Rule(Operation.READ, error=errno.EIO, contains="/data/", count=3)
READS_FAIL: Final = Rule(Operation.READ, error=errno.EIO, contains="/data/")
READ_ONLY: Final = (
    Rule(CHANGES, error=errno.EROFS),
    Rule(Operation.SYNC, error=errno.EROFS),
)


@dataclass(frozen=True, slots=True)
class DiskRules:
    """The rules of a disk fault, and its description."""

    rules: tuple[Rule, ...]
    text: str


class BadDisk(Fault):
    """Calls to the disk fail, or are slow, until the cure; a node that has ended for it is started then."""

    may_end_nodes = True

    def __init__(self, name: str, scope: Scope, rules: DiskRules) -> None:
        self.name = name
        self.scope = scope
        self._rules = rules
        self._names: list[str] = []

    def lacking(self) -> str | None:
        """Return what this machine lacks: it needs a C compiler."""
        return lacking_preload()

    def prepare(self, system: System, chance: random.Random) -> None:
        """Let nodes start with the library."""
        attach(system)

    async def inject(self, system: System, chance: random.Random) -> str:
        """Set the fault's rules for the nodes that it strikes."""
        self._names = struck(system, self.scope, chance, running=False)
        for name in self._names:
            control_of(system, name).set_rules(*self._rules.rules)
        return f"{self._rules.text} on {', '.join(self._names)}"

    async def cure(self, system: System) -> str:
        """Remove the rules, and start nodes that have ended."""
        names, self._names = self._names, []
        hits = {name: control_of(system, name).hits() for name in names}
        for name in names:
            control_of(system, name).set_rules()
        started = revive(system.nodes)
        done = [f"disks are well; calls that were struck: {hits}"] if names else []
        return "; ".join(done + ([f"started {', '.join(started)}"] if started else []))

    def has_struck(self, system: System) -> bool:
        """Return whether any call failed or was slow."""
        return any(control_of(system, name).hits() for name in self._names)


class FullAtVote(BadDisk):
    """One follower's disk is full when it has to save its vote: the leader is killed so that it must."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Fill one follower's disk and kill the leader."""
        leader = system.leader
        followers = [node.name for node in system.nodes if node.name != leader]
        self._names = [chance.choice(followers)]
        control_of(system, self._names[0]).set_rules(*self._rules.rules)
        if leader is not None:
            system.node(leader).kill()
        return f"{self._rules.text} on {self._names[0]}; killed {leader}"


class LoseUnsynced(Down):
    """The power is cut: SIGKILL, and everything that was not synced is gone.

    With `is_torn` any sectors of it may have come through, so that writes are torn and reordered.
    """

    def __init__(self, name: str, scope: Scope, *, is_torn: bool) -> None:
        super().__init__(name, scope)
        self._is_torn = is_torn

    def lacking(self) -> str | None:
        """Return what this machine lacks: it needs a C compiler."""
        return lacking_preload()

    def prepare(self, system: System, chance: random.Random) -> None:
        """Let nodes start with the library and keep a journal of what is not synced."""
        attach(system, with_journal=True)

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill all at once, then take back what they had not synced."""
        self._order = struck(system, self.scope, chance)
        for name in self._order:
            system.node(name).kill()
        done: list[str] = []
        for name in self._order:
            journal = side_folder(system, name) / "journal"
            lost = lose_unsynced(system.store(name), journal, chance if self._is_torn else None)
            done.append(f"{name} lost {lost}")
        chance.shuffle(self._order)
        return f"power cut{' with torn writes' if self._is_torn else ''}: {', '.join(done)}"
