"""The language of the interaction scripts: a group of cores, moved by hand.

Commands, one a line; NODE is a member's name, [x] may be left out:

    group n0 n1 n2 [key=value ...]    start a group; keys are fields of RaftConfig
        commit-rule=any-term          plant the bug of the paper's figure 8
        n0.timeout=500                what n0 draws, where the bounds allow it; else the lower bound
        n0.log=1,1,2  n0.term=3  n0.vote=n1   what n0's disk holds: the term of each entry, hard state
        spares=n3,n4                  nodes with empty stores that are to join the group
    quiet / loud                      stop and resume printing (datadriven.py)
    disk NODE manual|auto             whether saves become durable at once (auto, the default)
    sync NODE [COUNT]                 make the oldest saves durable
    memory NODE FIRST                 its entries before this one have to be loaded before they are sent
    load NODE [refused]               load what it asked for first; or it cannot be read now
    waited-for NODE                   without whom it commits nothing: too few others are there and up to date
    time MS                           let time pass; members act at their deadlines, in order
    run MS                            the same, and stabilize after each
    stand-still MS [NODE...]          the same for the others; these (or all) do nothing, and notice it after
    campaign NODE                     let time pass for NODE alone until it campaigns
    elect NODE                        campaign, then stabilize
    cut [NODE...]                     lose whatever would be delivered to or from them; none: heal
    deliver [filters] [keep]          deliver what is under way now, not what comes of it
    lose [filters]                    lose it instead
    stabilize                         sync and deliver until nothing is under way
    mail                              show what is under way, with numbers
    propose NODE BODY... token=T      read NODE token=T      transfer NODE [to=NODE] token=T
    members NODE add|promote|remove NODE [joining] token=T      ask a node to change the members
    unreachable NODE peer=NODE        step-down NODE
    crash NODE                        restart NODE
    lose-store NODE                   restart with a new, empty store; stores are numbered 1, 2, ... as drawn
    shorten-log NODE COUNT            restart with the first entries only: a disk that forgot, unnoticed
    let-lead NODE yes|no              whether its state goes as far as its log begins, so that it may lead
    give-up-vote NODE                 its store is found to be an older copy of itself
    receive NODE MESSAGE from=NODE    a message out of nothing (script_words.py)
    status [NODE...]                  log NODE...            lease NODE

Filters: from=NODE to=NODE type=WORD (first word of the message's line) number=N last.
Every command prints the effects of the steps that it caused as `NODE: effect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from typing import Any

from dledger.config import RaftConfig
from dledger.errors import PeerProtocolError
from dledger.raft.configuration import ChangeKind, MemberChange
from dledger.raft.core import NEW_STORE_MAX
from dledger.raft.effects import Effect
from dledger.raft.events import (
    Event,
    GiveUpVote,
    MembersRequested,
    PeerUnreachable,
    Propose,
    ReadRequested,
    Received,
    StepDown,
    StoodStill,
    Tick,
    TransferRequested,
)
from dledger.raft.hard_state import HardState
from dledger.raft.ids import Index, NodeId, Term
from dledger.raft.quorum import CommitRule, commit_by_count, reached_by_majority
from dledger.testing.core_group import CoreGroup, CoreMember, Draw, Mail, SafetyViolationError
from dledger.testing.core_trace import effect_line, entries_line, message_line
from dledger.testing.datadriven import Arguments, Commands, ScriptError, begun
from dledger.testing.script_words import make_message, seeded_entries

STABILIZE_STEPS_MAX = 10_000
"""A group that still talks after so many deliveries will never stop."""


def commit_any_term(
    matches: Sequence[int], *, commit_index: Index, term_first_index: Index
) -> Index:
    """Commit entries of earlier terms by counting: the bug of figure 8, planted."""
    del term_first_index
    return Index(max(reached_by_majority(matches), commit_index))


EMPTY_STORE = HardState(is_voter=False)
"""The hard state of a member that finds no file of its own: it may have promised anything before (docs/adr/0061)."""

CHANGE_KINDS = {kind.value: kind for kind in ChangeKind}

COMMIT_RULES: dict[str, CommitRule] = {"by-count": commit_by_count, "any-term": commit_any_term}


class Interaction:
    """Runs the commands of one script."""

    def __init__(self) -> None:
        self._group: CoreGroup | None = None
        self._auto: dict[NodeId, bool] = {}
        self._cut: list[NodeId] = []
        self._commands = Commands(
            {
                "group": self._start,
                "disk": self._disk,
                "sync": self._sync,
                "memory": self._memory,
                "load": self._load,
                "waited-for": self._waited_for,
                "time": lambda given: self._pass_time(_duration_ms(given)),
                "run": lambda given: self._pass_time(_duration_ms(given), is_running=True),
                "stand-still": self._stand_still,
                "campaign": self._campaign,
                "elect": self._elect,
                "cut": self._cut_off,
                "deliver": self._deliver,
                "lose": self._lose,
                "stabilize": lambda _given: self._stabilize(),
                "mail": self._mail,
                "propose": self._propose,
                "read": lambda given: self._local(given, ReadRequested(given.number("token"))),
                "transfer": self._transfer,
                "members": self._change_members,
                "unreachable": self._unreachable,
                "step-down": lambda given: self._local(given, StepDown("asked by the script")),
                "crash": lambda given: self._member(given).crash(),
                "restart": lambda given: self._member(given).restart(),
                "lose-store": lambda given: self._member(given).seed(EMPTY_STORE, []),
                "shorten-log": self._shorten_log,
                "let-lead": self._let_lead,
                "give-up-vote": lambda given: self._local(given, GiveUpVote()),
                "receive": self._receive,
                "status": self._status,
                "log": self._log,
                "lease": self._lease,
            }
        )
        self._print = self._commands.print
        self.run = self._commands.run

    @property
    def group(self) -> CoreGroup:
        """The group of this script."""
        return begun(self._group)

    # Starting and stopping members.

    def _start(self, given: Arguments) -> None:
        """Start the group: `n0.term=2` is a setting of one member, any other one a field of `RaftConfig`."""
        voters = tuple(NodeId(word) for word in given.words)
        spares = tuple(NodeId(word) for word in given.named.get("spares", "").split(",") if word)
        names = voters + spares
        known = {field.name for field in fields(RaftConfig)}
        settings: dict[str, Any] = {}
        own: dict[NodeId, dict[str, str]] = {name: {} for name in names}
        for key, value in given.named.items():
            node, _, what = key.partition(".")
            if what and node in own:
                own[NodeId(node)][what] = value
            elif key == "preferred_leaders":
                settings[key] = tuple(value.split(","))
            elif key in known:
                settings[key] = int(value)
            elif key not in {"commit-rule", "spares"}:
                raise ScriptError(f"{key} is no setting")
        configs = [
            RaftConfig(node_id=name, voters=voters, joins=name in spares, **settings)
            for name in names
        ]
        rule = COMMIT_RULES[given.named.get("commit-rule", "by-count")]

        store_numbers = count(1)

        def draw(name: NodeId) -> Draw:
            wish = int(own[name].get("timeout", 0))

            def drawn(low: int, high: int) -> int:
                if high == NEW_STORE_MAX:
                    return next(store_numbers)
                return wish if low <= wish <= high else low

            return drawn

        self._group = CoreGroup(configs, draw, commit_rule=rule)
        self._auto = dict.fromkeys(names, True)
        self._cut = []
        for name in names:
            if {"term", "vote", "log"} & own[name].keys():
                entries = seeded_entries(own[name].get("log", ""))
                term = Term(int(own[name].get("term", entries[-1].term if entries else 0)))
                vote = own[name].get("vote")
                state = HardState(term, NodeId(vote) if vote else None)
                self.group.members[name].seed(state, entries)
            elif name in spares:
                self.group.members[name].seed(EMPTY_STORE, [])

    def _member(self, given: Arguments) -> CoreMember:
        if not given.words or given.words[0] not in self.group.members:
            raise ScriptError(f"name a member: {', '.join(self.group.members)}")
        return self.group.members[NodeId(given.words[0])]

    def _show(self, member: CoreMember, effects: list[Effect]) -> None:
        for effect in effects:
            self._print(f"{member.name}: {effect_line(effect)}")

    def _step(self, member: CoreMember, event: Event) -> None:
        if not member.is_up:
            raise ScriptError(f"{member.name} is down")
        try:
            self._show(member, member.step(event))
        except PeerProtocolError as error:
            self._print(f"{member.name}: protocol error: {error}")
        except SafetyViolationError as error:
            self._print(f"SAFETY VIOLATION: {error}")
        if self._auto[member.name]:
            self._show(member, member.sync())

    def _local(self, given: Arguments, event: Event) -> None:
        self._step(self._member(given), event)

    # Network, disks and time.

    def _cut_off(self, given: Arguments) -> None:
        self._cut = [NodeId(word) for word in given.words]

    def _disk(self, given: Arguments) -> None:
        self._auto[self._member(given).name] = given.words[1:] == ("auto",)

    def _sync(self, given: Arguments) -> None:
        member = self._member(given)
        self._show(member, member.sync(given.number_at(1, "a count") if given.words[1:] else None))

    def _memory(self, given: Arguments) -> None:
        self._member(given).first_in_memory = Index(given.number_at(1, "an index"))

    def _load(self, given: Arguments) -> None:
        member = self._member(given)
        if not member.loads:
            raise ScriptError(f"{member.name} loads nothing")
        self._show(member, member.load(is_refused="refused" in given.words[1:]))

    def _waited_for(self, given: Arguments) -> None:
        node = self._member(given).node
        names = [name for name in self.group.members if node.is_waited_for(name)]
        self._print(f"{given.words[0]} waits for {' '.join(names) or 'nobody'}")

    def _pass_time(
        self, duration_ms: int, *, is_running: bool = False, standing: Sequence[CoreMember] = ()
    ) -> None:
        """Let milliseconds pass, stopping at each deadline; members with equal deadlines act in their order."""
        group = self.group
        end_ms = group.now_ms + duration_ms
        while True:
            due = [
                (member.node.next_deadline_ms(), place, member)
                for place, member in enumerate(group.members.values())
                if member.is_up
                and member not in standing
                and member.node.next_deadline_ms() <= end_ms
            ]
            if not due:
                break
            deadline_ms, _, member = min(due)
            group.now_ms = max(group.now_ms, deadline_ms)
            self._step(member, Tick())
            if is_running:
                self._stabilize()
        group.now_ms = end_ms

    def _stand_still(self, given: Arguments) -> None:
        length_ms = _duration_ms(given)
        standing = self._several(given.words[1:])
        self._pass_time(length_ms, standing=standing)
        for member in standing:
            self._step(member, StoodStill(length_ms))

    def _campaign(self, given: Arguments) -> None:
        member = self._member(given)
        self.group.now_ms = max(self.group.now_ms, member.node.next_deadline_ms())
        self._step(member, Tick())

    def _elect(self, given: Arguments) -> None:
        self._campaign(given)
        self._stabilize()

    def _let_lead(self, given: Arguments) -> None:
        self._member(given).node.let_lead(may_lead=given.words[1:] == ("yes",))

    def _shorten_log(self, given: Arguments) -> None:
        member = self._member(given)
        kept = member.durable_entries[: given.number_at(1, "a count")]
        member.seed(member.durable_state, kept)

    # Messages under way.

    def _chosen(self, given: Arguments) -> list[Mail]:
        named = given.named
        chosen = [
            mail
            for mail in self.group.mail
            if named.get("from", mail.message.source) == mail.message.source
            and named.get("to", mail.to) == mail.to
            and named.get("type", self._type(mail)) == self._type(mail)
        ]
        if "number" in named:
            chosen = [self.group.mail[given.number("number") - 1]]
        return chosen[-1:] if "last" in given.words else chosen

    @staticmethod
    def _type(mail: Mail) -> str:
        return message_line(mail.message).split()[0]

    def _deliver(self, given: Arguments) -> None:
        for mail in self._chosen(given):
            if "keep" not in given.words:
                self._remove(mail)
            self._arrive(mail)

    def _arrive(self, mail: Mail) -> None:
        member = self.group.members[mail.to]
        is_cut = mail.to in self._cut or mail.message.source in self._cut
        if member.is_up and not is_cut:
            self._step(member, Received(mail.message))

    def _lose(self, given: Arguments) -> None:
        for mail in self._chosen(given):
            self._remove(mail)

    def _remove(self, mail: Mail) -> None:
        place = next(i for i, waiting in enumerate(self.group.mail) if waiting is mail)
        del self.group.mail[place]

    def _stabilize(self) -> None:
        for _ in range(STABILIZE_STEPS_MAX):
            for member in self.group.members.values():
                self._show(member, member.sync())
            if not self.group.mail:
                return
            self._arrive(self.group.mail.pop(0))
        raise ScriptError("the group does not become stable")

    def _mail(self, given: Arguments) -> None:
        for number, mail in enumerate(self.group.mail, start=1):
            if mail in self._chosen(given):
                line = message_line(mail.message)
                self._print(f"{number}. {mail.message.source} -> {mail.to} {line}")

    # Requests of callers.

    def _propose(self, given: Arguments) -> None:
        bodies = tuple(word.encode() for word in given.words[1:])
        self._local(given, Propose(bodies, given.number("token")))

    def _transfer(self, given: Arguments) -> None:
        target = given.named.get("to")
        event = TransferRequested(NodeId(target) if target else None, given.number("token"))
        self._local(given, event)

    def _change_members(self, given: Arguments) -> None:
        if len(given.words) < 3 or given.words[1] not in CHANGE_KINDS:
            raise ScriptError(f"members NODE {'|'.join(CHANGE_KINDS)} NODE")
        change = MemberChange(
            CHANGE_KINDS[given.words[1]], NodeId(given.words[2]), "joining" in given.words
        )
        self._local(given, MembersRequested(change, given.number("token")))

    def _unreachable(self, given: Arguments) -> None:
        self._local(given, PeerUnreachable(NodeId(given.need("peer"))))

    def _receive(self, given: Arguments) -> None:
        message = make_message(given, self._member(given).entries)
        self._local(given, Received(message))

    # Output: the members' states.

    def _several(self, words: Sequence[str]) -> list[CoreMember]:
        names = [NodeId(word) for word in words] or list(self.group.members)
        return [self.group.members[name] for name in names]

    def _status(self, given: Arguments) -> None:
        for member in self._several(given.words):
            text = member.node.describe() if member.is_up else f"{member.name} is down"
            for line in text.splitlines():
                self._print(line)

    def _log(self, given: Arguments) -> None:
        for member in self._several(given.words):
            self._print(f"{member.name}: {entries_line(tuple(member.entries))}")

    def _lease(self, given: Arguments) -> None:
        member = self._member(given)
        has_lease = member.node.has_lease(self.group.now_ms)
        self._print(f"{member.name} {'has a' if has_lease else 'has no'} lease")


def _duration_ms(given: Arguments) -> int:
    return given.number_at(0, "a number of milliseconds")
