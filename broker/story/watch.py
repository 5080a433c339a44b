"""What each entry does to one message: its records as they come, and the commands that name their places.

Where the state is folded beside, a command is believed by what it did: the state is asked before and behind the entry.
Where the state before an entry is not known, since the log has lost its beginning, the command is all that there is: it
is told as what was asked for (`StoryStep.is_sure`).

It must not know where entries come from, nor how a story is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.store import control
from broker.store.state import BrokerState
from broker.store.topics import CONTROL_TOPICS
from broker.store.transactions import TransactionVerdict, decode_op
from broker.story.arrivals import arrival, host_text
from broker.story.copies import WAITING, Copy, CopyRole, records_of
from broker.story.orders import (
    ControlOrder,
    asked_for,
    forgets,
    groups_named,
    in_flight_of,
    moved_by,
    order_of,
)
from broker.story.steps import STEPS_MAX, StepKind, StoryStep
from broker.times import time_text
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.record import StoredMessage

_CONTROL_MARK: Final = names.CONTROL_PREFIX.encode()
_OP_MARK: Final = names.OP_HALF_TOPIC.encode()

_VERDICTS: Final = {
    TransactionVerdict.COMMITTED: StepKind.COMMITTED,
    TransactionVerdict.ROLLED_BACK: StepKind.ROLLED_BACK,
    TransactionVerdict.GIVEN_UP: StepKind.GIVEN_UP,
}

_GONE: Final = (StepKind.EXPIRED, StepKind.HIDDEN, StepKind.TOPIC_DELETED)
"""With these a record is in no queue any more, whatever comes under its topic's name."""

assert all(each.startswith(names.CONTROL_PREFIX) for each in CONTROL_TOPICS), (
    f"a control topic of {CONTROL_TOPICS} does not begin with {names.CONTROL_PREFIX}"
)


@dataclass(slots=True)
class _Look:
    """The state of things before an entry is folded, for a comparison behind it."""

    index: Index
    term: int
    at_ms: int
    orders: list[ControlOrder] = field(default_factory=list)
    ops: list[StoredMessage] = field(default_factory=list)
    new: list[Copy] = field(default_factory=list)
    stands: dict[tuple[Copy, str], int | None] = field(default_factory=dict)
    in_flight: set[tuple[Copy, str]] = field(default_factory=set)
    is_sure: bool = True


class Watch:
    """The steps of one message.

    Attributes:
        steps: so far, in the order of the log.
        is_cut: there were more.
    """

    def __init__(self, copies: Sequence[Copy]) -> None:
        """Watch the copies that a search has found, in the order of the log."""
        self.steps: list[StoryStep] = []
        self.is_cut = False
        self._by_entry: dict[int, list[Copy]] = {}
        for copy in copies:
            self._by_entry.setdefault(copy.index, []).append(copy)
        self._seen: list[Copy] = []
        self._ended: set[int] = set()
        self._gone: set[tuple[int, StepKind]] = set()
        self._stands: dict[tuple[Copy, str], int | None] = {}

    # Before and behind an entry.

    def may_matter(self, entry: Entry) -> bool:
        """Return False for an entry that does nothing to the message."""
        if entry.kind is not EntryKind.NORMAL:
            return False
        if entry.index in self._by_entry:
            return True
        return bool(self._seen) and (_CONTROL_MARK in entry.body or _OP_MARK in entry.body)

    def before(self, entry: Entry, state: BrokerState | None) -> _Look:
        """Look at an entry that may matter, before it is folded; None: nothing is known of the state.

        Raises:
            StoryError: its body is no records, or a command is of a newer version.
        """
        return self.before_records(entry.index, entry.term, list(records_of(entry)), state)

    def before_records(
        self,
        index: Index,
        term: int,
        records: Sequence[StoredMessage],
        state: BrokerState | None,
    ) -> _Look:
        """Look at an entry's records, or at those of them that are control or op records.

        Raises:
            StoryError: a command is of a newer version.
        """
        look = _Look(index, term, records[0].store_timestamp_ms if records else 0)
        look.is_sure = state is not None
        look.new = self._by_entry.get(index, [])
        for message in records:
            if message.topic == names.OP_HALF_TOPIC:
                look.ops.append(message)
            elif names.is_control_topic(message.topic):
                order = order_of(message)
                if order is not None:
                    look.orders.append(order)
        groups = {group for order in look.orders for group in groups_named(order.command)}
        may_forget = forgets(look.orders)
        for copy in self._in_queues():
            for group in groups:
                key = (group, copy.message.topic, copy.message.queue_id)
                known = self._stands.get((copy, group))
                look.stands[copy, group] = known if state is None else state.offsets.get(*key)
                if state is not None and may_forget and _in_flight(state, copy, group):
                    look.in_flight.add((copy, group))
        return look

    def behind(self, look: _Look, state: BrokerState | None) -> None:
        """Note what an entry did, once it is folded."""
        for copy in look.new:
            self._arrived(look, copy, state)
        for message in look.ops:
            self._ended_by(look, message, state)
        for order in look.orders:
            self._carried_out(look, order, state)
        self._offsets_moved(look, state)

    def begin_with(self, state: BrokerState, index: Index, term: int, at_ms: int) -> None:
        """Go on with a state that a snapshot gave: what had happened before it, unseen, is told now."""
        look = _Look(index, term, at_ms)
        for copy in self._in_queues():
            topic, queue_id = copy.message.topic, copy.message.queue_id
            for group in state.offsets.groups_of(topic):
                after = state.offsets.get(group, topic, queue_id)
                before = self._stands.get((copy, group))
                self._compare(look, copy, group, before=before, after=after, by="before that entry")
        self._check_beginning(look, state)

    # What came in.

    def _arrived(self, look: _Look, copy: Copy, state: BrokerState | None) -> None:
        self._seen.append(copy)
        delays = None if state is None else state.schedule.delay_ms
        event, text, facts = arrival(copy, is_delivery=_delivers(look, copy), delay_ms=delays)
        self._add(look, event, copy, text, facts=facts)
        refusal = None if state is None else state.refusals.at(PhysicalOffset(copy.place))
        if refusal is not None:
            self._ended.add(copy.place)
            self._add(look, StepKind.REFUSED, copy, f"not carried out: {refusal.detail}")

    # How what waits has ended.

    def _ended_by(self, look: _Look, op: StoredMessage, state: BrokerState | None) -> None:
        """Note the end of a transaction."""
        decoded = decode_op(op.body, op.properties)
        if decoded is None:
            return
        offsets, verdict = decoded
        for copy in self._waiting(CopyRole.HALF):
            if copy.message.queue_offset not in offsets:
                continue
            if state is not None:
                known = state.transactions.verdict(QueueOffset(copy.message.queue_offset))
                if known is not verdict:
                    continue
            self._ended.add(copy.place)
            leader = host_text(op.store_host)
            group = copy.producer_group or "unknown"
            text = {
                TransactionVerdict.COMMITTED: f"committed: a producer of {group} asked, {leader} led",
                TransactionVerdict.ROLLED_BACK: f"rolled back: a producer of {group} asked, {leader} led",
            }.get(verdict, f"given up by {leader}: no producer of {group} answered any check")
            facts: dict[str, object] = {"producer_group": group, "leader": leader}
            self._add(
                look, _VERDICTS[verdict], copy, text, facts=facts, at_ms=op.store_timestamp_ms
            )

    def _carried_out(self, look: _Look, order: ControlOrder, state: BrokerState | None) -> None:
        """Note what a command did to the message."""
        match order.command:
            case control.CheckTransactions() | control.ResumeTransaction():
                self._checked(look, order, state)
            case control.AdvanceSchedule():
                self._advanced(look, order.command, state)
            case control.DeliverTimers() | control.RecallTimer():
                self._timers_ended(look, order, state)
            case (
                control.PopMessages()
                | control.AckMessages()
                | control.ChangeInvisible()
                | control.DropPopped()
            ):
                self._pops(look, order, order.command, state)
            case control.ForgetBefore() | control.HideBefore() if state is not None:
                self._check_beginning(look, state)
            case control.ForgetBefore():
                self._forgotten_before(look, order.command.position)
            case control.DeleteTopic():
                self._topic_deleted(look, order.command.name)
            case _:
                pass  # offsets are compared once, behind all commands; the rest is not about messages

    def _checked(self, look: _Look, order: ControlOrder, state: BrokerState | None) -> None:
        """Note that producers are asked, or that their checks are counted anew."""
        command = order.command
        for copy in self._waiting(CopyRole.HALF):
            offset = QueueOffset(copy.message.queue_offset)
            half = None if state is None else state.transactions.get(offset)
            if isinstance(command, control.CheckTransactions) and offset in command.queue_offsets:
                count = f", check {half.check_count}" if half is not None else ""
                text = (
                    f"producers of {copy.producer_group or 'unknown'} are asked how it ended{count}"
                )
                facts: dict[str, object] = {"checks": half.check_count if half else None}
                self._add(look, StepKind.CHECKED, copy, text, facts=facts)
            elif isinstance(command, control.ResumeTransaction) and offset == command.queue_offset:
                self._add(look, StepKind.CHECKS_ANEW, copy, "its checks are counted anew")

    def _advanced(
        self, look: _Look, command: control.AdvanceSchedule, state: BrokerState | None
    ) -> None:
        for copy in self._waiting(CopyRole.DELAYED):
            message = copy.message
            if message.queue_id != command.level - 1:
                continue
            if not command.first <= message.queue_offset < command.end:
                continue
            if state is not None and state.schedule.progress(command.level) < command.end:
                continue  # the fold has refused it
            self._waited_enough(look, copy)

    def _timers_ended(self, look: _Look, order: ControlOrder, state: BrokerState | None) -> None:
        command = order.command
        for copy in self._waiting(CopyRole.TIMED):
            if isinstance(command, control.RecallTimer):
                is_done = state is None or state.timers.was_recalled(order.place)
                if copy.place in command.offsets and is_done:
                    self._ended.add(copy.place)
                    self._add(look, StepKind.RECALLED, copy, "recalled before its time")
            elif isinstance(command, control.DeliverTimers) and copy.place in {
                place for _, place in command.timers
            }:
                self._waited_enough(look, copy)

    def _waited_enough(self, look: _Look, copy: Copy) -> None:
        """Note that what waited has ended; if nothing of it came with that, it was left out."""
        self._ended.add(copy.place)
        if any(each.role not in WAITING for each in look.new):
            return
        if not copy.has_name:
            text = "its time has come; without a unique key what came of it cannot be told"
            self._add(look, StepKind.DELIVERED, copy, text)
        else:
            text = f"its time has come, and it went nowhere: {copy.real_topic} could not take it"
            self._add(look, StepKind.LEFT_OUT, copy, text)

    # What consumers did.

    def _pops(
        self,
        look: _Look,
        order: ControlOrder,
        command: control.PopMessages
        | control.AckMessages
        | control.ChangeInvisible
        | control.DropPopped,
        state: BrokerState | None,
    ) -> None:
        """Note what a command about popped messages did to each record."""
        for copy in self._in_queues():
            message = copy.message
            if (command.topic, command.queue_id) != (message.topic, message.queue_id):
                continue
            offset = message.queue_offset
            match command:
                case control.PopMessages():
                    self._popped(look, order, command, copy, state=state)
                case control.ChangeInvisible() if command.offset == offset:
                    if state is None or any(state.pops.changed_at(order.place)):
                        until = look.at_ms + command.invisible_ms
                        text = f"{command.group}: kept from others until {time_text(until)}"
                        facts: dict[str, object] = {"until_ms": until}
                        self._add(
                            look, StepKind.INVISIBLE, copy, text, group=command.group, facts=facts
                        )
                case control.AckMessages() | control.DropPopped():
                    self._unpopped(look, order, command, copy, state=state)
                case _:
                    pass

    def _popped(
        self,
        look: _Look,
        order: ControlOrder,
        command: control.PopMessages,
        copy: Copy,
        *,
        state: BrokerState | None,
    ) -> None:
        """Note that a record was handed out."""
        offset = QueueOffset(copy.message.queue_offset)
        is_new = any(command.first + each == offset for each in command.taken)
        is_again = any(each == offset for each, _ in command.again)
        popped_ms, times = look.at_ms, None
        if state is not None:
            outcome = state.pops.outcome(order.place)
            if outcome is None:
                return
            is_new = is_new and outcome.is_taken
            is_again = is_again and offset in outcome.again
            popped_ms = outcome.popped_ms
            queue = state.pops.queue((command.group, command.topic, command.queue_id))
            found = None if queue is None else queue.find(offset, popped_ms)
            times = None if found is None else found.times
        if not (is_new or is_again):
            return
        until = popped_ms + command.invisible_ms
        counted = "" if times is None else f", time {times}"
        text = f"popped by {command.group}{counted}: nobody else of it gets it until {time_text(until)}"
        facts: dict[str, object] = {"until_ms": until, "times": times}
        self._add(look, StepKind.POPPED, copy, text, group=command.group, facts=facts)

    def _unpopped(
        self,
        look: _Look,
        order: ControlOrder,
        command: control.AckMessages | control.DropPopped,
        copy: Copy,
        *,
        state: BrokerState | None,
    ) -> None:
        """Note that a record is in flight no more."""
        done = () if state is None else state.pops.changed_at(order.place)
        for place, (offset, _) in enumerate(command.handles):
            if offset != copy.message.queue_offset:
                continue
            if state is not None and not (place < len(done) and done[place]):
                continue
            if isinstance(command, control.AckMessages):
                text = f"acknowledged by {command.group}"
                self._add(look, StepKind.ACKNOWLEDGED, copy, text, group=command.group)
            else:
                text = f"not acknowledged by {command.group} in its time: a copy went on"
                self._add(look, StepKind.DROPPED, copy, text, group=command.group)

    def _offsets_moved(self, look: _Look, state: BrokerState | None) -> None:
        """Compare where groups stand with where they stood before the entry."""
        for (copy, group), before in look.stands.items():
            key = (group, copy.message.topic, QueueId(copy.message.queue_id))
            after: int | None
            if state is not None:
                after = state.offsets.get(*key)
                was_popped = (copy, group) in look.in_flight
                if was_popped and not _in_flight(state, copy, group):
                    text = f"{group}: what was popped is forgotten, and may come again"
                    self._add(look, StepKind.FORGOTTEN, copy, text, group=group)
            else:
                after = asked_for(look.orders, key, before)
            self._compare(
                look, copy, group, before=before, after=after, by=moved_by(look.orders, key)
            )

    def _compare(
        self, look: _Look, copy: Copy, group: str, *, before: int | None, after: int | None, by: str
    ) -> None:
        """Note that a group has passed the message, or is before it again."""
        self._stands[copy, group] = after
        offset = copy.message.queue_offset
        was_passed, is_passed = (each is not None and each > offset for each in (before, after))
        facts: dict[str, object] = {"from": before, "to": after, "by": by}
        unknown = "no offset" if look.is_sure else "an offset that is not known"
        old = unknown if before is None else f"offset {before}"
        where = f"in queue {copy.message.queue_id} of {copy.message.topic}"
        if is_passed and not was_passed:
            text = f"{group} went from {old} to offset {after} {where}: {by}"
            self._add(look, StepKind.PASSED, copy, text, group=group, facts=facts)
        elif was_passed and after is None:
            text = f"{group} has no offset {where} any more: {by}"
            self._add(look, StepKind.REMOVED, copy, text, group=group, facts=facts)
        elif was_passed and not is_passed:
            text = f"{group} went back from {old} to offset {after} {where}: {by}"
            self._add(look, StepKind.MOVED_BACK, copy, text, group=group, facts=facts)

    # What became of the bytes.

    def _check_beginning(self, look: _Look, state: BrokerState) -> None:
        """Note that the group has forgotten a record, or that its topic shows less."""
        for copy in self._seen:
            if copy.place < state.retention.position:
                cause = state.retention.cause or "retention"
                text = f"forgotten by retention ({cause}), with all that stood before"
                self._once(look, StepKind.EXPIRED, copy, text)
            elif copy.place < state.retention.beginning_of(copy.message.topic):
                text = f"hidden: {copy.message.topic} keeps messages for a shorter time"
                self._once(look, StepKind.HIDDEN, copy, text)

    def _forgotten_before(self, look: _Look, position: int) -> None:
        for copy in self._seen:
            if copy.place < position:
                self._once(look, StepKind.EXPIRED, copy, "retention asked for it to be forgotten")

    def _topic_deleted(self, look: _Look, topic: str) -> None:
        for copy in self._seen:
            if copy.message.topic == topic and copy not in look.new:
                self._once(look, StepKind.TOPIC_DELETED, copy, f"topic {topic} was deleted")

    # Bookkeeping.

    def _waiting(self, role: CopyRole) -> list[Copy]:
        """Return the copies that wait for something, as far as is known."""
        return [each for each in self._seen if each.role is role and each.place not in self._ended]

    def _in_queues(self) -> Iterator[Copy]:
        """Yield the copies that consumers may meet."""
        return (
            each
            for each in self._seen
            if each.role not in WAITING
            and not each.is_hidden
            and not self._gone & {(each.place, event) for event in _GONE}
        )

    def _once(self, look: _Look, event: StepKind, copy: Copy, text: str) -> None:
        if (copy.place, event) not in self._gone:
            self._gone.add((copy.place, event))
            self._add(look, event, copy, text)

    def _add(
        self,
        look: _Look,
        event: StepKind,
        copy: Copy,
        text: str,
        *,
        group: str = "",
        facts: dict[str, object] | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Add a step, as long as there is room."""
        if len(self.steps) == STEPS_MAX:
            self.is_cut = True
            return
        self.steps.append(
            StoryStep(
                event,
                look.index,
                look.term,
                look.at_ms if at_ms is None else at_ms,
                copy.place,
                text,
                group,
                facts or {},
                look.is_sure,
            )
        )


def _delivers(look: _Look, copy: Copy) -> bool:
    """Return whether a record is what waited, delivered by the commands that follow it in its entry."""
    return any(
        isinstance(order.command, control.AdvanceSchedule | control.DeliverTimers)
        and order.place > copy.place
        for order in look.orders
    )


def _in_flight(state: BrokerState, copy: Copy, group: str) -> bool:
    """Return whether a group has a message in flight."""
    key = (group, copy.message.topic, QueueId(copy.message.queue_id))
    return in_flight_of(state, key, copy.message.queue_offset) is not None
