"""The state that all roles of a node share: identity, term, vote, log, and the effects of the current step.

Nothing here decides by role. The role modules (follower, candidate, leader) work on this state and
return a `Cause` when the role must change; node.py alone changes it.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.config import RaftConfig
from dledger.raft.configuration import Configuration
from dledger.raft.configuration_log import ConfigurationLog, ConfigurationNote
from dledger.raft.effects import (
    Commit,
    Effect,
    MembersChanged,
    Role,
    RoleChanged,
    SaveHardState,
    Send,
    Waits,
)
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, EntryId, Index, NodeId, Term
from dledger.raft.log_layout import LogBase, LogLayout
from dledger.raft.messages import Message

Draw = Callable[[int, int], int]
"""A random integer between low and high, both included."""

NEW_STORE_MAX = (1 << 53) - 1

FirstInMemory = Callable[[], Index]
"""The first entry from which on all are in memory; one after the last if none is."""

STANDSTILLS_MAX = 3
"""Standstills within one silence after which a node still gives the others more time. One that hardly ever runs
and has looked so often in vain may believe that nobody is there."""


class Core:
    """The shared state of one node.

    Invariants: term and commit_index never decrease; the vote changes only with the term or from
    nobody to somebody; commit_index and durable_index <= log.last_index.

    Attributes:
        first_in_memory: tells which entries can be sent without reading the disk.
        configurations: the members that the log names.
        peers: the other members, voters first, in the configured order.
        other_voters: those of them that vote.
        is_counted: whether this node is one of the voters. Not so of a learner, of one that was removed, and of one
            that has yet to be added; a leader that was removed leads on until that is committed.
        durable_index: last index that is surely on the own disk.
        contact_ms: last append request of a current leader; at start the start itself, since a
            promise made before a crash may still hold.
        election_timeout_ms: drawn when a role begins.
        election_deadline_ms: when a node that is no leader asks for votes.
        is_voter: whether its store may vote and be counted; False for one that began empty, or turned out
            to be an older copy, until the group is founded or a leader admits it (docs/adr/0061, 0103). Whether the
            group counts this member at all is another question.
        may_lead: False while its state machine lacks what stands before its log: it votes and confirms, and asks for no
            votes.
        standstill_count: how often this node stood still in the present silence.
        step_count: of the steps that have ended; what a node says of itself changes in steps only, but for the time.
        paused_until_ms: a node that had to step down does not campaign before.
        slow_disk_pause_until_ms: a leader does not hand over for its slow disk before.
        announced: role, term and known leader at the end of the last step; another object only if one has changed.
        announced_members: the last change of the members that is committed, as a leader told it, and the entry up to
            which it knew the log to be committed; None: none has told. A log that begins anew begins with it.
        handed_over_by, handed_over_ms: the leader that last asked this node to campaign, and when it did.
    """

    __slots__ = (
        "_drawn_store",
        "_effects",
        "_saved",
        "announced",
        "announced_members",
        "commit_index",
        "config",
        "configurations",
        "contact_ms",
        "draw",
        "durable_index",
        "election_deadline_ms",
        "election_timeout_ms",
        "first_in_memory",
        "handed_over_by",
        "handed_over_ms",
        "is_counted",
        "is_voter",
        "leader_id",
        "log",
        "may_lead",
        "node_id",
        "now_ms",
        "other_voters",
        "paused_until_ms",
        "peers",
        "role",
        "slow_disk_pause_until_ms",
        "standstill_count",
        "step_count",
        "term",
        "vote",
        "voter_count",
    )

    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        log: LogLayout,
        *,
        draw: Draw,
        now_ms: int,
        first_in_memory: FirstInMemory,
    ) -> None:
        assert config.node_id in config.voters or config.joins, f"{config.node_id} is not a voter"
        assert log.last_term <= hard_state.term, (
            f"the log is of term {log.last_term}, ahead of the saved term {hard_state.term}"
        )
        self.config = config
        self.node_id = config.node_id
        self.draw = draw
        self.first_in_memory = first_in_memory
        self.log = log.copy()
        first, since = Configuration(config.voters), config.voters_since
        self.configurations = ConfigurationLog(first, hard_state.notes, self.log, since)
        self._configure()
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.is_voter = hard_state.is_voter
        self.may_lead = True
        self.role = Role.FOLLOWER
        self.leader_id: NodeId | None = None
        # Only what is committed is ever removed from a log's front.
        self.commit_index = Index(log.first_index - 1)
        self.durable_index = log.last_index
        self.now_ms = now_ms
        self.contact_ms = now_ms
        self.paused_until_ms = now_ms
        self.slow_disk_pause_until_ms = now_ms
        self.handed_over_by: NodeId | None = None
        self.handed_over_ms = now_ms
        self.election_timeout_ms = 0
        self.election_deadline_ms = now_ms
        self.standstill_count = 0
        self.step_count = 0
        self.announced_members: tuple[Index, ConfigurationNote | None] | None = None
        self._effects: list[Effect] = []
        self._saved = hard_state
        self._drawn_store = 0 if self.is_voter else draw(1, NEW_STORE_MAX)
        self.announced: tuple[Role, Term, NodeId | None] = (self.role, self.term, None)

    @property
    def new_store(self) -> int:
        """The number drawn for this store as long as it is new and empty, and may found a group; else 0."""
        return 0 if self.log.last_index or self.config.joins else self.store

    @property
    def store(self) -> int:
        """The number drawn when a store was opened that may not vote; 0 of a voter."""
        return 0 if self.is_voter else self._drawn_store

    @property
    def may_campaign(self) -> bool:
        """True if the group may need this node to lead: it is a voter, or the change that made it none can be undone.

        A leader that removes itself may be the only one whose log is whole until that is committed (thesis 4.2.2).
        """
        if not self.may_lead:
            return False
        if self.is_counted or self.configurations.index <= self.commit_index:
            return self.is_counted
        return self.node_id in self.configurations.before(self.log).voters

    @property
    def knows_members(self) -> bool:
        """True once this store knows whose log it holds; else the first entry that names members tells it."""
        return self.is_voter or bool(self.configurations.notes)

    def _configure(self) -> None:
        """Note who is who in the configuration in force."""
        in_force, own = self.configurations.in_force, self.node_id
        self.other_voters = tuple(voter for voter in in_force.voters if voter != own)
        self.peers = tuple(member for member in in_force.members if member != own)
        self.is_counted = own in in_force.voters
        self.voter_count = len(in_force.voters)

    def _members_changed(self) -> None:
        self._configure()
        self.emit(MembersChanged(self.configurations.in_force, self.configurations.index))

    def configured(self, entry_id: EntryId, configuration: Configuration) -> bool:
        """Put the configuration of an appended entry in force; return whether it is another one."""
        is_new = self.configurations.appended(entry_id, configuration)
        if is_new:
            self._members_changed()
        return is_new

    def truncate_from(self, first: Index) -> None:
        """Remove `first` and everything after it; a configuration that stood there is undone."""
        self.log.truncate_from(first)
        self.durable_index = min(self.durable_index, self.log.last_index)
        if self.configurations.index >= first:
            self.configurations.cut(self.log)
            self._members_changed()

    def give_up_vote(self) -> None:
        """Stop voting, because promises made with this store may be lost; the store counts as a new one from here."""
        self.is_voter = False
        self._drawn_store = self.draw(1, NEW_STORE_MAX)

    def emit(self, effect: Effect) -> None:
        """Add an effect to the current step."""
        self._effects.append(effect)

    def send(self, to: NodeId, message: Message, waits: Waits = Waits.ALL) -> None:
        """Send a message once what it `waits` for, of what this and earlier steps saved, is durable."""
        self._effects.append(Send(to, message, waits))

    def take_effects(self) -> list[Effect]:
        """End the step; return its effects in order.

        Term and vote are saved first, once, whatever changed them: so no message of this step, nor
        of a later one, can leave before they are durable (paper 5.2; thesis 3.8).
        """
        self.step_count += 1
        effects = self._effects
        self._effects = []
        saved = self._saved
        last_index = self.log.last_index
        assert self.commit_index <= last_index, (
            f"entry {self.commit_index} is committed, {last_index} is the last"
        )
        assert self.durable_index <= last_index, (
            f"entry {self.durable_index} is durable, {last_index} is the last"
        )
        if (
            self.term != saved.term
            or self.vote != saved.vote
            or self.is_voter is not saved.is_voter
            or self.configurations.is_unsaved
        ):
            notes = self.configurations.notes
            self.configurations.is_unsaved = False
            self._saved = HardState(self.term, self.vote, self.is_voter, notes)
            assert self._saved.may_follow(saved), f"{self._saved} breaks the promises of {saved}"
            effects.insert(0, SaveHardState(self.term, self.vote, self.is_voter, notes))
        now = (self.role, self.term, self.leader_id)
        if now != self.announced:
            self.announced = now
            effects.append(RoleChanged(self.role, self.term, self.leader_id))
        return effects

    def adopt_term(self, term: Term) -> None:
        """Enter a higher term, in which this node has voted for nobody."""
        assert term > self.term, f"term {term} after {self.term}"
        self.term = term
        self.vote = None
        self.leader_id = None

    def vote_for(self, candidate: NodeId) -> None:
        """Give the one vote of this term."""
        assert self.vote in {None, candidate}, (
            f"{candidate} asks after the vote for {self.vote} in term {self.term}"
        )
        assert self.is_voter, f"{self.node_id} has no vote"
        self.vote = candidate

    def commit(self, index: Index) -> None:
        """Commit everything up to and with `index`."""
        assert self.commit_index < index <= self.log.last_index, (
            f"entry {index} is committed after {self.commit_index}, the last is {self.log.last_index}"
        )
        self.commit_index = index
        self.configurations.settle(self.log, min(index, self.durable_index))
        self.emit(Commit(index))

    def start_committed(self, index: Index) -> None:
        """Take everything up to `index` for committed, from before the start."""
        assert self.commit_index <= index <= self.log.last_index, (
            f"entry {index} is committed after {self.commit_index}, the last is {self.log.last_index}"
        )
        self.commit_index = index

    def knows_members_at(self, index: Index) -> bool:
        """Return whether a leader has told which members are committed at this entry or later."""
        return self.announced_members is not None and self.announced_members[0] >= index

    def forget_before(self, first: Index) -> None:
        """Forget the entries before `first`, which are committed and durable."""
        assert first - 1 <= min(self.commit_index, self.durable_index), (
            f"entries before {first} are forgotten; committed are {self.commit_index}, durable {self.durable_index}"
        )
        self.log.forget_before(first)

    def begin_log_after(self, base: LogBase) -> None:
        """Go on with an empty log after a committed place, which is not durable yet."""
        assert base.prev_index > self.commit_index, (
            f"the log begins anew after {base.prev_index}, committed is {self.commit_index}"
        )
        assert base.prev_term <= self.term, f"entry {base.prev_index} is of a later term"
        assert self.knows_members_at(base.prev_index), (
            f"the members at entry {base.prev_index} are not known"
        )
        assert self.announced_members is not None, "they were told"
        _, note = self.announced_members
        self.log.begin_after(base)
        if self.configurations.begin_after(self.log, note):
            self._members_changed()
        self.commit_index = base.prev_index
        self.durable_index = NO_INDEX

    def persisted(self, last: EntryId) -> bool:
        """Note that the log is durable up to `last`; return False if that was known, or was truncated meanwhile."""
        if last.index <= self.durable_index or self.log.term_of(last.index) != last.term:
            return False
        self.durable_index = last.index
        return True

    def draw_election_timeout(self, low_ms: int, high_ms: int) -> None:
        """Draw a new random election timeout and start it (paper 5.2)."""
        self.election_timeout_ms = self.draw(low_ms, high_ms)
        self.restart_election_timer()

    def restart_election_timer(self) -> None:
        """Restart the drawn election timeout from now."""
        self.standstill_count = 0
        deadline_ms = self.now_ms + self.election_timeout_ms
        self.election_deadline_ms = max(deadline_ms, self.paused_until_ms)

    def stood_still(self, length_ms: int) -> bool:
        """Extend the election timeout by the time in which this process stood still; return whether it was extended.

        Only this node's patience grows. What it promised to a leader (`contact_ms`), and what a leader
        holds by the promises of others, is bound to the clock, which went on.
        """
        if self.standstill_count >= STANDSTILLS_MAX:
            return False
        self.standstill_count += 1
        self.election_deadline_ms += length_ms
        return True
