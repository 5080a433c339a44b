"""A simulated broker takes over another member's state as `SnapshotFetch` does: step by step, beside the one it shows.

Between the steps everything else goes on, but nothing is folded; the member may die. Nothing here knows when a state is
needed, or what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

from broker.store.state import BrokerState
from broker.testing.sim_broker import SimBroker
from dledger.errors import CorruptionError
from dledger.starting_state import load_steps
from dledger.state_machine import SnapshotRefusedError
from dledger.storage.snapshots import SnapshotFile, SnapshotStore
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode

STEPS_MAX = 12
"""Steps between two turns of everybody else."""

Taken = Callable[[SimNode, SnapshotFile], None]


class TakingIn:
    """The states that are being taken in; of each member one at a time."""

    def __init__(self, group: SimGroup, taken: Taken, chance: Random, pause_ms_max: int) -> None:
        """Set up one group.

        Args:
            group: whose members these are.
            taken: called once a member shows the state of a snapshot.
            chance: for the steps.
            pause_ms_max: the longest time that a turn of everybody else takes.
        """
        self._group = group
        self._taken = taken
        self._chance = chance
        self._pause_ms_max = pause_ms_max
        self._busy: set[SimBroker] = set()

    def begin(
        self, node: SimNode, broker: SimBroker, store: SnapshotStore, snapshot: SnapshotFile
    ) -> None:
        """Begin to take in a snapshot that is on the member's disk, unless it takes in one already."""
        if broker in self._busy:
            return
        self._busy.add(broker)
        taken_in = broker.state.beside()
        broker.driver.hold_fold()
        steps = load_steps(store, snapshot, taken_in)
        self._step(node, broker, snapshot, (taken_in, steps))

    def _step(
        self,
        node: SimNode,
        broker: SimBroker,
        snapshot: SnapshotFile,
        building: tuple[BrokerState, Iterator[None]],
    ) -> None:
        """Carry out some steps; after the last one the member shows the state."""
        if not broker.is_up:
            return
        taken_in, steps = building
        count = self._chance.randint(1, STEPS_MAX)
        try:
            if sum(1 for _ in islice(steps, count)) == count:
                pause_ms = 1 + self._chance.randint(0, self._pause_ms_max)
                self._group.at(
                    self._group.now_ms + pause_ms, self._step, node, broker, snapshot, building
                )
                return
            broker.state.swap(taken_in)
        except (OSError, CorruptionError, SnapshotRefusedError) as error:
            self._group.trace_line(node, f"takes no snapshot in: {error}")
        else:
            with self._group.disk_of(node):
                self._taken(node, snapshot)
        self._busy.remove(broker)
        for _ in taken_in.giving_up():
            pass
        broker.driver.release_fold()
