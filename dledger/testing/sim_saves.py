"""The persist jobs of a simulated group: how long they take, and what becomes of one that is cut short.

A job writes when it ends. Who dies before that has got so far with it as chance says, if the run tears saves,
and else has not begun. A power loss half way through can also be asked for (`SimNode.crashes_in_save`).
"""

from __future__ import annotations

from random import Random

from dledger.engine import Engine, PersistJob
from dledger.errors import DiskFullError, DLedgerError
from dledger.raft.events import StepDown
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode

SAVE_WRITES_MAX = 8
"""A crash during a save strikes at one of its first writes; most saves have fewer."""

SAVE_STEPS_MAX = 12
"""A torn save has come so far at most, in writes and syncs: a hard state takes six, entries a few more."""

FULL_RETRY_MS = 50
"""A member whose disk is full leads no longer, and tries its save again so often."""


class Saves:
    """Runs the jobs of all members, one of each at a time."""

    def __init__(self, cluster: SimGroup) -> None:
        self._cluster = cluster
        self._chance = Random(f"saves/{cluster.settings.seed}")

    def begin(self, node: SimNode, engine: Engine) -> None:
        """Start a job, if there is anything to save."""
        job = engine.begin_persist()
        if job is None:
            return
        node.job = job
        cluster = self._cluster
        cluster.at(cluster.now_ms + self._sync_ms(node), self.end, node, node.life, job)

    def end(self, node: SimNode, life: int, job: PersistJob) -> None:
        """Let a job write, sync and end; or its disk fail; or the power, half way."""
        cluster, engine = self._cluster, node.engine
        if engine is None or node.life != life:
            return
        if node.paused_until_ms > cluster.now_ms:
            cluster.at(node.paused_until_ms, self.end, node, life, job)
            return
        cluster.step_count += 1
        now_local_ms = node.local_ms(cluster.now_ms)
        if node.crashes_in_save:
            self._crash(node, job)
            return
        try:
            job.run()
        except DiskFullError as error:
            cluster.trace_line(node, f"no room: {error}")
            cluster.reached["no-room"] += 1
            engine.found_no_room(job)
            cluster.at(cluster.now_ms + FULL_RETRY_MS, self.end, node, life, job)
            cluster.step(node, StepDown("the disk is full"))
            return
        except (OSError, DLedgerError) as error:
            node.job = None
            cluster.trace_line(node, f"save failed: {error}")
            cluster.reached["save-failed"] += 1
            engine.fail_persist(job, error, now_local_ms)
            with cluster.disk_of(node):
                cluster.drain(node, engine)
            cluster.stop(node, power_loss=False)
            cluster.start_later(node)
            return
        node.job = None
        with cluster.disk_of(node):
            engine.end_persist(job, now_local_ms)
            if cluster.trace is not None:
                cluster.trace_line(node, f"saved, durable to {engine.log.durable_index}")
            cluster.drain(node, engine)

    def died(self, node: SimNode) -> None:
        """Leave on the disk what a member that dies was saving, as far as it has got."""
        job, node.job = node.job, None
        if job is None or self._chance.random() * 1000 >= self._cluster.settings.torn_save_permille:
            return
        nth = self._chance.randint(1, SAVE_STEPS_MAX)
        node.disk.stop_at(nth)
        try:
            job.run()
        except (OSError, DLedgerError):
            self._cluster.trace_line(node, f"dies at step {nth} of a save")
            self._cluster.reached["died-in-save"] += 1
        else:
            self._cluster.trace_line(node, "dies at the end of a save")

    def _sync_ms(self, node: SimNode) -> int:
        """Draw how long a job takes."""
        cluster = self._cluster
        if node.node_id in cluster.calm:
            return 0
        is_slow = node.slow_until_ms > cluster.now_ms
        settings = cluster.settings
        most = settings.slow_sync_ms_max if is_slow else settings.sync_ms_max
        return int(cluster.rng.random() * (most + 1))

    def _crash(self, node: SimNode, job: PersistJob) -> None:
        """Let the power fail at one of a job's writes, or when all are done and nobody knows yet."""
        cluster = self._cluster
        node.job = None
        nth = cluster.rng.randint(1, SAVE_WRITES_MAX)
        node.disk.fail_write(nth)
        try:
            job.run()
        except (OSError, DLedgerError):
            cluster.trace_line(node, f"crashes at write {nth} of a save")
            cluster.reached["died-in-save"] += 1
        else:
            cluster.trace_line(node, "crashes at the end of a save")
        cluster.stop(node, power_loss=True)
        cluster.start_later(node)
