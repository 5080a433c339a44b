"""Whether a send was stored before: a retry is answered with the earlier result, not appended again.

RocketMQ stores a retry a second time (semantics C25). Here a send repeats an earlier one if that has the
same UNIQ_KEY, topic, reconsume count and body, stands in the window of recent sends, and its client
cannot have had the answer:

- it was appended under an older term: whoever led then may have died before it answered (until this
  node itself has answered a repeat of it);
- this node, which led all the while, knows that the connection broke before the answer was out;
- the new request has the same born time: it is the old one, sent once more as it was.

Any other send with a known key is a second one on purpose (a Java producer that sends one Message object
twice) and is stored. Pure but for `load`, which reads the earlier record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from broker.message.batch import split_batch
from broker.message.errors import BatchError
from broker.message.ids import offset_msg_id
from broker.message.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    UNIQ_KEY,
    find_property,
)
from broker.message.record import StoredMessage
from broker.remoting.requests import SendFields
from broker.service.send import MessagePlan, SendPlan
from broker.store.names import SCHEDULE_TOPIC, TIMER_TOPIC
from broker.store.state import BrokerState

NOTES_MAX: Final = 50_000
"""Keys in each of the leader's own notes; older ones go."""
LINK_ANSWERS_MAX: Final = 4_096
"""Answers that may be on their way to another node, or in its hands, when its link breaks."""


class EarlierSend(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored before; `queue_id` and `msg_id` as its producer was, or would have been, told.

    `due_ms` is that of a message with a due time of its own, else 0.
    """

    queue_id: int
    queue_offset: int
    msg_id: str
    due_ms: int = 0


class Repeats:
    """Recognises repeated sends on the leader."""

    def __init__(self, state: BrokerState, load: Callable[[int], StoredMessage | None]) -> None:
        """Prepare. `load` gives the message at a physical offset, or None when it is gone."""
        self._state = state
        self._load = load
        self._unanswered: dict[bytes, None] = {}
        self._told: dict[bytes, None] = {}
        self._by_link: dict[int, deque[bytes]] = {}

    @property
    def recent_keys(self) -> Mapping[bytes, object]:
        """The keys in the window; a send whose keys are not among them is new."""
        return self._state.recent_sends.by_key

    def find(self, plan: SendPlan, message: MessagePlan, born_ms: int) -> EarlierSend | None:
        """The append that this message repeats; None if it is to be stored.

        Args:
            plan: the send that is decided on now.
            message: one of its messages.
            born_ms: the born time in the request.

        Raises:
            EntryDamagedError: what was stored before cannot be read now; nothing has changed.
        """
        [found] = self.find_all(plan, (message,), born_ms)
        return found

    def find_all(
        self, plan: SendPlan, messages: Iterable[MessagePlan], born_ms: int
    ) -> list[EarlierSend | None]:
        """The same for several messages; nothing is noted before all of them were read."""
        found = [(message, self._look(plan, message, born_ms)) for message in messages]
        for message, earlier in found:
            if earlier is not None:
                self._unanswered.pop(message.uniq_key, None)
                _note(self._told, message.uniq_key)
        return [earlier for _, earlier in found]

    def _look(self, plan: SendPlan, message: MessagePlan, born_ms: int) -> EarlierSend | None:
        recent = self._state.recent_sends
        for offset in reversed(recent.offsets(message.uniq_key)):
            earlier = self._load(offset)
            if earlier is None or not _is_same(earlier, plan, message):
                continue
            if (
                (offset < recent.term_start and message.uniq_key not in self._told)
                or message.uniq_key in self._unanswered
                or earlier.born_timestamp_ms == born_ms
            ):
                return EarlierSend(
                    _queue_of(earlier),
                    earlier.queue_offset,
                    offset_msg_id(earlier.store_host, offset),
                    _due_of(earlier),
                )
            return None  # the newest one was confirmed: this one is on purpose
        return None

    def not_answered(self, keys: Iterable[bytes]) -> None:
        """The connection was gone before these sends were answered."""
        for key in keys:
            self._told.pop(key, None)
            _note(self._unanswered, key)

    def answered(self, keys: Iterable[bytes]) -> None:
        """After all, one of several connections took the answer."""
        for key in keys:
            self._unanswered.pop(key, None)

    def answered_over(self, link: int, keys: Iterable[bytes]) -> None:
        """The answers went to another node, which has to pass them on."""
        kept = self._by_link.get(link)
        if kept is None:
            kept = self._by_link[link] = deque(maxlen=LINK_ANSWERS_MAX)
        kept.extend(keys)

    def link_closed(self, link: int) -> None:
        """A connection ended: what another node had not passed on yet is not known, so all of it counts."""
        self.not_answered(self._by_link.pop(link, ()))

    def forget(self) -> None:
        """Leadership is lost: in the next term all of this counts as appended under an older one."""
        self._unanswered.clear()
        self._told.clear()
        self._by_link.clear()


def _note(notes: dict[bytes, None], key: bytes) -> None:
    notes[key] = None
    if len(notes) > NOTES_MAX:
        del notes[next(iter(notes))]


def sent_keys(fields: SendFields, body: bytes) -> list[bytes]:
    """The unique keys that a send's client gave its messages; none where it gave none."""
    if fields.is_batch:
        try:
            texts = [item.properties for item in split_batch(body)]
        except BatchError:
            return []
    else:
        texts = [(fields.properties or "").encode(errors="replace")]
    found = (find_property(text, UNIQ_KEY) for text in texts)
    return [key for key in found if key is not None]


def _is_same(earlier: StoredMessage, plan: SendPlan, message: MessagePlan) -> bool:
    """Whether the stored message is what this one would become."""
    topic = earlier.topic
    if plan.delay_level:
        if topic != SCHEDULE_TOPIC:
            return False
        topic = (earlier.find(REAL_TOPIC) or b"").decode(errors="replace")
    elif b"TIMER_D" in message.properties:
        # Its due time may have passed since, or count from now: that is no sign of another send.
        if topic == TIMER_TOPIC:
            topic = (earlier.find(REAL_TOPIC) or b"").decode(errors="replace")
        elif earlier.find(TIMER_OUT_MS) is not None:
            return False  # its own delivery
    return (
        topic == plan.topic
        and earlier.reconsume_times == plan.reconsume_times
        and earlier.body == message.body
    )


def _queue_of(earlier: StoredMessage) -> int:
    if earlier.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        wanted = earlier.find(REAL_QID) or b""
        return int(wanted) if wanted.isdigit() else earlier.queue_id
    return earlier.queue_id


def _due_of(earlier: StoredMessage) -> int:
    if earlier.topic != TIMER_TOPIC:
        return 0
    due = earlier.find(TIMER_OUT_MS) or b""
    return int(due) if due.isdigit() else 0
