"""The times of heartbeats, lease and elections: their keys, and the rules that they keep to each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from broker.server.settings.values import Values


@dataclass(frozen=True, slots=True)
class RaftTimes:
    """The times by which the members of a group hear of each other and elect a leader, in milliseconds.

    `RaftConfig` describes each; `heartbeat_ms` is its `heartbeat_interval_ms`.
    """

    heartbeat_ms: int = 60
    lease_ms: int = 300
    election_min_ms: int = 450
    election_max_ms: int = 900
    transfer_ms: int = 1000
    slow_disk_ms: int = 300


def read_times(values: Values) -> RaftTimes:
    """Read the times; `contradicting_times` says what they must be to each other."""
    usual = RaftTimes()
    return RaftTimes(
        heartbeat_ms=values.number(
            "raftHeartbeatIntervalMs", usual.heartbeat_ms, low=10, high=5_000
        ),
        lease_ms=values.number("raftLeaseMs", usual.lease_ms, low=20, high=10_000),
        election_min_ms=values.number(
            "raftElectionTimeoutMinMs", usual.election_min_ms, low=20, high=30_000
        ),
        election_max_ms=values.number(
            "raftElectionTimeoutMaxMs", usual.election_max_ms, low=30, high=60_000
        ),
        transfer_ms=values.number("raftTransferTimeoutMs", usual.transfer_ms, low=100, high=10_000),
        slow_disk_ms=values.number("raftSlowDiskMs", usual.slow_disk_ms, low=1, high=60_000),
    )


def contradicting_times(times: RaftTimes) -> list[str]:
    """Return the rules between heartbeats, lease and elections that are broken."""
    beat, lease = times.heartbeat_ms, times.lease_ms
    least, most = times.election_min_ms, times.election_max_ms
    rules = {
        f"raftHeartbeatIntervalMs={beat} must be at most half of raftLeaseMs={lease}, or one lost heartbeat ends the "
        "leader's lease": 2 * beat <= lease,
        f"raftLeaseMs={lease} must be at most raftElectionTimeoutMinMs={least}, or a follower would ask for votes "
        "while all others still support the leader": lease <= least,
        f"raftElectionTimeoutMinMs={least} must be below raftElectionTimeoutMaxMs={most} by at least "
        f"raftHeartbeatIntervalMs={beat}, or several members ask for votes at once, again and again": most
        - least
        >= beat,
    }
    return [rule for rule, holds in rules.items() if not holds]
