"""A simulated group whose logs lose their beginning: snapshots, drops and fetches, in virtual time.

What may be dropped, and when a log is begun anew, is decided by `dledger.forgetting` and the engine, as in the runtime;
here it is only carried out: `Snapshotter`, `Forgetting` and `SnapshotFetch` are tasks. Whatever works on a disk beside
the log's own saves takes a while, and a member that dies meanwhile leaves a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from dledger.codec.snapshot import SnapshotMeta
from dledger.engine import Engine
from dledger.errors import CorruptionError, DiskFullError
from dledger.forgetting import (
    ForgettingBounds,
    covered_index,
    first_to_keep,
    may_begin_after,
)
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId
from dledger.starting_state import check_restored, restore_newest
from dledger.state_machine import SnapshotRefusedError
from dledger.storage.log_start import FrontDrop
from dledger.storage.snapshots import SnapshotFile, SnapshotStore
from dledger.testing.cluster import HANDED_OUT_BYTES_MAX, SimCluster
from dledger.testing.core_trace import outcome_line
from dledger.testing.sim_fold import SimFold
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_trace import Trace
from dledger.testing.state_checker import Violation

FORGETTING_STATES = (
    "begun-anew",
    "died-in-forgetting",
    "forgotten",
    "snapshot-fetched",
    "snapshot-restored",
    "snapshot-taken",
    "started-ahead",
    "started-without-state",
)
"""The states that runs of such groups are to lead to (docs/testing.md explains each)."""

FETCH_PAUSE_MS = 60
WORK_MS_MAX = 15
WORK_STEPS_MAX = 20
"""A piece of work has come so far at most when its member dies, in writes and syncs."""


class _Work(NamedTuple):
    """Something that a member does on its disk beside the log's saves.

    Attributes:
        write: what is done there; may raise OSError, DiskFullError or CorruptionError.
        done: what follows when it is done.
        failed: what follows when it could not be done.
    """

    write: Callable[[], None]
    done: Callable[[], None]
    failed: Callable[[Exception], None]


@dataclass(slots=True)
class _Keeping:
    """A running member's state and snapshots.

    Attributes:
        work: that is under way.
    """

    fold: SimFold
    store: SnapshotStore
    newest: SnapshotFile | None
    older: SnapshotFile | None
    work: _Work | None = None

    def metas(self) -> tuple[SnapshotMeta | None, SnapshotMeta | None]:
        newest, older = self.newest, self.older
        return newest.meta if newest else None, older.meta if older else None


class ForgettingCluster(SimCluster):
    """The members of a group that forgets.

    Attributes:
        keep_from: the first entry that the state needs, as far as anything is committed.
    """

    def __init__(
        self,
        settings: SimSettings,
        *,
        engine_type: type[Engine] = Engine,
        trace: Trace | None = None,
    ) -> None:
        super().__init__(settings, engine_type=engine_type, trace=trace)
        self.reached.update(dict.fromkeys(FORGETTING_STATES, 0))
        self.keep_from = Index(1)
        self._keepings: dict[NodeId, _Keeping] = {}
        self._digests: dict[Index, int] = {}
        self._chance = Random(f"forgetting-cluster/{settings.seed}")
        self._bounds = ForgettingBounds(settings.catch_up_bytes_max, settings.election_max_ms)

    # A member's life.

    def _opened(self, node: SimNode, engine: Engine) -> Index:
        """Bring a member to its newest snapshot, and plan what it does from time to time."""
        fold = SimFold(self.settings.keep_entries)
        store = SnapshotStore(node.disk)
        may_fetch = len(self.voters) > 1
        found = restore_newest(store, fold, engine.log, may_fetch=may_fetch)
        if found.lacks:
            self._check_struck(node, found.lacks)
            self.reached["started-without-state"] += 1
        for reason in found.refused:
            self.trace_line(node, f"does not use a snapshot: {reason}")
        found.let_go_on(engine, fold.applied_index)
        if found.newest is not None:
            self.reached["snapshot-restored"] += 1
            self.reached["started-ahead"] += found.newest.meta.index > engine.log.last_id.index
            if node.is_flipped(found.newest.path):
                raise Violation(
                    f"{node.node_id} goes on from {found.newest.path}, which is damaged"
                )
        self._check_digest(node, fold)
        self._keepings[node.node_id] = _Keeping(fold, store, found.newest, found.older)
        for act, mean_ms in (
            (self._take_snapshot, self.settings.snapshot_pause_ms),
            (self._forget, self.settings.snapshot_pause_ms),
            (self._catch_up, FETCH_PAUSE_MS),
        ):
            self._plan(node, act, mean_ms)
        return fold.applied_index

    def refuse_start(self, node: SimNode, error: Exception) -> None:
        """See `SimCluster`; a store that nothing has damaged must start."""
        self._check_struck(node, str(error))
        super().refuse_start(node, error)

    def _check_struck(self, node: SimNode, problem: str) -> None:
        is_struck = node.is_damaged or node.flipped_snapshots or node.disk.fired["fail-read"]
        if not is_struck:
            raise Violation(f"{node.node_id} has a sound store, and cannot start: {problem}")

    def stop(self, node: SimNode, *, power_loss: bool) -> None:
        """See `SimCluster`; what was under way on the disk is left as far as it has come."""
        keeping = self._keepings.pop(node.node_id, None)
        if keeping is not None and keeping.work is not None and node.engine is not None:
            node.disk.forget_faults()
            node.disk.stop_at(self._chance.randint(1, WORK_STEPS_MAX))
            try:
                keeping.work.write()
            except (OSError, CorruptionError, DiskFullError):
                self.reached["died-in-forgetting"] += 1
        super().stop(node, power_loss=power_loss)

    def _settle(self, node: SimNode, engine: Engine) -> None:
        """Fold what is committed, and answer callers."""
        keeping = self._keepings[node.node_id]
        while engine.has_committed:
            entries = engine.take_committed(HANDED_OUT_BYTES_MAX)
            if not entries:
                break
            self._fold(node, keeping.fold, entries)
        first = engine.log.layout.first_index
        if first > self.keep_from:
            raise Violation(
                f"{node.node_id} has a log from entry {first} on, the group needs it from {self.keep_from} on"
            )
        for token, outcome in engine.take_resolved():
            if self.trace is not None:
                self.trace_line(node, f"answers call {token}: {outcome_line(outcome)}")
            self.resolve(node, token, outcome)

    def _fold(self, node: SimNode, fold: SimFold, entries: list[Entry]) -> None:
        for entry in entries:
            self.checker.handed_out(node.node_id, [entry])
            fold.apply([entry])
            self._check_digest(node, fold)

    def _check_digest(self, node: SimNode, fold: SimFold) -> None:
        """Check that all members have the same state at the same entry, whatever they began with."""
        self.keep_from = max(self.keep_from, fold.keep_from)
        digest = fold.digest()
        if self._digests.setdefault(fold.applied_index, digest) != digest:
            raise Violation(f"{node.node_id} has another state at entry {fold.applied_index}")

    def _plan(
        self, node: SimNode, act: Callable[[SimNode, Engine, _Keeping], None], mean_ms: int
    ) -> None:
        """Let a member do something again and again, in this life."""
        pause_ms = 1 + int(self._chance.expovariate(1 / mean_ms))
        self.at(self.now_ms + pause_ms, self._act, node, node.life, act, mean_ms)

    def _act(
        self,
        node: SimNode,
        life: int,
        act: Callable[[SimNode, Engine, _Keeping], None],
        mean_ms: int,
    ) -> None:
        """Let a member do something, unless it is down, pauses, or has work under way."""
        engine, keeping = node.engine, self._keepings.get(node.node_id)
        if engine is None or keeping is None or node.life != life:
            return
        self._plan(node, act, mean_ms)
        if keeping.work is None and not node.pauses(self.now_ms) and engine.failure is None:
            with self.disk_of(node):
                act(node, engine, keeping)

    def _begin(self, node: SimNode, keeping: _Keeping, work: _Work) -> None:
        """Do something on a member's disk after a while; other work of this kind waits."""
        keeping.work = work
        due_ms = self.now_ms + self._chance.randint(0, WORK_MS_MAX)
        self.at(due_ms, self._do_work, node, node.life, keeping)

    def _do_work(self, node: SimNode, life: int, keeping: _Keeping) -> None:
        """Carry out what was begun, now that its time has come."""
        work = keeping.work
        if node.engine is None or node.life != life or work is None:
            return
        if node.pauses(self.now_ms):
            self.at(self.now_ms + WORK_MS_MAX, self._do_work, node, life, keeping)
            return
        keeping.work = None
        with self.disk_of(node):
            try:
                work.write()
            except (OSError, CorruptionError, DiskFullError) as error:
                self.trace_line(node, f"cannot do what it began: {error}")
                work.failed(error)
            else:
                work.done()
            if node.engine is not None:
                self.drain(node, node.engine)

    # Snapshots, as `Snapshotter` takes them.

    def _take_snapshot(self, node: SimNode, engine: Engine, keeping: _Keeping) -> None:
        """Write the state down; a failure costs the snapshot only."""
        fold, newest = keeping.fold, keeping.newest
        index = fold.applied_index
        layout = engine.log.layout
        if not layout.has(index) or (newest is not None and newest.meta.index >= index):
            return
        term = layout.term_of(index)
        assert term is not None, f"entry {index} is in the log"
        position = layout.position_of(Index(index + 1))
        meta = SnapshotMeta(index, term, position, engine.log.chain_crc_of(index), fold.digest())
        chunks = list(fold.snapshot())
        written: list[SnapshotFile] = []

        def write() -> None:
            writer = keeping.store.begin(meta)
            writer.add(chunks)
            written.append(writer.finish())

        def done() -> None:
            keeping.older, keeping.newest = keeping.newest, written[-1]
            keeping.store.kept_index = index
            node.flipped_snapshots.pop(written[-1].path, None)
            self.reached["snapshot-taken"] += 1

        # The runtime waits before it gives the file its name.
        if engine.log.durable_index >= index:
            self._begin(node, keeping, _Work(write, done, lambda _: None))

    # Forgetting, as `Forgetting` does.

    def _forget(self, node: SimNode, engine: Engine, keeping: _Keeping) -> None:
        """Drop what the member need not keep."""
        newest, older = keeping.metas()
        first = first_to_keep(
            engine,
            keeping.fold.keep_from,
            covered=covered_index(newest, older),
            bounds=self._bounds,
            now_ms=node.local_ms(self.now_ms),
        )
        drop = engine.forget_before(first)
        if drop is not None:
            self.trace_line(node, f"forgets what is before entry {drop.start.index + 1}")
            self.reached["forgotten"] += 1
            self._drop(node, engine, keeping, drop)

    def _drop(self, node: SimNode, engine: Engine, keeping: _Keeping, drop: FrontDrop) -> None:
        """Remove the files, again until it is done."""

        def again(_error: Exception) -> None:
            self._drop(node, engine, keeping, drop)

        self._begin(node, keeping, _Work(drop.run, engine.dropped, again))

    # Catching up, as `SnapshotFetch` does.

    def _catch_up(self, node: SimNode, engine: Engine, keeping: _Keeping) -> None:
        """Fetch the leader's newest snapshot, if its log begins after what the member needs."""
        leader_id = engine.needs_snapshot_of
        if leader_id is None or leader_id != engine.node.leader_id:
            return
        if not engine.may_begin_anew and not engine.lacks_state:
            return
        if self._begin_anew(node, engine, keeping):
            return
        source, given = self.nodes[leader_id], self._keepings.get(leader_id)
        is_open = self.network.is_open(node.node_id, leader_id) and self.network.is_open(
            leader_id, node.node_id
        )
        if given is None or not is_open or source.pauses(self.now_ms):
            return
        snapshot = self._whole_newest(source, given)
        if snapshot is None or snapshot.meta.index <= keeping.fold.applied_index:
            return
        try:
            parts = given.store.whole(snapshot).part(0)
        except (CorruptionError, OSError):
            return
        taken: list[SnapshotFile] = []

        def write() -> None:
            copy = keeping.store.begin_copy(snapshot.meta.index)
            copy.add(parts)
            taken.append(copy.finish())

        def done() -> None:
            self._take_in(node, engine, keeping, taken[-1])

        self._begin(node, keeping, _Work(write, done, lambda _: None))

    def _whole_newest(self, source: SimNode, given: _Keeping) -> SnapshotFile | None:
        """Return a member's newest snapshot; one that is damaged is given up for the older one."""
        newest = given.newest
        if newest is None:
            return None
        try:
            given.store.verify(newest)
        except (CorruptionError, OSError) as error:
            self.trace_line(source, f"gives a damaged snapshot up: {error}")
            given.newest, given.older = given.older, None
            return None
        if source.is_flipped(newest.path):
            raise Violation(f"{source.node_id} takes {newest.path} for whole, which is damaged")
        return newest

    def _take_in(
        self, node: SimNode, engine: Engine, keeping: _Keeping, taken: SnapshotFile
    ) -> None:
        """Replace the state by that of another member's snapshot, which is durable here."""
        fold = keeping.fold
        if taken.meta.index <= fold.applied_index:
            return
        try:
            fold.restore(keeping.store.chunks(taken))
            check_restored(taken, fold)
        except (CorruptionError, SnapshotRefusedError, OSError):
            self.checker.restored(node.node_id, fold.applied_index)
            engine.state_replaced(fold.applied_index, None)
            return
        self._check_digest(node, fold)
        self.trace_line(node, f"takes over the state at entry {taken.meta.index}")
        self.reached["snapshot-fetched"] += 1
        self.checker.restored(node.node_id, taken.meta.index)
        engine.state_replaced(taken.meta.index, taken.meta.chain_crc)
        keeping.older, keeping.newest = keeping.newest, taken
        node.flipped_snapshots.pop(taken.path, None)
        # Half of them leave it for the next turn: a member may die with a state that is ahead of its log.
        if self._chance.random() < 0.5:
            self._begin_anew(node, engine, keeping)

    def _begin_anew(self, node: SimNode, engine: Engine, keeping: _Keeping) -> bool:
        """Begin the log where the leader's begins, if that may be now; return whether."""
        start = engine.start_of_leader
        if start is None or not may_begin_after(engine, start, keeping.metas()[0]):
            return False
        self.trace_line(node, f"begins its log anew after entry {start.index}")
        self.reached["begun-anew"] += 1
        engine.begin_log_after(start)
        self.drain(node, engine)
        return True
