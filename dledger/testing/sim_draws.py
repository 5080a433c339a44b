"""Drawing the knobs of a run from its seed (swarm testing).

Every knob may be off: a run in which everything goes wrong at once rarely gets far enough to go
wrong in an interesting way (TigerBeetle's VOPR draws its options in the same spirit). What came later is
drawn from streams of its own, so that a kept seed goes on meaning the same run.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from dledger.testing.sim_fault_kinds import (
    FAULT_KINDS,
    GROWN_KINDS,
    NEWER_KINDS,
    PLANNED_KINDS,
    STILL_KINDS,
    STORE_KINDS,
)
from dledger.testing.sim_purposes import (
    LEASES_TRIED,
    LEASES_TRIED_HARD,
    Purpose,
    favour_clocks,
    favour_cuts,
    favour_disks,
    favour_leases,
    favour_members,
    favour_slow_disks,
    favour_standstills,
    favour_stops,
)
from dledger.testing.sim_settings import SETTLE_TIMEOUTS_MAX, SimSettings

DRAWS_CLASSIC, DRAWS_GROWN, DRAWS_RIPE, DRAWS_STILL, DRAWS_STOPS, DRAWS_MEMBERS = range(1, 7)
DRAWS_POPS, DRAWS_NOW = 7, 8
"""The ways in which a seed's settings are drawn: as for the first seeds, with the grown faults, with the newer
ones, with standstills, with planned stops, with changes of the members and forgetting, with clients of brokers that
pop, with everything (brokers change their members, too). A kept seed means the same run only with the draws under
which it failed."""

OLD_COPY_PERMILLE = 200
"""The share of the grown runs that put old copies of disks back; they have handshakes, the others have none."""

FORGETS_PERMILLE = 500
"""The share of the mixed runs, and of those with bad disks, in which the group forgets the beginning of its log."""

FETCH_MS_MAX = 3000
"""The time that a snapshot, and what leads to it, may take longer than entries."""

CATCH_UP_ROUNDS_MAX = 100
"""The round trips that a follower of the core may need for what it has missed."""

SPECIAL_PERMILLE = 100
"""The share of the runs that is bent to each of the first two purposes below."""

DISKS_PERMILLE, SLOW_PERMILLE = 200, 40
"""The share that is bent to each of the next two."""

CLOCKS_PERMILLE, STILL_PERMILLE = 80, 40
"""The share that is bent to each of the next two."""

STOPS_PERMILLE = 40
"""The share that is bent to the next one."""

MEMBERS_PERMILLE = 100
"""The share that is bent to the last one."""


def purpose_of(seed: int, draws: int = DRAWS_NOW) -> Purpose:
    """Return the purpose of a seed's run; older versions of the draw know fewer purposes."""
    drawn = Random(f"purpose/{seed}").random() * 1000
    shares = [(Purpose.CUTS, SPECIAL_PERMILLE), (Purpose.LEASES, SPECIAL_PERMILLE)]
    if draws >= DRAWS_RIPE:
        shares += [(Purpose.DISKS, DISKS_PERMILLE), (Purpose.SLOW, SLOW_PERMILLE)]
    if draws >= DRAWS_STILL:
        shares += [(Purpose.CLOCKS, CLOCKS_PERMILLE), (Purpose.STILL, STILL_PERMILLE)]
    if draws >= DRAWS_STOPS:
        shares.append((Purpose.STOPS, STOPS_PERMILLE))
    if draws >= DRAWS_MEMBERS:
        shares.append((Purpose.MEMBERS, MEMBERS_PERMILLE))
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
    settings = _stand_still(settings) if draws >= DRAWS_STILL else settings
    settings = _stop(settings) if draws >= DRAWS_STOPS else settings
    may_forget = (
        draws >= DRAWS_MEMBERS and Random(f"forgets/{seed}").random() * 1000 < FORGETS_PERMILLE
    )
    match purpose_of(seed, draws):
        case Purpose.CUTS:
            return favour_cuts(settings)
        case Purpose.LEASES:
            return favour_leases(settings, LEASES_TRIED_HARD if is_ripe else LEASES_TRIED)
        case Purpose.DISKS:
            settings = favour_disks(_share(_grow(settings)))
            return _forget(settings) if may_forget else settings
        case Purpose.SLOW:
            return favour_slow_disks(_share(_grow(settings)))
        case Purpose.CLOCKS:
            return favour_clocks(settings)
        case Purpose.STILL:
            return favour_standstills(settings)
        case Purpose.STOPS:
            return favour_stops(settings)
        case Purpose.MEMBERS:
            return favour_members(settings)
        case Purpose.MIXED:
            settings = settings if draws == DRAWS_CLASSIC else _share(_grow(settings))
            if may_forget:
                return _forget(settings)
            return _change(settings) if draws >= DRAWS_MEMBERS else settings


def _ripen(settings: SimSettings) -> SimSettings:
    """Draw the newest knobs from a stream of their own, so that older knobs of a seed stay the same."""
    rng = Random(f"ripe/{settings.seed}")
    weights = {kind: rng.choice((0, 0, 1, 3)) for kind in NEWER_KINDS}
    return replace(
        settings,
        fault_weights={**settings.fault_weights, **weights},
        insists=True,
        torn_save_permille=rng.choice((0, 500, 1000)),
    )


def _stand_still(settings: SimSettings) -> SimSettings:
    """Draw the knobs of process standstills, from a stream of their own."""
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


def _stop(settings: SimSettings) -> SimSettings:
    """Draw the knobs of planned stops, from a stream of their own."""
    rng = Random(f"stops/{settings.seed}")
    weights = {kind: rng.choice((0, 0, 1, 3)) for kind in PLANNED_KINDS}
    return replace(
        settings,
        fault_weights={**settings.fault_weights, **weights},
        forward_ms_max=rng.choice((0, 100, 1000)),
    )


def _forget(settings: SimSettings) -> SimSettings:
    """Let the group have a state machine, snapshots and a log that loses its beginning, from a stream of their own.

    Not with damage on all stores at once: what one has lost of the part that the others have forgotten, nobody can
    give back. It costs the member its store, and there may be more such members than a group bears.
    """
    rng = Random(f"forgetting/{settings.seed}")
    weights = dict(settings.fault_weights) | {
        "damage-all": 0,
        "flip-snapshot": rng.choice((0, 0, 1, 3)),
    }
    weights["flip-all-snapshots"] = Random(f"all-snapshots/{settings.seed}").choice((0, 0, 1, 3))
    return replace(
        settings,
        fault_weights=weights,
        keep_entries=rng.choice((5, 20, 60)),
        catch_up_bytes_max=rng.choice((0, 1000, 10_000)),
        snapshot_pause_ms=rng.choice((30, 100, 300)),
        segment_size_bytes=rng.choice((512, 512, 2048)),
        settle_ms_max=settings.settle_ms_max + FETCH_MS_MAX,
    )


def draw_forgetting_members(seed: int) -> SimSettings:
    """Draw a run that changes members, and let its group forget the beginning of its log as well.

    So members are added that have to begin behind it, with what the leader tells them of the members.
    """
    return _forget(draw_settings(seed))


def _change(settings: SimSettings) -> SimSettings:
    """Draw the knobs of changing members, from a stream of their own."""
    rng = Random(f"members/{settings.seed}")
    weight = rng.choice((0, 0, 2, 6))
    spare_count = rng.choice((0, 1, 2))
    if not weight or settings.node_count < 3:
        return settings
    weights = {**settings.fault_weights, "change-members": weight}
    return replace(settings, fault_weights=weights, spare_count=spare_count)


def _share(settings: SimSettings) -> SimSettings:
    """Draw the knobs of damage on all stores at once, from a stream of their own, as in `_grow`.

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
    """Draw the knobs added later from a stream of their own, so that old seeds keep their other knobs.

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
    """Draw the weights of the faults; about half of the kinds are switched off altogether."""
    weights = {kind: rng.choice((0, 0, 1, 4)) for kind in FAULT_KINDS}
    if rng.random() < 0.3:
        favourite = rng.choice(FAULT_KINDS)
        weights[favourite] = 10
    return weights
