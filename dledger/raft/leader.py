"""A leader's work: append proposals, count answers, commit, confirm reads, keep its majority.

One object for each term led. It answers every token that it took, at the latest in `resign`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dledger.errors import (
    LeadershipLostError,
    NotLeaderError,
    RefusedError,
    TooLargeError,
    TooManyPendingError,
    TransferringError,
    UsageError,
)
from dledger.raft.configuration import Configuration
from dledger.raft.core import Core
from dledger.raft.effects import AppendEntries, Committed, Failed, ReadAt, Resolve
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import Propose, ReadRequested
from dledger.raft.ids import EntryId, Index, NodeId
from dledger.raft.member_changes import MemberChanges
from dledger.raft.membership import encode_membership
from dledger.raft.messages import AppendResponse
from dledger.raft.quorum import CommitRule
from dledger.raft.reads import WaitingReads
from dledger.raft.replication import Replication
from dledger.raft.roles import Cause
from dledger.raft.transfer import Handover

_LONG_AGO_MS: Final = -(1 << 62)
"""Before any time."""

_FOR_EVER_MS: Final = 1 << 62
"""After any time."""


class Leader:
    """The leadership of one term.

    Invariants: all entries from noop_index on are of the own term; pending proposals are in log
    order and not committed.

    Attributes:
        noop_index: the entry that the term began with; once it is committed, so is all before it,
            and the leader knows how far the log is committed (thesis 6.4, step 1). It names the members.
    """

    __slots__ = (
        "_commit_rule",
        "_confirming_after",
        "_core",
        "_heartbeat_deadline_ms",
        "_lease_end_ms",
        "_lease_step_count",
        "_pending",
        "_reads",
        "changes",
        "handover",
        "noop_index",
        "replication",
    )

    def __init__(self, core: Core, commit_rule: CommitRule) -> None:
        self._core = core
        self._commit_rule = commit_rule
        self._pending: deque[tuple[Index, Index, int]] = deque()  # last index, first index, token
        self._reads = WaitingReads()
        self._confirming_after = -1
        self._heartbeat_deadline_ms = core.now_ms + core.config.heartbeat_interval_ms
        self._lease_end_ms = _LONG_AGO_MS
        self._lease_step_count = -1
        self.replication = Replication(core)
        self.handover = Handover(core, self.replication)
        self.changes = MemberChanges(
            core, self.replication, self.handover, self._append_configuration
        )
        self.noop_index = Index(core.log.last_index + 1)
        core.leader_id = core.node_id
        self._append_configuration(core.configurations.in_force)
        assert core.log.term_of(self.noop_index) == core.term, (
            f"term {core.term} begins with entry {self.noop_index} of term {core.log.last_term}"
        )

    @property
    def is_ready(self) -> bool:
        """True once the first entry of the term is committed."""
        return self._core.commit_index >= self.noop_index

    @property
    def pending_count(self) -> int:
        """Proposals that are not decided."""
        return len(self._pending)

    def next_deadline_ms(self) -> int:
        """Return when to call `tick` at the latest."""
        return self.handover.next_deadline_ms(self._heartbeat_deadline_ms)

    def has_lease(self, now_ms: int) -> bool:
        """Return whether no other leader can have been elected up to now.

        A majority has answered a round; each of them supports nobody else for lease_ms since then.
        A tenth is kept back for clocks that run at different speeds (thesis 6.4.1). When it ends is worked out once
        after each step: reads ask far more often.
        """
        step_count = self._core.step_count
        if self._lease_step_count != step_count:
            self._lease_end_ms = self._lease_until_ms()
            self._lease_step_count = step_count
        return now_ms < self._lease_end_ms

    def _lease_until_ms(self) -> int:
        """Return when the lease ends, as far as it is known by now."""
        core = self._core
        if not self.is_ready or self.handover.has_given_up_lease:
            return _LONG_AGO_MS
        if core.is_counted and not core.other_voters:
            return _FOR_EVER_MS
        sent_ms = self.replication.rounds.sent_ms(self.replication.confirmed_round())
        return _LONG_AGO_MS if sent_ms is None else sent_ms + core.config.lease_ms * 9 // 10

    def is_bound(self) -> bool:
        """Return whether this leader has its majority, so that it too supports no other candidate."""
        silent_ms = self._core.now_ms - self.replication.answered_by_majority_ms()
        return silent_ms < self._core.config.lease_ms

    def tick(self) -> Cause | None:
        """Send heartbeats, check the quorum, end hand-overs that took too long; return why to step down, if so."""
        core = self._core
        if core.now_ms >= self._heartbeat_deadline_ms:
            silent_ms = core.now_ms - self.replication.answered_by_majority_ms()
            if silent_ms >= core.config.election_timeout_max_ms:
                return Cause.MAJORITY_LOST
            self._heartbeat()
        self.handover.tick()
        return self.changes.tick()

    def stood_still(self, length_ms: int) -> None:
        """Extend the wait for answers by the time in which this process stood still: those that came are not read yet.

        The lease is bound to when requests were sent, and does not grow.
        """
        self.replication.stood_still(length_ms)

    def propose(self, event: Propose) -> None:
        """Append the proposal's bodies, or resolve it with the reason why it is refused."""
        refusal = self._refusal(event)
        if refusal is not None:
            self._core.emit(Resolve(event.token, Failed(refusal)))
            return
        core = self._core
        first = Index(core.log.last_index + 1)
        self._append(EntryKind.NORMAL, event.bodies)
        assert core.commit_index < first, f"entry {first} is committed before it is appended"
        self._pending.append((core.log.last_index, first, event.token))

    def persisted(self) -> None:
        """Count this node's own log for commitment now that more of it is durable (thesis 10.2.1)."""
        self.replication.saved()
        self._advance_commit()
        self.handover.advanced()

    def answered(self, response: AppendResponse) -> None:
        """Take a member's answer of this term; one that was removed has nothing to say any more."""
        replication = self.replication
        peer = replication.peers.get(response.source)
        if peer is None:
            return
        self._core.standstill_count = 0
        if replication.answered(response) and response.match_index > self._core.commit_index:
            self._advance_commit()
        if not peer.admission.is_counted and peer.admission.needs_entry:
            peer.admission.rejoin_index = Index(self._core.log.last_index + 1)
            self._append_for_admission()
        self.changes.answered(peer)
        self.handover.advanced()
        if self._reads:
            self._serve_reads()

    def read(self, event: ReadRequested) -> None:
        """Resolve a read at once if this node has the lease, else after the next round that a majority answers."""
        core = self._core
        if self.has_lease(core.now_ms):
            core.emit(Resolve(event.token, ReadAt(core.commit_index)))
            return
        if len(self._reads) >= core.config.reads_pending_max:
            error = TooManyPendingError(f"{len(self._reads)} reads wait already")
            core.emit(Resolve(event.token, Failed(error)))
            return
        # Nothing after the no-op is committed before it is; so it covers what was committed before.
        index = Index(max(core.commit_index, self.noop_index))
        self._reads.add(event.token, index=index, after_round=self.replication.rounds.last_round)
        self._serve_reads()

    def unreachable(self, node_id: NodeId) -> None:
        """Probe a member whose connection broke, to learn which of the requests sent to it were lost."""
        self.replication.unreachable(node_id)

    def resign(self, *, is_new_term: bool, why: str) -> None:
        """End the leadership: resolve every open token, with the error `why` where it is given."""
        core = self._core
        for last, _, token in self._pending:
            error = LeadershipLostError(
                f"term {core.term} was lost before entry {EntryId(core.term, last)} was committed"
                f"{': ' + why if why else ''}"
            )
            core.emit(Resolve(token, Failed(error)))
        for token in self._reads.take_all():
            core.emit(Resolve(token, Failed(NotLeaderError(None, core.term))))
        self.changes.lost(why=why)
        self.handover.lost(is_new_term=is_new_term)

    def _refusal(self, event: Propose) -> RefusedError | UsageError | None:
        """Return why a proposal cannot be taken, or None; nothing is appended yet, so a refusal is definite."""
        config = self._core.config
        if self.handover.target is not None:
            return TransferringError(f"leadership is being handed to {self.handover.target}")
        if len(self._pending) >= config.pending_proposals_max:
            return TooManyPendingError(f"{len(self._pending)} proposals wait already")
        if not event.bodies:
            return UsageError("a proposal needs at least one body")
        largest = max(map(len, event.bodies))
        if largest > config.entry_body_bytes_max:
            return TooLargeError(
                f"a body of {largest} bytes exceeds entry_body_bytes_max={config.entry_body_bytes_max}"
            )
        return None

    def _append_for_admission(self) -> None:
        """Append what a member without a vote has to hold; if members were changed, it learns here whom it votes for.

        With its hard state it may have lost the notes of what its log says of them.
        """
        configurations = self._core.configurations
        if configurations.notes:
            self._append_configuration(configurations.in_force)
        else:
            self._append(EntryKind.NOOP, (b"",))

    def _append_configuration(self, configuration: Configuration) -> None:
        """Append an entry that names the members, who are in force before it is sent to them."""
        self._append(EntryKind.CONFIGURATION, (encode_membership(configuration),), configuration)

    def _append(
        self,
        kind: EntryKind,
        bodies: tuple[bytes, ...],
        configuration: Configuration | None = None,
    ) -> None:
        """Append one entry for each body, all of one kind, and send them; `configuration` is the one that it names."""
        core = self._core
        log = core.log
        assert core.leader_id == core.node_id, f"{core.node_id} appends as {core.leader_id} leads"
        entries = []
        for body in bodies:
            entry = Entry(Index(log.last_index + 1), core.term, log.end_position, kind, body)
            log.append(core.term, entry.size_bytes)
            entries.append(entry)
        core.emit(AppendEntries(tuple(entries)))
        if configuration is not None and core.configured(log.last_id, configuration):
            self.replication.configured()
        self.replication.send_new(entries[0].index)

    def _heartbeat(self) -> None:
        self._heartbeat_deadline_ms = self._core.now_ms + self._core.config.heartbeat_interval_ms
        self.replication.heartbeat_all()
        self.handover.heartbeat()

    def _advance_commit(self) -> None:
        """Commit what a majority holds, and resolve proposals in log order: `_pending` is sorted by last index."""
        core = self._core
        index = self._commit_rule(
            self.replication.matches(),
            commit_index=core.commit_index,
            term_first_index=self.noop_index,
        )
        if index <= core.commit_index:
            return
        core.commit(index)
        pending = self._pending
        while pending and pending[0][0] <= index:
            last, first, token = pending.popleft()
            outcome = Committed(EntryId(core.term, first), EntryId(core.term, last))
            core.emit(Resolve(token, outcome))
        self.changes.committed()
        if self._reads:
            self._serve_reads()

    def _serve_reads(self) -> None:
        """Answer the reads that are confirmed; begin a round for the others if none is under way."""
        core = self._core
        replication = self.replication
        confirmed = replication.confirmed_round()
        for token, index in self._reads.take_ready(
            confirmed_round=confirmed, commit_index=core.commit_index
        ):
            core.emit(Resolve(token, ReadAt(index)))
        if self._reads.needs_round_after(confirmed) and confirmed > self._confirming_after:
            self._confirming_after = replication.rounds.last_round
            replication.heartbeat_all()
