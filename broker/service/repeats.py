"""Recognise sends that were stored before: a retry is answered with the earlier result, not appended again.

RocketMQ stores a retry a second time (rule C22). Here a message repeats an earlier one if it is the same in
everything that would be stored (`sameness`), stands in the window of recent sends and in its queue, and its client
cannot have had the answer:

- it was appended under an older term: whoever led then may have died before it answered (until this
  node itself has answered a repeat of it);
- this node, which led all the while, knows that the connection broke before the answer was out, or has not heard yet
  from the node that passed the send on that the answer found its client there, or lost the link to it afterwards;
- the new request was not made after the one that is stored, or after one that was answered as its repeat: with the
  same born time it is that one, sent once more as it was; with an earlier one it is an attempt that waited somewhere,
  and was given up for a later one. Nor is it on purpose if it was made while the one that was answered was held.

Any other send with a known key is another message, or is made on purpose (a Java producer that sends one Message
object twice), and is stored. What is noted of answers is noted by place: one key may stand for many messages.
Pure but for `load`, which reads the earlier record. It must not know sends that are on their way: those are
`broker.server`'s (`known_sends`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from broker.service.sameness import RequestedMessage, is_same, requested_by_record
from broker.store.state import BrokerState
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.names import TIMER_TOPIC
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import TIMER_OUT_MS
from dledger_mq.message.record import StoredMessage

_T = TypeVar("_T")

NOTES_MAX: Final = 50_000
"""Places in each of the leader's own notes; older ones go."""
LINK_ANSWERS_MAX: Final = 4_096
"""Messages whose answers may be on their way to another node, or in its hands, when its link breaks."""


MISMATCH_BYTES_MAX: Final = 8 << 20
"""Of records and sends that a request was compared with and that are other messages; see `Mismatches`."""
_MISMATCH_BYTES: Final = 512
"""By which each counts as larger, however small it is."""


class Mismatches:
    """The bytes found under the keys of one request that are other messages: after too many the rest counts as new.

    A batch may have thousands of messages under one key, and under that key large records may stand: each message would
    be compared with all of these. A repeat is found at once, so that a batch is recognised however large it is.
    """

    __slots__ = ("_size_bytes",)

    def __init__(self) -> None:
        """Begin without any."""
        self._size_bytes = 0

    @property
    def are_too_many(self) -> bool:
        """True if nothing more is to be compared."""
        return self._size_bytes >= MISMATCH_BYTES_MAX

    def add(self, size_bytes: int) -> None:
        """Count one."""
        self._size_bytes += size_bytes + _MISMATCH_BYTES


class EarlierSend(msgspec.Struct, frozen=True, gc=False):
    """The place of a stored message; `queue_id` and `msg_id` as in the answer to its producer.

    `due_ms` is that of a message with a due time of its own, else 0.
    """

    physical_offset: PhysicalOffset
    queue_id: QueueId
    queue_offset: QueueOffset
    msg_id: str
    due_ms: int = 0


class Repeats:
    """Recognises repeated sends on the leader."""

    def __init__(
        self,
        state: BrokerState,
        load: Callable[[PhysicalOffset], StoredMessage | None],
        now_ms: Callable[[], int],
    ) -> None:
        """Begin without notes of answers.

        Args:
            state: the fold, with the window.
            load: returns the message at a physical offset, or None when it is gone.
            now_ms: the time of the log, as the next record would have it.
        """
        self._state = state
        self._load = load
        self._now_ms = now_ms
        self._unanswered: dict[PhysicalOffset, None] = {}
        """Places of which this node, leading, does not know that their client has the answer."""
        self._answered: dict[PhysicalOffset, None] = {}
        """Places of older terms of which this node has answered a repeat. Invariant: none is in `_unanswered`."""
        self._asked_until_ms: dict[PhysicalOffset, int] = {}
        self._by_link: dict[int, deque[PhysicalOffset]] = {}

    @property
    def recent_keys(self) -> Container[bytes]:
        """The keys in the window; a send whose keys are not among them is new."""
        return self._state.recent_sends

    def has_recent(self, keys: list[bytes]) -> bool:
        """Return whether one of these keys is in the window."""
        return self._state.recent_sends.has_any(keys)

    def find(
        self,
        uniq_key: bytes,
        asked: RequestedMessage,
        born_ms: int,
        *,
        any_queue: bool,
        taken: Iterable[object] = (),
        mismatches: Mismatches | None = None,
    ) -> EarlierSend | None:
        """Find the append that a message repeats; None if it is to be stored. Nothing is noted: see `claim`.

        Args:
            uniq_key: of the message.
            asked: what it asks for.
            born_ms: the born time in the request.
            any_queue: the request leaves the queue to the broker.
            taken: physical offsets that other messages of the same request repeat.
            mismatches: those of the request, which has several messages.

        Raises:
            EntryDamagedError: what was stored before cannot be read now.
        """
        made_later = unconfirmed = None
        is_on_purpose = False
        for record in self._same(
            uniq_key, asked, any_queue=any_queue, taken=taken, mismatches=mismatches
        ):
            offset = record.physical_offset
            assert offset not in self._answered or offset not in self._unanswered, (
                f"the send at {offset} is noted as answered and as not answered"
            )
            if born_ms <= max(record.born_timestamp_ms, self._asked_until_ms.get(offset, 0)):
                made_later = record
            is_older = offset < self._state.recent_sends.term_start and offset not in self._answered
            if not is_older and offset not in self._unanswered:
                is_on_purpose = True  # but for what a copy before a confirmed one could show
            elif not is_on_purpose:
                unconfirmed = record
        found = made_later or unconfirmed
        return None if found is None else _earlier(found)

    def _same(
        self,
        uniq_key: bytes,
        asked: RequestedMessage,
        *,
        any_queue: bool,
        taken: Iterable[object],
        mismatches: Mismatches | None,
    ) -> Iterator[StoredMessage]:
        """Yield what was stored lately, stands in its queue and is the same message, the newest first; as `find`."""
        recent = self._state.recent_sends
        oldest_ms = self._now_ms() - recent.age_max_ms
        for offset in reversed(recent.offsets(uniq_key)):
            record = None if offset in taken else self._load(offset)
            if record is None:
                continue
            if record.store_timestamp_ms < oldest_ms:
                return  # where nobody sends, the window keeps them, and nobody repeats them any more
            assert record.physical_offset == offset, (
                f"the record at {offset} says that it stands at {record.physical_offset}"
            )
            is_same_message = is_same(asked, requested_by_record(record), any_queue=any_queue)
            if is_same_message and self._stands(record):
                yield record
            elif mismatches is not None:
                mismatches.add(record.size_bytes)

    def _stands(self, record: StoredMessage) -> bool:
        """Return whether a record is still in its queue: its topic may have been deleted, and made again.

        Raises:
            EntryDamagedError: it cannot be said now.
        """
        queue = self._state.queues.by_key.get((record.topic.encode(), QueueId(record.queue_id)))
        return queue is not None and queue.holds(
            QueueOffset(record.queue_offset), PhysicalOffset(record.physical_offset)
        )

    def find_among(
        self, offsets: Iterable[PhysicalOffset], asked: RequestedMessage, *, any_queue: bool
    ) -> EarlierSend | None:
        """Find the first of these records that is the same message, confirmed or not.

        Raises:
            EntryDamagedError: one of them cannot be read now.
        """
        for offset in offsets:
            record = self._load(offset)
            if record is not None and is_same(
                asked, requested_by_record(record), any_queue=any_queue
            ):
                return _earlier(record)
        return None

    def claim(self, offsets: Iterable[PhysicalOffset], born_ms: int) -> None:
        """Note that a repeat made at `born_ms` is answered with these places: what is made later is on purpose."""
        for offset in offsets:
            self._unanswered.pop(offset, None)
            _note(self._answered, offset, None)
            self._extend_asked(offset, born_ms)

    def note_asked(self, offsets: Iterable[PhysicalOffset], until_ms: int) -> None:
        """Note that the client had no answer with these places until then, by its own clock.

        What it made by then it cannot have made on purpose, knowing the answer.
        """
        for offset in offsets:
            self._extend_asked(offset, until_ms)

    def _extend_asked(self, offset: PhysicalOffset, until_ms: int) -> None:
        if until_ms > self._asked_until_ms.get(offset, 0):
            _note(self._asked_until_ms, offset, until_ms)

    def note_answer(
        self, offsets: list[PhysicalOffset], *, is_received: bool, link: int | None = None
    ) -> None:
        """Note an answer that names these places.

        Args:
            offsets: physical ones.
            is_received: its client is there to take it, as far as is known by now.
            link: number of the connection to the node that has to pass it on; None for a client's own.
        """
        if is_received:
            self.answered(offsets)
            return
        self.not_answered(offsets)
        if link is not None:
            kept = self._by_link.get(link)
            if kept is None:
                kept = self._by_link[link] = deque(maxlen=LINK_ANSWERS_MAX)
            kept.extend(offsets)

    def not_answered(self, offsets: Iterable[PhysicalOffset]) -> None:
        """Note that the client has no answer with these places, or that it is not known to have one."""
        for offset in offsets:
            self._answered.pop(offset, None)
            _note(self._unanswered, offset, None)

    def answered(self, offsets: Iterable[PhysicalOffset]) -> None:
        """Note that a client is there to take an answer with these places, over whatever connection."""
        for offset in offsets:
            self._unanswered.pop(offset, None)
            if offset < self._state.recent_sends.term_start:
                _note(self._answered, offset, None)

    def link_closed(self, link: int) -> None:
        """Note that a connection ended: the node at its other end may not have passed on its last answers."""
        self.not_answered(self._by_link.pop(link, ()))

    def forget(self) -> None:
        """Forget all notes, at the loss of leadership: in the next term these sends are of an older one."""
        self._unanswered.clear()
        self._answered.clear()
        self._asked_until_ms.clear()
        self._by_link.clear()


def _note(notes: dict[PhysicalOffset, _T], offset: PhysicalOffset, value: _T) -> None:
    notes[offset] = value
    if len(notes) > NOTES_MAX:
        del notes[next(iter(notes))]


def _earlier(record: StoredMessage) -> EarlierSend:
    due = (record.find(TIMER_OUT_MS) or b"") if record.topic == TIMER_TOPIC else b""
    return EarlierSend(
        record.physical_offset,
        requested_by_record(record).queue_id,
        record.queue_offset,
        offset_msg_id(record.store_host, record.physical_offset),
        int(due) if due.isdigit() else 0,
    )
