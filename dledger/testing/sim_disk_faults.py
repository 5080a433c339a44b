"""The disk faults of a simulated run: slow, failing, full or lying disks, and lost or outdated ones.

When a fault strikes is not decided here (`sim_faults`), nor whose store may be lost (`sim_victims`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from random import Random
from typing import Protocol

from dledger.storage.hard_state import HARD_STATE_NAME
from dledger.storage.member_file import MemberFile
from dledger.storage.snapshot_parts import SUFFIXES
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_damage import entry_places, flips_on_all
from dledger.testing.sim_meetings import remembers
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_victims import Victims

DAMAGE_ALL_SHARES = (0.05, 0.3, 1.0)
"""The shares of what may be damaged in all logs at once; a strike draws one of them."""


class Crash(Protocol):
    """A function that stops a member for a while."""

    def __call__(self, node: SimNode | None, *, power_loss: bool = True) -> None:
        """Stop the member; do nothing for None or one that is down."""
        ...


class DiskFaults:
    """The faults of disks. Those that may cost a store return whether they found one that may be lost."""

    def __init__(self, cluster: SimCluster, victims: Victims, rng: Random, crash: Crash) -> None:
        """Set up the faults; `crash` stops a member for those that need its end."""
        self._cluster = cluster
        self._victims = victims
        self._rng = rng
        self._crash = crash

    def strikes(self) -> dict[str, Callable[[], object]]:
        """Return the function of each kind of fault, by its name."""
        return {
            "slow-disk": self._slow_disk,
            "fail-sync": self._fail_sync,
            "fail-read": self._fail_read,
            "fail-write": self._fail_write,
            "fail-start": self._fail_start,
            "fail-sync-and-power": self._fail_sync_and_power,
            "full-disk": self._full_disk,
            "wipe-one": self._wipe_one,
            "old-copy": self._old_copy,
            "misdirect-write": self._misdirect_write,
            "flip-log": partial(self._flip, "data/"),
            "flip-index": partial(self._flip, "index/"),
            "flip-hard-state": partial(self._flip, HARD_STATE_NAME),
            "flip-snapshot": self._flip_snapshot,
            "flip-all-snapshots": self._flip_all_snapshots,
            "damage-all": self._damage_all,
        }

    # Slow, failing and full.

    def _slow_disk(self) -> None:
        node = self._victims.any()
        length_ms = self._rng.randint(1, 4 * self._cluster.settings.election_min_ms)
        node.slow_until_ms = self._cluster.now_ms + length_ms

    def _fail_sync(self) -> None:
        node = self._victims.running()
        if node is not None:
            node.disk.fail_sync(self._rng.randint(1, 4))

    def _fail_read(self) -> None:
        node = self._victims.running()
        if node is not None:
            node.disk.fail_read(self._rng.randint(1, 4))

    def _fail_write(self) -> None:
        node = self._victims.running()
        if node is not None:
            node.disk.fail_write(self._rng.randint(1, 4))

    def _fail_start(self) -> bool:
        """Kill a member, and let its disk fail at one of the first operations of its next start.

        A vote that cannot be read is lost, so a read fails only where a store may be lost.
        """
        node = self._victims.running()
        if node is None:
            return False
        may_lose = self._victims.is_spare(node) and not node.is_outdated
        self._crash(node, power_loss=self._rng.random() < 0.5)
        disk = node.disk
        fails = (disk.fail_write, disk.fail_sync, disk.fail_read)
        fail = self._rng.choice(fails if may_lose else fails[:2])
        if fail == disk.fail_read:
            self._victims.unproven.add(node.node_id)
        fail(self._rng.randint(1, 6))
        return True

    def _fail_sync_and_power(self) -> bool:
        """Let a sync fail and soon after the power, so that a member which ignored the failure loses data."""
        node = self._victims.running()
        if node is None:
            return False
        node.disk.fail_sync(self._rng.randint(1, 2))
        length_ms = self._rng.randint(1, 2 * self._cluster.settings.election_max_ms)
        self._cluster.at(self._cluster.now_ms + length_ms, self._lose_power, node)
        return True

    def _lose_power(self, node: SimNode) -> None:
        if node.node_id not in self._cluster.calm and not node.is_frozen:
            self._crash(node)

    def _full_disk(self) -> None:
        """Make a disk full for a while: no file can grow."""
        node = self._victims.any()
        node.disk.capacity_bytes = 0
        length_ms = self._rng.randint(1, 2 * self._cluster.settings.election_min_ms)
        self._cluster.at(self._cluster.now_ms + length_ms, self._make_room, node)

    def _make_room(self, node: SimNode) -> None:
        if not node.is_frozen:
            node.disk.capacity_bytes = None

    # Lost, and put back.

    def _wipe_one(self) -> bool:
        """Replace a member's disk by an empty one."""
        node = self._victims.running(self._victims.is_spare)
        if node is None:
            return False
        self._victims.unproven.add(node.node_id)
        self._cluster.stop(node, power_loss=True)
        self._cluster.wipe(node)
        self._cluster.start_later(node)
        return True

    def _old_copy(self) -> bool:
        """Copy a member's disk at one stop, and replace the disk by that copy at a later stop.

        Only when the others know of a start that the copy does not: what nobody remembers, nobody can notice.
        """
        node = self._victims.running(self._may_be_outdated)
        if node is None:
            return False
        if node.old_disk is None:
            self._cluster.stop(node, power_loss=True)
            node.old_disk = deepcopy(node.disk)
            node.old_disk.capacity_bytes = None
            self._cluster.trace_line(node, "is copied")
        else:
            self._victims.unproven.add(node.node_id)
            self._cluster.stop(node, power_loss=True)
            self._cluster.put_back(node)
        self._cluster.start_later(node)
        return True

    def _may_be_outdated(self, node: SimNode) -> bool:
        """Return whether the next step for this member's disk, copying or replacing it, is allowed now."""
        if node.is_damaged or node.is_outdated or not self._victims.is_spare(node):
            return False
        return node.old_disk is None or self._is_known_to_be_old(node)

    def _is_known_to_be_old(self, node: SimNode) -> bool:
        """Return whether every other member remembers a start of this one that its copy does not know of."""
        assert node.old_disk is not None, "there is a copy"
        copied = MemberFile.open(node.old_disk).record.start.count
        others = [each for each in self._cluster.nodes.values() if each is not node]
        return all(
            not each.is_damaged and remembers(each, node.node_id).count > copied for each in others
        )

    # Disks that lie.

    def _misdirect_write(self) -> bool:
        """Let a write land elsewhere, without an error."""
        node = self._victims.running(self._victims.may_lie)
        if node is None:
            return False
        node.is_damaged = True
        node.disk.misdirect_write(self._rng.randint(1, 4))
        return True

    def _flip(self, prefix: str) -> bool:
        """Flip a bit of some file, in a part that was written."""
        node = self._victims.running(self._victims.may_lie)
        if node is None or self._flip_bit(node, prefix) is None:
            return False
        node.is_damaged = True
        return True

    def _flip_bit(self, node: SimNode, prefix: str, *, spares_twins: bool = False) -> str | None:
        """Flip a bit of some file; return its path, or None when no file has content."""
        paths = [
            path
            for path in node.disk.paths()
            if path.startswith(prefix)
            and not node.is_flipped(path)
            and not (spares_twins and _has_flipped_twin(node, path))
        ]
        if not paths:
            return None
        path = self._rng.choice(paths)
        size = len(node.disk.content(path).rstrip(b"\0"))
        if not size:
            return None
        byte_offset, bit = self._rng.randrange(size), self._rng.randrange(8)
        node.disk.flip_bit(path, byte_offset, bit)
        self._cluster.trace_line(node, f"bit {bit} of byte {byte_offset} of {path} turns over")
        return path

    def _flip_snapshot(self) -> bool:
        """Flip a bit of a snapshot; any number may be damaged, since the log can replace them.

        Of a part one file stays whole as long as the member runs: without both it stops (`_flip_all_snapshots`).
        Not where logs lose their beginning: a member that has just begun its log anew has one snapshot only.
        """
        node = self._victims.any()
        if self._cluster.settings.keep_entries:
            if not self._victims.may_lie(node):
                return False
            node.is_damaged = True
        path = self._flip_bit(node, "snapshots/", spares_twins=True)
        if path is not None:
            node.flipped_snapshots[path] = node.disk.content(path)
        return path is not None

    def _flip_all_snapshots(self) -> bool:
        """Flip a bit of each snapshot of a member, which starts anew: its log may not reach back far enough."""
        node = self._victims.any()
        if not self._victims.may_lie(node):
            return False
        count = 0
        while (path := self._flip_bit(node, "snapshots/")) is not None:
            node.flipped_snapshots[path] = node.disk.content(path)
            count += 1
        node.is_damaged = count > 0
        self._crash(node, power_loss=False)
        return count > 0

    def _damage_all(self) -> bool:
        """Damage entries of every log at once, each on all members but one; some members start anew.

        Only where every store counts: what is whole on one member must not go with it. All run, for one that is
        down may have lost the index units that would distinguish damage in its last entries from a torn tail.
        """
        # Who was removed from the group is not asked for what the others lack.
        known = self._cluster.open_configurations()
        nodes = [
            node
            for name, node in self._cluster.nodes.items()
            if all(name in each.members for each in known)
        ]
        is_running = all(node.engine is not None for node in nodes)
        is_ready = is_running and not self._victims.lost_stores()
        if len(nodes) < 3 or not self._cluster.settings.fsync or not is_ready:
            return False
        share = self._rng.choice(DAMAGE_ALL_SHARES)
        flips = flips_on_all([entry_places(node.disk) for node in nodes], share, self._rng)
        if not any(flips):
            return False
        for node, struck in zip(nodes, flips, strict=True):
            for flip in struck:
                node.is_damaged = True
                node.disk.flip_bit(flip.path, flip.byte_offset, flip.bit)
            self._cluster.trace_line(node, f"{len(struck)} entries are damaged")
        for node in nodes:
            if self._rng.random() < 0.5:
                self._crash(node, power_loss=False)
        return True


def _has_flipped_twin(node: SimNode, path: str) -> bool:
    """Return whether the other file of the part in a file is damaged."""
    stem, _, _ = path.rpartition(".")
    return any(node.is_flipped(stem + suffix) for suffix in SUFFIXES if path.endswith(SUFFIXES))
