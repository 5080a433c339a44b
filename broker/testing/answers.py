"""Checks of answers: each that a client reads is compared with the model of what is committed.

An answer may speak of what no longer is, but never of what never was; and once one client has read a consumer
offset, no later question may be answered with less.

Nothing here knows how a question was asked, or of whom.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.store.locks import LockKey
from broker.testing.forms import Form, form_of, key_of
from broker.testing.model import BrokerModel
from dledger.testing.state_checker import Violation
from dledger_mq.message import names
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.header import RemotingCommand


class Answers:
    """The answers that the clients of one group read."""

    def __init__(self, model: BrokerModel) -> None:
        self._model = model
        self._offsets: dict[LockKey, int] = {}

    def acknowledged(self, forms: Sequence[Form], answer: RemotingCommand) -> None:
        """Check what a producer reads: its messages are stored, each in the place that its id names."""
        ids = answer.ext["msgId"].split(",")
        if len(ids) != len(forms) or len(set(ids)) < len(ids):
            raise Violation(f"{len(forms)} messages are acknowledged with the ids {ids}")
        for form, msg_id in zip(forms, ids, strict=True):
            record = self._record(form, msg_id)
            if (record.topic == names.HALF_TOPIC) != self._model.fates[form].is_transaction:
                raise Violation(f"{form.key!r} is acknowledged in {record.topic}")
            if answer.ext["queueId"] != str(form.queue_id):
                raise Violation(
                    f"{form.key!r} is acknowledged in queue {answer.ext['queueId']}, it was sent to "
                    f"{form.queue_id}"
                )
        first = self._record(forms[0], ids[0]).queue_offset
        if answer.ext["queueOffset"] != str(first):
            raise Violation(
                f"{forms[0].key!r} is acknowledged at {answer.ext['queueOffset']} and stands at {first}"
            )

    def _record(self, form: Form, msg_id: str) -> StoredMessage:
        """Return what stands where a message is said to be: just that message."""
        offset = PhysicalOffset(parse_offset_msg_id(msg_id)[2])
        record = self._model.records.get(offset)
        if record is None:
            raise Violation(
                f"{form.key!r} is acknowledged at {offset}, but nothing is stored there"
            )
        if form_of(record) != form:
            raise Violation(
                f"{form} is acknowledged at {offset}, where another message stands: {form_of(record)}"
            )
        return record

    def committed(self, form: Form) -> None:
        """Check what a producer reads: its transaction is committed."""
        if not self._model.fates[form].places:
            raise Violation(f"{form.key!r} is answered as committed, but is in no topic")

    def recalled(self, form: Form) -> None:
        """Check what a producer reads: its message will not be delivered."""
        fate = self._model.fates[form]
        if fate.places:
            raise Violation(f"{form.key!r} was delivered, and its recall is answered as done")
        fate.is_recalled = True
        self._model.counts["recalled"] += 1

    def given_back(self, key: bytes) -> None:
        """Check what a consumer reads: it will get a message again."""
        sent = self._model.sent[key]
        sent.answered_back_count += 1
        if sent.answered_back_count > sent.back_count:
            raise Violation(f"{key!r} is answered as given back, but is stored nowhere for that")
        self._model.counts["given_back"] += 1

    def pulled(
        self,
        topic: str,
        queue_id: QueueId,
        records: list[StoredMessage],
        *,
        offset: int,
        next_offset: int,
    ) -> None:
        """Check a pull from an offset on: these records, and the offset to go on at."""
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

    def moved(self, topic: str, queue_id: QueueId, offset: int, next_offset: int) -> None:
        """Check what a consumer reads: there is no such offset, or it is forgotten; and where to go on."""
        least = self._model.min_offset(topic, queue_id)
        if offset < least:
            if not offset < next_offset <= least:
                raise Violation(
                    f"a pull of {topic}/{queue_id} from {offset} is sent to {next_offset}, {least} is the first"
                )
            self._model.counts["moved"] += 1
            return
        count = len(self._model.queues.get((topic, queue_id), []))
        if offset <= count:
            raise Violation(
                f"a pull of {topic}/{queue_id} from {offset} is sent elsewhere, but {count} are stored"
            )

    def stayed(self, topic: str, queue_id: QueueId, offset: int, next_offset: int) -> None:
        """Check what a consumer of all messages reads: nothing is there yet, and where to go on."""
        if next_offset != offset:
            raise Violation(
                f"a pull of {topic}/{queue_id} from {offset} finds nothing and goes on at {next_offset}"
            )
        self._model.counts["pulled_nothing"] += 1

    def offset_committed(self, place: LockKey, offset: int) -> None:
        """Check what a consumer reads: its offset is committed."""
        known = self._model.offset_of(*place)
        if known < offset:
            raise Violation(f"offset {offset} of {place} is acknowledged; it is {known}")
        self._offsets[place] = max(offset, self.known_offset(place))
        self._model.counts["offsets_committed"] += 1

    def known_offset(self, place: LockKey) -> int:
        """Return the highest offset that a client knows to be committed; -1 when none knows of any."""
        return self._offsets.get(place, -1)

    def offset_read(self, place: LockKey, offset: int, *, floor: int) -> None:
        """Check an offset that a consumer reads (-1: none); `floor` was known before it asked."""
        known = self._model.offset_of(*place)
        if offset == 0 and known < 0:
            offset = known  # where a group without an offset is to begin
        if not floor <= offset <= known:
            raise Violation(
                f"the offset of {place} is answered as {offset}; {floor} was known before, and it is {known}"
            )
        self._offsets[place] = max(offset, self.known_offset(place))
        self._model.counts["offsets_read"] += 1

    def locked(self, place: LockKey, client_id: str, *, granted_before: int) -> None:
        """Check what a consumer reads: a queue is its own; so often it was granted to it before it asked."""
        if self._model.grant_count(place, client_id) == granted_before:
            raise Violation(
                f"{client_id} is granted {place} by an answer; the log says no such thing"
            )
        self._model.counts["locks_answered"] += 1
