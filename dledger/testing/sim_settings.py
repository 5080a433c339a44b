"""The knobs of one simulated run, as a value.

Rates are in permille, times in milliseconds of virtual time. `sim_draws` draws them from a seed, `sim_purposes` bends
them to a purpose; here nothing is drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from dledger.testing.sim_fault_kinds import PLANNED_KINDS, STEADY_KINDS

SETTLE_TIMEOUTS_MAX = 8
"""Longest election timeouts that a healed group may take to go on. A member that has to step
down waits for three of them; of 1500 runs the slowest took 3.1."""

REPAIRS_MAX = 200
"""The single entries that a member may have to ask for when all logs are damaged."""

REPAIR_WAITS_MS_MAX = 20_000
"""The time that it may wait meanwhile for members that do not answer (`ANSWER_TIMEOUT_MS` for each)."""


@dataclass(frozen=True, slots=True)
class SimSettings:
    """One run.

    Attributes:
        seed: what everything below, and every later draw, comes from.
        node_count: members that the group begins with: 1, 3 or 5.
        spare_count: nodes that may become members later.
        chaos_ms: length of the first phase, in which anything may fail.
        settle_ms_max: bound of the second phase, in which nothing fails and progress is demanded.
        heartbeat_ms, lease_ms, election_min_ms, election_max_ms, transfer_ms: the core's times.
        inflight_max, entries_count_max, entries_bytes_max, pending_max, reads_max: the core's
            bounds, small on purpose.
        prefers_first: whether leadership should go back to the first member.
        drift_permille_max: how much faster or slower than true time a node's clock may run.
        delay_min_ms, delay_max_ms: of a message.
        spike_permille, spike_ms_max: messages that take much longer, and so arrive out of order.
        loss_permille, duplicate_permille: messages lost, and delivered twice.
        replay_permille, replay_ms_max: messages delivered once more, up to so much later.
        clog_ms_max: how long a clogged link holds back what it is given.
        crash_fault_permille: power losses that may cost what was not synced; the others cost nothing.
        sync_ms_max: of an ordinary persist job; 0 means at once.
        slow_sync_ms_max: of a job while the disk is slow.
        slow_disk_ms: a leader that needs so much again and again hands over.
        fault_interval_ms: mean pause between faults.
        fault_weights: how often each of `ALL_KINDS` is chosen; 0: never in this run.
        restart_ms_max: how long a crashed node stays away.
        client_count, think_ms_max, client_timeout_ms: who asks, how often, how patiently.
        read_permille, transfer_permille: of the clients' operations; the others are appends.
        batch_max: bodies in one proposal.
        body_bytes_max: of one body.
        segment_size_bytes, cache_bytes_max: of the store, small so that segments roll and are read.
        fsync: False: entries are not synced, and no fault is a power loss (it would lose data).
        wire: whether messages pass through the bytes of the peer protocol.
        insists: a fault that finds its victim unfit looks for another.
        sockets: what comes for a member that pauses waits in its sockets, and its driver's rule holds when it runs
            again (sim_standstill.py); False: it comes in order of arrival, before or after deadlines.
        standstill_ms_max: how long a member pauses at most; 0: up to three of the shortest election timeouts.
        drifts_apart: each clock runs at one of the two bounds of its speed, not between them.
        is_steady: nothing that goes wrong in this run is a reason to replace the leader (`demands_steady`).
        forward_ms_min, forward_ms_max: how long a member that is told to stop goes on as a follower.
        keep_entries: entries that the group keeps at least before it forgets older ones; 0: it forgets nothing, and
            has no state machine. `catch_up_bytes_max` is the bound of what a leader keeps for others.
        snapshot_pause_ms: mean pause between two snapshots of a member of a group that forgets.
        torn_save_permille: of the deaths that come while a save is under way; it has got so far, then.
    """

    seed: int
    node_count: int = 3
    chaos_ms: int = 3000
    settle_ms_max: int = 20_000
    heartbeat_ms: int = 60
    lease_ms: int = 300
    election_min_ms: int = 450
    election_max_ms: int = 900
    transfer_ms: int = 1000
    inflight_max: int = 4
    entries_count_max: int = 8
    entries_bytes_max: int = 1024
    pending_max: int = 4096
    reads_max: int = 10_000
    prefers_first: bool = False
    drift_permille_max: int = 0
    delay_min_ms: int = 1
    delay_max_ms: int = 5
    spike_permille: int = 0
    spike_ms_max: int = 0
    loss_permille: int = 0
    duplicate_permille: int = 0
    replay_permille: int = 0
    replay_ms_max: int = 0
    clog_ms_max: int = 1000
    crash_fault_permille: int = 1000
    sync_ms_max: int = 2
    slow_sync_ms_max: int = 200
    slow_disk_ms: int = 300
    fault_interval_ms: int = 300
    fault_weights: dict[str, int] = field(default_factory=dict)
    restart_ms_max: int = 500
    client_count: int = 2
    think_ms_max: int = 60
    client_timeout_ms: int = 800
    read_permille: int = 250
    transfer_permille: int = 10
    batch_max: int = 3
    body_bytes_max: int = 100
    segment_size_bytes: int = 2048
    cache_bytes_max: int = 1024
    fsync: bool = True
    wire: bool = False
    insists: bool = False
    sockets: bool = False
    standstill_ms_max: int = 0
    drifts_apart: bool = False
    is_steady: bool = False
    forward_ms_min: int = 0
    forward_ms_max: int = 0
    torn_save_permille: int = 0
    keep_entries: int = 0
    catch_up_bytes_max: int = 0
    snapshot_pause_ms: int = 100
    spare_count: int = 0

    @property
    def changes_members(self) -> bool:
        """True if the members may change in the run."""
        return bool(self.fault_weights.get("change-members"))

    @property
    def demands_steady(self) -> bool:
        """True if a leader without a reason is a finding: in a steady run, unless a knob was changed that is one."""
        used = {kind for kind, weight in self.fault_weights.items() if weight}
        may_be_slow = self.slow_disk_ms <= self.chaos_ms  # an entry may wait for so long
        is_planned = used == set(PLANNED_KINDS)
        hands_over = (self.prefers_first and not is_planned) or self.transfer_permille
        loses = self.spike_permille or self.loss_permille
        is_bent = may_be_slow or hands_over or loses
        return self.is_steady and (is_planned or used <= STEADY_KINDS) and not is_bent

    @property
    def repair_ms_max(self) -> int:
        """The milliseconds by which the calm may take longer when all logs are damaged.

        Entries come back one by one, each a question and an answer, and a question may go to one that is silent.
        """
        return REPAIRS_MAX * (1 + 2 * self.delay_max_ms) + REPAIR_WAITS_MS_MAX

    def describe(self) -> list[tuple[str, str]]:
        """Return names and values for the printed head of a run."""
        rows = [
            (name, str(value)) for name, value in asdict(self).items() if name != "fault_weights"
        ]
        faults = " ".join(f"{kind}={weight}" for kind, weight in self.fault_weights.items())
        return [*rows, ("faults", faults or "none")]
