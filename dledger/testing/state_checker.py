"""The invariants of a group, checked after every step, whatever network and disks did.

The checker watches all members from outside and remembers what it saw, so that each step costs only
as much as it changed. It checks, with the names of the Raft paper's figure 3 where there is one:

- election safety: at most one leader in a term, and at most one vote of a member in a term;
- log matching: one entry has one content wherever it stands; the chain checksum in its header
  covers every entry before it, so equal headers mean equal prefixes;
- leader completeness: a new leader has everything that was committed in earlier terms;
- state machine safety: an index, once committed anywhere, holds the same entry everywhere for ever,
  and no member removes what it knows to be committed;
- forgetting: a log begins after a committed entry, and after the one that the group has there;
- durability: after a crash a member still knows every term and vote that its messages reported, and
  has every entry that it confirmed to a leader of the present term;
- outcomes: what was acknowledged is committed, what was refused never is, nothing is there twice.

A step that breaks one raises `Violation`; the run is then wrong, not stuck and not crashed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from dledger.codec.entry import chain_crc
from dledger.engine import Engine
from dledger.errors import CorruptionError
from dledger.raft.configuration import Configuration
from dledger.raft.effects import Committed, Role
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, NodeId, Position, Term
from dledger.raft.membership import decode_membership
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


class Violation(Exception):  # noqa: N818 - it is the finding of a check, not an error of the code that raises it
    """An invariant of the group was violated."""


@dataclass(slots=True)
class _View:
    """One member as last seen.

    Attributes:
        terms: of its entries, the first at index 1.
        end_position, last_term, term, role, commit_index: to see cheaply what a step changed.
        applied_index: last entry handed to its state machine since it started.
        starts: how often it was started.
        promised_term: highest term that left it in a message, so it must be on disk.
        confirmed_index: last entry that it reported durable to a leader and has not truncated since.
    """

    terms: list[Term] = field(default_factory=list)
    end_position: Position = Position(0)
    last_term: Term = NO_TERM
    term: Term = NO_TERM
    role: Role = Role.FOLLOWER
    commit_index: Index = NO_INDEX
    applied_index: Index = NO_INDEX
    starts: int = 0
    promised_term: Term = NO_TERM
    confirmed_index: Index = NO_INDEX


class _Leader(NamedTuple):
    """The leader of a term; the same member in a later life is another one."""

    node_id: NodeId
    start: int


class StateChecker:
    """Watches one group for a whole run.

    Invariant: `_commit_terms` never decreases; it has one item for each committed index.

    Attributes:
        acknowledged_index: the last entry that a caller knows to be committed, by an answer to an append or a read.
        anew_count: how often a member was seen with a log that begins after an entry which it did not have before.
        configuration: the last that is committed; None: no entry has named one.
        changes: how often it changed, by kind.
        truncated_count: how often a member removed entries.
        older_term_count: entries that were first committed in a later term than their own.
    """

    def __init__(self, node_ids: Sequence[NodeId], *, is_alone: bool | None = None) -> None:
        self._views = {node_id: _View() for node_id in node_ids}
        self._is_alone = len(self._views) == 1 if is_alone is None else is_alone
        self.configuration: Configuration | None = None
        self._entries: dict[tuple[Index, Term], Entry] = {}
        self._leaders: dict[Term, _Leader] = {}
        self._votes: dict[tuple[NodeId, Term], NodeId] = {}
        self._committed: list[Term] = []
        self._commit_terms: list[Term] = []
        self._bodies: dict[bytes, Index] = {}
        self._refused: set[bytes] = set()
        self.changes: Counter[str] = Counter()
        self.acknowledged_index = NO_INDEX
        self.anew_count = 0
        self.truncated_count = 0
        self.older_term_count = 0

    @property
    def committed_count(self) -> int:
        """The number of committed entries."""
        return len(self._committed)

    @property
    def newest_commit_term(self) -> Term:
        """The highest term in which anything was committed; 0 when nothing was."""
        return self._commit_terms[-1] if self._commit_terms else NO_TERM

    @property
    def leader_count(self) -> int:
        """The number of terms in which somebody led."""
        return len(self._leaders)

    def is_committed(self, body: bytes) -> bool:
        """Return whether an entry with this body is committed."""
        return body in self._bodies

    # Watching members.

    def started(self, node_id: NodeId, engine: Engine) -> None:
        """Check a member that has opened its store: it must still know what it promised before."""
        view = self._views[node_id]
        before = view.terms
        view.starts += 1
        view.terms = []
        view.end_position, view.last_term = Position(0), NO_TERM
        view.commit_index = view.applied_index = NO_INDEX
        view.role = Role.FOLLOWER
        if self._is_alone or _decides_alone(node_id, engine):
            self._forget_after(engine.log.layout.last_index)
        self._log_changed(node_id, view, engine)
        node = engine.node
        if node.term < view.promised_term:
            raise Violation(
                f"{node_id} knew term {view.promised_term} before the crash and term {node.term} after it"
            )
        promised_vote = self._votes.get((node_id, node.term))
        if promised_vote is not None and node.vote != promised_vote:
            raise Violation(
                f"{node_id} voted for {promised_vote} in term {node.term}; after the crash its vote is {node.vote}"
            )
        confirmed = view.confirmed_index
        if view.terms[:confirmed] != before[:confirmed]:
            raise Violation(
                f"{node_id} had confirmed entries up to {confirmed}; after the crash its log ends at "
                f"{len(view.terms)} or differs before"
            )
        view.term = node.term

    def wiped(self, node_id: NodeId) -> None:
        """Forget the promises of a stopped member that has lost its store; the group must cope."""
        self._views[node_id] = _View(starts=self._views[node_id].starts)
        self._votes = {
            (voter, term): vote for (voter, term), vote in self._votes.items() if voter != node_id
        }

    def observe(self, node_id: NodeId, engine: Engine) -> None:
        """Check a member after a step."""
        view = self._views[node_id]
        node = engine.node
        layout = engine.log.layout
        if layout.end_position != view.end_position or layout.last_term != view.last_term:
            self._log_changed(node_id, view, engine)
            if node.log.end_position != layout.end_position:
                raise Violation(f"{node_id}: the core's and the store's idea of the log differ")
        if node.term != view.term or node.role is not view.role:
            self._leadership_changed(node_id, view, engine)
        if node.commit_index != view.commit_index:
            self._commit_moved(node_id, view, node.commit_index, node.term)

    def sent(self, node_id: NodeId, to: NodeId, message: Message, engine: Engine) -> None:
        """Check a message that has left a member: whatever it reports must survive a crash."""
        view = self._views[node_id]
        term = message.term
        match message:
            case PreVoteRequest() | PreVoteResponse():
                return
            case AppendResponse():
                is_present = message.term == engine.node.term
                if message.success and is_present and message.match_index > view.confirmed_index:
                    self._confirmed(node_id, view, message.match_index)
            case VoteRequest():
                self._voted(node_id, term, candidate=node_id)
            case VoteResponse():
                if message.granted:
                    self._voted(node_id, term, candidate=to)
            case AppendRequest() | TimeoutNow():
                pass
            case _:
                assert_never(message)
        if term > view.promised_term:
            view.promised_term = term

    def handed_out(self, node_id: NodeId, entries: Sequence[Entry]) -> None:
        """Check the committed entries that a member has given to its state machine."""
        view = self._views[node_id]
        for entry in entries:
            if entry.index != view.applied_index + 1:
                raise Violation(
                    f"{node_id} hands out entry {entry.index} after {view.applied_index}"
                )
            if entry.index > len(self._committed):
                raise Violation(f"{node_id} hands out {entry.id}, which is not committed")
            known = self._entries[entry.index, self._committed[entry.index - 1]]
            if known.header != entry.header or known.body != entry.body:
                raise Violation(
                    f"{node_id} hands out {entry.id} where {known.id} was committed, or with other bytes"
                )
            view.applied_index = entry.index

    def restored(self, node_id: NodeId, applied_index: Index) -> None:
        """Note that a member's state machine contains this much without having been handed it."""
        self._views[node_id].applied_index = applied_index

    def compare(self, node_id: NodeId, engine: Engine) -> None:
        """Check, once the group has settled, that a member's log holds byte for byte what was committed."""
        commit_index = engine.node.commit_index
        if commit_index != len(self._committed):
            raise Violation(
                f"{node_id} has settled at commit index {commit_index}, but {len(self._committed)} "
                "entries are committed"
            )
        first = engine.log.layout.first_index
        for entry in engine.log.entries(first, Index(commit_index + 1)):
            known = self._entries[entry.index, self._committed[entry.index - 1]]
            if known.header != entry.header or known.body != entry.body:
                raise Violation(f"{node_id} has settled with other bytes in {entry.id}")

    # Watching callers.

    def acknowledged(self, bodies: Sequence[bytes], outcome: Committed) -> None:
        """Check a proposal that was answered: its entries are committed, one for each body, in order."""
        first = outcome.first.index
        if outcome.last.index != first + len(bodies) - 1:
            raise Violation(
                f"{len(bodies)} bodies are acknowledged as {outcome.first} to {outcome.last}"
            )
        for place, body in enumerate(bodies, start=first):
            index = Index(place)
            if index > len(self._committed):
                raise Violation(f"entry {index} is acknowledged but not committed")
            entry = self._entries[index, self._committed[index - 1]]
            if entry.body != body or entry.kind is not EntryKind.NORMAL:
                raise Violation(f"{entry.id} is acknowledged for a body that it does not hold")
        self.acknowledged_index = max(self.acknowledged_index, outcome.last.index)

    def refused(self, bodies: Sequence[bytes]) -> None:
        """Note that a proposal was refused for good: none of its bodies may ever be committed."""
        for body in bodies:
            if body in self._bodies:
                raise Violation(
                    f"a refused proposal is committed as entry {self._bodies[body]}: {body[:40]!r}"
                )
            self._refused.add(body)

    def read(self, *, floor_index: Index, index: Index) -> None:
        """Check a read that was answered; `floor_index` was answered to a caller before it began (thesis 6.4)."""
        if index < floor_index:
            raise Violation(
                f"a read is answered at entry {index}, but entry {floor_index} was acknowledged before it began"
            )
        self.acknowledged_index = max(self.acknowledged_index, index)

    # The rules.

    def _log_changed(self, node_id: NodeId, view: _View, engine: Engine) -> None:
        """Compare only what a step appended or removed."""
        layout = engine.log.layout
        terms = view.terms
        last = layout.last_index
        gone = layout.first_index - 1
        if gone and (gone > len(terms) or terms[gone - 1] != layout.term_of(Index(gone))):
            self._begins_after(node_id, view, engine)
        same = min(len(terms), last)
        while same > gone and layout.term_of(Index(same)) != terms[same - 1]:
            same -= 1
        if same < len(terms):
            if same < view.commit_index:
                raise Violation(
                    f"{node_id} removes entry {same + 1}, though it knows {view.commit_index} to be committed"
                )
            self.truncated_count += 1
            del terms[same:]
            view.confirmed_index = min(view.confirmed_index, Index(same))
        if same < last:
            for entry in _readable(engine, Index(same + 1), Index(last + 1)):
                self._match(node_id, entry)
            for index in range(same + 1, last + 1):
                term = layout.term_of(Index(index))
                assert term is not None, "it is in the log"
                terms.append(term)
        view.end_position = layout.end_position
        view.last_term = layout.last_term
        assert len(view.terms) == last, f"{len(view.terms)} terms of {last} entries of {node_id}"

    def _begins_after(self, node_id: NodeId, view: _View, engine: Engine) -> None:
        """Check a log that begins after an entry which the member did not have: all up to there is committed."""
        layout = engine.log.layout
        gone, term = Index(layout.first_index - 1), layout.term_of(Index(layout.first_index - 1))
        if gone > len(self._committed):
            raise Violation(
                f"{node_id} has a log that begins after entry {gone}, but {len(self._committed)} are committed"
            )
        known = self._entries[gone, self._committed[gone - 1]]
        found = (term, layout.first_position, engine.log.chain_crc_before_first)
        if found != (known.term, known.end_position, chain_crc(known)):
            raise Violation(
                f"{node_id} has a log that begins after entry {gone} of term {term} at byte "
                f"{layout.first_position}; committed there is {known.id}, which ends at {known.end_position}"
            )
        if gone < view.commit_index:
            raise Violation(
                f"{node_id} begins its log after entry {gone}, though it knows {view.commit_index} to be committed"
            )
        self.anew_count += 1
        view.terms[:] = self._committed[:gone]
        view.confirmed_index = min(view.confirmed_index, gone)

    def _forget_after(self, last: Index) -> None:
        """Forget the entries after `last`: a lone member leads at once, and may lose them in a crash unreported."""
        self._entries = {
            (index, term): entry for (index, term), entry in self._entries.items() if index <= last
        }

    def _match(self, node_id: NodeId, entry: Entry) -> None:
        """Check log matching: the same entry has the same content, and so the same prefix."""
        known = self._entries.setdefault((entry.index, entry.term), entry)
        if known is not entry and (known.header != entry.header or known.body != entry.body):
            raise Violation(f"{node_id} holds another {entry.id} than the one seen before")

    def _leadership_changed(self, node_id: NodeId, view: _View, engine: Engine) -> None:
        """Check election safety and leader completeness, when term or role changes."""
        node = engine.node
        term = node.term
        if term < view.term:
            raise Violation(f"{node_id} goes back from term {view.term} to term {term}")
        view.term = term
        view.role = node.role
        if node.role is not Role.LEADER:
            return
        # Who is alone may lead a term again that it had not told anybody of.
        is_alone = self._is_alone or _decides_alone(node_id, engine)
        leader = _Leader(node_id, 0 if is_alone else view.starts)
        if self._leaders.setdefault(term, leader) != leader:
            raise Violation(
                f"term {term} has two leaders: {self._leaders[term].node_id} and {node_id}"
            )
        known = bisect_left(self._commit_terms, term)
        if view.terms[:known] != self._committed[:known]:
            raise Violation(
                f"{node_id} leads term {term} without the {known} entries committed in earlier terms"
            )

    def _commit_moved(self, node_id: NodeId, view: _View, index: Index, term: Term) -> None:
        """Check state machine safety: an index holds one committed entry, for ever and everywhere."""
        if index < view.commit_index:
            raise Violation(
                f"{node_id}: commit index goes back from {view.commit_index} to {index}"
            )
        if index > len(view.terms):
            raise Violation(
                f"{node_id} commits entry {index}, but its log ends at {len(view.terms)}"
            )
        known = min(index, len(self._committed))
        first = view.commit_index
        if view.terms[first:known] != self._committed[first:known]:
            raise Violation(
                f"{node_id} commits other entries up to {index} than were committed before"
            )
        for place in range(len(self._committed) + 1, index + 1):
            self._commit(Index(place), entry_term=view.terms[place - 1], commit_term=term)
        view.commit_index = index

    def _commit(self, index: Index, *, entry_term: Term, commit_term: Term) -> None:
        """Note an index that is committed for the first time."""
        assert index == len(self._committed) + 1, f"{index} after {len(self._committed)}"
        self._committed.append(entry_term)
        last = self.newest_commit_term
        self._commit_terms.append(max(commit_term, last))
        self.older_term_count += entry_term < commit_term
        entry = self._entries[index, entry_term]
        if entry.kind is EntryKind.CONFIGURATION:
            self._members_committed(entry)
        if entry.kind is not EntryKind.NORMAL:
            return
        if entry.body in self._refused:
            raise Violation(f"{entry.id} is committed though its proposal was refused")
        if self._bodies.setdefault(entry.body, index) != index:
            raise Violation(f"{entry.id} holds the body of entry {self._bodies[entry.body]} again")

    def _members_committed(self, entry: Entry) -> None:
        """Check and count a change of the members: one at a time, from each committed configuration to the next."""
        before, after = self.configuration, decode_membership(entry.body)
        self.configuration = after
        if before is None:
            return
        if not before.may_precede(after):
            raise Violation(f"{entry.id} makes ({after}) of ({before}) in one change")
        gone = set(before.members) - set(after.members)
        leader = self._leaders.get(entry.term)
        self.changes["learner-added"] += len(set(after.members) - set(before.members))
        self.changes["voter-added"] += len(set(after.voters) - set(before.voters))
        self.changes["member-removed"] += len(gone)
        self.changes["leader-removed"] += leader is not None and leader.node_id in gone

    def _confirmed(self, node_id: NodeId, view: _View, index: Index) -> None:
        """Note that a member has confirmed to its leader everything up to `index`."""
        if index > len(view.terms):
            raise Violation(
                f"{node_id} confirms entry {index}, but its log ends at {len(view.terms)}"
            )
        view.confirmed_index = index

    def _voted(self, node_id: NodeId, term: Term, *, candidate: NodeId) -> None:
        """Check that a member has one vote in a term (Raft paper 5.2)."""
        if self._votes.setdefault((node_id, term), candidate) != candidate:
            raise Violation(
                f"{node_id} votes in term {term} for {self._votes[node_id, term]} and for {candidate}"
            )


def _decides_alone(node_id: NodeId, engine: Engine) -> bool:
    """Return whether a member is the only voter of its group, as far as it knows."""
    return engine.node.configuration.voters == (node_id,)


def _readable(engine: Engine, first: Index, end: Index) -> list[Entry]:
    """Return a member's entries without the damaged ones, which it gets back from others."""
    log = engine.log
    try:
        return log.entries(first, end)
    except CorruptionError:
        if not engine.live_repair.can_help:
            raise
    engine.live_repair.look(first, end)
    indexes = (Index(index) for index in range(first, end))
    whole = (index for index in indexes if not engine.live_repair.has_hole(index))
    return [entry for index in whole for entry in log.entries(index, Index(index + 1))]
