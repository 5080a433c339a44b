"""The settings of one node of a group, frozen and checked before anything starts."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dledger.errors import ConfigError
from dledger.group_secret import GroupSecret
from dledger.member_tls import MemberTls
from dledger.raft.ids import NO_INDEX, Index, NodeId

NAME_LENGTH_MAX: Final = 64
MEMBER_COUNT_MAX: Final = 9
"""More confirm no faster and lose no less; the names of all fit one attribute of a handshake."""

ATTRIBUTES_BYTES_MAX: Final = 16 * 1024
"""Service attributes travel in every handshake."""

_PORT_DIGITS_MAX: Final = 6


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """The settings of the consensus core. All times in milliseconds.

    Attributes:
        node_id: this node.
        voters: the voting members that the group began with, this node included, in a fixed order; for a log that
            has changed them since, they are no more than a beginning (docs/adr/0182).
        heartbeat_interval_ms: pause between a leader's heartbeats.
        lease_ms: how long a follower that answered the leader supports no other candidate.
        election_timeout_min_ms, election_timeout_max_ms: silence after which a follower asks for
            votes; drawn anew each time. Also how long a leader may miss its majority (check quorum).
        entries_bytes_max: bytes of entries in one append request (one entry may exceed it).
        entries_count_max: entries in one append request.
        inflight_requests_max: unanswered append requests for one follower (pipelining).
        inflight_bytes_max: bytes of entries in them; one entry may exceed it.
        pending_proposals_max: proposals that wait for their commit; more are refused.
        reads_pending_max: reads that wait for a confirmation round; more are refused.
        entry_body_bytes_max: largest body.
        preferred_leaders: nodes that should lead when they can; the leader hands over to them.
        transfer_timeout_ms: a hand-over that takes longer is given up.
        slow_disk_ms: a leader that needs so much to make an entry durable, again and again, hands over to
            a member with a much faster disk (docs/adr/0102).
        joins: the group of `voters` exists: this node founds none with an empty store, whether it is one of them or
            is to be added.
        voters_index: the entry that made these the voters, where the store remembers it; 0: the group began with them
            or, of a node that joins, nobody knows.
    """

    node_id: NodeId
    voters: tuple[NodeId, ...]
    heartbeat_interval_ms: int = 60
    lease_ms: int = 300
    election_timeout_min_ms: int = 450
    election_timeout_max_ms: int = 900
    entries_bytes_max: int = 1024 * 1024
    entries_count_max: int = 4096
    inflight_requests_max: int = 8
    inflight_bytes_max: int = 32 * 1024 * 1024
    pending_proposals_max: int = 4096
    reads_pending_max: int = 10_000
    entry_body_bytes_max: int = 64 * 1024 * 1024
    preferred_leaders: tuple[NodeId, ...] = ()
    transfer_timeout_ms: int = 1000
    slow_disk_ms: int = 300
    joins: bool = False
    voters_index: Index = NO_INDEX

    @property
    def voters_since(self) -> Index | None:
        """The entry from which on these are known to have been the voters, 0: from the beginning; None: nobody knows.

        Who joins was told whom to ask: that need not be all members, nor have been the first ones.
        """
        return None if self.joins and not self.voters_index else self.voters_index

    def validate(self) -> None:
        """Refuse values that contradict each other.

        Raises:
            ConfigError: names both values.
        """
        if self.node_id not in self.voters and not self.joins:
            raise ConfigError(
                f"node {self.node_id} is not among the members {', '.join(self.voters)}"
            )
        if len(set(self.voters)) != len(self.voters):
            raise ConfigError(f"a member is named twice in {', '.join(self.voters)}")
        if not 0 < self.heartbeat_interval_ms * 2 <= self.lease_ms:
            raise ConfigError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be at most half of lease_ms={self.lease_ms}"
            )
        if not self.lease_ms <= self.election_timeout_min_ms < self.election_timeout_max_ms:
            raise ConfigError(
                f"lease_ms={self.lease_ms} <= election_timeout_min_ms={self.election_timeout_min_ms} < "
                f"election_timeout_max_ms={self.election_timeout_max_ms} does not hold"
            )
        for name in (
            "entries_bytes_max",
            "entries_count_max",
            "inflight_requests_max",
            "inflight_bytes_max",
            "pending_proposals_max",
            "slow_disk_ms",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True, slots=True)
class Peer:
    """A member's name and where it listens for members and log clients."""

    node_id: NodeId
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}-{self.address}"

    @property
    def address(self) -> str:
        """The `host:port` that it listens on."""
        return f"{self.host}:{self.port}"


def peer_at(node_id: NodeId, address: str) -> Peer | None:
    """Return the member that listens at `host:port`; None if that is no address."""
    host, colon, port = address.rpartition(":")
    is_number = len(port) <= _PORT_DIGITS_MAX and port.isascii() and port.isdigit()
    is_port = is_number and 0 < int(port) < 65536
    return Peer(node_id, host, int(port)) if host and colon and is_port else None


def is_loopback(host: str) -> bool:
    """Return whether only processes of the same machine can reach a host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def parse_peers(text: str) -> tuple[Peer, ...]:
    """Read a DLedger peers string: `n0-127.0.0.1:20911;n1-127.0.0.1:20912`.

    The id is the text before the first `-`.

    Raises:
        ConfigError: names the item that does not fit.
    """
    peers: list[Peer] = []
    for item in (part.strip() for part in text.split(";")):
        if not item:
            continue
        node_id, dash, address = item.partition("-")
        peer = peer_at(NodeId(node_id), address)
        if not (node_id and dash) or peer is None:
            raise ConfigError(
                f"peers: {item!r} is not of the form id-host:port with a port from 1 to 65535 (for example "
                "n0-127.0.0.1:20911)"
            )
        peers.append(peer)
    if not peers:
        raise ConfigError("peers: at least one member is needed, for example n0-127.0.0.1:20911")
    if len({peer.node_id for peer in peers}) != len(peers):
        raise ConfigError(f"peers: a member is named twice in {text!r}")
    if len({(peer.host, peer.port) for peer in peers}) != len(peers):
        raise ConfigError(f"peers: two members share an address in {text!r}")
    return tuple(peers)


def voters_of(peers: tuple[Peer, ...], node_id: NodeId, *, joins: bool) -> tuple[NodeId, ...]:
    """Return the voters that a node begins with: its peers, and not itself where it joins a group that exists.

    Raises:
        ConfigError: it is to join a group, and nobody of it is named.
    """
    voters = tuple(peer.node_id for peer in peers if not joins or peer.node_id != node_id)
    if not voters:
        raise ConfigError(
            f"{node_id} is to join a group, but --peers (dLegerPeers) names only itself: name members of the group, too"
        )
    return voters


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One node of a group: its identity, its disk and its bounds.

    Attributes:
        group: name of the group; members and clients of another group are turned away.
        peers: the members that the group begins with, and their addresses. Once the log has changed the members, no
            more than addresses (docs/adr/0185); of a member that joins a group, those that it finds it by, and itself.
        store_path: folder of this node's log; created when missing, locked while in use.
        secret: shared by all members and log clients of the group; a `GroupSecret` may change while they run. None: no
            authentication.
        tls: encrypts connections between members, and those of log clients, by certificates of both sides; None: they
            are plain text.
        segment_size_bytes: a segment file is closed before it would grow beyond this.
        cache_bytes_max: recent entries kept in memory (entries not yet durable are kept in any case).
        part_cache_bytes_max: older entries kept in memory, in parts, as they were read.
        fsync: whether an entry is confirmed only after fsync. False risks acknowledged data on a
            power cut (flushDiskType=ASYNC_FLUSH).
        snapshot_log_bytes: a snapshot of the state is taken when the log has grown so much since the
            last one (and by twice that one's size); 0: never.
        snapshot_interval_s: after this time a sixteenth of that growth is enough.
        catch_up_bytes_max: a leader keeps what a connected follower lacks, though the group has forgotten it, up to so
            much behind the log's end; one that lacks more gets a snapshot.
        catch_up_bytes_per_s: how fast a leader reads from its disk what a member lacks, for each such member; half as
            fast while the log grows, but at least twice as fast as it does, and without a bound where the group waits
            for it. 0: without one.
        snapshot_fetch_bytes_per_s: how fast another member's snapshot is fetched; 0: as fast as it comes.
        scrub_bytes_per_s: how much of the log is read in the background to find silent damage; 0: nothing.
        service_attributes: facts about this node that the other members learn (`service_address`, ...).
        raft: the core's settings.
    """

    group: str
    peers: tuple[Peer, ...]
    store_path: str
    raft: RaftConfig
    secret: GroupSecret | str | None = field(default=None, repr=False)
    tls: MemberTls | None = None
    segment_size_bytes: int = 256 * 1024 * 1024
    cache_bytes_max: int = 64 * 1024 * 1024
    part_cache_bytes_max: int = 32 * 1024 * 1024
    fsync: bool = True
    snapshot_log_bytes: int = 256 * 1024 * 1024
    snapshot_interval_s: float = 600.0
    catch_up_bytes_max: int = 1024 * 1024 * 1024
    catch_up_bytes_per_s: int = 64 * 1024 * 1024
    snapshot_fetch_bytes_per_s: int = 32 * 1024 * 1024
    scrub_bytes_per_s: int = 4 * 1024 * 1024
    service_attributes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def for_member(
        cls,
        node_id: str,
        peers: str | tuple[Peer, ...],
        store_path: str,
        *,
        group: str = "default",
        secret: GroupSecret | str | None = None,
    ) -> LogConfig:
        """Build a member's configuration, with the members named once; `dataclasses.replace` changes the rest.

        Args:
            node_id: this member.
            peers: all members, such as `n0-127.0.0.1:20911;n1-127.0.0.1:20912`.
            store_path: folder of this member's log.
            group: name of the group.
            secret: shared by all members and log clients; None: no authentication.

        Raises:
            ConfigError: the peers cannot be read.
        """
        members = parse_peers(peers) if isinstance(peers, str) else peers
        raft = RaftConfig(NodeId(node_id), tuple(peer.node_id for peer in members))
        return cls(group, members, store_path, raft, secret)

    def validate(self) -> None:
        """Refuse settings that contradict each other or exceed a limit.

        Raises:
            ConfigError: names the values.
        """
        if not __debug__:
            raise ConfigError("assertions guard the log: Python must not run with -O")
        self.raft.validate()
        members = tuple(peer.node_id for peer in self.peers)
        if self.raft.node_id not in members:
            raise ConfigError(
                f"node {self.raft.node_id} is not among the peers {', '.join(members)}, which say where it listens"
            )
        if set(members) != {*self.raft.voters, self.raft.node_id}:
            raise ConfigError(
                f"the peers {', '.join(members)} are not the voters {', '.join(self.raft.voters)}"
            )
        if not 1 <= len(self.group) <= NAME_LENGTH_MAX:
            raise ConfigError(f"group {self.group!r} must have 1 to {NAME_LENGTH_MAX} characters")
        for name in members:
            if len(name) > NAME_LENGTH_MAX:
                raise ConfigError(f"member {name!r} must have at most {NAME_LENGTH_MAX} characters")
        if len(members) > MEMBER_COUNT_MAX:
            raise ConfigError(
                f"{len(members)} members are named, at most {MEMBER_COUNT_MAX} may be"
            )
        GroupSecret.of(self.secret)
        self._check_strangers()
        attributes_bytes = sum(
            len(name.encode()) + len(value.encode())
            for name, value in self.service_attributes.items()
        )
        if attributes_bytes > ATTRIBUTES_BYTES_MAX:
            raise ConfigError(
                f"service_attributes have {attributes_bytes} bytes, at most {ATTRIBUTES_BYTES_MAX} may be"
            )

    def _check_strangers(self) -> None:
        """Refuse a port that other machines reach, and on which nobody has to show that he belongs to the group.

        Raises:
            ConfigError: names the port, and both ways to protect it.
        """
        own = next(peer for peer in self.peers if peer.node_id == self.raft.node_id)
        shows_certificates = self.tls is not None and not self.tls.takes_plain_text
        if self.secret is not None or shows_certificates or is_loopback(own.host):
            return
        raise ConfigError(
            f"{own} can be reached from other machines, and whoever reaches it could read and change the log: give all "
            "members and log clients one secret (--secret-file FILE), or let members take nothing but each other's "
            "certificates (tls.peer.mode=enforcing in broker.conf; dledger server: --tls-cert and --tls-trust), or let "
            "them listen on 127.0.0.1"
        )
