"""The faults of a simulated run and their times: crashes, pauses, and faults of network and disks.

A fault is struck at random moments, its kind by the run's weights; some are armed and strike at the
next moment that hurts most (just after a vote left, just after an append was acknowledged, in the
middle of a save). Every fault carries its cure: crashed members return, pauses and slow disks end,
and cuts are healed by a fault of their own or at the end of the first phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from dledger.raft.effects import Role
from dledger.raft.ids import NodeId
from dledger.raft.messages import AppendRequest, AppendResponse, Message, TimeoutNow, VoteResponse
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_disk_faults import DiskFaults
from dledger.testing.sim_members import MemberOrders
from dledger.testing.sim_network_faults import NetworkFaults
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_stops import PlannedStops
from dledger.testing.sim_victims import Victims

WALL_JUMP_MS = 3_600_000
"""Far more than any delay in these runs."""

LEADER_STOPS = 0.7
"""The odds that a planned stop is one of the leader's member."""

STILL_MS_MIN, STILL_MS_MAX = 50, 3000
"""The milliseconds for which a machine or a process stands still."""

STILL_SPREAD_MS = 5
"""The processes of a machine run again one after another."""

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

    Invariant: nothing is struck and nothing is armed once `stop` was called.

    Attributes:
        counts: how often each kind was struck; of those that wait for their moment, how often it came; of those
            that may cost a store, how often they found one that may be lost.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._rng = Random(f"faults/{cluster.settings.seed}")
        self._is_stopped = False
        self._victims = Victims(cluster, self._rng)
        self._network = NetworkFaults(cluster, self._rng)
        self._stops = PlannedStops(cluster, Random(f"forwarding/{cluster.settings.seed}"))
        orders = Random(f"orders/{cluster.settings.seed}")
        self._members = MemberOrders(cluster, self._victims.lost_stores, orders)
        self._armed: dict[str, None] = {}
        self._last_leader_term = 0
        self._still_until_ms = 0
        weights = cluster.settings.fault_weights
        self._kinds = tuple(kind for kind, weight in weights.items() if weight)
        self._weights = tuple(weight for weight in weights.values() if weight)
        self._strikes: dict[str, Callable[[], object]] = {
            "crash-one": self._crash_one,
            "crash-leader": self._crash_leader,
            "crash-all": self._crash_all,
            "crash-during-save": self._crash_during_save,
            "kill-one": self._kill_one,
            "cut-and-restart": self._cut_and_restart,
            "pause": self._pause,
            "stand-still": self._stand_still,
            "planned-stop": self._stop_in_order,
            "change-members": self._members.order,
            "jump-wall-clock": self._jump_wall_clock,
            **self._network.strikes(),
            **DiskFaults(cluster, self._victims, self._rng, self._crash).strikes(),
        }
        for kind in ARMED_KINDS:
            self._strikes[kind] = partial(self._armed.setdefault, kind)
        cluster.on_sent = self._sent
        cluster.on_committed = self._committed

    def start(self) -> None:
        """Schedule the first fault."""
        if self._kinds:
            self._schedule()

    @property
    def struck_count(self) -> int:
        """Faults struck in all."""
        return sum(self.counts.values())

    def stop(self) -> None:
        """Strike no more faults."""
        self._is_stopped = self._network.is_stopped = self._stops.is_over = True
        self._armed.clear()

    def pick_core(self) -> list[NodeId]:
        """Choose a majority of members whose stores are sound, by chance; all that can start if there is none."""
        voters = self._cluster.voters
        self._victims.look_for_proof()
        lost = self._victims.lost_stores()
        if self._cluster.settings.changes_members:
            return self._pick_changed_core(lost)
        sound = [node_id for node_id in voters if node_id not in lost]
        least = len(voters) // 2 + 1
        if len(sound) < least:
            return list(voters)
        return self._rng.sample(sound, self._rng.randint(least, len(sound)))

    def _pick_changed_core(self, lost: set[NodeId]) -> list[NodeId]:
        """Choose nodes with sound stores that are a majority of each configuration that may hold; all if none are."""
        core = [node_id for node_id in self._cluster.node_ids if node_id not in lost]
        groups = [set(each.voters) for each in self._cluster.open_configurations()]

        def decides(chosen: list[NodeId]) -> bool:
            return all(2 * len(group.intersection(chosen)) > len(group) for group in groups)

        if not decides(core):
            return list(self._cluster.node_ids)
        for node_id in self._rng.sample(core, len(core)):
            fewer = [each for each in core if each != node_id]
            if decides(fewer) and self._rng.random() < 0.5:
                core = fewer
        return core

    def draws_even(self) -> bool:
        """Choose one of two ways, by chance."""
        return self._rng.random() < 0.5

    def _schedule(self) -> None:
        mean_ms = self._cluster.settings.fault_interval_ms
        pause_ms = 1 + int(self._rng.expovariate(1 / mean_ms))
        self._cluster.at(self._cluster.now_ms + pause_ms, self._strike)

    def _strike(self) -> None:
        """Do one fault, and schedule the next."""
        if self._is_stopped:
            return
        self._victims.look_for_proof()
        kind = self._rng.choices(self._kinds, self._weights)[0]
        self._cluster.trace_line(None, f"fault: {kind}")
        is_struck = self._strikes[kind]() is not False
        if kind not in ARMED_KINDS:
            self.counts[kind] += is_struck
        if kind.startswith(("partition", "heal")):
            self._cluster.trace_line(None, f"network: {self._cluster.network.describe()}")
        self._schedule()

    # Crashes.

    def _crash(self, node: SimNode | None, *, power_loss: bool = True) -> None:
        """Stop a member for a while; the others may notice that its connections broke."""
        if node is None or node.engine is None:
            return
        self._cluster.stop(node, power_loss=power_loss)
        self._cluster.start_later(node)
        if self._rng.random() < 0.5:
            self._network.report_unreachable(node.node_id)

    def _crash_one(self) -> None:
        self._crash(self._victims.running())

    def _crash_leader(self) -> None:
        self._crash(self._cluster.leader())

    def _crash_all(self) -> None:
        for node in self._cluster.running():
            self._crash(node)

    def _kill_one(self) -> None:
        self._crash(self._victims.running(), power_loss=False)

    def _crash_during_save(self) -> None:
        node = self._victims.running()
        if node is not None:
            node.crashes_in_save = True

    def _cut_and_restart(self) -> bool:
        """Cut the leader off from one member after another, and restart the last one at once."""
        leader = self._cluster.leader()
        if leader is None or len(self._cluster.node_ids) < 3:
            return False
        settings = self._cluster.settings
        self._cluster.network.heal()
        last, last_ms = self._network.cut_one_by_one(
            leader.node_id, after_ms=2 * settings.heartbeat_ms, least_ms=settings.lease_ms // 2
        )
        due_ms = last_ms + self._rng.randint(0, 5)
        self._cluster.at(due_ms, self._restart, self._cluster.nodes[last])
        return True

    def _restart(self, node: SimNode) -> None:
        """Kill a member, which comes back at once."""
        if not self._is_stopped and node.engine is not None:
            self._cluster.stop(node, power_loss=False)
            self._cluster.at(self._cluster.now_ms + 1, self._cluster.start, node)

    def _pause(self) -> None:
        node = self._victims.running()
        if node is not None:
            settings = self._cluster.settings
            most_ms = settings.standstill_ms_max or 3 * settings.election_min_ms
            length_ms = self._rng.randint(1, most_ms)
            self._cluster.pause(node, self._cluster.now_ms + length_ms)

    def _stand_still(self) -> bool:
        """Let members' processes stand still in a way that does not justify a new leader.

        All of them for any time (one machine runs them), a follower for any time, or the leader for less than
        its followers wait.
        """
        cluster, settings = self._cluster, self._cluster.settings
        now_ms = cluster.now_ms
        leader, running = cluster.leader(), cluster.running()
        if leader is None or now_ms < self._still_until_ms + 2 * settings.heartbeat_ms:
            return False
        length_ms = self._rng.randint(STILL_MS_MIN, STILL_MS_MAX)
        match self._rng.choice(("all", "leader", "follower")):
            case "all":
                struck = running
            case "leader":
                struck = [leader]
                length_ms = self._rng.randint(1, settings.election_min_ms // 2)
            case _:
                struck = [self._rng.choice(running)]
                if struck == [leader]:
                    return False
        for node in struck:
            cluster.pause(node, now_ms + length_ms + self._rng.randint(0, STILL_SPREAD_MS))
        self._still_until_ms = now_ms + length_ms + STILL_SPREAD_MS
        return True

    def _stop_in_order(self) -> bool:
        """Tell a member to stop, mostly the leader."""
        node = self._cluster.leader() if self._rng.random() < LEADER_STOPS else None
        node = node or self._victims.running()
        return node is not None and self._stops.begin(node)

    def _jump_wall_clock(self) -> None:
        """Set a wall clock an hour wrong, or right again. Who starts then finds it right."""
        node = self._victims.any()
        node.wall_jump_ms = self._rng.choice((-WALL_JUMP_MS, 0, WALL_JUMP_MS))

    # Armed.

    def _is_due(self, kind: str) -> bool:
        """Return whether an armed fault strikes now, and disarm it: it strikes once."""
        if kind not in self._armed:
            return False
        del self._armed[kind]
        self.counts[kind] += 1
        self._cluster.trace_line(None, f"fault strikes: {kind}")
        return True

    def _sent(self, node: SimNode, message: Message) -> None:
        """Note that a message left: what is armed for it strikes its sender once this step is over."""
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
                    self._network.isolate(node.node_id)
            case TimeoutNow():
                if self._is_due("deafen-transferring-leader"):
                    self._network.deafen(node.node_id)
            case _:
                pass

    def _committed(self, node: SimNode) -> None:
        """Note that a member learned of a commit: a leader that learns it first may be cut off at once."""
        engine = node.engine
        if engine is None or engine.node.role is not Role.LEADER:
            return
        if self._is_due("cut-committing-leader"):
            self._network.isolate(node.node_id)
