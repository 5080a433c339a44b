"""The knobs of one simulated run, all drawn from its seed (swarm testing).

Every knob may be off: a run in which everything goes wrong at once rarely gets far enough to go
wrong in an interesting way (TigerBeetle's VOPR draws its options in the same spirit). Rates are in
permille, times in milliseconds of virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from random import Random
from typing import TypeVar

FAULT_KINDS = (
    "crash-one",
    "crash-leader",
    "crash-all",
    "crash-after-vote",
    "crash-after-ack",
    "crash-all-after-ack",
    "crash-during-save",
    "kill-one",
    "partition-half",
    "partition-one",
    "partition-leader",
    "partition-bridge",
    "partition-one-way",
    "partition-creeping",
    "cut-new-leader",
    "cut-committing-leader",
    "deafen-transferring-leader",
    "flap",
    "heal",
    "pause",
    "slow-disk",
    "fail-sync",
    "fail-read",
    "full-disk",
    "unreachable",
)
"""Everything that can go wrong on purpose (docs/testing.md tells what each does)."""

GROWN_KINDS = (
    "clog",
    "fail-write",
    "misdirect-write",
    "flip-log",
    "flip-index",
    "flip-hard-state",
    "wipe-one",
)
"""Faults of grown runs (`draw_settings`), beside those above. All but the first two may cost a member its
store, so they strike a minority only."""

STORE_KINDS = GROWN_KINDS[2:]
"""Those that may."""

SHARED_KINDS = ("damage-all",)
"""Faults of some grown runs that strike all stores at once."""

MACHINE_KINDS = ("flip-snapshot", "jump-wall-clock")
"""Faults of groups with a state machine, whose own simulator draws them: the log takes no snapshots, and reads no
wall clock."""

LATER_KINDS = ("old-copy",)
"""Faults of some of the grown runs, drawn from a stream of their own."""

NEWER_KINDS = (
    "fail-start",
    "fail-sync-and-power",
    "hold-answers",
    "cut-and-restart",
)
"""Faults of draws 3, beside all those."""

STILL_KINDS = ("stand-still", "late-answers")
"""Faults of draws 4."""

DRAWS_CLASSIC, DRAWS_GROWN, DRAWS_RIPE, DRAWS_NOW = 1, 2, 3, 4
"""How a seed's settings are drawn: as for the first seeds, with the grown faults, with the newer ones, with
everything. A kept seed means the same run only with the draws under which it failed."""

ALL_KINDS = (
    FAULT_KINDS
    + GROWN_KINDS
    + SHARED_KINDS
    + MACHINE_KINDS
    + LATER_KINDS
    + NEWER_KINDS
    + STILL_KINDS
)

OLD_COPY_PERMILLE = 200
"""How many of the grown runs put old copies of disks back; they have handshakes, the others have none."""


REPAIRS_MAX = 200
"""How many single entries a member may have to ask for when all logs are damaged."""

REPAIR_WAITS_MS_MAX = 20_000
"""How long it may wait meanwhile for members that do not answer (`ANSWER_TIMEOUT_MS` for each)."""


@dataclass(frozen=True, slots=True)
class SimSettings:
    """One run.

    Attributes:
        seed: what everything below, and every later draw, comes from.
        node_count: members of the group: 1, 3 or 5.
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
    torn_save_permille: int = 0

    @property
    def demands_steady(self) -> bool:
        """Whether a second leader is a finding: in a steady run, unless a knob was changed that is a reason for one."""
        used = {kind for kind, weight in self.fault_weights.items() if weight}
        may_be_slow = self.slow_disk_ms <= self.chaos_ms  # an entry may wait for so long
        hands_over = self.prefers_first or self.transfer_permille
        loses = self.spike_permille or self.loss_permille
        return self.is_steady and used <= STILL.keys() and not (may_be_slow or hands_over or loses)

    @property
    def repair_ms_max(self) -> int:
        """How much longer the calm may take when all logs are damaged.

        Entries come back one by one, each a question and an answer, and a question may go to one that is silent.
        """
        return REPAIRS_MAX * (1 + 2 * self.delay_max_ms) + REPAIR_WAITS_MS_MAX

    def describe(self) -> list[tuple[str, str]]:
        """Names and values for the printed head of a run."""
        rows = [
            (name, str(value)) for name, value in asdict(self).items() if name != "fault_weights"
        ]
        faults = " ".join(f"{kind}={weight}" for kind, weight in self.fault_weights.items())
        return [*rows, ("faults", faults or "none")]


SETTLE_TIMEOUTS_MAX = 8
"""Longest election timeouts that a healed group may take to go on. A member that was told to step
down waits for three of them; of 1500 runs the slowest took 3.1."""

CATCH_UP_ROUNDS_MAX = 100
"""How many round trips a follower of the core may need for what it has missed."""

SPECIAL_PERMILLE = 100
"""How many of the runs are bent to each of the first two purposes below."""

DISKS_PERMILLE, SLOW_PERMILLE = 200, 40
"""How many are bent to each of the next two."""

CLOCKS_PERMILLE, STILL_PERMILLE = 80, 40
"""How many are bent to each of the last two."""

LEADERS_CUT = {"cut-new-leader": 1, "cut-committing-leader": 1}
"""Faults of a run in which leaders are cut off just as they begin or commit. Figure 8 of the Raft
paper takes three such cuts in a row, which a mix of everything hardly ever strings together."""

LEASES_TRIED = {
    "crash-one": 3,
    "kill-one": 2,
    "partition-leader": 2,
    "partition-bridge": 2,
    "partition-creeping": 4,
    "deafen-transferring-leader": 4,
    "pause": 1,
    "heal": 3,
}
"""Faults of a run in which a leader is replaced behind its back while callers still read from it."""


LEASES_TRIED_HARD = {**LEASES_TRIED, "hold-answers": 8, "cut-and-restart": 8, "heal": 16}
"""The same with what came later: late answers, promises that a restart must not end, and more time with a leader."""

DISKS_STRUCK = {
    "crash-one": 3,
    "crash-all": 1,
    "kill-one": 3,
    "crash-after-ack": 1,
    "crash-during-save": 1,
    "fail-sync-and-power": 2,
    "fail-start": 2,
    "fail-read": 1,
    "fail-write": 1,
    "full-disk": 1,
    "partition-leader": 1,
    "cut-committing-leader": 1,
    "heal": 3,
}
"""Faults of a run in which disks go wrong, beside those that a store may not survive."""

CLOCKS_TRIED = {
    "late-answers": 6,
    "hold-answers": 2,
    "partition-leader": 4,
    "partition-creeping": 2,
    "pause": 4,
    "heal": 8,
}
"""Faults of a run whose clocks run apart: leaders that are replaced behind their back, and hear of it late."""

STILL = {"stand-still": 10, "slow-disk": 2}
"""Faults of a run in which nobody gives a reason to replace the leader."""

SLOW_DISKS = {"slow-disk": 10, "heal": 2, "kill-one": 1}
"""Faults of a run in which leaders are to hand over for their slow disks."""


class Purpose(Enum):
    """What a run is bent to."""

    MIXED = "everything, a little of each"
    CUTS = "leaders cut off one after another"
    LEASES = "leaders replaced behind their back"
    DISKS = "disks that fail, lie and are lost"
    SLOW = "leaders with slow disks"
    CLOCKS = "clocks that run apart, and answers that come late"
    STILL = "machines that stand still, and disks that take seconds"


def purpose_of(seed: int, draws: int = DRAWS_NOW) -> Purpose:
    """What the run of a seed is bent to; older draws know the first two, or the first four, only."""
    drawn = Random(f"purpose/{seed}").random() * 1000
    shares = [(Purpose.CUTS, SPECIAL_PERMILLE), (Purpose.LEASES, SPECIAL_PERMILLE)]
    if draws >= DRAWS_RIPE:
        shares += [(Purpose.DISKS, DISKS_PERMILLE), (Purpose.SLOW, SLOW_PERMILLE)]
    if draws >= DRAWS_NOW:
        shares += [(Purpose.CLOCKS, CLOCKS_PERMILLE), (Purpose.STILL, STILL_PERMILLE)]
    for purpose, permille in shares:
        if drawn < permille:
            return purpose
        drawn -= permille
    return Purpose.MIXED


def draw_settings(seed: int, *, wire: bool = False, draws: int = DRAWS_NOW) -> SimSettings:
    """Draw a run's knobs from its seed.

    Args:
        seed: of the run.
        wire: insists on the wire's bytes; else chance decides.
        draws: which knobs and chances there are: `DRAWS_NOW`, or those of older seeds.
    """
    is_ripe = draws >= DRAWS_RIPE
    settings = _draw_mixed(seed, wire=wire)
    settings = _ripen(settings) if is_ripe else settings
    settings = _stand_still(settings) if draws >= DRAWS_NOW else settings
    match purpose_of(seed, draws):
        case Purpose.CUTS:
            return _bend_to_cuts(settings)
        case Purpose.LEASES:
            return _bend_to_leases(settings, LEASES_TRIED_HARD if is_ripe else LEASES_TRIED)
        case Purpose.DISKS:
            return _bend_to_disks(_share(_grow(settings)))
        case Purpose.SLOW:
            return _bend_to_slow_disks(_share(_grow(settings)))
        case Purpose.CLOCKS:
            return _bend_to_clocks(settings)
        case Purpose.STILL:
            return _bend_to_standstills(settings)
        case Purpose.MIXED:
            return settings if draws == DRAWS_CLASSIC else _share(_grow(settings))


def _ripen(settings: SimSettings) -> SimSettings:
    """Add what came last, from a stream of its own."""
    rng = Random(f"ripe/{settings.seed}")
    weights = {kind: rng.choice((0, 0, 1, 3)) for kind in NEWER_KINDS}
    return replace(
        settings,
        fault_weights={**settings.fault_weights, **weights},
        insists=True,
        torn_save_permille=rng.choice((0, 500, 1000)),
    )


def _stand_still(settings: SimSettings) -> SimSettings:
    """Let members stand still as processes do, from a stream of its own."""
    rng = Random(f"still/{settings.seed}")
    weights = {kind: rng.choice((0, 0, 1, 3)) for kind in STILL_KINDS}
    standstill_ms_max = rng.choice((0, 3000))
    return replace(
        settings,
        fault_weights={**settings.fault_weights, **weights},
        sockets=True,
        standstill_ms_max=standstill_ms_max,
        # Nothing wakes a member before its time: one that the others need may stand still into the calm.
        settle_ms_max=settings.settle_ms_max + standstill_ms_max,
    )


def _share(settings: SimSettings) -> SimSettings:
    """Let all stores be damaged at once, in some runs; from a stream of its own, as in `_grow`.

    That needs stores of which none is lost yet, so half of these runs have no faults that cost single ones.
    """
    rng = Random(f"shared/{settings.seed}")
    weights = dict(settings.fault_weights)
    weights["damage-all"] = rng.choice((0, 0, 0, 0, 1, 5))
    if not weights["damage-all"] or settings.node_count < 3:
        return replace(settings, fault_weights=weights)
    if rng.random() < 0.5:
        weights |= dict.fromkeys(STORE_KINDS, 0)
    return replace(settings, fault_weights=weights)


def _grow(settings: SimSettings) -> SimSettings:
    """Add what came later, from a stream of its own, so that the other knobs of old seeds stay.

    The ranges are those of TigerBeetle's VOPR: loss 0 to 30 %, replay 0 to 50 %, a fault on 80 to 100 %
    of the crashes.
    """
    rng = Random(f"grown/{settings.seed}")
    weights = {kind: rng.choice((0, 0, 1, 3)) for kind in GROWN_KINDS}
    if rng.random() < 0.2:
        weights[rng.choice(GROWN_KINDS)] = 10
    later = Random(f"old-copy/{settings.seed}")
    if later.random() * 1000 < OLD_COPY_PERMILLE:
        weights["old-copy"] = later.choice((2, 5, 10))
    loss_permille, replay_permille = settings.loss_permille, 0
    if rng.random() < 0.3:
        loss_permille = rng.randint(0, 300)
    if rng.random() < 0.4:
        replay_permille = rng.randint(0, 500)
    replay_ms_max = rng.choice((settings.lease_ms, 1000, 5000))
    clog_ms_max = rng.choice((settings.heartbeat_ms, settings.lease_ms, 2000))
    return replace(
        settings,
        fault_weights={**settings.fault_weights, **weights},
        # What is on its way when the calm begins may come so late, and a replayed request of a leader
        # that is no more still keeps others from campaigning.
        # Entries may have to travel one by one, too, each over a slow link and refused when out of order.
        settle_ms_max=settings.settle_ms_max
        + replay_ms_max
        + clog_ms_max
        + CATCH_UP_ROUNDS_MAX * settings.delay_max_ms,
        loss_permille=loss_permille,
        replay_permille=replay_permille,
        replay_ms_max=replay_ms_max,
        clog_ms_max=clog_ms_max,
        crash_fault_permille=rng.randint(800, 1000),
        slow_disk_ms=rng.choice((settings.slow_disk_ms, 5, 20)),
    )


Settings = TypeVar("Settings", bound=SimSettings)


def only(settings: Settings, faults: Mapping[str, int]) -> Settings:
    """Let these faults come with these weights and no others, over links that lose and hold up nothing else."""
    weights = dict.fromkeys(settings.fault_weights, 0) | dict(faults)
    return replace(settings, fault_weights=weights, spike_permille=0, loss_permille=0)


def _bend_to_cuts(settings: SimSettings) -> SimSettings:
    """Entries travel one by one, elections are quick, and about every second leader is cut off."""
    return replace(
        only(settings, LEADERS_CUT),
        node_count=3,
        heartbeat_ms=20,
        lease_ms=40,
        election_min_ms=50,
        election_max_ms=100,
        fault_interval_ms=50,
        entries_count_max=1,
        inflight_max=1,
        delay_min_ms=0,
        delay_max_ms=2,
        sync_ms_max=0,
    )


def _bend_to_leases(settings: SimSettings, weights: Mapping[str, int]) -> SimSettings:
    """Elections follow as soon as a lease allows, and most calls are reads.

    Few appends, so that a member that was cut off a little earlier can still win an election.
    """
    heartbeat_ms = 20
    lease_ms = 5 * heartbeat_ms
    return replace(
        only(settings, weights),
        node_count=3,
        heartbeat_ms=heartbeat_ms,
        fault_interval_ms=2 * lease_ms,
        lease_ms=lease_ms,
        election_min_ms=lease_ms,
        election_max_ms=2 * lease_ms,
        drift_permille_max=30,
        delay_min_ms=0,
        delay_max_ms=2,
        sync_ms_max=0,
        restart_ms_max=5,
        client_count=4,
        think_ms_max=20,
        client_timeout_ms=heartbeat_ms,
        read_permille=960,
        transfer_permille=20,
    )


def _bend_to_disks(settings: SimSettings) -> SimSettings:
    """Disks lie, fail, lose what was not synced, are lost and put back; the network is kind.

    One of the faults that may cost a store comes often: a minority of stores may be lost at a time, so that a mix
    of all of them would be a mix of few each.
    """
    rng = Random(f"disks/{settings.seed}")
    favourite = rng.choice((*STORE_KINDS, *SHARED_KINDS, *LATER_KINDS))
    weights = DISKS_STRUCK | {kind: rng.choice((0, 1, 2)) for kind in STORE_KINDS}
    weights |= {"wipe-one": 2, favourite: 8}
    return replace(
        only(settings, weights),
        node_count=rng.choice((3, 3, 5)),
        chaos_ms=4000,
        fault_interval_ms=rng.choice((60, 150)),
        restart_ms_max=rng.choice((5, 100, 300)),
        replay_permille=0,
        segment_size_bytes=rng.choice((512, 2048)),
        cache_bytes_max=rng.choice((0, 0, 1024)),
        think_ms_max=20,
        fsync=True,
    )


def _bend_to_slow_disks(settings: SimSettings) -> SimSettings:
    """Disks are quick but for one at a time, and callers give all of them enough to do."""
    return replace(
        only(settings, SLOW_DISKS),
        node_count=3,
        chaos_ms=6000,
        fault_interval_ms=800,
        slow_disk_ms=10,
        sync_ms_max=2,
        slow_sync_ms_max=200,
        delay_min_ms=0,
        delay_max_ms=1,
        replay_permille=0,
        client_count=4,
        think_ms_max=10,
        fsync=True,
    )


def _bend_to_clocks(settings: SimSettings) -> SimSettings:
    """The shipped lease, clocks that run nearly as far apart as its margin bears, and most calls are reads.

    A tenth of the lease bears clocks that are up to 52 permille too fast or too slow; here times are whole
    milliseconds.
    """
    rng = Random(f"clocks/{settings.seed}")
    return replace(
        only(settings, CLOCKS_TRIED),
        node_count=3,
        chaos_ms=8000,
        heartbeat_ms=60,
        lease_ms=300,
        election_min_ms=300,
        election_max_ms=rng.choice((310, 900)),
        fault_interval_ms=rng.choice((200, 400)),
        drift_permille_max=45,
        drifts_apart=True,
        delay_min_ms=0,
        delay_max_ms=1,
        duplicate_permille=0,
        sync_ms_max=0,
        settle_ms_max=SETTLE_TIMEOUTS_MAX * 900 + 1000,
        client_count=4,
        think_ms_max=20,
        client_timeout_ms=60,
        read_permille=980,
        transfer_permille=0,
        prefers_first=False,
    )


def _bend_to_standstills(settings: SimSettings) -> SimSettings:
    """The shipped times, a kind network, and nothing that goes wrong is a reason to replace the leader."""
    rng = Random(f"standstills/{settings.seed}")
    return replace(
        only(settings, STILL),
        node_count=rng.choice((3, 3, 5)),
        chaos_ms=5000,
        heartbeat_ms=60,
        lease_ms=300,
        election_min_ms=450,
        election_max_ms=900,
        fault_interval_ms=rng.choice((200, 500)),
        is_steady=True,
        drift_permille_max=rng.choice((0, 10)),
        delay_min_ms=0,
        delay_max_ms=5,
        duplicate_permille=0,
        sync_ms_max=rng.choice((0, 5)),
        slow_sync_ms_max=3000,
        slow_disk_ms=1_000_000,
        client_count=1,
        think_ms_max=150,
        settle_ms_max=SETTLE_TIMEOUTS_MAX * 900 + 4000,
        transfer_permille=0,
        prefers_first=False,
        fsync=True,
    )


def _draw_mixed(seed: int, *, wire: bool) -> SimSettings:
    """Draw every knob on its own."""
    rng = Random(f"settings/{seed}")
    node_count = rng.choices((1, 3, 5), weights=(1, 7, 2))[0]
    heartbeat_ms = rng.choice((20, 40, 60))
    lease_ms = heartbeat_ms * rng.choice((2, 3, 5))
    election_min_ms = lease_ms + rng.choice((0, lease_ms // 2))
    delay_max_ms = rng.choice((1, 5, 20, lease_ms // 2))
    election_max_ms = election_min_ms + rng.choice((10, lease_ms, 3 * lease_ms))
    is_noisy = rng.random() < 0.6
    return SimSettings(
        seed=seed,
        node_count=node_count,
        chaos_ms=rng.randint(1500, 3000) if node_count < 5 else rng.randint(1000, 2000),
        settle_ms_max=SETTLE_TIMEOUTS_MAX * election_max_ms + 1000,
        heartbeat_ms=heartbeat_ms,
        lease_ms=lease_ms,
        election_min_ms=election_min_ms,
        election_max_ms=election_max_ms,
        transfer_ms=rng.choice((lease_ms, 1000)),
        inflight_max=rng.choice((1, 2, 4, 8)),
        entries_count_max=rng.choice((1, 3, 8, 64)),
        entries_bytes_max=rng.choice((200, 1024, 65536)),
        pending_max=rng.choice((1, 4, 4096)),
        reads_max=rng.choice((1, 10_000)),
        prefers_first=rng.random() < 0.1,
        drift_permille_max=rng.choice((0, 0, 10, 30)),
        delay_min_ms=min(delay_max_ms, rng.choice((0, 1, 2))),
        delay_max_ms=delay_max_ms,
        spike_permille=rng.choice((0, 20, 100)) if is_noisy else 0,
        spike_ms_max=rng.choice((lease_ms, 4 * election_min_ms)),
        loss_permille=rng.choice((0, 10, 50, 300)) if is_noisy else 0,
        duplicate_permille=rng.choice((0, 50, 300)) if is_noisy else 0,
        sync_ms_max=rng.choice((0, 2, 10, lease_ms)),
        slow_sync_ms_max=rng.choice((lease_ms, 2 * election_min_ms)),
        fault_interval_ms=rng.choice((60, 150, 300, 800)),
        fault_weights=_draw_weights(rng),
        restart_ms_max=rng.choice((5, 200, 1000)),
        client_count=rng.choice((1, 2, 4)),
        think_ms_max=rng.choice((10, 60, 150)),
        client_timeout_ms=rng.choice((200, 800)),
        read_permille=rng.choice((0, 200, 500)),
        transfer_permille=rng.choice((0, 0, 20, 100)),
        batch_max=rng.choice((1, 3, 8)),
        body_bytes_max=rng.choice((16, 100, 600)),
        segment_size_bytes=rng.choice((512, 2048, 65536)),
        cache_bytes_max=rng.choice((0, 1024, 65536)),
        fsync=rng.random() >= 0.05,
        wire=wire or rng.random() < 0.2,
    )


def _draw_weights(rng: Random) -> dict[str, int]:
    """Weights of the faults; about half of the kinds are switched off altogether."""
    weights = {kind: rng.choice((0, 0, 1, 4)) for kind in FAULT_KINDS}
    if rng.random() < 0.3:
        favourite = rng.choice(FAULT_KINDS)
        weights[favourite] = 10
    return weights
