"""A model of what is popped: one line for each message in flight, from the records of the committed entries.

It knows nothing of blocks, bits and sorted due times. What the first replica says of a pop or an acknowledgement that
it has folded is judged here, and then believed:

- new messages are those that lie where the group stands, all of them up to where it goes, and none was ever handed out;
- a message is handed out again only if it is in flight and due by the log's time, which stands still between terms;
  in order it may be for the attempt that had it last; and by true time no earlier than any clock can say so;
- in order nothing new is handed out before all earlier ones are acknowledged, and the group moves on only then;
- only what a client asked for is acknowledged, only what is in flight under its handle, and all of that;
- what leaves the flight without an acknowledgement is due, and its copy stands in the same entry: a dead letter if it
  was delivered as often as its group wants, else in the group's retry topic, once nobody has popped it for a while;
- what is in flight, how often it was handed out, and where the groups stand is the same at the replica.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

from broker.server.handlers.pop_returns import RETURN_MS
from broker.store.control import (
    AckMessages,
    ChangeInvisible,
    DropPopped,
    PopCommand,
    PopMessages,
    SetRequestMode,
)
from broker.store.pops import PopKey
from broker.store.state import BrokerState
from dledger.testing.state_checker import Violation
from dledger_mq.message import names
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.properties import ORIGIN_MESSAGE_ID
from dledger_mq.message.record import StoredMessage

POP_GROUP: Final = "POPS"
"""It pops in any order."""

ORDERED_GROUP: Final = "ORDERED"

POP_GROUPS: Final = (POP_GROUP, ORDERED_GROUP)

_COPIES_OF: Final = frozenset(
    topic_of(group) for group in POP_GROUPS for topic_of in (names.retry_topic, names.dlq_topic)
)
"""The topics to which only what leaves the flight comes: these groups give nothing back."""

PopPlace = tuple[PopKey, QueueOffset]
"""A message, as a group has it."""


class StoredQueues(Protocol):
    """The queues as they are stored; see `BrokerModel`."""

    def min_offset(self, topic: str, queue_id: QueueId) -> int:
        """Return the first queue offset that is not forgotten."""

    def end_of(self, topic: str, queue_id: QueueId) -> int:
        """Return the offset of the next message of a queue."""

    def record_at(self, topic: str, queue_id: QueueId, offset: QueueOffset) -> StoredMessage:
        """Return the message that stands there."""


@dataclass(slots=True)
class _Flying:
    """A message in flight: since when, until when by the log's time, how often it was handed out."""

    popped_ms: int
    due_ms: int
    times: int


@dataclass(frozen=True, slots=True)
class Handing:
    """One time for which somebody has a message to himself.

    Attributes:
        popped_ms: its pop time.
        true_ms: when a replica had folded it.
        times: how often the message was handed out by then.
        is_change: its holder has changed the time.
        is_repeat: of a pop in order, for the attempt that had it before.
    """

    popped_ms: int
    true_ms: int
    times: int
    is_change: bool = False
    is_repeat: bool = False


@dataclass(slots=True)
class _Queue:
    """One queue, as a group pops it.

    Attributes:
        stands: where the group stands; None: nowhere yet.
        end: where it goes once nothing is in flight; None: it is not popped in order now.
        attempt_id: of the pop in order that handed out last.
    """

    stands: int | None = None
    end: int | None = None
    attempt_id: str = ""
    last_ms: int = 0
    flying: dict[QueueOffset, _Flying] = field(default_factory=dict)


class PopModel:
    """The expected flights of all groups.

    Attributes:
        asked: handles (queue, offset, pop time) for which a client asked to have them ended.
        handings: of each message, in the order of the log.
        acknowledged: the pop time under which each message was.
        groups: those that pop.
        retries_max: their deliveries after which a message is a dead letter.
        return_ms: so long nobody has popped what goes to a retry topic.
        counts: what was done, by kind.
    """

    def __init__(self, stored: StoredQueues, counts: Counter[str]) -> None:
        self.asked: set[tuple[PopKey, QueueOffset, int]] = set()
        self.handings: dict[PopPlace, list[Handing]] = defaultdict(list)
        self.acknowledged: dict[PopPlace, int] = {}
        self.groups: tuple[str, ...] = ()
        self.retries_max = 16
        self.return_ms = RETURN_MS
        self.counts = counts
        self._stored = stored
        self._queues: dict[PopKey, _Queue] = defaultdict(_Queue)
        self._dropped: set[PopPlace] = set()
        self._earliest_ms: dict[tuple[PopPlace, int], int] = {}
        self._touched: set[PopKey] = set()
        self._term = self._skipped_ms = self._last_ms = 0
        self._is_still = False
        self._now_ms = 0
        self._copies: list[StoredMessage] = []

    # Questions.

    def holds(self, key: PopKey, offset: QueueOffset, popped_ms: int) -> bool:
        """Return whether a message is in flight under that pop time."""
        flying = self._queues[key].flying.get(offset)
        return flying is not None and flying.popped_ms == popped_ms

    def left(self, topics: Sequence[tuple[str, QueueId]]) -> dict[PopKey, int]:
        """Return how many messages of these queues the groups have in flight, or have yet to pop, if there are any."""
        left: dict[PopKey, int] = {}
        for group in self.groups:
            for topic, queue_id in topics:
                if names.is_retry_topic(topic) and topic != names.retry_topic(group):
                    continue
                key = (group, topic, queue_id)
                queue = self._queues[key]
                stands = max(queue.stands or 0, self._stored.min_offset(topic, queue_id))
                unread = max(0, self._stored.end_of(topic, queue_id) - stands)
                count = unread if queue.end is not None else unread + len(queue.flying)
                if count:
                    left[key] = count
        return left

    def handed_out(self, place: PopPlace, popped_ms: int) -> Handing | None:
        """Return the time for which a message was handed out then."""
        return next((each for each in self.handings[place] if each.popped_ms == popped_ms), None)

    def not_before(self, place: PopPlace, popped_ms: int, earliest_ms: int) -> None:
        """Demand that nobody else is handed out a message before a true time, which its holder could expect."""
        self._earliest_ms[place, popped_ms] = earliest_ms
        handings = self.handings[place]
        for before, after in pairwise(handings):
            if before.popped_ms == popped_ms:
                self._check_true_time(place, before, after)

    # Entries.

    def begin(self, store_ms: int, now_ms: int, records: Sequence[StoredMessage]) -> None:
        """Begin an entry, the first record of which was stored then; `now_ms` is the true time."""
        if self._is_still:
            self._is_still = False
            if self._last_ms:
                self._skipped_ms += max(0, store_ms - self._last_ms)
        self._last_ms, self._now_ms = max(self._last_ms, store_ms), now_ms
        self._copies = [each for each in records if each.topic in _COPIES_OF]

    def began_term(self, term: int) -> None:
        """Let time stand still from the last record of a term to the first of the next."""
        if term != self._term:
            self._term, self._is_still = term, True

    def take(self, record: StoredMessage, command: PopCommand, state: BrokerState) -> None:
        """Judge and follow a command that the first replica has folded."""
        if isinstance(command, SetRequestMode):
            return
        key = (command.group, command.topic, command.queue_id)
        self._touched.add(key)
        now_ms = record.store_timestamp_ms - self._skipped_ms
        if isinstance(command, PopMessages):
            self._pop(key, command, record, now_ms=now_ms, state=state)
            return
        changes = state.pops.changed_at(record.physical_offset)
        if isinstance(command, ChangeInvisible):
            self._change(key, command, changes[0], now_ms)
            return
        for (offset, popped_ms), done in zip(command.handles, changes, strict=True):
            self._end(key, offset, popped_ms, command, now_ms=now_ms, is_done=bool(done))
        queue = self._queues[key]
        if not queue.flying and queue.end is not None:
            queue.stands, queue.end, queue.attempt_id = queue.end, None, ""

    def end(self, state: BrokerState) -> None:
        """Compare what an entry has changed with the replica that has folded it."""
        for key in sorted(self._touched):
            mine, queue = self._queues[key], state.pops.queue(key)
            found = {} if queue is None else {each.offset: each for each in queue.items()}
            for offset in sorted(found.keys() | mine.flying.keys()):
                wanted, has = mine.flying.get(offset), found.get(offset)
                told = None if has is None else _Flying(has.popped_ms, has.due_ms, has.times)
                if told != wanted:
                    raise Violation(f"{key} at {offset}: {told} is in flight, not {wanted}")
            stands = state.offsets.get(*key)
            if stands != mine.stands:
                raise Violation(f"{key[0]} stands at {stands} in {key[1:]}, not at {mine.stands}")
        self._touched.clear()
        for copy in self._copies:
            raise Violation(
                f"a copy of {copy.find(ORIGIN_MESSAGE_ID)!r} comes to {copy.topic}, and the message is still in flight"
            )

    def _pop(
        self,
        key: PopKey,
        command: PopMessages,
        record: StoredMessage,
        *,
        now_ms: int,
        state: BrokerState,
    ) -> None:
        """Follow a pop: first what it hands out again, then what is new."""
        outcome, queue = state.pops.outcome(record.physical_offset), self._queues[key]
        if outcome is None:
            raise Violation(f"nothing is known of the pop at {record.physical_offset}")
        is_repeat = (
            command.is_ordered
            and command.attempt_id != ""
            and command.attempt_id == queue.attempt_id
        )
        taken = [QueueOffset(command.first + each) for each in command.taken]
        may_move = self._may_move(key, command)
        if outcome.is_taken != (may_move and bool(taken)):
            told = "not handed out" if may_move else "handed out"
            raise Violation(
                f"{taken} of {key} are {told}; the group stands at {queue.stands} and "
                f"{sorted(queue.flying)} are in flight"
            )
        handed: list[tuple[QueueOffset, int]] = []
        for offset in sorted(outcome.again):
            flying = queue.flying.get(offset)
            self._check_again(key, offset, flying, now_ms, is_repeat=is_repeat)
            assert flying is not None, "it was checked"
            handed.append((offset, flying.times + (not is_repeat)))
        if may_move and command.end != (queue.stands or 0):
            self._check_new(key, queue, command, taken)
            handed += [(offset, 1) for offset in taken]
            if command.is_ordered and taken:
                queue.stands, queue.end = command.first, command.end
            else:
                queue.stands = command.end
        if not handed:
            return
        self._check_pop_time(key, queue, outcome.popped_ms, record.store_timestamp_ms)
        queue.attempt_id = command.attempt_id if command.is_ordered else ""
        if command.is_ordered:
            self.counts["popped_in_order"] += len(handed)
        due_ms = outcome.popped_ms - self._skipped_ms + command.invisible_ms
        for offset, times in handed:
            queue.flying[offset] = _Flying(outcome.popped_ms, due_ms, times)
            self._hand((key, offset), outcome.popped_ms, times, is_repeat=is_repeat)
            self.counts["popped" if times == 1 else "popped_again"] += 1

    def _may_move(self, key: PopKey, command: PopMessages) -> bool:
        """Return whether a group stands where the leader saw it, and may go on."""
        queue = self._queues[key]
        return (
            command.at == queue.stands
            and command.end <= self._stored.end_of(key[1], key[2])
            and not (queue.flying if command.is_ordered else queue.end is not None)
        )

    def _check_again(
        self,
        key: PopKey,
        offset: QueueOffset,
        flying: _Flying | None,
        now_ms: int,
        *,
        is_repeat: bool,
    ) -> None:
        """Demand that a message that is handed out again is in flight, due, and wanted once more.

        But by a repeat of its attempt, which is the same delivery: it may become due between the leader's look and the
        record.
        """
        if flying is None:
            how = "acknowledged" if (key, offset) in self.acknowledged else "not in flight"
            raise Violation(f"{key} at {offset} is handed out again, and is {how}")
        if flying.due_ms > now_ms and not is_repeat:
            raise Violation(
                f"{key} at {offset} is handed out again {flying.due_ms - now_ms} ms before its time is over"
            )
        before = self._stored.record_at(key[1], key[2], offset).reconsume_times
        if before + flying.times >= self.retries_max and not is_repeat:
            raise Violation(
                f"{key} at {offset} is handed out again after {before + flying.times} deliveries"
            )

    def _check_new(
        self, key: PopKey, queue: _Queue, command: PopMessages, taken: list[QueueOffset]
    ) -> None:
        """Demand that all from where the group stands is handed out, for the first time; but what is forgotten."""
        for offset in map(QueueOffset, range(queue.stands or 0, command.end)):
            if offset in taken:
                if (key, offset) in self.handings:
                    raise Violation(f"{key} at {offset} is handed out as if it were new")
            elif offset >= self._stored.min_offset(key[1], key[2]):
                raise Violation(f"{key} goes to {command.end} and passes the message at {offset}")

    def _check_pop_time(self, key: PopKey, queue: _Queue, popped_ms: int, store_ms: int) -> None:
        """Demand a pop time of its own, later than all that are in flight; the queue forgets those that are over."""
        if popped_ms < store_ms or (queue.flying and popped_ms <= queue.last_ms):
            raise Violation(f"{key} has the pop time {popped_ms} after {queue.last_ms}")
        queue.last_ms = popped_ms

    def _hand(
        self,
        place: PopPlace,
        popped_ms: int,
        times: int,
        *,
        is_change: bool = False,
        is_repeat: bool = False,
    ) -> None:
        """Note a time for which a message is somebody's, and that it does not begin too early."""
        handing = Handing(popped_ms, self._now_ms, times, is_change=is_change, is_repeat=is_repeat)
        if self.handings[place]:
            if self.handings[place][-1].popped_ms >= popped_ms:
                raise Violation(f"{place} has the pop time {popped_ms} twice")
            self._check_true_time(place, self.handings[place][-1], handing)
        self.handings[place].append(handing)

    def _check_true_time(self, place: PopPlace, before: Handing, after: Handing) -> None:
        if after.is_change or after.is_repeat:
            return
        earliest_ms = self._earliest_ms.get((place, before.popped_ms), 0)
        if after.true_ms < earliest_ms:
            raise Violation(
                f"{place} is handed out again {earliest_ms - after.true_ms} ms before any clock can say that its "
                "invisible time is over"
            )

    def _change(self, key: PopKey, command: ChangeInvisible, new_ms: int, now_ms: int) -> None:
        """Follow a change of a time: there is a new handle, if the old one held."""
        queue, offset = self._queues[key], command.offset
        self._check_asked(key, offset, command.popped_ms)
        if bool(new_ms) != self.holds(key, offset, command.popped_ms):
            raise Violation(f"the time of {key} at {offset} is changed to {new_ms}: {command}")
        if not new_ms:
            return
        flying = queue.flying[offset]
        self._check_pop_time(key, queue, new_ms, now_ms + self._skipped_ms)
        flying.popped_ms, flying.due_ms = new_ms, new_ms - self._skipped_ms + command.invisible_ms
        self._hand((key, offset), new_ms, flying.times, is_change=True)
        self.counts["pop_times_changed"] += 1

    def _check_asked(self, key: PopKey, offset: QueueOffset, popped_ms: int) -> None:
        if (key, offset, popped_ms) not in self.asked:
            raise Violation(f"nobody asked for what is done about {key} at {offset}, {popped_ms}")

    def _end(
        self,
        key: PopKey,
        offset: QueueOffset,
        popped_ms: int,
        command: AckMessages | DropPopped,
        *,
        now_ms: int,
        is_done: bool,
    ) -> None:
        """Follow an acknowledgement, or the drop of what was copied."""
        flying, place = self._queues[key].flying.get(offset), (key, offset)
        is_held = flying is not None and flying.popped_ms == popped_ms
        if isinstance(command, AckMessages):
            self._check_asked(key, offset, popped_ms)
            if is_held != is_done:
                raise Violation(
                    f"{place}, {popped_ms}: acknowledged {is_done}, in flight {is_held}"
                )
        elif is_done != (is_held and flying is not None and flying.due_ms <= now_ms):
            raise Violation(
                f"{place}, {popped_ms}: dropped {is_done}, in flight is {flying} at {now_ms}"
            )
        if not is_done:
            return
        assert flying is not None, "it is held"
        del self._queues[key].flying[offset]
        if isinstance(command, AckMessages):
            self.acknowledged[place] = popped_ms
            self.counts["pops_acknowledged"] += 1
            return
        self._dropped.add(place)
        self._check_copy(key, offset, flying, now_ms)

    def _check_copy(self, key: PopKey, offset: QueueOffset, flying: _Flying, now_ms: int) -> None:
        """Demand the copy of a message that leaves the flight: where it belongs, and with all its deliveries.

        One that is forgotten has none, or has one that was made before it was.
        """
        original = self._stored.record_at(key[1], key[2], offset)
        times = original.reconsume_times + flying.times
        is_dead = times >= self.retries_max
        topic = names.dlq_topic(key[0]) if is_dead else names.retry_topic(key[0])
        origin = (
            original.find(ORIGIN_MESSAGE_ID)
            or offset_msg_id(original.store_host, original.physical_offset).encode()
        )
        for copy in self._copies:
            if (copy.topic, copy.find(ORIGIN_MESSAGE_ID)) == (topic, origin):
                self._copies.remove(copy)
                break
        else:
            if offset < self._stored.min_offset(key[1], key[2]):
                return
            raise Violation(f"{key} at {offset} is in flight no more, and has no copy in {topic}")
        if (copy.body, copy.reconsume_times) != (original.body, times):
            raise Violation(
                f"{key} at {offset}, delivered {times} times, has a copy with {copy.reconsume_times}"
            )
        if not is_dead and now_ms < flying.due_ms + self.return_ms:
            raise Violation(
                f"{key} at {offset} is returned {now_ms - flying.due_ms} ms after it was due"
            )
        self.counts["pops_dead" if is_dead else "pops_returned"] += 1
