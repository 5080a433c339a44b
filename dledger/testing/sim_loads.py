"""The reads of old entries for members that lack them, in a simulated group: how long they take, and what they find.

A read happens when it ends: the log may have lost its beginning by then, its leader the lead.
"""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.catch_up import EntriesLoad
from dledger.engine import Engine
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode

LOAD_MS_MAX: Final = 5


class Loads:
    """Runs the reads of all members."""

    def __init__(self, cluster: SimGroup) -> None:
        self._cluster = cluster
        self._chance = Random(f"loads/{cluster.settings.seed}")

    def begin(self, node: SimNode, engine: Engine) -> None:
        """Start what a member's step has asked for."""
        if not engine.loads:
            return  # as the driver does; bench.calls counts
        cluster = self._cluster
        for load in engine.take_loads():
            is_calm = node.node_id in cluster.calm
            took_ms = 0 if is_calm else self._chance.randint(0, LOAD_MS_MAX)
            cluster.at(cluster.now_ms + took_ms, self.end, node, node.life, load)

    def end(self, node: SimNode, life: int, load: EntriesLoad) -> None:
        """Let a read end, in a member that still lives and runs."""
        cluster, engine = self._cluster, node.engine
        if engine is None or node.life != life:
            return
        if node.paused_until_ms > cluster.now_ms:
            cluster.at(node.paused_until_ms, self.end, node, life, load)
            return
        cluster.step_count += 1
        cluster.reached["entries-loaded"] += 1
        load.run()
        with cluster.disk_of(node):
            engine.loaded(load, node.local_ms(cluster.now_ms))
            cluster.drain(node, engine)
