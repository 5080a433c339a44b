"""What clients were told must be so: each answer is compared with the model of what is committed.

An answer may tell of what no longer is, but never of what never was; and what one client was told of a consumer
offset, no later question may be answered with less.
"""

from __future__ import annotations

from broker.message.record import StoredMessage
from broker.testing.model import BrokerModel, key_of
from dledger.testing.state_checker import Violation

QueuePlace = tuple[str, str, int]
"""Group, topic, queue id."""


class Told:
    """The answers of one group."""

    def __init__(self, model: BrokerModel) -> None:
        self._model = model
        self._offsets: dict[QueuePlace, int] = {}

    def acknowledged(self, key: bytes, place: tuple[int, int] | None) -> None:
        """A producer was told that a message is stored, at that queue id and offset (None: it waits)."""
        sent = self._model.sent[key]
        if not sent.places:
            if not self._model.waits(key):
                raise Violation(f"{key!r} is acknowledged, but stored nowhere")
            return
        first = sent.places[0]
        if place is not None and place != (first.queue_id, first.queue_offset):
            raise Violation(f"{key!r} is acknowledged at another place than it was stored")

    def half_acknowledged(self, key: bytes, queue_offset: int) -> None:
        """A producer was told that its half message is stored there."""
        if self._model.half_at(queue_offset) != key:
            raise Violation(
                f"the half message {key!r} is acknowledged at {queue_offset}, but is not there"
            )

    def committed(self, key: bytes) -> None:
        """A producer was told that its transaction is committed."""
        if not self._model.sent[key].places:
            raise Violation(f"{key!r} is told to be committed, but is in no topic")

    def recalled(self, key: bytes) -> None:
        """A producer was told that its message will not be delivered."""
        sent = self._model.sent[key]
        if sent.places:
            raise Violation(f"{key!r} was delivered, and its recall is told to have worked")
        sent.is_recalled = True
        self._model.counts["recalled"] += 1

    def given_back(self, key: bytes) -> None:
        """A consumer was told that it will get a message again."""
        sent = self._model.sent[key]
        sent.told_back_count += 1
        if sent.told_back_count > sent.back_count:
            raise Violation(f"{key!r} is told to be given back, but is stored nowhere for that")
        self._model.counts["given_back"] += 1

    def pulled(
        self, topic: str, queue_id: int, offset: int, records: list[StoredMessage], next_offset: int
    ) -> None:
        """A consumer got these records, asking from an offset on, and is to go on at another."""
        keys = self._model.queues.get((topic, queue_id), [])
        for place, record in enumerate(records, start=offset):
            if record.queue_offset != place or place >= len(keys) or keys[place] != key_of(record):
                raise Violation(
                    f"a pull of {topic}/{queue_id} from {offset} gives {record.queue_offset} "
                    f"({key_of(record)!r}) where {place} is stored"
                )
        if next_offset != offset + len(records):
            raise Violation(
                f"a pull of {topic}/{queue_id} from {offset} gives {len(records)} records and goes on "
                f"at {next_offset}"
            )
        self._model.counts["pulled"] += len(records)

    def moved(self, topic: str, queue_id: int, offset: int) -> None:
        """A consumer was told that there is no such offset; nothing is ever removed here."""
        count = len(self._model.queues.get((topic, queue_id), []))
        if offset <= count:
            raise Violation(
                f"a pull of {topic}/{queue_id} from {offset} is told to go elsewhere, but {count} are stored"
            )

    def offset_committed(self, place: QueuePlace, offset: int) -> None:
        """A consumer was told that its offset is committed."""
        known = self._model.offset_of(*place)
        if known < offset:
            raise Violation(f"offset {offset} of {place} is acknowledged; it is {known}")
        self._offsets[place] = max(offset, self.told_offset(place))
        self._model.counts["offsets_committed"] += 1

    def told_offset(self, place: QueuePlace) -> int:
        """The highest offset that anybody knows to be committed; -1 when nobody knows of any."""
        return self._offsets.get(place, -1)

    def offset_read(self, place: QueuePlace, offset: int, *, floor: int) -> None:
        """A consumer was told its offset (-1: there is none); `floor` was told before it asked."""
        known = self._model.offset_of(*place)
        if offset == 0 and known < 0:
            offset = known  # where a group without an offset is told to begin
        if not floor <= offset <= known:
            raise Violation(
                f"the offset of {place} is told as {offset}; {floor} was told before, and it is {known}"
            )
        self._offsets[place] = max(offset, self.told_offset(place))
        self._model.counts["offsets_read"] += 1

    def locked(self, place: QueuePlace, client_id: str, *, granted_before: int) -> None:
        """A consumer was told that a queue is its own; so often it was granted to it before it asked."""
        if self._model.grant_count(place, client_id) == granted_before:
            raise Violation(
                f"{client_id} is told that {place} is its own; the log says no such thing"
            )
        self._model.counts["locks_told"] += 1
