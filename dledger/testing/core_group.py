"""A group of bare cores whose disks, messages and clock a test moves by hand, with every step checked.

Below the engine: each member is a `RaftNode` with a list for a log and a row of saves that are not
durable until `sync`. Messages wait in `mail` until somebody delivers, loses or repeats them. Every
step is followed by the safety checks of figure 3 of the Raft paper. Scripts (interaction.py) and
property tests drive it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dledger.config import RaftConfig
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    Effect,
    HandsOver,
    LoadEntries,
    MembersChanged,
    ReadAt,
    Resolve,
    Role,
    RoleChanged,
    SaveHardState,
    Send,
    SendEntries,
    TruncateLog,
    Waits,
)
from dledger.raft.entry import Entry
from dledger.raft.events import EntriesLoaded, Event, Persisted, ReadRequested, Received
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, Index, NodeId, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.messages import AppendRequest, Message, VoteRequest, VoteResponse
from dledger.raft.node import RaftNode
from dledger.raft.quorum import CommitRule, commit_by_count

Save = SaveHardState | AppendEntries | TruncateLog
Draw = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class Mail:
    """A message that was sent and not yet delivered."""

    to: NodeId
    message: Message


class SafetyViolationError(AssertionError):
    """The group broke a promise of Raft."""


class SafetyChecker:
    """The safety properties that hold in every group at every moment (Raft paper, figure 3).

    Votes and leaders are remembered for the whole run, over crashes.
    """

    def __init__(self) -> None:
        self._leaders: dict[Term, NodeId] = {}
        self._votes: dict[tuple[Term, NodeId], NodeId] = {}
        self._committed: list[Entry] = []
        self._answered: set[int] = set()
        self._reads: dict[int, int] = {}

    def leads(self, member: CoreMember) -> None:
        """Check election safety and leader completeness."""
        term = member.node.term
        other = self._leaders.setdefault(term, member.name)
        self._require(other == member.name, f"{other} and {member.name} lead term {term}")
        held = member.entries[: len(self._committed)]
        self._require(
            held == self._committed, f"{member.name} leads term {term} without what is committed"
        )

    def voted(self, voter: NodeId, term: Term, candidate: NodeId) -> None:
        """Check that a voter has one vote in a term, counted when it leaves the voter."""
        other = self._votes.setdefault((term, voter), candidate)
        self._require(other == candidate, f"{voter} voted for {other} and {candidate} in {term}")

    def committed(self, member: CoreMember, index: Index) -> None:
        """Check state machine safety: one entry at an index, forever."""
        for place in range(member.checked_commit, index):
            entry = member.entries[place]
            if place == len(self._committed):
                self._committed.append(entry)
            self._require(
                entry == self._committed[place], f"{member.name} committed {entry} as well"
            )
        member.checked_commit = index

    def truncated(self, member: CoreMember, first: Index) -> None:
        """Check that a member never removes what it knows to be committed."""
        self._require(first > member.checked_commit, f"{member.name} cut committed {first}")

    def resolved(self, token: int) -> None:
        """Check that each token is answered once."""
        self._require(token not in self._answered, f"token {token} is answered twice")
        self._answered.add(token)

    def read_asked(self, token: int) -> None:
        """Note what anybody knew to be committed when a read came: it must see that."""
        self._reads[token] = len(self._committed)

    def read_answered(self, token: int, index: Index) -> None:
        """Check that a read is linearizable (thesis 6.4)."""
        self._require(
            index >= self._reads[token],
            f"read {token} is answered at {index}, but {self._reads[token]} was committed before",
        )

    @staticmethod
    def _require(is_true: bool, problem: str) -> None:
        if not is_true:
            raise SafetyViolationError(problem)


class _Held(NamedTuple):
    """A message that waits until a save is durable.

    Attributes:
        save_number: of the save after which it may leave, counted from 1.
    """

    save_number: int
    mail: Mail


class CoreMember:
    """One core with its disk.

    Attributes:
        entries: the log as the core knows it; the durable log may lag behind.
        durable_entries, durable_state: what a crash leaves.
        saves: not durable yet, in order.
        checked_commit: commit index up to which the checker has looked.
        first_in_memory: entries before it have to be loaded before they are sent.
        loads: those that the core has asked for.
    """

    def __init__(self, group: CoreGroup, name: NodeId, draw: Draw) -> None:
        self._group = group
        self._draw = draw
        self._held: list[_Held] = []
        self._saved_count = 0
        self.name = name
        self.durable_state = HardState()
        self.durable_entries: list[Entry] = []
        self.entries: list[Entry] = []
        self.saves: list[Save] = []
        self.checked_commit = NO_INDEX
        self.first_in_memory = NO_INDEX
        self.loads: list[LoadEntries] = []
        self.is_up = True
        self.node = self._start()

    def seed(self, state: HardState, entries: list[Entry]) -> None:
        """Replace the disk's content, as if the member had a history, and start from it."""
        self.durable_state = state
        self.durable_entries = list(entries)
        self.restart()

    def crash(self) -> None:
        """Lose everything that is not durable."""
        self.is_up = False
        self.saves.clear()
        self.loads.clear()
        self._held.clear()
        self.entries = list(self.durable_entries)

    def restart(self) -> None:
        """Start from the disk."""
        self.crash()
        self.is_up = True
        self.checked_commit = NO_INDEX
        self.node = self._start()

    def step(self, event: Event) -> list[Effect]:
        """Step the core, and apply its effects to disk and mail."""
        term, commit_index = self.node.term, self.node.commit_index
        if isinstance(event, ReadRequested):
            self._group.checker.read_asked(event.token)
        effects = self.node.step(event, self._group.now_ms)
        assert self.node.term >= term, "a term decreased"
        assert self.node.commit_index >= commit_index, "a commit index decreased"
        for effect in effects:
            self._carry_out(effect)
        self._release()
        assert self.node.log.last_index == len(self.entries), (
            f"{self.name} has {len(self.entries)} entries, its core {self.node.log.last_index}"
        )
        return effects

    def sync(self, save_count: int | None = None) -> list[Effect]:
        """Make the oldest saves durable (all of them by default) and report it to the core."""
        count = len(self.saves) if save_count is None else min(save_count, len(self.saves))
        done, self.saves = self.saves[:count], self.saves[count:]
        self._saved_count += count
        has_appended = False
        for save in done:
            match save:
                case SaveHardState():
                    self.durable_state = HardState(save.term, save.vote, save.is_voter, save.notes)
                case AppendEntries():
                    assert save.entries[0].index == len(self.durable_entries) + 1, (
                        f"entry {save.entries[0].index} is saved after {len(self.durable_entries)}"
                    )
                    self.durable_entries.extend(save.entries)
                    has_appended = True
                case TruncateLog():
                    del self.durable_entries[save.first - 1 :]
        self._release()
        if has_appended and self.durable_entries:
            return self.step(Persisted(self.durable_entries[-1].id))
        return []

    def load(self, *, is_refused: bool = False) -> list[Effect]:
        """Give the core what it asked for first; or say that it cannot be read now."""
        load = self.loads.pop(0)
        end = load.first if is_refused else load.end
        return self.step(EntriesLoaded(load.to, load.term, load.first, end))

    def _start(self) -> RaftNode:
        """Return a core over what is durable."""
        layout = LogLayout()
        for entry in self.durable_entries:
            layout.append(entry.term, entry.size_bytes)
        return RaftNode(
            self._group.configs[self.name],
            self.durable_state,
            layout,
            draw=self._draw,
            now_ms=self._group.now_ms,
            first_in_memory=lambda: self.first_in_memory,
            commit_rule=self._group.commit_rule,
        )

    def _carry_out(self, effect: Effect) -> None:
        """Apply one effect; saves only queue up here, so that a test decides when they become durable."""
        checker = self._group.checker
        match effect:
            case SaveHardState():
                self.saves.append(effect)
            case AppendEntries():
                assert effect.entries[0].index == len(self.entries) + 1, (
                    f"entry {effect.entries[0].index} is appended after {len(self.entries)}"
                )
                self.entries.extend(effect.entries)
                self.saves.append(effect)
            case TruncateLog():
                checker.truncated(self, effect.first)
                del self.entries[effect.first - 1 :]
                self.saves.append(effect)
            case Send():
                self._send(effect)
            case SendEntries():
                self._group.mail.append(Mail(effect.to, self._append_request(effect)))
            case LoadEntries():
                self.loads.append(effect)
            case Commit():
                checker.committed(self, effect.index)
            case Resolve():
                self._resolved(effect)
            case RoleChanged():
                if effect.role is Role.LEADER:
                    checker.leads(self)
            case HandsOver() | MembersChanged():
                pass

    def _resolved(self, effect: Resolve) -> None:
        checker = self._group.checker
        checker.resolved(effect.token)
        if isinstance(effect.outcome, ReadAt):
            checker.read_answered(effect.token, effect.outcome.index)

    def _send(self, effect: Send) -> None:
        mail = Mail(effect.to, effect.message)
        is_term_saved = not any(isinstance(save, SaveHardState) for save in self.saves)
        if effect.waits is Waits.NOTHING or (effect.waits is Waits.TERM and is_term_saved):
            self._group.mail.append(mail)
        else:
            self._held.append(_Held(self._saved_count + len(self.saves), mail))

    def _append_request(self, effect: SendEntries) -> AppendRequest:
        """Make the request, with the entries as this member's core knows them."""
        return AppendRequest(
            effect.term,
            self.name,
            effect.prev_index,
            effect.prev_term,
            tuple(self.entries[effect.first - 1 : effect.end - 1]),
            effect.commit_index,
            effect.round,
            effect.admits,
            effect.first_kept,
            members=effect.members,
        )

    def _release(self) -> None:
        while self._held and self._held[0].save_number <= self._saved_count:
            mail = self._held.pop(0).mail
            match mail.message:
                case VoteResponse(term=term, granted=True):
                    self._group.checker.voted(self.name, term, mail.to)
                case VoteRequest(term=term):
                    self._group.checker.voted(self.name, term, self.name)
                case _:
                    pass
            self._group.mail.append(mail)


class CoreGroup:
    """Members, mail and one clock.

    Args:
        configs: the settings of each member, in order.
        draw: for each member its source of random integers.
        commit_rule: the rule that all leaders commit by.
    """

    def __init__(
        self,
        configs: list[RaftConfig],
        draw: Callable[[NodeId], Draw],
        *,
        commit_rule: CommitRule = commit_by_count,
    ) -> None:
        self.configs = {config.node_id: config for config in configs}
        self.commit_rule = commit_rule
        self.now_ms = 0
        self.mail: list[Mail] = []
        self.checker = SafetyChecker()
        self.members = {name: CoreMember(self, name, draw(name)) for name in self.configs}

    def deliver(self, place: int, *, is_kept: bool = False) -> list[Effect]:
        """Deliver a message, which stays under way if `is_kept`. A crashed member misses it."""
        mail = self.mail[place] if is_kept else self.mail.pop(place)
        member = self.members[mail.to]
        return member.step(Received(mail.message)) if member.is_up else []

    def leaders(self) -> list[CoreMember]:
        """Return the members that lead, as far as they know themselves."""
        return [
            member
            for member in self.members.values()
            if member.is_up and member.node.role is Role.LEADER
        ]
