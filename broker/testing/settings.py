"""The knobs of one simulated run with brokers: those of the log's simulator, and the brokers' own.

Nothing here runs anything: every knob is drawn from the seed, and printed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from random import Random

from broker.server.handlers.pop_returns import RETURN_MS
from broker.server.requests.request import HOLD_MS
from dledger.config import RaftConfig
from dledger.raft.ids import NodeId
from dledger.testing.sim_draws import (
    DRAWS_CLASSIC,
    DRAWS_MEMBERS,
    DRAWS_NOW,
    DRAWS_POPS,
    DRAWS_RIPE,
    DRAWS_STILL,
    draw_settings,
    purpose_of,
)
from dledger.testing.sim_fault_kinds import MEMBER_KINDS
from dledger.testing.sim_purposes import STOPPED, Purpose, only
from dledger.testing.sim_settings import SimSettings


@dataclass(frozen=True, slots=True)
class BrokerSimSettings(SimSettings):
    """The settings of one run; of the clients' settings in `SimSettings` only `client_timeout_ms` counts here.

    Attributes:
        producer_count, transaction_count, consumer_count, keeper_count: clients of each kind.
        pause_ms_max: longest pause of a client between two things that it does.
        topic_count, queue_count: what they work on.
        delayed_permille, timed_permille, batch_permille, recall_permille: of what producers send.
        undecided_permille, rollback_permille: how local transactions end.
        back_permille, lock_permille: messages that are given back, rounds in which the queue is locked.
        break_permille: messages between a client and a broker at which their connection breaks.
        wall_offset_ms_max: how wrong the wall clock of a starting broker may be, either way.
        snapshot_interval_ms: mean pause between a broker's snapshots; 0: none are taken.
        snapshot_step_ms_max: pause between two steps of writing one.
        juggler_count: clients of that kind.
        renewed_permille: of their rounds those in which each attempt is made anew.
        twin_permille: half messages that are sent under the key of the one before.
        look_permille: rounds of a consumer in which it only asks for its offset.
        pull_anywhere_permille: pulls that go to any member, whoever leads.
        hand_over_interval_ms: mean pause between an operator's orders to hand over; 0: there are none.
        due_ms_max: time after which messages with a due time are to come, at most.
        forget_bytes: size to which the group holds its log; 0: it forgets nothing.
        drops_log: members give back the bytes of what is forgotten, and bring each other up by snapshots.
        setter_count: operators who change that size.
        popper_count: clients that pop.
        pop_ordered_permille: of what they do, in order.
        pop_batch_permille, pop_change_permille, pop_forget_permille: of what they get: acknowledged together, given
            another time, left alone.
        pop_retries_max: deliveries after which a popped message is a dead letter.
        invisible_ms_max: longest time for which one is invisible.
        pop_return_ms: so long after its time was over it waits for somebody who pops.
    """

    producer_count: int = 2
    transaction_count: int = 1
    consumer_count: int = 1
    pause_ms_max: int = 60
    topic_count: int = 2
    queue_count: int = 2
    delayed_permille: int = 150
    timed_permille: int = 150
    batch_permille: int = 100
    recall_permille: int = 300
    undecided_permille: int = 250
    rollback_permille: int = 250
    back_permille: int = 200
    lock_permille: int = 300
    break_permille: int = 0
    wall_offset_ms_max: int = 0
    snapshot_interval_ms: int = 600
    snapshot_step_ms_max: int = 20
    hand_over_interval_ms: int = 0
    look_permille: int = 0
    pull_anywhere_permille: int = 0
    keeper_count: int = 0
    juggler_count: int = 0
    renewed_permille: int = 300
    twin_permille: int = 0
    due_ms_max: int = 1500
    forget_bytes: int = 0
    drops_log: bool = False
    setter_count: int = 0
    popper_count: int = 0
    pop_ordered_permille: int = 0
    pop_batch_permille: int = 0
    pop_change_permille: int = 0
    pop_forget_permille: int = 0
    pop_retries_max: int = 16
    invisible_ms_max: int = 1000
    pop_return_ms: int = RETURN_MS


FORGET_PERMILLE = 200
"""The share of the runs that are bent to nothing else in which the group forgets the beginning of its log."""

FORGET_CHANGED_PERMILLE = 500
"""The same of those that are bent to changing members, so that some begin with another one's state."""

POP_PERMILLE = 400
"""The share of the runs in which somebody pops, of those whose clients do a bit of everything."""

CHANGE_PERMILLE = 300
"""The share of the runs that are bent to nothing in which members are added and removed."""

REPEAT_AGE_MS = 5000
"""The age up to which sends are recognised in such a run: longer than a client of it tries."""

REGISTER_PERMILLE = 150
"""The share of the runs that are bent to nothing which have keepers instead of everything else."""

REGISTER_FAULTS = {
    "hold-answers": 6,
    "partition-one-way": 3,
    "partition-leader": 3,
    "partition-one": 2,
    "partition-bridge": 1,
    "kill-one": 2,
    "crash-one": 1,
    "pause": 2,
    "cut-and-restart": 2,
    "heal": 4,
}
"""Faults that make leaders of the past and members that know of none, while somebody else goes on."""

LATE_ANSWER_FAULTS = {"hold-answers": 10, "heal": 2, "kill-one": 1, "pause": 1}
"""Leaders of the past that hear at last what had been answered before."""

MIXED_KNOBS = frozenset(field.name for field in fields(SimSettings))


def draw_broker_settings(
    seed: int, *, wire: bool = False, draws: int = DRAWS_NOW
) -> BrokerSimSettings:
    """Draw a run's knobs from its seed; see `draw_settings`."""
    base = asdict(draw_settings(seed, wire=wire, draws=draws))
    # Who changes the members of brokers has draws of its own.
    base["spare_count"] = 0
    base["fault_weights"] = {**base["fault_weights"], **dict.fromkeys(MEMBER_KINDS, 0)}
    is_planned = purpose_of(seed, draws) is Purpose.STOPS
    base["keep_entries"] = 0  # simulated brokers keep their whole log so far
    base["is_steady"] = is_planned  # else operators order hand-overs
    rng = Random(f"broker-settings/{seed}")
    wall_offset_ms_max = rng.choice((0, 0, 500, 3000))
    # The brokers' entries are larger, and a group that cannot take two of them gets nothing done.
    base["entries_bytes_max"] = max(base["entries_bytes_max"], 4096)
    base["pending_max"] = max(base["pending_max"], 4)
    base["segment_size_bytes"] = rng.choice((4096, 16_384, 262_144))
    base["cache_bytes_max"] = rng.choice((0, 4096, 262_144))
    base["chaos_ms"] = rng.randint(2000, 4000)
    base["settle_ms_max"] += 20_000 + 2 * wall_offset_ms_max
    base["client_timeout_ms"] = rng.choice((300, 1000, 3000))
    if draws > DRAWS_CLASSIC:
        flips = Random(f"flip-snapshot/{seed}").choice((0, 0, 1, 4))
        base["fault_weights"] = {**base["fault_weights"], "flip-snapshot": flips}
    ripe = Random(f"ripe-broker/{seed}")
    hand_over_interval_ms = 0
    if draws >= DRAWS_RIPE:
        base["fault_weights"]["jump-wall-clock"] = ripe.choice((0, 0, 1, 3))
        hand_over_interval_ms = ripe.choice((0, 0, 200, 800))
    settings = BrokerSimSettings(
        **base,
        producer_count=rng.choice((1, 2, 3)),
        transaction_count=rng.choice((0, 1, 2)),
        consumer_count=rng.choice((0, 1, 2)),
        pause_ms_max=rng.choice((5, 40, 200)),
        topic_count=rng.choice((1, 2)),
        queue_count=rng.choice((1, 2, 4)),
        delayed_permille=rng.choice((0, 150, 400)),
        timed_permille=rng.choice((0, 150, 400)),
        batch_permille=rng.choice((0, 100, 300)),
        recall_permille=rng.choice((0, 300, 700)),
        undecided_permille=rng.choice((0, 250, 500)),
        rollback_permille=rng.choice((0, 250, 400)),
        back_permille=rng.choice((0, 200, 500)),
        lock_permille=rng.choice((0, 300, 900)),
        break_permille=rng.choice((0, 20, 100)),
        wall_offset_ms_max=wall_offset_ms_max,
        snapshot_interval_ms=rng.choice((0, 200, 600, 1500)),
        snapshot_step_ms_max=rng.choice((0, 20, 100)),
        hand_over_interval_ms=hand_over_interval_ms,
    )
    if draws >= DRAWS_STILL:
        settings = _with_jugglers(settings)
        anywhere = Random(f"pull-anywhere/{seed}")
        settings = replace(settings, pull_anywhere_permille=anywhere.choice((0, 300, 900)))
    if is_planned:
        return _with_stops(settings)
    if draws >= DRAWS_RIPE and purpose_of(seed, draws) is Purpose.LEASES:
        return _with_readers(settings)
    changes = draws >= DRAWS_NOW and Random(f"changes/{seed}").random() * 1000 < CHANGE_PERMILLE
    if is_register_run(seed, draws):
        settings = _with_keepers(settings)
        return with_changes(settings) if changes else settings
    if is_forgetful_run(seed, draws):
        settings = with_forgetting(settings)
    if draws >= DRAWS_POPS and Random(f"pops/{seed}").random() * 1000 < POP_PERMILLE:
        settings = with_poppers(settings)
    is_for_changes = draws >= DRAWS_NOW and purpose_of(seed, draws) is Purpose.MEMBERS
    changes = changes and purpose_of(seed, draws) is Purpose.MIXED
    return with_changes(settings) if changes or is_for_changes else settings


def with_changes(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Let an operator change the members, of whom a group has at least three; spare nodes wait to be added.

    Not with damage on all stores at once, which may cost every member that has a vote its store.
    """
    rng = Random(f"changes-broker/{settings.seed}")
    weight = rng.choice((2, 6))
    weights = {**settings.fault_weights, "damage-all": 0, "change-members": weight}
    return replace(
        settings,
        fault_weights=weights,
        node_count=max(3, settings.node_count),
        spare_count=rng.choice((1, 2)),
        fault_interval_ms=min(settings.fault_interval_ms, rng.choice((150, 300))),
        is_steady=False,
    )


def is_forgetful_run(seed: int, draws: int = DRAWS_NOW) -> bool:
    """Return whether the group of a seed's run forgets."""
    if draws < DRAWS_MEMBERS or is_register_run(seed, draws):
        return False
    drawn = Random(f"forgets-broker/{seed}").random() * 1000
    match purpose_of(seed, draws):
        case Purpose.MIXED:
            return drawn < FORGET_PERMILLE
        case Purpose.MEMBERS:
            return draws >= DRAWS_NOW and drawn < FORGET_CHANGED_PERMILLE
        case _:
            return False


def with_forgetting(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Let the group keep little of its log; clients try briefly and clocks are right, so that sends are soon old.

    Where bytes are given back nothing is damaged on all stores at once: nobody could give it back.
    """
    rng = Random(f"forgetting-broker/{settings.seed}")
    weights = {**settings.fault_weights, "jump-wall-clock": 0}
    drops = Random(f"drops-log/{settings.seed}")
    drops_log = drops.choice((False, True))
    if drops_log:
        weights |= {"damage-all": 0, "flip-snapshot": 0}
    return replace(
        settings,
        fault_weights=weights,
        forget_bytes=rng.choice((6_000, 20_000)),
        segment_size_bytes=rng.choice((2048, 4096)),
        client_timeout_ms=300,
        pause_ms_max=rng.choice((20, 60)),
        fault_interval_ms=rng.choice((400, 1000)),
        wall_offset_ms_max=0,
        chaos_ms=9000,
        producer_count=2,
        consumer_count=rng.choice((1, 2)),
        timed_permille=rng.choice((0, 20)),
        due_ms_max=rng.choice((1500, 8000)),
        juggler_count=0,
        twin_permille=0,
        snapshot_interval_ms=rng.choice((200, 600)),
        drops_log=drops_log,
        catch_up_bytes_max=drops.choice((0, 2000, 20_000)),
        setter_count=Random(f"setters/{settings.seed}").choice((0, 1)),
    )


def with_poppers(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Add clients that pop what others send."""
    rng = Random(f"poppers/{settings.seed}")
    return replace(
        settings,
        popper_count=rng.choice((1, 2, 4)),
        pop_ordered_permille=rng.choice((0, 300, 700)),
        pop_batch_permille=rng.choice((0, 300, 700)),
        pop_change_permille=rng.choice((0, 200)),
        pop_forget_permille=rng.choice((0, 100, 400)),
        pop_retries_max=rng.choice((1, 3, 16)),
        invisible_ms_max=rng.choice((100, 500, 2000)),
        pop_return_ms=rng.choice((0, 300, RETURN_MS)),
    )


def is_register_run(seed: int, draws: int = DRAWS_NOW) -> bool:
    """Return whether a seed's run has keepers."""
    if draws < DRAWS_RIPE or purpose_of(seed, draws) is not Purpose.MIXED:
        return False
    return Random(f"registers/{seed}").random() * 1000 < REGISTER_PERMILLE


def _with_keepers(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Set times as shipped and faults that last: offsets are written and read at every member, whoever leads."""
    rng = Random(f"keepers/{settings.seed}")
    faults, interval_ms = rng.choice(
        ((REGISTER_FAULTS, 600), (REGISTER_FAULTS, 2500), *2 * ((LATE_ANSWER_FAULTS, 2500),))
    )
    lone = NodeId("n0")
    shipped = RaftConfig(lone, (lone,))
    return replace(
        only(settings, faults),
        node_count=3,
        heartbeat_ms=shipped.heartbeat_interval_ms,
        lease_ms=shipped.lease_ms,
        election_min_ms=rng.choice((shipped.lease_ms, shipped.election_timeout_min_ms)),
        election_max_ms=rng.choice((1, 2)) * shipped.election_timeout_max_ms,
        fault_interval_ms=interval_ms,
        drift_permille_max=30,
        delay_min_ms=0,
        delay_max_ms=3,
        sync_ms_max=rng.choice((0, 5)),
        client_timeout_ms=HOLD_MS + 1000,
        chaos_ms=8000,
        producer_count=2,
        batch_permille=500,
        transaction_count=0,
        consumer_count=0,
        juggler_count=0,
        keeper_count=10,
        hand_over_interval_ms=0,
        pause_ms_max=60,
        topic_count=1,
        queue_count=1,
        delayed_permille=0,
        timed_permille=0,
        break_permille=0,
    )


def _with_jugglers(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Add clients that regroup and repeat what they send, drawn from a stream of their own."""
    rng = Random(f"jugglers/{settings.seed}")
    return replace(
        settings,
        juggler_count=rng.choice((0, 1, 2)),
        renewed_permille=rng.choice((0, 300, 700)),
        twin_permille=rng.choice((0, 300)),
    )


def _with_stops(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Let clients only send, while members are stopped in order, each of which serves until they have moved."""
    rng = Random(f"served/{settings.seed}")
    return replace(
        settings,
        fault_weights=dict.fromkeys(settings.fault_weights, 0) | STOPPED,
        prefers_first=False,
        chaos_ms=8000,
        forward_ms_min=1000,
        forward_ms_max=2000,
        producer_count=rng.choice((1, 3)),
        transaction_count=rng.choice((0, 1)),
        consumer_count=0,
        juggler_count=0,
        pause_ms_max=rng.choice((5, 40)),
        batch_permille=rng.choice((0, 300)),
        recall_permille=0,
        break_permille=0,
        hand_over_interval_ms=0,
        client_timeout_ms=HOLD_MS + 1000,
    )


def _with_readers(settings: BrokerSimSettings) -> BrokerSimSettings:
    """Add several consumers of one queue, who mostly ask how far they are: also leaders that are no more."""
    return replace(
        settings,
        producer_count=1,
        transaction_count=0,
        juggler_count=0,
        consumer_count=4,
        pause_ms_max=5,
        topic_count=1,
        queue_count=1,
        delayed_permille=0,
        timed_permille=0,
        lock_permille=0,
        back_permille=0,
        look_permille=700,
        client_timeout_ms=300,
        chaos_ms=6000,
    )
