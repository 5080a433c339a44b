"""Faults of what is stored: damaged, torn, lost, or older than it should be."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

import trio

from jepsen.nemeses import damage
from jepsen.nemeses.api import Fault, NothingStruckError
from jepsen.nemeses.preload import side_folder
from jepsen.nemeses.process import revive, struck, wait_until
from jepsen.processes import Process
from jepsen.systems.api import System

VERDICT_WAIT_S: Final = 30.0
BACKUP_AGE_S: Final = 5.0


class Damaged(Fault):
    """Base: a node's store is damaged, and the node started with it.

    The cure waits until each struck node serves: it mends its store from the others. A node that has ended
    is started once more, since another fault may have killed it; one that ends again refuses, and the
    cure says so. Nothing is ever wiped here: a harness that does that to one node after the other destroys
    what it is to watch.
    """

    may_end_nodes = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._names: list[str] = []

    async def cure(self, system: System) -> str:
        """Wait until each struck node serves or refuses."""
        names, self._names = self._names, []
        done = [await self._outcome(system.node(name)) for name in names]
        started = revive(system.nodes)
        return "; ".join(done + ([f"started {', '.join(started)}"] if started else []))

    async def _outcome(self, node: Process) -> str:
        """Wait until the node serves or has ended; one that ended is started once more, as a supervisor would."""

        def is_decided() -> bool:
            return node.pid is None or node.is_listening()

        await wait_until(is_decided, VERDICT_WAIT_S)
        if node.pid is None:
            node.start()
            await wait_until(is_decided, VERDICT_WAIT_S)
        return (
            f"{node.name} refuses: {node.log_tail(1)}"
            if node.pid is None
            else f"{node.name} serves"
        )


class DamageOne(Damaged):
    """One node's files are damaged, while it is stopped or while it runs."""

    def __init__(self, name: str, what: damage.Damage, *, is_running: bool = False) -> None:
        super().__init__(name)
        self._what = what
        self._is_running = is_running

    async def inject(self, system: System, chance: random.Random) -> str:
        """Damage one node's files, while it is stopped or while it runs."""
        (name, *_) = struck(system, "one", chance, running=False)
        self._names = [name]
        node = system.node(name)
        if not self._is_running:
            node.kill()
        done = self._what(system.store(name), chance)
        revive([node])
        if done.startswith(damage.NOTHING):
            raise NothingStruckError(f"{name}: {done}")
        return f"{name}: {done}"


class DamageAll(Damaged):
    """Every replica is damaged, each in other entries, so that each entry survives on the others."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill all nodes, damage their stores and start them.

        Raises:
            NothingStruckError: no store had entries that may be damaged yet.
        """
        self._names = [node.name for node in system.nodes]
        for node in system.nodes:
            node.kill()
        done = damage.damage_all([system.store(name) for name in self._names], chance)
        revive(system.nodes)
        if done.startswith(damage.NOTHING):
            raise NothingStruckError(done)
        return done


class Wiped(Damaged):
    """One node's store is gone; it starts with the same id and an empty disk."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Kill a node, wipe its store and start it."""
        (name, *_) = struck(system, "one", chance, running=False)
        self._names = [name]
        system.node(name).kill()
        forget(system, name)
        revive([system.node(name)])
        return f"{name}: its store was wiped"


class OldCopy(Damaged):
    """One node's store, or the newest segment alone, is replaced by a copy that is some seconds old.

    Its term, vote and acknowledged entries of those seconds are forgotten, as when a backup is restored.
    """

    def __init__(self, name: str, *, segment_only: bool) -> None:
        super().__init__(name)
        self._segment_only = segment_only

    async def inject(self, system: System, chance: random.Random) -> str:
        """Copy while it stands still, let it run on, kill it, put the copy in its place."""
        (name, *_) = struck(system, "one", chance, running=False)
        self._names = [name]
        node, store = system.node(name), system.store(name)
        backup = system.folder / "faults" / name / "backup"
        shutil.rmtree(backup, ignore_errors=True)
        node.kill()
        damage.copy_store(store, backup)
        node.start()
        await trio.sleep(BACKUP_AGE_S)
        node.kill()
        done = self._put_segment(store, backup) if self._segment_only else "its store"
        if not self._segment_only:
            forget(system, name)
            damage.copy_store(backup, store)
        node.start()
        return f"{name}: {done} is {BACKUP_AGE_S} s old"

    @staticmethod
    def _put_segment(store: Path, backup: Path) -> str:
        newest = sorted((backup / "data").glob("[0-9]*"))[-1]
        damage.copy_file(newest, store / "data" / newest.name)
        return f"segment {newest.name}"


def forget(system: System, name: str) -> None:
    """Wipe a node's store, with the journal of what it had not synced."""
    damage.wipe(system.store(name))
    journal = side_folder(system, name) / "journal"
    if journal.is_dir():
        for each in journal.iterdir():
            each.unlink()
