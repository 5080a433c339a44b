"""RaftNode: one member of a group as a state machine without I/O.

`step` takes an event and the time and returns effects. This module holds what is common to all
roles: the rules about terms (paper 5.1), who is listened to, and the changes of role, which follow
the table in roles.py. What a role does stands in follower.py, candidate.py and leader.py.

A step that raises `PeerProtocolError` has changed nothing: messages are checked before anything is
done with them.
"""

from __future__ import annotations

from typing import assert_never

from dledger.config import RaftConfig
from dledger.errors import NotLeaderError, PeerProtocolError
from dledger.raft import election, follower
from dledger.raft.candidate import Campaign
from dledger.raft.configuration import Configuration
from dledger.raft.core import Core, Draw, FirstInMemory
from dledger.raft.effects import Effect, Failed, Resolve, Role
from dledger.raft.entry import EntryKind
from dledger.raft.events import (
    EntriesLoaded,
    Event,
    GiveUpVote,
    MembersRequested,
    PeerUnreachable,
    Persisted,
    Propose,
    ReadRequested,
    Received,
    StepDown,
    StoodStill,
    Tick,
    TransferRequested,
)
from dledger.raft.finished_row import FinishedEntries
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from dledger.raft.leader import Leader
from dledger.raft.log_layout import LogBase, LogLayout
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.raft.progress import PeerView
from dledger.raft.quorum import CommitRule, commit_by_count
from dledger.raft.roles import Cause, next_role

LEADER_GONE_SPREAD_MS = 150
"""Followers whose connection to the leader broke campaign within this time, not all at once."""

STEP_DOWN_PAUSE_TIMEOUTS = 3
"""A node that had to step down lets this many of the longest election timeouts pass: others go first."""

TERM_FAR = 1 << 62
"""No group comes here by elections."""

TERM_STEP_MAX = 1 << 32
"""From there on no message leads further than this: the last number has no next one, so nobody who adopted it could be
elected any more, and all members would keep it for ever."""


class RaftNode:
    """One member. Deterministic: the same events, times and draws give the same effects.

    Invariant: there is a `Leader` while the role is leader, and only then.

    Args:
        config: validated settings; this node is one of the voters, or joins them.
        hard_state: term, vote and what was noted of the members, as they were saved.
        log: layout of the durable log; copied.
        draw: a random integer between two bounds, both included.
        now_ms: the time; never decreases from here on.
        first_in_memory: tells from which entry on all are in memory; others are loaded before they are sent.
        commit_rule: how matches become a commit index; tests of the simulator plant a wrong one.
    """

    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        log: LogLayout,
        *,
        draw: Draw,
        now_ms: int,
        first_in_memory: FirstInMemory = lambda: NO_INDEX,
        commit_rule: CommitRule = commit_by_count,
    ) -> None:
        self._core = Core(
            config, hard_state, log, draw=draw, now_ms=now_ms, first_in_memory=first_in_memory
        )
        self._commit_rule = commit_rule
        self._campaign: Campaign | None = None
        self._candidacy: Campaign | None = None
        self._leader: Leader | None = None
        self._wait_for_leader()
        if self._core.is_counted and not self._core.other_voters:
            # A group of one has nobody to wait for.
            self._core.election_deadline_ms = now_ms

    @property
    def role(self) -> Role:
        """The node's role."""
        return self._core.role

    @property
    def term(self) -> Term:
        """The highest term that it has seen."""
        return self._core.term

    @property
    def announced(self) -> tuple[Role, Term, NodeId | None]:
        """Role, term and known leader at the end of the last step; the same object as long as none of them changes."""
        return self._core.announced

    @property
    def vote(self) -> NodeId | None:
        """The candidate that it voted for in this term; None: nobody yet."""
        return self._core.vote

    @property
    def is_voter(self) -> bool:
        """True while it may vote and is counted (docs/adr/0061)."""
        return self._core.is_voter

    @property
    def configuration(self) -> Configuration:
        """The members in force here: the last that the log names, committed or not."""
        return self._core.configurations.in_force

    @property
    def configuration_index(self) -> Index:
        """The entry that put the configuration in force; 0: it is the first one."""
        return self._core.configurations.index

    def configuration_at(self, index: Index) -> Configuration | None:
        """Return the configuration that was in force at an entry of the log; None: it is not known here."""
        core = self._core
        return core.configurations.at(core.log, index) if core.knows_members else None

    @property
    def is_configuration_committed(self) -> bool:
        """True once the configuration in force is known to be committed."""
        return self._core.configurations.index <= self._core.commit_index

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this term, as far as it is known."""
        return self._core.leader_id

    @property
    def commit_index(self) -> Index:
        """The last index that is known to be committed."""
        return self._core.commit_index

    @property
    def durable_index(self) -> Index:
        """The last index that is surely on the own disk."""
        return self._core.durable_index

    @property
    def log(self) -> LogLayout:
        """The log's layout, to be read only."""
        return self._core.log

    @property
    def noop_index(self) -> Index | None:
        """The entry that the own term began with while this node leads, else None."""
        return self._leader.noop_index if self._leader else None

    @property
    def last_round(self) -> int:
        """Number of the latest append request of this leadership; 0 when this node does not lead."""
        return self._leader.replication.rounds.last_round if self._leader else 0

    @property
    def pending_count(self) -> int:
        """Proposals taken and not yet decided."""
        return self._leader.pending_count if self._leader else 0

    def is_waited_for(self, peer: NodeId) -> bool:
        """Return whether this node leads, and commits nothing until this member has caught up."""
        return self._leader is not None and self._leader.replication.is_waited_for(peer)

    @property
    def transfer_target(self) -> NodeId | None:
        """The member to which leadership is being handed; None while it is not."""
        return self._leader.handover.target if self._leader else None

    def let_lead(self, *, may_lead: bool) -> None:
        """Let this node campaign from now on, or not: it could not serve. Who does already has to step down first."""
        self._core.may_lead = may_lead

    def start_committed(self, index: Index) -> None:
        """Regard everything up to this entry as committed, since a snapshot contains it. Before the first step only."""
        self._core.start_committed(index)

    def finish(self, part: FinishedEntries) -> None:
        """Look the places of a finished part's entries up from now on. Between two steps."""
        self._core.log.finish(part)

    def forget_before(self, first: Index) -> None:
        """Forget the entries before `first`; members that lack them need a snapshot. Between two steps."""
        self._core.forget_before(first)

    def knows_members_at(self, index: Index) -> bool:
        """Return whether the log may begin anew behind this entry: a leader has told whose members it is."""
        return self._core.knows_members_at(index)

    def begin_log_after(self, base: LogBase) -> list[Effect]:
        """Go on with an empty log after a committed place that a snapshot reaches. Between two steps.

        Only a follower may: a candidate has told others what its log is. Until `Persisted` says so, nothing of it
        counts as durable.
        """
        assert self._core.role is Role.FOLLOWER, f"a {self._core.role.value} begins its log anew"
        self._core.begin_log_after(base)
        return self._core.take_effects()

    def has_lease(self, now_ms: int) -> bool:
        """Return whether this node leads and no other can have been elected up to now."""
        return self._leader is not None and self._leader.has_lease(now_ms)

    def lacks_majority(self) -> bool:
        """Return whether this node leads and has heard no majority for a lease: if that goes on, its term is lost."""
        return self._leader is not None and not self._leader.is_bound()

    def progress(self) -> dict[NodeId, PeerView]:
        """Return the other members as the leader sees them; empty when this node does not lead."""
        if self._leader is None:
            return {}
        voters = self._core.other_voters
        return {
            name: peer.view(is_learner=name not in voters)
            for name, peer in self._leader.replication.peers.items()
        }

    def describe(self) -> str:
        """Draw the node in one line, and each member in one while it leads."""
        core = self._core
        own = (
            f"{core.node_id} {core.role.value} term={core.term} vote={core.vote or '-'} "
            f"leader={core.leader_id or '-'} commit={core.commit_index} "
            f"durable={core.durable_index} last={core.log.last_id}"
            f"{'' if core.is_voter else ' non-voter'}{'' if core.is_counted else self._standing()}"
        )
        peers = [
            f"  {view.node_id} {view.state.value} match={view.match_index} next={view.next_index} "
            f"inflight={view.inflight_count}{'' if view.is_voter else ' non-voter'}"
            f"{' learner' if view.is_learner else ''}"
            for view in self.progress().values()
        ]
        return "\n".join([own, *peers])

    def _standing(self) -> str:
        core = self._core
        return " learner" if core.node_id in core.configurations.in_force.learners else " no-member"

    def next_deadline_ms(self) -> int:
        """Return when the next `Tick` is due at the latest."""
        if self._leader is not None:
            return self._leader.next_deadline_ms()
        return self._core.election_deadline_ms

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what is to be done, in order (effects.py says what order means).

        Raises:
            PeerProtocolError: the message cannot come from a correct member; nothing has changed.
        """
        core = self._core
        if isinstance(event, Received):
            return self._take(event.message, now_ms)
        core.now_ms = max(core.now_ms, now_ms)
        match event:
            case Persisted() | EntriesLoaded():
                self._disk_answered(event)
            case Propose() | ReadRequested() | TransferRequested() | MembersRequested():
                self._request(event)
            case Tick(obstacles):
                self._tick(obstacles)
            case StoodStill(length_ms):
                if core.stood_still(length_ms) and self._leader is not None:
                    self._leader.stood_still(length_ms)
            case PeerUnreachable(peer):
                self._unreachable(peer)
            case StepDown(reason):
                pause_ms = STEP_DOWN_PAUSE_TIMEOUTS * core.config.election_timeout_max_ms
                core.paused_until_ms = core.now_ms + pause_ms
                self._become(Cause.STEP_DOWN, why=reason)
            case GiveUpVote():
                if core.is_voter:
                    core.give_up_vote()
                    self._become(Cause.STEP_DOWN)
            case _:
                assert_never(event)
        assert (self._leader is None) is (core.role is not Role.LEADER), core.role
        return core.take_effects()

    def _take(self, message: Message, now_ms: int) -> list[Effect]:
        """Take a message; as `step`."""
        core = self._core
        if isinstance(message, AppendRequest):
            effects = follower.append_next(core, message, now_ms)
            if effects is not None:
                return effects
        plan = self._check(message)
        core.now_ms = max(core.now_ms, now_ms)
        self._receive(message, plan)
        assert (self._leader is None) is (core.role is not Role.LEADER), core.role
        return core.take_effects()

    # Checks, which raise before anything changes.

    def _check(self, message: Message) -> follower.AppendPlan | follower.Conflict | None:
        """Refuse messages that no correct member would send; return the plan for an append request."""
        core = self._core
        # Who is a member cannot be told from here: this log may lack what has made the sender one (thesis 4.1).
        if message.source == core.node_id:
            raise PeerProtocolError(f"{message.source} is sent a message in its own name")
        if message.term > core.term and message.term > max(core.term, TERM_FAR) + TERM_STEP_MAX:
            raise PeerProtocolError(
                f"{message.source} names term {message.term}, this member has seen term {core.term}"
            )
        if isinstance(message, AppendRequest):
            if message.term < core.term:
                return None
            known = core.leader_id if message.term == core.term else None
            if known is not None and known != message.source:
                raise PeerProtocolError(f"{message.source} leads term {core.term}, as does {known}")
            plan = follower.plan_append(core.log, core.commit_index, message)
            if isinstance(plan, follower.AppendPlan):
                self._check_writers(message.source, plan)
            return plan
        if isinstance(message, AppendResponse):
            self._check_answer(message)
        return None

    def _check_writers(self, source: NodeId, plan: follower.AppendPlan) -> None:
        """Refuse new entries that name other members than this group can have after those that stay."""
        core = self._core
        if not any(entry.kind is EntryKind.CONFIGURATION for entry in plan.new):
            return
        prev_index = Index(plan.new[0].index - 1)
        before = self.configuration_at(prev_index)
        prev_term = core.log.term_of(prev_index)
        follower.check_writers(
            source, plan.new, before, NO_TERM if prev_term is None else prev_term
        )

    def _check_answer(self, response: AppendResponse) -> None:
        if self._leader is None or response.term != self._core.term:
            return
        if response.round > self.last_round:
            raise PeerProtocolError(
                f"{response.source} answers round {response.round}, the last was {self.last_round}"
            )
        last_index = self._core.log.last_index
        if response.match_index > last_index:
            raise PeerProtocolError(
                f"{response.source} confirms entry {response.match_index}, the last is {last_index}"
            )

    # Events, each checked already.

    def _receive(
        self, message: Message, plan: follower.AppendPlan | follower.Conflict | None
    ) -> None:
        """Act on a message that `_check` has accepted; `plan` is None for the append request of an old leader."""
        core = self._core
        match message:
            case AppendResponse():
                if message.term > core.term:
                    self._enter_term(message.term)
                elif self._leader is not None and message.term == core.term and message.round:
                    self._leader.answered(message)
            case AppendRequest():
                if plan is None:
                    follower.refuse_old_leader(core, message)
                else:
                    self._follow(message.term, message.source)
                    # A late request may mean a store that was lost since: the number shows it.
                    is_meant = message.admits and message.admits == core.store
                    if is_meant and isinstance(plan, follower.AppendPlan):
                        core.is_voter = True
                    follower.carry_out(core, message, plan)
            case VoteRequest():
                self._vote_asked(message)
            case PreVoteRequest():
                election.answer_pre_vote(core, message, is_bound=self._is_bound())
            case VoteResponse() | PreVoteResponse():
                self._vote_answered(message)
            case TimeoutNow():
                self._campaign_at_once(message)
            case _:
                assert_never(message)

    def _request(
        self, event: Propose | ReadRequested | TransferRequested | MembersRequested
    ) -> None:
        """Hand a caller's request to the leadership; without one it is resolved at once as NotLeaderError."""
        leader = self._leader
        if leader is None:
            error = NotLeaderError(self._core.leader_id, self._core.term)
            self._core.emit(Resolve(event.token, Failed(error)))
            return
        match event:
            case Propose():
                leader.propose(event)
            case ReadRequested():
                leader.read(event)
            case TransferRequested():
                leader.handover.request(event)
            case MembersRequested():
                leader.changes.request(event)
            case _:
                assert_never(event)

    def _disk_answered(self, event: Persisted | EntriesLoaded) -> None:
        core, leader = self._core, self._leader
        if isinstance(event, Persisted):
            if core.persisted(event.last) and leader is not None:
                leader.persisted()
        elif leader is not None and event.term == core.term:
            leader.replication.loaded(event)

    def _tick(self, obstacles: str) -> None:
        """Do what is due; a term that ends for want of a majority ends with what is known of the reason."""
        if self._leader is not None:
            cause = self._leader.tick()
            if cause is Cause.MAJORITY_LOST:
                known = f" ({obstacles})" if obstacles else ""
                self._become(cause, why=f"no majority answered{known}")
            elif cause is not None:
                self._become(cause)
        elif self._core.now_ms >= self._core.election_deadline_ms:
            core = self._core
            if core.may_campaign and (core.is_voter or core.new_store):
                self._become(Cause.ELECTION_TIMEOUT)
            else:  # only a leader can help a store that was lost, or a learner; the one it knew is silent
                core.leader_id = None
                self._wait_for_leader()

    def _unreachable(self, peer: NodeId) -> None:
        core = self._core
        if self._leader is not None:
            if peer in self._leader.replication.peers:
                self._leader.unreachable(peer)
        elif peer == core.leader_id and core.role is Role.FOLLOWER:
            free_ms = max(core.contact_ms + core.config.lease_ms, core.now_ms)
            soon_ms = max(free_ms + core.draw(0, LEADER_GONE_SPREAD_MS), core.paused_until_ms)
            core.election_deadline_ms = min(core.election_deadline_ms, soon_ms)

    def _vote_asked(self, request: VoteRequest) -> None:
        core = self._core
        is_bound = self._is_bound()
        if request.term > core.term:
            if is_bound and not request.is_transfer:
                return  # not even the term is adopted (thesis 4.2.3)
            self._enter_term(request.term)
        election.answer_vote(core, request, is_bound=is_bound)

    def _vote_answered(self, response: VoteResponse | PreVoteResponse) -> None:
        """Count a vote or pre-vote; an answer to an earlier campaign has another term and is dropped."""
        core = self._core
        is_pre_vote = isinstance(response, PreVoteResponse)
        if isinstance(response, PreVoteResponse) and self._founds_after(response):
            return
        # A granted pre-vote repeats the term asked about, which is nobody's term yet.
        if response.term > core.term and not (is_pre_vote and response.granted):
            self._enter_term(response.term)
            return
        campaign = self._campaign_of_pre_vote() if is_pre_vote else self._candidacy
        if campaign is None:
            return
        if response.term != core.term + (1 if is_pre_vote and response.granted else 0):
            return
        campaign.count(response)
        if campaign.is_won:
            self._become(Cause.PRE_VOTE_WON if is_pre_vote else Cause.VOTE_WON)

    def _campaign_of_pre_vote(self) -> Campaign | None:
        return self._campaign if self._core.role is Role.PRE_CANDIDATE else None

    def _founds_after(self, response: PreVoteResponse) -> bool:
        """Found the group when no member has an entry; return whether the role has changed."""
        core, campaign = self._core, self._campaign
        if campaign is None or core.role is not Role.PRE_CANDIDATE or core.log.last_index:
            return False
        campaign.take_answer(response)
        if campaign.founds_group:
            core.is_voter = True
            self._become(Cause.PRE_VOTE_WON)
        elif campaign.shows_all_empty and not (core.is_voter and campaign.is_won):
            self._become(Cause.ELECTION_TIMEOUT)  # ask once more, now that the numbers are known
        else:
            return False
        return True

    def _campaign_at_once(self, message: TimeoutNow) -> None:
        core = self._core
        if not core.is_voter or not core.may_campaign:
            return
        is_leader_of_now = message.term == core.term and message.source == core.leader_id
        if is_leader_of_now and core.role is Role.FOLLOWER and core.now_ms >= core.paused_until_ms:
            core.handed_over_by, core.handed_over_ms = message.source, core.now_ms
            self._become(Cause.TIMEOUT_NOW)

    # Changes of role.

    def _is_bound(self) -> bool:
        """Return whether a promise to a leader forbids to support another candidate."""
        if self._leader is not None:
            return self._leader.is_bound()
        return self._core.now_ms - self._core.contact_ms < self._core.config.lease_ms

    def _enter_term(self, term: Term) -> None:
        """Become a follower in a higher term that a message has shown; its leader is not known yet (paper 5.1)."""
        self._become(Cause.HIGHER_TERM, term=term)

    def _follow(self, term: Term, leader_id: NodeId) -> None:
        """Follow the leader whose append request came, and restart the election timeout."""
        core = self._core
        if core.role is not Role.FOLLOWER or term > core.term:
            self._become(Cause.LEADER_HEARD, term=term)
        core.leader_id = leader_id
        core.contact_ms = core.now_ms
        core.restart_election_timer()

    def _become(self, cause: Cause, *, term: Term | None = None, why: str = "") -> None:
        """Change the role as the table says, entering `term` if it is higher."""
        core = self._core
        role = next_role(core.role, cause)
        is_new_term = term is not None and term > core.term
        if self._leader is not None:
            self._leader.resign(is_new_term=is_new_term, why=why)
            self._leader = None
            core.leader_id = None
        if term is not None and is_new_term:
            core.adopt_term(term)
        core.role = role
        before, self._campaign = self._campaign, None
        if role is not Role.PRE_CANDIDATE:
            self._candidacy = None
        match role:
            case Role.FOLLOWER:
                self._wait_for_leader()
            case Role.PRE_CANDIDATE | Role.CANDIDATE:
                self._campaign_as(role, cause, before)
            case Role.LEADER:
                self._leader = Leader(core, self._commit_rule)
            case _:
                raise AssertionError(f"no node becomes a {role.value}")

    def _wait_for_leader(self) -> None:
        config = self._core.config
        self._core.draw_election_timeout(
            config.election_timeout_min_ms, config.election_timeout_max_ms
        )

    def _campaign_as(self, role: Role, cause: Cause, before: Campaign | None) -> None:
        campaign = self._campaign = Campaign(self._core, before)
        if role is Role.PRE_CANDIDATE:
            campaign.ask_whether()
        else:
            # Its votes count as long as the term lasts, also while this node asks whether it would win the next:
            # where a sync takes longer than an election timeout, each vote comes late.
            self._candidacy = campaign
            campaign.ask(is_transfer=cause is Cause.TIMEOUT_NOW)
        if campaign.is_won:  # a group of one
            is_pre_vote = role is Role.PRE_CANDIDATE
            self._become(Cause.PRE_VOTE_WON if is_pre_vote else Cause.VOTE_WON)
