"""A model of what a group of brokers must do: fed with each committed entry once, and with answers.

It reads the records of the entries itself and knows nothing of the fold. Its rules:

- a topic exists before anything is stored in it, or waits for it;
- queue offsets are dense; what is stored in a topic of clients is what a client sent, in everything, and stands
  there once (what is made anew for each attempt may stand there again, in the order in which it was made);
- a message that waits (a delay level, a due time) is stored in its topic once, with the record that takes it out
  of the waiting ones in the same entry, never before it is due by the log's time, and never after a recall;
- a half message's topic gets it with the op record in the same entry, never without a commit of its producer;
- a consumer offset never goes back; a queue is granted to one client until that unlocks or lets it expire;
- nothing is forgotten that waits, or whose transaction is open; what is forgotten never comes back, and a queue
  begins with its first message that is not;
- what is popped is handed out, acknowledged and returned as promised (pop_model.py);
- replicas have equal digests at the same entry, and a restored state is what a replay gives, byte for byte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.store.control import (
    AdvanceSchedule,
    Command,
    CommitOffsets,
    DeliverTimers,
    LockQueues,
    PopCommand,
    RecallTimer,
    SetDelayLevels,
    UnlockQueues,
    decode_control,
)
from broker.store.locks import LOCK_LIVE_MS, LockKey, TopicQueue
from broker.store.pops import PopKey
from broker.store.recent_sends import AGE_MAX_MS, RecentSends
from broker.store.schedule import DELAY_LEVELS_TEXT, level_of, parse_delay_levels
from broker.store.state import BrokerState, StateLimits
from broker.store.timers import timer_of
from broker.store.transactions import TransactionVerdict, decode_op
from broker.testing.forms import WAITING_TOPICS, Fate, Form, Sent, form_of, key_of
from broker.testing.pop_model import POP_GROUPS, PopModel
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position
from dledger.testing.state_checker import Violation
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import REAL_TOPIC
from dledger_mq.message.record import StoredMessage, decode_records

LIMITS = StateLimits(near_timers_max=8, spill_interval=64, index_segment_units=16, sealed_units=8)
"""So small that what leaves memory, and what snapshots keep as parts, is a part of most runs."""

_POPPED_DEAD: Final = frozenset(map(names.dlq_topic, POP_GROUPS))
"""The dead letters of those who pop; nobody gives these back."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that waits: the form in which it will be stored, and its earliest time."""

    form: Form
    due_ms: int
    place: int


class BrokerModel:
    """The expected state of a whole group of brokers.

    Attributes:
        fates: what clients send.
        sent: what consumers give back, by unique key.
        records: everything that is stored, by physical offset.
        counts: what was stored, by kind.
        queues: keys of the records in each queue of each topic, in order.
        beginning: what stands before this position is forgotten.
        pops: what is in flight.
    """

    def __init__(self, repeat_age_ms: int = AGE_MAX_MS) -> None:
        """Expect a new group; `repeat_age_ms`: sends are recognised up to this age."""
        self.beginning = Position(0)
        self._repeat_age_ms = repeat_age_ms
        self._places: dict[TopicQueue, list[int]] = {}
        self.fates: dict[Form, Fate] = {}
        self.sent: dict[bytes, Sent] = {}
        self.records: dict[PhysicalOffset, StoredMessage] = {}
        self.counts: Counter[str] = Counter()
        self.pops = PopModel(self, self.counts)
        self.queues: dict[TopicQueue, list[bytes]] = {}
        self._entries: list[Entry] = []
        self._digests: dict[Index, tuple[int, dict[str, int]]] = {}
        self._delays_ms = list(parse_delay_levels(DELAY_LEVELS_TEXT))  # as every replica begins
        self._scheduled: dict[tuple[int, QueueOffset], _Waiting] = {}  # by level and queue offset
        self._timed: dict[tuple[int, PhysicalOffset], _Waiting] = {}  # by due time and place
        self._topics: set[str] = set()
        self._halves: dict[QueueOffset, Form] = {}
        self._half_forms: dict[QueueOffset, Form] = {}
        self._half_places: dict[QueueOffset, PhysicalOffset] = {}
        self._offsets: dict[LockKey, QueueOffset] = {}
        self._locks: dict[LockKey, tuple[str, int]] = {}
        self._grants: Counter[tuple[LockKey, str]] = Counter()
        self._last_store_ms = 0
        self._now_ms = 0

    @property
    def waiting_count(self) -> int:
        """Messages that have yet to be delivered or popped, and transactions that have yet to end."""
        return len(self._scheduled) + len(self._timed) + len(self._halves) + self.unpopped_count

    @property
    def unpopped_count(self) -> int:
        """Messages that those who pop have in flight, or have yet to pop."""
        return sum(self.unpopped().values())

    def unpopped(self) -> dict[PopKey, int]:
        """Return them by group and queue."""
        if not self.pops.groups:
            return {}
        popped = self._topics | set(map(names.retry_topic, self.pops.groups))
        return self.pops.left([place for place in self.queues if place[0] in popped])

    def wanted(self, form: Form, fate: Fate | None = None) -> None:
        """Expect a message that a client is about to send."""
        self.fates.setdefault(form, fate or Fate())
        self.sent.setdefault(form.key, Sent())
        self._topics.add(form.topic)

    # Entries.

    def applied(
        self, state: BrokerState, entry: Entry, *, now_ms: int, looks_closely: bool
    ) -> None:
        """Check a replica that has folded an entry; `now_ms` is the true time."""
        self._now_ms = now_ms
        if entry.index > len(self._entries):
            assert entry.index == len(self._entries) + 1, (
                f"entry {entry.index} is folded, {len(self._entries)} entries were seen"
            )
            self._entries.append(entry)
            self.pops.began_term(entry.term)
            if entry.kind is EntryKind.NORMAL:
                self._take(entry, state)
        if looks_closely:
            found = (state.digest(), state.digests())
            known = self._digests.setdefault(entry.index, found)
            if known != found:
                parts = [name for name, value in found[1].items() if known[1][name] != value]
                raise Violation(f"digests differ at entry {entry.index}: {', '.join(parts)}")

    def compare_with_replay(self, state: BrokerState) -> None:
        """Demand that the state is what its entries give, in every byte of its snapshot."""
        replayed = BrokerState(limits=LIMITS)
        replayed.recent_sends = RecentSends(self._repeat_age_ms)
        replayed.apply(self._entries[: state.applied_index])
        assert replayed.applied_index == state.applied_index, (
            f"{replayed.applied_index} entries were replayed for {state.applied_index}"
        )
        found, wanted = (b"".join(each.snapshot()) for each in (state, replayed))
        if found != wanted:
            tables = [
                name
                for name, table in state.tables().items()
                if table.dump() != replayed.tables()[name].dump()
            ]
            raise Violation(
                f"the state at entry {state.applied_index} is not what a replay gives: "
                f"{', '.join(tables) or 'queues, keys or timers'}"
            )

    def _take(self, entry: Entry, state: BrokerState) -> None:
        """Follow an entry, which the first replica has folded."""
        stored: dict[Form, list[StoredMessage]] = {}
        commands: list[tuple[StoredMessage, Command]] = []
        ops: list[StoredMessage] = []
        records = list(decode_records(entry.body))
        if records:
            self.pops.begin(records[0].store_timestamp_ms, self._now_ms, records)
        for message in records:
            self._note_place(message)
            self._note_back(message)
            if names.is_control_topic(message.topic):
                command = decode_control(message.topic, message.body)
                commands.append((message, command))
                if isinstance(command, SetDelayLevels):
                    self._set_delays(list(command.delays_ms))
            elif message.topic in WAITING_TOPICS:
                self._check_topic(form_of(message), state)
                self._wait(message)
            elif message.topic == names.OP_HALF_TOPIC:
                ops.append(message)
            else:
                stored.setdefault(form_of(message), []).append(message)
        delivered = self._carry_out(commands, stored, state)
        ended = self._end(ops, stored)
        if state.retention.position != self.beginning:
            self._forget(state)
        self.pops.end(state)
        for form, copies in stored.items():
            self._check_topic(form, state)
            for message in copies:
                self._judge(form, message, is_allowed=form in delivered or form in ended)

    def _check_topic(self, form: Form, state: BrokerState) -> None:
        """Demand that a topic exists, or nobody could read what is stored in it."""
        if form.topic not in state.topics:
            raise Violation(f"{form.key!r} is stored for {form.topic}, which does not exist")

    def _wait(self, message: StoredMessage) -> None:
        """Take in a message that waits: for its time, or for the end of its transaction."""
        form, queue_offset = form_of(message), QueueOffset(message.queue_offset)
        match message.topic:
            case names.SCHEDULE_TOPIC:
                delay_ms = self._delay_ms(level_of(message.properties))
                due_ms = message.store_timestamp_ms + delay_ms
                waiting = _Waiting(form, due_ms, message.physical_offset)
                self._scheduled[message.queue_id + 1, queue_offset] = waiting
            case names.TIMER_TOPIC:
                timer = timer_of(message)
                assert timer is not None, "our clients name a time"
                self._timed[timer] = _Waiting(form, timer.due_ms, message.physical_offset)
            case _:
                assert message.topic == names.HALF_TOPIC, f"nothing waits on {message.topic}"
                self._halves[queue_offset] = self._half_forms[queue_offset] = form
                self._half_places[queue_offset] = PhysicalOffset(message.physical_offset)
                self.counts["halves"] += 1

    def _note_place(self, message: StoredMessage) -> None:
        """Take in where a record stands: next in its queue, and no older than the one before in the log."""
        keys = self.queues.setdefault((message.topic, QueueId(message.queue_id)), [])
        if message.queue_offset != len(keys):
            raise Violation(
                f"{message.topic}/{message.queue_id} has {len(keys)} messages; the next one is stored "
                f"at offset {message.queue_offset}"
            )
        keys.append(key_of(message))
        places = self._places.setdefault((message.topic, QueueId(message.queue_id)), [])
        places.append(message.physical_offset)
        self.records[PhysicalOffset(message.physical_offset)] = message
        if message.store_timestamp_ms < self._last_store_ms:
            raise Violation(f"store times go back at {message.physical_offset}")
        self._last_store_ms = message.store_timestamp_ms

    def _note_back(self, message: StoredMessage) -> None:
        """Count a message that a consumer gave back: stored once each time, to wait or as a dead letter."""
        topic = message.topic
        if topic == names.SCHEDULE_TOPIC:
            topic = (message.find(REAL_TOPIC) or b"").decode()
            is_back = names.is_retry_topic(topic)
        else:
            is_back = names.is_dlq_topic(topic) and topic not in _POPPED_DEAD
        sent = self.sent.get(key_of(message)) if is_back else None
        if sent is None:
            return
        sent.back_count += 1
        if sent.back_count > sent.asked_back_count:
            raise Violation(
                f"{key_of(message)!r} was given back {sent.asked_back_count} times, and is stored once more"
            )

    def _set_delays(self, delays_ms: list[int]) -> None:
        """Take other delays: they count for what waits already, too, since each replica reckons when it looks."""
        before = {level: self._delay_ms(level) for level, _ in self._scheduled}
        self._delays_ms = delays_ms
        for (level, offset), waiting in self._scheduled.items():
            due_ms = waiting.due_ms - before[level] + self._delay_ms(level)
            self._scheduled[level, offset] = replace(waiting, due_ms=due_ms)

    def _delay_ms(self, level: int) -> int:
        return self._delays_ms[min(level, len(self._delays_ms)) - 1]

    def _judge(self, form: Form, message: StoredMessage, *, is_allowed: bool) -> None:
        """Judge a message that has come to a topic that clients read."""
        key, fate = form.key, self.fates.get(form)
        if form.topic not in self._topics:
            self.counts["retries"] += names.is_retry_topic(form.topic)
            return
        if fate is None:
            raise Violation(f"{key!r} is stored in {form.topic} as nobody sent it: {form}")
        if fate.is_recalled:
            raise Violation(f"{key!r} was recalled, and is delivered")
        if fate.is_transaction and not is_allowed:
            raise Violation(f"{key!r} is seen without the end of its transaction in the same entry")
        if fate.is_transaction and not fate.is_committed:
            raise Violation(f"{key!r} is seen, but its producer never decided to commit")
        if self._now_ms < fate.due_ms:
            raise Violation(
                f"{key!r} is seen {fate.due_ms - self._now_ms} ms before any clock can say that it is due"
            )
        for earlier in fate.places:
            if not fate.is_renewed:
                raise Violation(
                    f"{key!r} is stored twice in {form.topic}: at {earlier.physical_offset} and "
                    f"{message.physical_offset}"
                )
            if earlier.born_timestamp_ms >= message.born_timestamp_ms:
                raise Violation(
                    f"{key!r} is stored twice in {form.topic}: what was made at "
                    f"{message.born_timestamp_ms} comes after what was made at {earlier.born_timestamp_ms}"
                )
        fate.places.append(message)
        self.counts["messages"] += 1

    # Control records.

    def _carry_out(
        self,
        commands: list[tuple[StoredMessage, Command]],
        stored: dict[Form, list[StoredMessage]],
        state: BrokerState,
    ) -> set[Form]:
        """Follow the commands of one entry; return what they allow to be stored."""
        delivered: set[Form] = set()
        for message, command in commands:
            match command:
                case AdvanceSchedule(level=level, first=first, end=end):
                    for offset in map(QueueOffset, range(first, end)):
                        waiting = self._scheduled.pop((level, offset), None)
                        delivered |= self._deliver(waiting, stored, message, "level")
                case DeliverTimers(timers=timers):
                    for place in timers:
                        waiting = self._timed.pop(place, None)
                        delivered |= self._deliver(waiting, stored, message, "time")
                case RecallTimer(due_ms=due_ms, offsets=offsets):
                    self._forget_timed(due_ms, offsets)
                case CommitOffsets():
                    self._offsets_moved(command, state)
                case LockQueues():
                    self._locked(message, command, state)
                case UnlockQueues():
                    self._unlocked(command)
                case _ if isinstance(command, PopCommand):
                    self.pops.take(message, command, state)
                case _:
                    pass
        return delivered

    def _deliver(
        self,
        waiting: _Waiting | None,
        stored: dict[Form, list[StoredMessage]],
        message: StoredMessage,
        kind: str,
    ) -> set[Form]:
        """Let a waiting message leave; it must be stored in the same entry, and not too early."""
        if waiting is None:
            return set()
        real = stored.get(waiting.form)
        if real is None:
            raise Violation(
                f"{waiting.form.key!r} stops waiting without being stored in the same entry"
            )
        early_ms = waiting.due_ms - real[0].store_timestamp_ms
        if early_ms > 0:
            raise Violation(f"{waiting.form.key!r} is delivered {early_ms} ms early")
        self.counts[f"delivered_by_{kind}"] += 1
        return {waiting.form}

    def _end(self, ops: list[StoredMessage], stored: dict[Form, list[StoredMessage]]) -> set[Form]:
        """Follow the op records of one entry; return what they commit."""
        ended: set[Form] = set()
        for op in ops:
            decoded = decode_op(op.body, op.properties)
            assert decoded is not None, "a leader of ours wrote it"
            offsets, verdict = decoded
            for offset in offsets:
                form = self._halves.pop(offset, None)
                if form is None:
                    raise Violation(f"half message {offset} is ended twice")
                self.counts[f"transactions_{verdict.name.lower()}"] += 1
                if verdict is TransactionVerdict.COMMITTED:
                    if not any(
                        each.prepared_transaction_offset == self._half_places[offset]
                        for each in stored.get(form, ())
                    ) and not self.waits(form):
                        raise Violation(
                            f"{form.key!r} is committed without its message in the entry"
                        )
                    ended.add(form)
        return ended

    def _offsets_moved(self, command: CommitOffsets, state: BrokerState) -> None:
        for commit in command.commits:
            place = (commit.group, commit.topic, commit.queue_id)
            now = state.offsets.get(*place)
            before = self._offsets.get(place, -1)
            if now is not None:
                if now < before:
                    raise Violation(f"the offset of {place} goes back from {before} to {now}")
                self._offsets[place] = now

    def _locked(self, message: StoredMessage, command: LockQueues, state: BrokerState) -> None:
        for topic, queue_id in state.locks.granted_at(message.physical_offset) or ():
            lock = (command.group, topic, queue_id)
            holder, since_ms = self._locks.get(lock, ("", 0))
            now_ms = message.store_timestamp_ms
            if holder not in {"", command.client_id} and now_ms - since_ms <= LOCK_LIVE_MS:
                raise Violation(f"{lock} is held by {holder} and granted to {command.client_id}")
            self._locks[lock] = (command.client_id, now_ms)
            self._grants[lock, command.client_id] += 1
            self.counts["locks_granted"] += 1

    def _unlocked(self, command: UnlockQueues) -> None:
        for topic, queue_id in command.queues:
            lock = (command.group, topic, queue_id)
            if self._locks.get(lock, ("", 0))[0] == command.client_id:
                del self._locks[lock]

    def _forget_timed(self, due_ms: int, offsets: Sequence[PhysicalOffset]) -> None:
        for offset in offsets:
            self._timed.pop((due_ms, offset), None)

    def _forget(self, state: BrokerState) -> None:
        """Follow a move of the beginning: what waits stands behind it, and every queue begins behind it."""
        before, self.beginning = self.beginning, state.retention.position
        if self.beginning < before:
            raise Violation(f"what began at {before} begins at {self.beginning}")
        for waiting in (*self._scheduled.values(), *self._timed.values()):
            if waiting.place < self.beginning:
                raise Violation(
                    f"{waiting.form.key!r} waits at {waiting.place}, and is forgotten with all before {self.beginning}"
                )
        for offset, form in self._halves.items():
            if self._half_places[offset] < self.beginning:
                raise Violation(
                    f"{form.key!r}, whose transaction is open, is forgotten with all before {self.beginning}"
                )
        for topic, queue_id in self._places:
            found, _ = state.queues.min_max(topic, queue_id)
            if found != self.min_offset(topic, queue_id):
                raise Violation(
                    f"{topic}/{queue_id} begins at {found} when all before {self.beginning} is forgotten, not at "
                    f"{self.min_offset(topic, queue_id)}"
                )
        self.counts["forgotten"] += 1

    # For the checks of answers.

    def min_offset(self, topic: str, queue_id: QueueId) -> int:
        """Return the first queue offset that is not forgotten."""
        return bisect_left(self._places.get((topic, queue_id), []), self.beginning)

    def end_of(self, topic: str, queue_id: QueueId) -> int:
        """Return the offset of the next message of a queue."""
        return len(self._places.get((topic, queue_id), ()))

    def record_at(self, topic: str, queue_id: QueueId, offset: QueueOffset) -> StoredMessage:
        """Return the message that stands there."""
        return self.records[PhysicalOffset(self._places[topic, queue_id][offset])]

    def waits(self, form: Form) -> bool:
        """Return whether a message waits for its time."""
        return any(
            waiting.form == form for waiting in (*self._scheduled.values(), *self._timed.values())
        )

    def half_at(self, queue_offset: QueueOffset) -> Form | None:
        """Return the half message that was stored there, ended or not."""
        return self._half_forms.get(queue_offset)

    def offset_of(self, group: str, topic: str, queue_id: QueueId) -> int:
        """Return the group's offset in a queue; -1 when there is none."""
        return self._offsets.get((group, topic, queue_id), -1)

    def grant_count(self, lock: LockKey, client_id: str) -> int:
        """Return how often a queue was granted to a client, to have or to keep it."""
        return self._grants[lock, client_id]
