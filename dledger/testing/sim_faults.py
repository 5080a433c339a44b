"""What goes wrong in a simulated run, and when: crashes, cuts, pauses and bad disks.

A fault is struck at random moments, its kind by the run's weights; some are armed and strike at the
next moment that hurts most (just after a vote left, just after an append was acknowledged, in the
middle of a save). Every fault carries its cure: crashed members return, pauses and slow disks end,
and cuts are healed by a fault of their own or at the end of the first phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from random import Random

from dledger.raft.effects import Role
from dledger.raft.events import PeerUnreachable
from dledger.raft.ids import NodeId
from dledger.raft.messages import AppendRequest, AppendResponse, Message, TimeoutNow, VoteResponse
from dledger.storage.hard_state import HARD_STATE_NAME
from dledger.storage.member_file import MemberFile
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_damage import entry_places, helical_flips
from dledger.testing.sim_meetings import remembers
from dledger.testing.sim_node import SimNode

HELICAL_SHARES = (0.05, 0.3, 1.0)
"""How much of what may be damaged in all logs at once is."""

FLAP_COUNT = 6
"""How often a flapping member is cut off and joined again."""

ARMED_KINDS = (
    "crash-after-vote",
    "crash-after-ack",
    "crash-all-after-ack",
    "cut-new-leader",
    "cut-committing-leader",
    "deafen-transferring-leader",
)
"""Faults that wait for the moment that hurts most; several may be armed at once."""


class SimFaults:
    """The faults of one run.

    Invariants: nothing is struck and nothing is armed once `stop` was called; `_unproven` holds the
    members that may not vote, since their stores are new. They and those whose disks have lied are a
    minority together, once the group was formed.

    Attributes:
        counts: how often each kind was struck; of those that wait for their moment, how often it came; of those
            that may cost a store, how often they found one that may be lost.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._rng = Random(f"faults/{cluster.settings.seed}")
        self._is_stopped = False
        self._unproven = set(cluster.voters)
        self._armed: dict[str, None] = {}
        self._last_leader_term = 0
        weights = cluster.settings.fault_weights
        self._kinds = tuple(kind for kind, weight in weights.items() if weight)
        self._weights = tuple(weight for weight in weights.values() if weight)
        self._strikes: dict[str, Callable[[], object]] = {
            "crash-one": self._crash_one,
            "crash-leader": self._crash_leader,
            "crash-all": self._crash_all,
            "crash-during-save": self._crash_during_save,
            "kill-one": self._kill_one,
            "partition-half": self._partition_half,
            "partition-one": self._partition_one,
            "partition-leader": self._partition_leader,
            "partition-bridge": self._partition_bridge,
            "partition-one-way": self._partition_one_way,
            "partition-creeping": self._partition_creeping,
            "flap": self._flap,
            "heal": cluster.network.heal,
            "pause": self._pause,
            "slow-disk": self._slow_disk,
            "fail-sync": self._fail_sync,
            "fail-read": self._fail_read,
            "full-disk": self._full_disk,
            "unreachable": self._unreachable,
            "wipe-one": self._wipe_one,
            "old-copy": self._old_copy,
            "clog": self._clog,
            "fail-write": self._fail_write,
            "misdirect-write": self._misdirect_write,
            "flip-log": partial(self._flip, "data/"),
            "flip-index": partial(self._flip, "index/"),
            "flip-hard-state": partial(self._flip, HARD_STATE_NAME),
            "flip-snapshot": self._flip_snapshot,
            "helical": self._helical,
        }
        for kind in ARMED_KINDS:
            self._strikes[kind] = partial(self._armed.setdefault, kind)
        cluster.on_sent = self._sent
        cluster.on_committed = self._committed

    def start(self) -> None:
        """Let things begin to go wrong."""
        if self._kinds:
            self._schedule()

    @property
    def struck_count(self) -> int:
        """Faults struck in all."""
        return sum(self.counts.values())

    def stop(self) -> None:
        """Nothing goes wrong any more."""
        self._is_stopped = True
        self._armed.clear()

    def pick_core(self) -> list[NodeId]:
        """A majority of members whose stores are sound, by chance; all that can start if there is none."""
        voters = self._cluster.voters
        self._look_for_proof()
        sound = [node_id for node_id in voters if node_id not in self._lost_stores()]
        least = len(voters) // 2 + 1
        if len(sound) < least:
            return list(voters)
        return self._rng.sample(sound, self._rng.randint(least, len(sound)))

    def _schedule(self) -> None:
        mean_ms = self._cluster.settings.fault_interval_ms
        pause_ms = 1 + int(self._rng.expovariate(1 / mean_ms))
        self._cluster.at(self._cluster.now_ms + pause_ms, self._strike)

    def _strike(self) -> None:
        """Do one fault, and schedule the next."""
        if self._is_stopped:
            return
        self._look_for_proof()
        kind = self._rng.choices(self._kinds, self._weights)[0]
        self._cluster.say(None, f"fault: {kind}")
        is_struck = self._strikes[kind]() is not False
        if kind not in ARMED_KINDS:
            self.counts[kind] += is_struck
        if kind.startswith(("partition", "heal")):
            self._cluster.say(None, f"network: {self._cluster.network.describe()}")
        self._schedule()

    def draws_even(self) -> bool:
        """One of two ways, by chance."""
        return self._rng.random() < 0.5

    def _look_for_proof(self) -> None:
        """Which members have become voters with their new stores."""
        for node in self._cluster.running():
            engine = node.engine
            is_proven = engine is not None and engine.node.is_voter and not engine.has_unsaved
            if is_proven and not node.is_outdated:
                self._unproven.discard(node.node_id)

    # Crashes.

    def _any_running(self) -> SimNode | None:
        nodes = self._cluster.running()
        return self._rng.choice(nodes) if nodes else None

    def _crash(self, node: SimNode | None, *, power_loss: bool = True) -> None:
        """Stop a member for a while; the others may notice that its connections broke."""
        if node is None or node.engine is None:
            return
        self._cluster.stop(node, power_loss=power_loss)
        self._cluster.start_later(node)
        if self._rng.random() < 0.5:
            self._tell_unreachable(node.node_id)

    def _tell_unreachable(self, lost: NodeId) -> None:
        """Members see the connection to `lost` break."""
        now_ms = self._cluster.now_ms
        for node in self._cluster.nodes.values():
            if node.node_id != lost:
                due_ms = now_ms + self._rng.randint(0, 5)
                self._cluster.at(due_ms, self._cluster.step, node, PeerUnreachable(lost))

    def _crash_one(self) -> None:
        self._crash(self._any_running())

    def _crash_leader(self) -> None:
        self._crash(self._cluster.leader())

    def _crash_all(self) -> None:
        for node in self._cluster.running():
            self._crash(node)

    def _kill_one(self) -> None:
        self._crash(self._any_running(), power_loss=False)

    def _crash_during_save(self) -> None:
        node = self._any_running()
        if node is not None:
            node.crashes_in_save = True

    def _lost_stores(self) -> set[NodeId]:
        """Members whose stores do not count."""
        damaged = {node.node_id for node in self._cluster.nodes.values() if node.is_damaged}
        return self._unproven | damaged

    def _is_spare(self, node: SimNode) -> bool:
        """Whether this member's store may be lost: a majority of stores must stay that lost nothing."""
        lost = self._lost_stores() | {node.node_id}
        return len(lost) <= (len(self._cluster.voters) - 1) // 2

    def _wipe_one(self) -> bool:
        """A member loses its disk for ever."""
        node = self._any_running()
        if node is None or not self._is_spare(node):
            return False
        self._unproven.add(node.node_id)
        self._cluster.stop(node, power_loss=True)
        self._cluster.wipe(node)
        self._cluster.start_later(node)
        return True

    def _old_copy(self) -> bool:
        """A member's disk is copied at one of its ends, and at a later one the copy takes its place.

        Only when the others know of a start that the copy does not: what nobody remembers, nobody can notice.
        """
        node = self._any_running()
        if node is None or node.is_damaged or node.is_outdated or not self._is_spare(node):
            return False
        if node.old_disk is None:
            self._cluster.stop(node, power_loss=True)
            node.old_disk = deepcopy(node.disk)
            node.old_disk.capacity_bytes = None
            self._cluster.say(node, "is copied")
        elif self._is_known_to_be_old(node):
            self._unproven.add(node.node_id)
            self._cluster.stop(node, power_loss=True)
            self._cluster.put_back(node)
        else:
            return False
        self._cluster.start_later(node)
        return True

    def _is_known_to_be_old(self, node: SimNode) -> bool:
        """Whether every other member remembers a start of this one that its copy does not know of."""
        assert node.old_disk is not None, "there is a copy"
        copied = MemberFile.open(node.old_disk).record.start.count
        others = [each for each in self._cluster.nodes.values() if each is not node]
        return all(
            not each.is_damaged and remembers(each, node.node_id).count > copied for each in others
        )

    # Armed.

    def _is_due(self, kind: str) -> bool:
        """Whether an armed fault strikes now; it strikes once."""
        if kind not in self._armed:
            return False
        del self._armed[kind]
        self.counts[kind] += 1
        self._cluster.say(None, f"fault strikes: {kind}")
        return True

    def _sent(self, node: SimNode, message: Message) -> None:
        """A message left: what is armed for it strikes its sender once this step is over."""
        now_ms = self._cluster.now_ms
        match message:
            case VoteResponse(granted=True):
                if self._is_due("crash-after-vote"):
                    self._cluster.at(now_ms, self._crash, node)
            case AppendResponse(success=True):
                if self._is_due("crash-after-ack"):
                    self._cluster.at(now_ms, self._crash, node)
                if self._is_due("crash-all-after-ack"):
                    self._cluster.at(now_ms, self._crash_all)
            case AppendRequest(term=term) if term > self._last_leader_term:
                self._last_leader_term = term
                if self._is_due("cut-new-leader"):
                    self._isolate(node.node_id)
            case TimeoutNow():
                if self._is_due("deafen-transferring-leader"):
                    self._deafen(node.node_id)
            case _:
                pass

    def _committed(self, node: SimNode) -> None:
        """A member learned of a commit: a leader that learns it first may be cut off at once."""
        engine = node.engine
        if engine is None or engine.node.role is not Role.LEADER:
            return
        if self._is_due("cut-committing-leader"):
            self._isolate(node.node_id)

    def _isolate(self, lone: NodeId) -> None:
        """Cut one member off, and join all others: what they lack is only with the lone one."""
        self._cluster.network.heal()
        self._split([lone])

    # The network.

    def _split(self, side: list[NodeId]) -> None:
        others = [node_id for node_id in self._cluster.voters if node_id not in side]
        self._cluster.network.cut_both(side, others)

    def _partition_half(self) -> None:
        voters = list(self._cluster.voters)
        self._rng.shuffle(voters)
        self._split(voters[: len(voters) // 2])

    def _partition_one(self) -> None:
        self._split([self._rng.choice(self._cluster.voters)])

    def _partition_leader(self) -> None:
        leader = self._cluster.leader()
        if leader is not None:
            self._split([leader.node_id])

    def _partition_bridge(self) -> None:
        """Two sides that do not see each other, and one member that sees both."""
        voters = list(self._cluster.voters)
        self._rng.shuffle(voters)
        rest = voters[1:]
        self._cluster.network.cut_both(rest[: len(rest) // 2], rest[len(rest) // 2 :])

    def _partition_creeping(self) -> None:
        """The leader loses the others one after another, so their timeouts run out apart."""
        leader = self._cluster.leader()
        if leader is None:
            return
        others = [node_id for node_id in self._cluster.voters if node_id != leader.node_id]
        self._rng.shuffle(others)
        due_ms = self._cluster.now_ms
        for other in others:
            self._cluster.at(due_ms, self._cut_pair, leader.node_id, other)
            due_ms += self._rng.randint(0, self._cluster.settings.lease_ms)

    def _cut_pair(self, one: NodeId, other: NodeId) -> None:
        if not self._is_stopped:
            self._cluster.network.cut_both([one], [other])

    def _partition_one_way(self) -> None:
        """One member is not heard, or does not hear."""
        lone = self._rng.choice(self._cluster.voters)
        if self._rng.random() < 0.5:
            self._deafen(lone)
        else:
            others = [node_id for node_id in self._cluster.voters if node_id != lone]
            self._cluster.network.cut([lone], others)

    def _deafen(self, lone: NodeId) -> None:
        """One member is heard, but does not hear."""
        others = [node_id for node_id in self._cluster.voters if node_id != lone]
        self._cluster.network.cut(others, [lone])

    def _flap(self) -> None:
        """A member is cut off and joined again, quickly, several times."""
        lone = self._rng.choice(self._cluster.voters)
        pace_ms = 1 + self._rng.randint(0, self._cluster.settings.lease_ms)
        for turn in range(FLAP_COUNT):
            due_ms = self._cluster.now_ms + turn * pace_ms
            self._cluster.at(due_ms, self._flap_once, lone, turn % 2 == 0)

    def _flap_once(self, lone: NodeId, is_cut: bool) -> None:
        if self._is_stopped:
            return
        if is_cut:
            self._split([lone])
        else:
            self._cluster.network.heal()

    def _clog(self) -> None:
        """What one member sends to another is held back for a while, and comes all at once."""
        source, target = self._rng.choices(self._cluster.voters, k=2)
        length_ms = self._rng.randint(1, self._cluster.settings.clog_ms_max)
        self._cluster.network.clog(source, target, self._cluster.now_ms + length_ms)

    def _unreachable(self) -> None:
        """Connections break though nobody died."""
        self._tell_unreachable(self._rng.choice(self._cluster.voters))

    # Slow and bad.

    def _pause(self) -> None:
        node = self._any_running()
        if node is not None:
            length_ms = self._rng.randint(1, 3 * self._cluster.settings.election_min_ms)
            self._cluster.pause(node, self._cluster.now_ms + length_ms)

    def _slow_disk(self) -> None:
        node = self._rng.choice(list(self._cluster.nodes.values()))
        length_ms = self._rng.randint(1, 4 * self._cluster.settings.election_min_ms)
        node.slow_until_ms = self._cluster.now_ms + length_ms

    def _fail_sync(self) -> None:
        node = self._any_running()
        if node is not None:
            node.disk.fail_sync(self._rng.randint(1, 4))

    def _fail_read(self) -> None:
        node = self._any_running()
        if node is not None:
            node.disk.fail_read(self._rng.randint(1, 4))

    def _full_disk(self) -> None:
        """No file can grow for a while."""
        node = self._rng.choice(list(self._cluster.nodes.values()))
        node.disk.capacity_bytes = 0
        length_ms = self._rng.randint(1, 2 * self._cluster.settings.election_min_ms)
        self._cluster.at(self._cluster.now_ms + length_ms, self._make_room, node)

    def _make_room(self, node: SimNode) -> None:
        if not node.is_frozen:
            node.disk.capacity_bytes = None

    def _fail_write(self) -> None:
        node = self._any_running()
        if node is not None:
            node.disk.fail_write(self._rng.randint(1, 4))

    # Disks that lie.

    def _may_lie(self, node: SimNode) -> bool:
        """Whether a log could tell: without syncs no index unit proves what was there.

        Nor does one when both are damaged, so that one lie for each member and disk is enough. While a member
        runs on an old copy nobody may forget that it does.
        """
        if any(each.is_outdated for each in self._cluster.nodes.values()):
            return False
        return self._cluster.settings.fsync and not node.is_damaged and self._is_spare(node)

    def _misdirect_write(self) -> bool:
        """A write lands elsewhere, and nobody is told."""
        node = self._any_running()
        if node is None or not self._may_lie(node):
            return False
        node.is_damaged = True
        node.disk.misdirect_write(self._rng.randint(1, 4))
        return True

    def _flip(self, prefix: str) -> bool:
        """A bit of a file turns over, where something was written."""
        node = self._any_running()
        if node is None or not self._may_lie(node) or self._flip_bit(node, prefix) is None:
            return False
        node.is_damaged = True
        return True

    def _flip_bit(self, node: SimNode, prefix: str) -> str | None:
        """Turn a bit of some file over; returns which file, None when none has content."""
        paths = [
            path
            for path in node.disk.paths()
            if path.startswith(prefix) and not node.is_flipped(path)
        ]
        if not paths:
            return None
        path = self._rng.choice(paths)
        size = len(node.disk.content(path).rstrip(b"\0"))
        if not size:
            return None
        byte_offset, bit = self._rng.randrange(size), self._rng.randrange(8)
        node.disk.flip_bit(path, byte_offset, bit)
        self._cluster.say(node, f"bit {bit} of byte {byte_offset} of {path} turns over")
        return path

    def _flip_snapshot(self) -> bool:
        """A bit of a snapshot turns over. It is an aid, and no store is lost with it: any number may be struck."""
        node = self._rng.choice(list(self._cluster.nodes.values()))
        path = self._flip_bit(node, "snapshots/")
        if path is not None:
            node.flipped_snapshots[path] = node.disk.content(path)
        return path is not None

    def _helical(self) -> bool:
        """Entries of every log are damaged at once, each on all members but one; some members start anew.

        Only where every store counts: what is whole on one member must not go with it. All run, for one that is
        down may have lost the index units that would tell damage in its last entries from a torn tail.
        """
        nodes = list(self._cluster.nodes.values())
        is_ready = len(self._cluster.running()) == len(nodes) and not self._lost_stores()
        if len(nodes) < 3 or not self._cluster.settings.fsync or not is_ready:
            return False
        share = self._rng.choice(HELICAL_SHARES)
        flips = helical_flips([entry_places(node.disk) for node in nodes], share, self._rng)
        if not any(flips):
            return False
        for node, struck in zip(nodes, flips, strict=True):
            for flip in struck:
                node.is_damaged = True
                node.disk.flip_bit(flip.path, flip.byte_offset, flip.bit)
            self._cluster.say(node, f"{len(struck)} entries are damaged")
        for node in nodes:
            if self._rng.random() < 0.5:
                self._crash(node, power_loss=False)
        return True
