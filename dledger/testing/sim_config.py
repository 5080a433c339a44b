"""The configuration of a simulated member, with small bounds so that runs reach them.

Nothing is drawn here (`sim_draws`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.config import LogConfig, Peer, RaftConfig
from dledger.raft.ids import NodeId
from dledger.testing.sim_settings import SimSettings


def log_config(
    settings: SimSettings,
    voters: Sequence[NodeId],
    node_id: NodeId,
    *,
    known: Sequence[NodeId] = (),
    joins: bool = False,
) -> LogConfig:
    """Return the configuration of one member.

    Args:
        settings: of the run.
        voters: that the group began with.
        node_id: the member.
        known: all nodes that its operator knows to be members, itself included; by default the voters.
        joins: the group exists already.
    """
    raft = RaftConfig(
        node_id=node_id,
        voters=tuple(voters),
        heartbeat_interval_ms=settings.heartbeat_ms,
        lease_ms=settings.lease_ms,
        election_timeout_min_ms=settings.election_min_ms,
        election_timeout_max_ms=settings.election_max_ms,
        entries_bytes_max=settings.entries_bytes_max,
        entries_count_max=settings.entries_count_max,
        inflight_requests_max=settings.inflight_max,
        transfer_timeout_ms=settings.transfer_ms,
        pending_proposals_max=settings.pending_max,
        reads_pending_max=settings.reads_max,
        preferred_leaders=tuple(voters[:1]) if settings.prefers_first else (),
        slow_disk_ms=settings.slow_disk_ms,
        joins=joins,
    )
    raft.validate()
    return LogConfig(
        group="sim",
        peers=tuple(
            Peer(voter, "127.0.0.1", 1 + place) for place, voter in enumerate(known or voters)
        ),
        store_path="",
        raft=raft,
        segment_size_bytes=settings.segment_size_bytes,
        cache_bytes_max=settings.cache_bytes_max,
        fsync=settings.fsync,
    )
