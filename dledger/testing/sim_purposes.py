"""Purposes of runs: settings in which one kind of trouble comes again and again.

A mix of everything hardly ever strings three of the same faults together, as some mistakes need. Each function here
takes settings that were drawn (`sim_draws`) and changes the knobs that its purpose needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from random import Random
from typing import TypeVar

from dledger.testing.sim_fault_kinds import LATER_KINDS, SHARED_KINDS, STORE_KINDS
from dledger.testing.sim_settings import SETTLE_TIMEOUTS_MAX, SimSettings

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

CHANGED = {
    "change-members": 6,
    "partition-half": 6,
    "cut-committing-leader": 1,
    "kill-one": 1,
    "crash-leader": 1,
    "wipe-one": 1,
    "heal": 8,
}
"""Faults of a run whose members change while leaders are cut off and members lost."""

CHANGED_OFTEN = {"change-members": 8, "heal": 6}
"""The same where nothing else happens but what the orders themselves bring."""

STOPPED = {"planned-stop": 1}
"""Faults of a run in which members are stopped in order, one at a time, and nothing goes wrong."""

SLOW_DISKS = {"slow-disk": 10, "heal": 2, "kill-one": 1}
"""Faults of a run in which leaders are to hand over for their slow disks."""


class Purpose(Enum):
    """The thing that a run is bent to."""

    MIXED = "everything, a little of each"
    CUTS = "leaders cut off one after another"
    LEASES = "leaders replaced behind their back"
    DISKS = "disks that fail, lie and are lost"
    SLOW = "leaders with slow disks"
    CLOCKS = "clocks that run apart, and answers that come late"
    STILL = "machines that stand still, and disks that take seconds"
    STOPS = "members that are stopped in order"
    MEMBERS = "members that are added and removed"


Settings = TypeVar("Settings", bound=SimSettings)


def only(settings: Settings, faults: Mapping[str, int]) -> Settings:
    """Let these faults come with these weights and no others, over links that lose and hold up nothing else."""
    weights = dict.fromkeys(settings.fault_weights, 0) | dict(faults)
    return replace(settings, fault_weights=weights, spike_permille=0, loss_permille=0)


def favour_cuts(settings: SimSettings) -> SimSettings:
    """Let entries travel one by one, make elections quick, and cut off about every second leader."""
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


def favour_leases(settings: SimSettings, weights: Mapping[str, int]) -> SimSettings:
    """Let elections follow as soon as a lease allows, and most calls be reads.

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


def favour_disks(settings: SimSettings) -> SimSettings:
    """Let disks lie, fail, lose what was not synced, be lost and put back; the network is kind.

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


def favour_slow_disks(settings: SimSettings) -> SimSettings:
    """Make all disks quick but one at a time, and let callers give all of them enough to do."""
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


def favour_clocks(settings: SimSettings) -> SimSettings:
    """Take the shipped lease, and clocks that run nearly as far apart as its margin bears; most calls are reads.

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


def favour_standstills(settings: SimSettings) -> SimSettings:
    """Take the shipped times and a kind network; nothing that goes wrong is a reason to replace the leader."""
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


def favour_stops(settings: SimSettings) -> SimSettings:
    """Take the shipped times and an intact network, in which the one reason for a new leader is a planned stop.

    Where one member is preferred, requests are large: it leads again once it lacks no more than one of them.
    """
    rng = Random(f"planned-stops/{settings.seed}")
    prefers_first = rng.random() < 0.2
    if prefers_first:
        settings = replace(settings, entries_count_max=64, entries_bytes_max=65536, inflight_max=8)
    return replace(
        favour_standstills(settings),
        fault_weights=dict.fromkeys(settings.fault_weights, 0) | STOPPED,
        prefers_first=prefers_first,
        fault_interval_ms=rng.choice((300, 1000)),
        forward_ms_max=rng.choice((0, 500, 3000)),
        restart_ms_max=rng.choice((5, 500)),
        transfer_ms=1000,
        client_count=rng.choice((1, 6)),
        think_ms_max=rng.choice((5, 150)),
        delay_max_ms=rng.choice((5, 20)),
    )


def favour_members(settings: SimSettings) -> SimSettings:
    """Make elections and changes quick, so that many of both meet."""
    rng = Random(f"favour-members/{settings.seed}")
    return replace(
        only(settings, rng.choice((CHANGED, CHANGED_OFTEN))),
        node_count=3,
        spare_count=rng.choice((1, 2, 3)),
        chaos_ms=5000,
        heartbeat_ms=20,
        lease_ms=40,
        election_min_ms=60,
        election_max_ms=180,
        transfer_ms=rng.choice((100, 1000)),
        fault_interval_ms=80,
        entries_count_max=64,
        entries_bytes_max=65536,
        inflight_max=4,
        delay_min_ms=0,
        delay_max_ms=rng.choice((2, 8)),
        replay_permille=0,
        sync_ms_max=rng.choice((0, 5)),
        restart_ms_max=rng.choice((5, 100)),
        client_count=6,
        think_ms_max=10,
        read_permille=100,
        settle_ms_max=SETTLE_TIMEOUTS_MAX * 180 + 3000,
        prefers_first=False,
        fsync=True,
    )
