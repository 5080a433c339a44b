"""One member of a simulated group: its disk, its clock, and its engine while it is up.

It knows no other member, and nothing of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dledger.engine import Engine, PersistJob
from dledger.raft.configuration import Configuration
from dledger.raft.ids import NodeId
from dledger.raft.member_record import Start
from dledger.repair.store_repair import StoreRepair
from dledger.storage.member_file import MemberFile
from dledger.testing.sim_disk import SimDisk


@dataclass(slots=True)
class SimNode:
    """One member, up or down.

    Attributes:
        engine: None while it is down, or being repaired.
        repair: of its damaged log, before it can have an engine.
        repair_count: how many it has needed to start this time.
        life: counts its stops; whatever was scheduled for an earlier one is dropped.
        timer_ms: when its next tick is scheduled, in true time; None: none is.
        paused_until_ms: it does nothing before that.
        still_since_ms: since when it stands still, in runs with sockets; None: it runs, or is down.
        clock_zero_ms, clock_drift_permille: its own clock.
        wall_jump_ms: by how much its wall clock was set wrong since it started.
        slow_until_ms: its disk is slow until then.
        crashes_in_save: the next persist job is cut short by a power loss.
        job: the persist job that is under way.
        refusal: why its store cannot be opened and not be mended; it stays down until its disk is replaced.
        is_damaged: its disk has lied. Such a member loses no power until the disk is replaced: after a
            power cut, damage in the entries of the last batch passes for a torn tail (storage/recovery.py
            says so), and no log can show it.
        flipped_snapshots: content of the snapshots in which a bit was turned over, by path: none may be used.
        is_frozen: it does not start, and what ails it is not cured.
        member: its record (see sim_meetings.py); None: it has none, or its start was not counted.
        counted_life: the latest of which the start was counted.
        missed: a start of its store that the store does not know of.
        old_disk: a copy of its disk, from one of its earlier ends.
        copied_start: what that copy knows to be its latest start.
        is_outdated: it runs, or will, on such a copy, and has not durably given up its vote.
        traced_log: what the trace last said about its log.
        configuration: the members in force there when it last ran; None: it never ran, or lost its store.
        joins: it is to start as one that joins a group that exists.
    """

    node_id: NodeId
    disk: SimDisk
    draw: Callable[[int, int], int]
    engine: Engine | None = None
    repair: StoreRepair | None = None
    repair_count: int = 0
    life: int = 0
    timer_ms: int | None = None
    paused_until_ms: int = 0
    still_since_ms: int | None = None
    clock_zero_ms: int = 0
    clock_drift_permille: int = 0
    wall_jump_ms: int = 0
    slow_until_ms: int = 0
    crashes_in_save: bool = False
    job: PersistJob | None = None
    refusal: str = ""
    is_damaged: bool = False
    flipped_snapshots: dict[str, bytes] = field(default_factory=dict)
    is_frozen: bool = False
    member: MemberFile | None = None
    counted_life: int = -1
    missed: Start | None = None
    old_disk: SimDisk | None = None
    copied_start: Start = field(default_factory=Start)
    is_outdated: bool = False
    traced_log: str = ""
    configuration: Configuration | None = None
    joins: bool = False

    def pauses(self, now_ms: int) -> bool:
        """Return whether it does nothing at this moment, also one in which it is about to run again."""
        return self.paused_until_ms > now_ms or self.still_since_ms is not None

    def is_flipped(self, path: str) -> bool:
        """Return whether this snapshot is one that was damaged, and not another one in its place."""
        damaged = self.flipped_snapshots.get(path)
        return damaged is not None and self.disk.exists(path) and self.disk.content(path) == damaged

    def local_ms(self, now_ms: int) -> int:
        """Return what its clock shows at a true time."""
        return self.clock_zero_ms + now_ms * (1000 + self.clock_drift_permille) // 1000

    def true_ms(self, local_ms: int) -> int:
        """Return the first true time at which its clock shows `local_ms`."""
        rate = 1000 + self.clock_drift_permille
        return -((self.clock_zero_ms - local_ms) * 1000 // rate)
