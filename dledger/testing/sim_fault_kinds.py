"""The names of the faults that a simulated run may have, and what groups of them have in common.

The faults themselves are in `sim_faults`, `sim_disk_faults` and `sim_network_faults`; how often each comes is a
setting of the run (`sim_settings`).
"""

from __future__ import annotations

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
"""Everything that can go wrong on purpose (docs/testing.md explains each)."""

GROWN_KINDS = (
    "clog",
    "fail-write",
    "misdirect-write",
    "flip-log",
    "flip-index",
    "flip-hard-state",
    "wipe-one",
)
"""Faults of grown runs (`sim_draws`), beside those above. All but the first two may cost a member its
store, so they strike a minority only."""

STORE_KINDS = GROWN_KINDS[2:]
"""Those that may."""

SHARED_KINDS = ("damage-all",)
"""Faults of some grown runs that strike all stores at once."""

SNAPSHOT_KINDS = ("flip-snapshot", "flip-all-snapshots")
"""Faults of groups that take snapshots."""

MACHINE_KINDS = (*SNAPSHOT_KINDS, "jump-wall-clock")
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

PLANNED_KINDS = ("planned-stop",)
"""Faults of draws 5, which a group should hardly feel."""

MEMBER_KINDS = ("change-members",)
"""Faults of draws 6: what an operator does meanwhile."""

ALL_KINDS = (
    FAULT_KINDS
    + GROWN_KINDS
    + SHARED_KINDS
    + MACHINE_KINDS
    + LATER_KINDS
    + NEWER_KINDS
    + STILL_KINDS
    + PLANNED_KINDS
    + MEMBER_KINDS
)

STEADY_KINDS = frozenset(("stand-still", "slow-disk"))
"""Faults that are no reason to replace the leader."""
