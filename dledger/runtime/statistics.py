"""A member as it sees itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dledger.raft.effects import Role
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, NodeId, Position, Term
from dledger.runtime.durations import Durations


@dataclass(frozen=True, slots=True)
class Statistics:
    """One moment of a member.

    Attributes:
        first_position: where the log's first entry begins; 0 until the log has lost its beginning.
        match_indexes: per other member the last index known to be equal there; only at a leader.
        pending_count: entries that were taken from callers and are not decided.
        sync_latency_us: moving average of write and sync.
        disk_trouble: what is wrong with the own disk, in words; empty when nothing is.
        sync_count, pass_count, applied_count: since the start.
        catch_up_reads, catch_up_read_bytes: reads of old entries for members that lack them, since the start.
        election_count, leadership_count: see `Announcer`.
        stall_count, stall_longest_ms: how often, and for how long at most, the loop stood still, since the start.
        repaired_count, missing_count: damaged entries that other members gave back, and those still asked for.
        sync_durations: of writes with their syncs, since the start; it goes on counting. None: none can be made yet.
    """

    node_id: NodeId
    role: Role
    term: Term
    leader_id: NodeId | None
    is_serving: bool
    first_index: Index
    last_index: Index
    durable_index: Index
    commit_index: Index
    applied_index: Index
    match_indexes: Mapping[NodeId, Index]
    peers_connected: tuple[NodeId, ...]
    pending_count: int
    sync_latency_us: int
    sync_count: int
    pass_count: int
    applied_count: int
    disk_trouble: str
    first_position: Position = Position(0)
    catch_up_reads: int = 0
    catch_up_read_bytes: int = 0
    election_count: int = 0
    leadership_count: int = 0
    stall_count: int = 0
    stall_longest_ms: int = 0
    repaired_count: int = 0
    missing_count: int = 0
    sync_durations: Durations | None = None


def nothing_yet(node_id: NodeId, peers_connected: tuple[NodeId, ...]) -> Statistics:
    """Return the statistics of a member whose log is not open: it is being repaired."""
    return Statistics(
        node_id=node_id,
        role=Role.FOLLOWER,
        term=NO_TERM,
        leader_id=None,
        is_serving=False,
        first_index=NO_INDEX,
        last_index=NO_INDEX,
        durable_index=NO_INDEX,
        commit_index=NO_INDEX,
        applied_index=NO_INDEX,
        match_indexes={},
        peers_connected=peers_connected,
        pending_count=0,
        sync_latency_us=0,
        sync_count=0,
        pass_count=0,
        applied_count=0,
        disk_trouble="",
    )
