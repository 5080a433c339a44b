"""A member's report of itself, for status calls, and the others' reports of themselves.

Knows nothing of how a report is printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from dledger.codec.client_rpc import MembersAnswer, StatusAnswer
from dledger.codec.log_members import LogMember, LogMembers, encode_log_members
from dledger.config import LogConfig
from dledger.raft.ids import NodeId
from dledger.runtime.clock import now_ms
from dledger.runtime.peer_clocks import ClockWatch
from dledger.runtime.roster import Roster
from dledger.runtime.standing import Standing
from dledger.runtime.statistics import Statistics, nothing_yet
from dledger.runtime.store_identity import StoreIdentity
from dledger.runtime.transport import Transport

ATTRIBUTE_LENGTH_MAX: Final = 1024
"""Characters of one attribute; the rest is cut off."""


class MemberStatus:
    """Facts for people and for other services; nothing in the log depends on them."""

    def __init__(
        self,
        config: LogConfig,
        standing: Standing,
        *,
        roster: Roster,
        transport: Transport,
        store_identity: StoreIdentity,
        clock: ClockWatch | None,
    ) -> None:
        self._config = config
        self._standing = standing
        self._roster = roster
        self._transport = transport
        self._store_identity = store_identity
        self._clock = clock
        self._shown: dict[str, str] = {}

    @property
    def restoration(self) -> str:
        """The operator's name of the last restoring of all members; empty: never."""
        return self._store_identity.restoration

    def show(self, name: str, value: str) -> None:
        """Add an attribute to this member's answers to status calls; with an empty value take it out."""
        self._shown.pop(name, None)
        if value:
            self._shown[name] = value[:ATTRIBUTE_LENGTH_MAX]

    def attributes(self, node_id: NodeId) -> Mapping[str, str]:
        """Return a member's own attributes; empty when this node never connected to it."""
        if node_id != self._standing.node_id:
            return self._transport.attributes(node_id)
        own = {**self._config.service_attributes, **self._shown}
        facts = {
            "incarnation": self.restoration,
            "store": self._store_trouble(),
            "majority": self._standing.obstacles.lost_votes.problem,
            "repair": self._repair(),
            "clock_ahead_ms": str(self._clock.ahead_ms or "") if self._clock is not None else "",
            "disk": self._disk_trouble(),
            "membership": self._membership(),
        }
        own |= {name: fact[:ATTRIBUTE_LENGTH_MAX] for name, fact in facts.items() if fact}
        return own

    def address_of(self, node_id: str) -> str:
        """Return `host:port` of a member; empty when there is no such member."""
        peer = self._roster.peer(node_id)
        return "" if peer is None else peer.address

    def peers_connected(self) -> list[NodeId]:
        """Return the members that this node can send to."""
        return self._transport.links.connected()

    def statistics(self) -> Statistics:
        """Return this member as it sees itself."""
        standing = self._standing
        driver = standing.driver
        peers_connected = tuple(self.peers_connected())
        if driver is None:
            return nothing_yet(standing.node_id, peers_connected)
        node, log = driver.engine.node, driver.engine.log
        return Statistics(
            node_id=standing.node_id,
            role=node.role,
            term=node.term,
            leader_id=node.leader_id,
            is_serving=standing.is_serving,
            first_index=log.layout.first_index,
            last_index=log.layout.last_index,
            durable_index=log.durable_index,
            commit_index=node.commit_index,
            applied_index=driver.applied_index,
            match_indexes={name: view.match_index for name, view in node.progress().items()},
            peers_connected=peers_connected,
            pending_count=driver.callers.pending_count,
            sync_latency_us=round(driver.pace.average_ms * 1000),
            sync_count=driver.pace.count,
            pass_count=driver.pass_count,
            applied_count=driver.applied_count,
            disk_trouble=self._disk_trouble(),
            first_position=log.layout.first_position,
            catch_up_reads=driver.catch_up.load_count,
            catch_up_read_bytes=driver.catch_up.load_bytes,
            election_count=driver.announcer.election_count,
            leadership_count=driver.announcer.leadership_count,
            stall_count=driver.stall_count,
            stall_longest_ms=driver.stall_longest_ms,
            repaired_count=driver.engine.live_repair.repaired_count,
            missing_count=driver.engine.live_repair.missing_count,
            sync_durations=driver.pace.durations,
        )

    def answer(self, token: int) -> StatusAnswer:
        """Return the statistics and the attributes as the answer to a status call."""
        now = self.statistics()
        return StatusAnswer(
            token=token,
            node_id=now.node_id,
            role=now.role.value,
            term=now.term,
            leader_id=now.leader_id or "",
            first_index=now.first_index,
            last_index=now.last_index,
            commit_index=now.commit_index,
            applied_index=now.applied_index,
            durable_index=now.durable_index,
            is_serving=now.is_serving,
            peers_connected=list(now.peers_connected),
            match_indexes={str(name): int(index) for name, index in now.match_indexes.items()},
            sync_latency_us=now.sync_latency_us,
            pending_count=now.pending_count,
            attributes={
                **self.attributes(now.node_id),
                **encode_log_members(self._log_members()),
            },
            first_position=now.first_position,
        )

    def _log_members(self) -> LogMembers:
        """Return the members of the configuration in force, voters first; none of a node that knows none yet."""
        roster = self._roster
        if not roster.knows_members:
            return LogMembers(0, [])
        links, own, found = self._transport.links, self._standing.node_id, []
        for name in roster.in_force.members:
            kind: Literal["voter", "learner", "joining"] = "voter"
            if name in roster.in_force.learners:
                kind = "joining" if name in roster.in_force.joining else "learner"
            is_heard = name == own or links.has_incoming(name)
            found.append(LogMember(name, self.address_of(name), kind, is_heard))
        return LogMembers(roster.index, found)

    def members_answer(self, token: int) -> MembersAnswer:
        """Return who the members are, and how far they are, as this leader knows.

        Raises:
            NotLeaderError: it does not lead (any more).
        """
        node = self._standing.check_leads().engine.node
        configuration = node.configuration
        progress = node.progress()
        names = (name for name in configuration.members if name != node.leader_id)
        return MembersAnswer(
            token=token,
            leader_id=str(self._standing.node_id),
            term=node.term,
            index=node.configuration_index,
            is_committed=node.is_configuration_committed,
            voters=sorted(configuration.voters),
            learners=sorted(configuration.learners),
            joining=sorted(configuration.joining),
            addresses={name: self.address_of(name) for name in configuration.members},
            last_index=node.log.last_index,
            match_indexes={str(name): int(view.match_index) for name, view in progress.items()},
            silent=sorted(name for name in names if not self._transport.links.is_connected(name)),
        )

    def _store_trouble(self) -> str:
        driver = self._standing.driver
        is_old = driver is not None and driver.store_is_old and not self._standing.is_voter
        return "an older copy: no vote until a leader has admitted it" if is_old else ""

    def _membership(self) -> str:
        """Return why this node is no member as far as it knows; empty of a member."""
        roster = self._roster
        if not roster.knows_members:
            why = self._transport.join_watch.trouble or roster.refusal
            return f"not added yet{': ' + why if why else ''}"
        if roster.refusal and self._standing.leader_id is None:
            return f"removed: {roster.refusal}"
        if roster.has_left:
            return f"removed by entry {roster.index}: the members are {roster.in_force}"
        if self._standing.node_id in roster.in_force.learners:
            joins = self._standing.node_id in roster.in_force.joining
            return "learner, to become a voter" if joins else "learner"
        return ""

    def _repair(self) -> str:
        if self._standing.repair is not None:
            return self._standing.repair.describe()
        driver = self._standing.driver
        missing_count = driver.engine.live_repair.missing_count if driver is not None else 0
        return f"{missing_count} damaged entries are asked for" if missing_count else ""

    def _disk_trouble(self) -> str:
        full = self._standing.obstacles.full_disks.own
        if full:
            return f"full: {full}"[:ATTRIBUTE_LENGTH_MAX]
        driver = self._standing.driver
        return driver.pace.trouble(now_ms()) if driver is not None else ""
