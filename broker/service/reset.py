"""What a reset of offsets asks for, the search for the offsets, and how clients are told. Pure.

It must not know how a reset is stored, or who follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.store.lookups import offset_by_time
from broker.store.queue_search import Search
from broker.store.record_reader import EntrySource, MessageGoneError
from broker.store.state import BrokerState
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queue import WireQueue

NONE: Final = -1
"""The protocol's number for a queue or an offset that is not given."""


class ResetRequest(NamedTuple):
    """The fields of INVOKE_BROKER_TO_RESET_OFFSET.

    Attributes:
        time_ms: where to go; negative for the end of the queues.
        is_forced: False to go back only: a group that stands before that time stays.
        queue_id: the only queue to be reset; `NONE` for all.
        offset: where to go instead of a time; `NONE`: not given.
    """

    topic: str
    group: str
    time_ms: int
    is_forced: bool
    queue_id: int
    offset: int

    @classmethod
    def read(cls, ext: Mapping[str, str]) -> ResetRequest:
        """Read the fields; 4.x knows neither queue nor offset.

        Raises:
            FieldError: one is missing or impossible.
        """
        return cls(
            fields.text(ext, "topic"),
            fields.text(ext, "group"),
            fields.int64(ext, "timestamp"),
            fields.boolean(ext, "isForce", default=True),
            fields.int32(ext, "queueId", NONE),
            fields.int64(ext, "offset", NONE),
        )

    def queues(self, count: int) -> Sequence[int]:
        """Return the queues to be reset in a topic with so many; empty: it does not have the one that is named."""
        if self.queue_id == NONE:
            return range(count)
        return [self.queue_id] if 0 <= self.queue_id < count else []


class ResetSearch:
    """The search for the offsets of one reset, some queues at a time.

    Attributes:
        wanted: the request.
        offsets: what was found so far, by queue id.
        problem: why there can be no such reset; None: there can.
    """

    def __init__(
        self, state: BrokerState, log: EntrySource, wanted: ResetRequest, queue_ids: Sequence[int]
    ) -> None:
        self.wanted = wanted
        self.offsets: dict[QueueId, QueueOffset] = {}
        self.problem: str | None = None
        self._state = state
        self._log = log
        self._topic = state.topics.get(wanted.topic)
        self._queue_ids = queue_ids
        self._search = Search()

    @property
    def is_outdated(self) -> bool:
        """True once the topic is not the one that it began with: it was changed, or deleted and made anew."""
        return self._state.topics.get(self.wanted.topic) is not self._topic

    @property
    def is_done(self) -> bool:
        """True once the offsets of all queues are known."""
        return len(self.offsets) == len(self._queue_ids)

    def step(self, queues_max: int, may_wait: Callable[[], bool]) -> None:
        """Look for the offsets of some more queues.

        Raises:
            NotInMemoryError: it may wait for the disk; called again, it goes on there.
        """
        for _ in range(queues_max):
            if self.is_done or self.problem is not None:
                return
            queue_id = QueueId(self._queue_ids[len(self.offsets)])
            try:
                offset = self._find(queue_id, may_wait=may_wait())
            except MessageGoneError as error:
                self.problem = str(error)
                return
            if offset is not None:
                self.offsets[queue_id] = offset
                self._search = Search()

    def _find(self, queue_id: QueueId, *, may_wait: bool) -> QueueOffset | None:
        """Return where the group goes in a queue; None: there is a problem."""
        wanted, state = self.wanted, self._state
        low, high = state.queues.min_max(wanted.topic, queue_id, without_waiting=may_wait)
        if wanted.offset != NONE:
            if not low <= wanted.offset <= high:
                self.problem = (
                    f"Target offset {wanted.offset} not in consume queue range [{low}-{high}]"
                )
                return None
            return QueueOffset(wanted.offset)
        if wanted.time_ms < 0:
            found = high
        else:
            found = offset_by_time(
                state,
                self._log,
                wanted.topic,
                queue_id,
                time_ms=wanted.time_ms,
                search=self._search if may_wait else None,
            )
        stored = state.offsets.get(wanted.group, wanted.topic, queue_id)
        stays = not wanted.is_forced and stored is not None and stored < found
        return stored if stays else found


def notice_bodies(
    broker_name: str, topic: str, offsets: Sequence[tuple[QueueId, QueueOffset]]
) -> tuple[bytes, bytes]:
    """Encode the body of RESET_CONSUMER_CLIENT_OFFSET, with queues as keys, and as a list for C++ clients."""
    table = {WireQueue(broker_name, queue_id, topic): offset for queue_id, offset in offsets}
    rows = [
        {"brokerName": broker_name, "offset": offset, "queueId": queue_id, "topic": topic}
        for queue_id, offset in offsets
    ]
    return write_json({"offsetTable": table}), write_json({"offsetTable": rows})
