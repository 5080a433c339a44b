"""What a log may forget, and when a member may begin its log anew: decisions, without tasks and I/O (docs/adr/0180).

The runtime and the simulator ask the same questions here. What nobody needs any more is the state machine's decision
(`ForgettingMachine`); how segments and the log's start are kept is the storage's.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.codec.snapshot import SnapshotMeta
from dledger.engine import Engine
from dledger.raft.ids import NO_INDEX, Index
from dledger.raft.progress import PeerView, ProgressState
from dledger.storage.scan import ChainEnd


@dataclass(frozen=True, slots=True)
class ForgettingBounds:
    """The bounds of what a leader keeps for the sake of others.

    Attributes:
        catch_up_bytes_max: what a connected follower lacks is kept, unless it is more than this.
        connected_ms: a follower is connected that has answered within this time.
    """

    catch_up_bytes_max: int
    connected_ms: int


def covered_index(newest: SnapshotMeta | None, older: SnapshotMeta | None) -> Index:
    """Return the last entry that both snapshots contain: one of them may be damaged, and nothing is lost. 0: none."""
    if newest is None or older is None:
        return NO_INDEX
    return min(newest.index, older.index)


def first_to_keep(
    engine: Engine, keep_from: Index, *, covered: Index, bounds: ForgettingBounds, now_ms: int
) -> Index:
    """Return the first entry that this member must keep; everything before it may go.

    Args:
        engine: of the member.
        keep_from: the first one that the state needs or shows.
        covered: the last one that its snapshots contain.
        bounds: what a leader keeps for others.
        now_ms: the time on the engine's clock.
    """
    committed = min(engine.node.commit_index, engine.log.durable_index)
    first = Index(min(keep_from, covered + 1, committed + 1))
    for view in engine.node.progress().values():
        need = _needed_by(engine, view, bounds, now_ms)
        if need is not None:
            first = min(first, need)
    return first


def _needed_by(
    engine: Engine, view: PeerView, bounds: ForgettingBounds, now_ms: int
) -> Index | None:
    """Return the first entry that a leader keeps for a member; None: nothing."""
    layout = engine.log.layout
    is_connected = now_ms - view.answered_ms <= bounds.connected_ms
    if not is_connected or view.state is ProgressState.SNAPSHOT:
        return None
    need = Index(view.match_index + 1)
    if need < layout.first_index:
        # It was not asked yet in this term. Its answer comes soon, and everything stays until then.
        return layout.first_index
    try:
        lacking_bytes = layout.end_position - layout.position_of(need)
    except OSError as error:
        engine.log.shortage.judge(f"the place of entry {need}", error)
        return need
    return need if lacking_bytes <= bounds.catch_up_bytes_max else None


def may_begin_after(engine: Engine, start: ChainEnd, snapshot: SnapshotMeta | None) -> bool:
    """Return whether a member may begin its log anew where the leader's begins.

    Its own log must not lead there, its state and a durable snapshot must reach there, the leader must have told who
    the members are, and nothing may be being saved.
    """
    if snapshot is None or min(snapshot.index, engine.handed_out_index) < start.index:
        return False
    has_place = engine.log.layout.term_of(start.index) == start.term
    is_new = start.index > engine.node.commit_index and start.term <= engine.node.term
    is_told = engine.node.knows_members_at(start.index)
    return engine.may_begin_anew and is_new and is_told and not has_place
