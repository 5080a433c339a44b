"""Changing the members, as the leader of a term does it: one change at a time, each an entry of the log.

A change is in force from the moment its entry is appended. The next one may come once that is committed, and the
first one of a term once the term's first entry is: else two changes by leaders that do not know of each other could
make majorities without a common voter (thesis 4.1, and its author's correction of 2015). A new member comes in as a
learner and is caught up in rounds (thesis 4.2.1), so that the group never waits for it. A leader that is removed leads
on until that is committed, does not count itself, hands over and steps down (thesis 4.2.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.errors import (
    DLedgerError,
    LeadershipLostError,
    MembersUnchangedError,
    TransferringError,
    UsageError,
)
from dledger.raft.configuration import ChangeKind, Configuration, MemberChange
from dledger.raft.core import Core
from dledger.raft.effects import Committed, Failed, Resolve
from dledger.raft.events import MembersRequested
from dledger.raft.ids import EntryId, Index, NodeId
from dledger.raft.progress import Progress
from dledger.raft.quorum import majority
from dledger.raft.replication import Replication
from dledger.raft.roles import Cause
from dledger.raft.transfer import Handover


@dataclass(slots=True)
class CatchUp:
    """The progress of a learner: a round brings it what the log had as it began, and it is close once one is quick.

    Attributes:
        target_index: it has to hold this to end the round.
        began_ms: when the round began.
        is_quick: whether the round before took less than an election.
    """

    target_index: Index
    began_ms: int
    is_quick: bool = False

    def holds(self, match_index: Index, *, last_index: Index, now_ms: int, quick_ms: int) -> None:
        """Note how far the learner has come; end the round, and begin the next one, if it has come far enough."""
        if match_index < self.target_index:
            return
        self.is_quick = now_ms - self.began_ms < quick_ms
        self.target_index, self.began_ms = last_index, now_ms

    def is_close(self, match_index: Index, *, now_ms: int, quick_ms: int) -> bool:
        """Return whether the group would wait for it no longer than for an election, if it voted now."""
        is_late = match_index < self.target_index and now_ms - self.began_ms >= quick_ms
        return self.is_quick and not is_late


class MemberChanges:
    """The changes of one term.

    Invariant: at most one change is not committed; whoever waits for it has `_waiting`.
    """

    __slots__ = (
        "_append",
        "_catch_ups",
        "_core",
        "_handover",
        "_leaves_until_ms",
        "_noop_index",
        "_replication",
        "_waiting",
    )

    def __init__(
        self,
        core: Core,
        replication: Replication,
        handover: Handover,
        append: Callable[[Configuration], None],
    ) -> None:
        """Begin with the configuration in force.

        Args:
            core: of this node.
            replication: of its term, which follows each change.
            handover: of its term.
            append: appends an entry that names a configuration.
        """
        self._core = core
        self._replication = replication
        self._handover = handover
        self._append = append
        self._noop_index = Index(core.log.last_index + 1)
        self._catch_ups: dict[NodeId, CatchUp] = {}
        self._waiting: tuple[EntryId, int] | None = None
        self._leaves_until_ms: int | None = None

    def request(self, event: MembersRequested) -> None:
        """Begin a change, or resolve it with the reason why it is refused; at once if nothing has to change."""
        core = self._core
        before = core.configurations.in_force
        refusal = self._why_not_now()
        after = event.change.apply(before)
        if refusal is None and isinstance(after, str):
            refusal = UsageError(after)
        if refusal is None and isinstance(after, Configuration):
            if after.says_same(before):
                # It is committed, and so is the first entry of the term, which repeats it.
                here = EntryId(core.term, self._noop_index)
                core.emit(Resolve(event.token, Committed(here, here)))
                return
            refusal = self._why_not(event.change, after)
        if refusal is not None or isinstance(after, str):
            assert refusal is not None, f"{event.change} is refused without a reason"
            core.emit(Resolve(event.token, Failed(refusal)))
            return
        self._begin(after)
        self._waiting = (core.log.last_id, event.token)

    def answered(self, peer: Progress) -> None:
        """Look at a member that has answered: a learner may have caught up, and be due to become a voter."""
        core = self._core
        configuration = core.configurations.in_force
        if peer.node_id not in configuration.learners:
            return
        catch_up = self._catch_ups.setdefault(
            peer.node_id, CatchUp(core.log.last_index, core.now_ms)
        )
        catch_up.holds(
            peer.match_index if peer.admission.is_counted else Index(0),
            last_index=core.log.last_index,
            now_ms=core.now_ms,
            quick_ms=core.config.election_timeout_min_ms,
        )
        if peer.node_id not in configuration.joining or self._why_not_now() is not None:
            return
        change = MemberChange(ChangeKind.PROMOTE, peer.node_id)
        after = change.apply(configuration)
        if isinstance(after, Configuration) and self._why_not(change, after) is None:
            self._begin(after)

    def committed(self) -> None:
        """Look at what is committed now: a change that somebody waits for, or one that makes this node leave."""
        core = self._core
        if self._waiting is not None and self._waiting[0].index <= core.commit_index:
            entry_id, token = self._waiting
            self._waiting = None
            core.emit(Resolve(token, Committed(entry_id, entry_id)))
        if self._has_left and self._leaves_until_ms is None:
            self._leaves_until_ms = core.now_ms + core.config.transfer_timeout_ms
            self._handover.leave()

    def tick(self) -> Cause | None:
        """Return why to step down, once this node is no member and nobody takes over, or not in time."""
        if self._leaves_until_ms is None:
            return None
        is_late = self._core.now_ms >= self._leaves_until_ms
        return Cause.REMOVED if is_late or self._handover.target is None else None

    def lost(self, *, why: str) -> None:
        """Resolve the change under way: this node leads no longer, and does not know what becomes of it."""
        if self._waiting is None:
            return
        entry_id, token = self._waiting
        self._waiting = None
        error = LeadershipLostError(
            f"term {self._core.term} was lost before the change of members, entry {entry_id}, was committed"
            f"{': ' + why if why else ''}"
        )
        self._core.emit(Resolve(token, Failed(error)))

    @property
    def _has_left(self) -> bool:
        """True once it is committed that this node is no voter any more."""
        core = self._core
        return not core.is_counted and core.configurations.index <= core.commit_index

    def _begin(self, after: Configuration) -> None:
        before = self._core.configurations.in_force
        assert before.may_precede(after), f"{before} is to become {after} in one change"
        self._append(after)
        learners = self._core.configurations.in_force.learners
        self._catch_ups = {name: each for name, each in self._catch_ups.items() if name in learners}

    def _why_not_now(self) -> DLedgerError | None:
        """Return why no change at all can begin at this moment."""
        core = self._core
        if self._handover.target is not None:
            return TransferringError(f"leadership is being handed to {self._handover.target}")
        if core.commit_index < self._noop_index:
            return MembersUnchangedError(
                f"the first entry of term {core.term}, {self._noop_index}, is not committed yet"
            )
        index = core.configurations.index
        if core.commit_index < index:
            return MembersUnchangedError(
                f"the change before, entry {index}, is not committed yet: {core.configurations.in_force}"
            )
        return None

    def _why_not(self, change: MemberChange, after: Configuration) -> DLedgerError | None:
        """Return why this change would do harm at this moment."""
        if change.kind is ChangeKind.PROMOTE:
            problem = self._why_behind(change.node_id)
            if problem is not None:
                return MembersUnchangedError(problem)
        if set(after.voters) == set(self._core.configurations.in_force.voters):
            return None
        silent = [name for name in after.voters if not self._is_answering(name)]
        if len(after.voters) - len(silent) >= majority(len(after.voters)):
            return None
        return MembersUnchangedError(
            f"of the voters then, {', '.join(sorted(after.voters))}, no majority answers now: "
            f"{', '.join(sorted(silent))} would be needed"
        )

    def _why_behind(self, node_id: NodeId) -> str | None:
        """Return why a learner must not become a voter yet."""
        core = self._core
        peer, catch_up = self._replication.peers.get(node_id), self._catch_ups.get(node_id)
        if peer is None or not self._is_heard(peer):
            return f"{node_id} does not answer"
        lacking = core.log.last_index - peer.match_index
        if not peer.admission.is_counted:
            return f"the store of {node_id} has no vote yet: it lacks {lacking} entries"
        if catch_up is None or not catch_up.is_close(
            peer.match_index, now_ms=core.now_ms, quick_ms=core.config.election_timeout_min_ms
        ):
            return f"{node_id} has not caught up: it lacks {lacking} entries"
        return None

    def _is_answering(self, node_id: NodeId) -> bool:
        core = self._core
        if node_id == core.node_id:
            return True
        peer = self._replication.peers[node_id]
        return peer.admission.is_counted and self._is_heard(peer)

    def _is_heard(self, peer: Progress) -> bool:
        silent_ms = self._core.now_ms - peer.answered_ms
        return peer.acked_round > 0 and silent_ms < self._core.config.election_timeout_min_ms
