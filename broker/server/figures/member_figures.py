"""The figures of a member of the Raft group: role, log, replication, disk, loop. Every member shows its own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.metrics.families import Families
from broker.server.figures.observed import Observed
from dledger import Role, Statistics


class MemberFigures(Collector):
    """The collector of a member's figures."""

    def __init__(self, families: Families, observed: Observed) -> None:
        self._families = families
        self._observed = observed

    def describe(self) -> Iterator[Metric]:
        """Return nothing: names are not known before somebody asks."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the families; see `Families` for their parts."""
        statistics = self._observed.log.status.statistics()
        yield from self._role(statistics)
        yield from self._log(statistics)
        yield from self._replication(statistics)
        yield from self._repairs(statistics)
        yield from self._disk(statistics)
        yield from self._loop(statistics)
        yield from self._state()
        yield from self._access_rules()

    def _role(self, now: Statistics) -> Iterator[Metric]:
        """Yield role and term, and how they came about."""
        gauge, counter = self._families.gauge, self._families.counter
        yield gauge("dledger_raft_term", "Raft term of the member", now.term)
        yield from self._families.gauges(
            "dledger_raft_role",
            "1 for the role that the member has",
            ["role"],
            [([role.value], now.role is role) for role in Role],
        )
        yield gauge("dledger_raft_serving", "1 while the member leads and serves", now.is_serving)
        yield gauge(
            "dledger_raft_leader_known",
            "1 while the member knows a leader of its term",
            now.leader_id is not None,
        )
        yield counter(
            "dledger_raft_elections",
            "elections in which the member asked for votes",
            now.election_count,
        )
        yield counter(
            "dledger_raft_leaderships", "elections that the member won", now.leadership_count
        )

    def _log(self, now: Statistics) -> Iterator[Metric]:
        """Yield how far the log is, and how long its syncs take."""
        yield from self._families.gauges(
            "dledger_raft_index",
            "index of an entry of the log: its first and its last, the last one that is durable, committed, applied",
            ["kind"],
            [
                (["first"], now.first_index),
                (["last"], now.last_index),
                (["durable"], now.durable_index),
                (["commit"], now.commit_index),
                (["applied"], now.applied_index),
            ],
        )
        yield self._families.gauge(
            "dledger_raft_pending_entries",
            "proposed entries that are not decided",
            now.pending_count,
        )
        syncs = now.sync_durations
        yield from self._families.histograms(
            "dledger_raft_sync_seconds",
            "duration of a write to the log with its fsync",
            [],
            [] if syncs is None else [((), syncs)],
            in_seconds=True,
        )

    def _replication(self, now: Statistics) -> Iterator[Metric]:
        """Yield how far the others are, which a leader knows, and who is connected."""
        own = self._observed.log.node_id
        others = [name for name in self._observed.log.roster.in_force.members if name != own]
        yield from self._families.gauges(
            "dledger_raft_replication_lag_entries",
            "entries that another member lacks, as its leader knows",
            ["peer"],
            [
                ([name], max(0, now.last_index - now.match_indexes[name]))
                for name in others
                if name in now.match_indexes
            ],
        )
        yield from self._families.gauges(
            "dledger_raft_peer_connected",
            "1 while the member is connected to another one",
            ["peer"],
            [([name], name in now.peers_connected) for name in others],
        )
        yield self._families.counter(
            "dledger_raft_catch_up_read_bytes",
            "bytes of old entries that were read for members that lack them",
            now.catch_up_read_bytes,
        )

    def _repairs(self, now: Statistics) -> Iterator[Metric]:
        yield self._families.counter(
            "dledger_raft_repaired_entries",
            "damaged entries that other members gave back",
            now.repaired_count,
        )
        yield self._families.gauge(
            "dledger_raft_damaged_entries", "damaged entries that are asked for", now.missing_count
        )

    def _disk(self, now: Statistics) -> Iterator[Metric]:
        """Yield the room on the disk, and the size of the log on it."""
        room, reader = self._observed.room(), self._observed.log.reader
        yield from self._families.gauges(
            "dledger_disk_bytes",
            "bytes of the disk of the store",
            ["kind"],
            []
            if room is None
            else [
                (["total"], room.total_bytes),
                (["used"], room.used_bytes),
                (["free"], room.free_bytes),
            ],
        )
        yield self._families.gauge(
            "dledger_disk_trouble", "1 while the own disk is full or slow", bool(now.disk_trouble)
        )
        stored = ["storage_type", "storage_medium"]
        is_open = self._observed.is_open
        yield from self._families.gauges(
            "rocketmq_storage_size",
            "bytes of the log",
            stored,
            [(("local", "disk"), reader.committed_position - reader.first_position)]
            if is_open
            else [],
        )
        yield from self._families.gauges(
            "rocketmq_storage_dispatch_behind_bytes",
            "bytes that are committed and not applied yet",
            stored,
            [(("local", "disk"), max(0, reader.committed_position - reader.applied_position))]
            if is_open
            else [],
        )
        snapshotter = reader.snapshotter
        yield self._families.gauge(
            "dledger_snapshot_index",
            "last entry that the newest snapshot contains",
            snapshotter.index if snapshotter is not None else 0,
        )

    def _access_rules(self) -> Iterator[Metric]:
        """Yield a digest of the access rules: those that all members have are the same for all."""
        digests = self._observed.services.member_info.rules_digests
        yield from self._families.gauges(
            "dledger_access_rules",
            "1 for the digest of the access rules, none: there are none; two while the group changes its secret",
            ["digest"],
            [([digest], 1) for digest in (("none",) if digests is None else digests())],
        )

    def _loop(self, now: Statistics) -> Iterator[Metric]:
        """Yield how the process and its clock are."""
        yield self._families.counter(
            "dledger_loop_stalls", "standstills of the event loop", now.stall_count
        )
        yield self._families.gauge(
            "dledger_loop_stall_longest_seconds",
            "longest standstill of the event loop since the start",
            now.stall_longest_ms / 1000,
        )
        yield self._families.gauge(
            "dledger_clock_ahead_seconds",
            "distance of the wall clock ahead of what most members show",
            self._observed.clock_ahead_ms() / 1000,
        )

    def _state(self) -> Iterator[Metric]:
        """Yield what would be a mistake of ours, or a loss."""
        state = self._observed.state
        yield self._families.gauge(
            "dledger_digest_alarms",
            "parts of the derived state that differ from the leader's",
            len(state.marks.divergences),
        )
        yield self._families.counter(
            "dledger_internal_errors",
            "mistakes of the broker that were kept to the request in which they came up; its log shows where",
            self._observed.services.router.mistakes.count,
        )
        yield self._families.counter(
            "dledger_sends_forgotten_early",
            "recent sends that were forgotten before their time, so that a repeat of one would be stored",
            state.recent_sends.chained.forgotten_early,
        )
