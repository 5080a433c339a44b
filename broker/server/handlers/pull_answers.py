"""Reading what a pull asks for, and answering with it. It must not know when a pull is read, and why not yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.server.handlers.offset_overflows import OffsetOverflows
from broker.server.handlers.pull_advice import LEADER_BROKER_ID, PullAdvice
from broker.server.handlers.pull_loads import UNIT_WAITS_MAX, PullLoads
from broker.server.handlers.pull_places import PullPlaces
from broker.server.handlers.pull_request import Pull
from broker.service.pull import PullOutcome, outcome_of
from broker.store.reading import GetResult, GetStatus, get_at_once, get_messages
from broker.store.state import BrokerState
from dledger import LogServer
from dledger.raft.ids import Position
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.replies import pull_reply_head
from dledger_mq.remoting.requests import PullFields

_COUNT_MAX: Final = 1024
"""Messages in one answer, whatever the client asks for."""

BACKLOG_BYTES: Final = 64 << 20
"""Messages farther from the log's end are a backlog; up to there entries are kept in memory, as a rule."""


READERS_MAX: Final = 50_000
"""Groups in topics of which what they were given is counted; as many series as RocketMQ's default allows."""


@dataclass(slots=True)
class GivenMessages:
    """The messages of one topic that this node gave one group, since the start."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class PullCounts:
    """Pulls that were answered since the start, with messages or without, and the messages.

    Attributes:
        by_reader: the messages by group and topic; those beyond READERS_MAX are in the sum only.
    """

    found: int = 0
    missed: int = 0
    messages: int = 0
    by_reader: dict[tuple[str, str], GivenMessages] = field(default_factory=dict)

    def give(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        """Count an answer with messages."""
        self.found += 1
        self.messages += count
        given = self.by_reader.get((group, topic))
        if given is None:
            if len(self.by_reader) >= READERS_MAX:
                return
            given = self.by_reader[group, topic] = GivenMessages()
        given.messages += count
        given.size_bytes += size_bytes


class PullAnswers:
    """The answers to pulls.

    Attributes:
        counts: of those that were given.
        places: how far groups were given messages.
        backlog_readers: numbers of the connections that were given old messages last.
    """

    def __init__(
        self, log: LogServer, state: BrokerState, advice: PullAdvice, loads: PullLoads
    ) -> None:
        """Set up the answers.

        Args:
            log: the entries that are read.
            state: the fold, with topics and queues.
            advice: names the node to pull from next.
            loads: knows who may wait for the disk, and reads ahead.
        """
        self.counts = PullCounts()
        self.places = PullPlaces()
        self.backlog_readers = set[int]()
        self._log = log
        self._state = state
        self._advice = advice
        self._loads = loads
        self._overflows = OffsetOverflows()

    def is_sure(self, pull: Pull) -> bool:
        """Return True if a pull was confirmed, or needs no confirmation as this node leads by now."""
        return pull.is_confirmed or self._log.reader.is_current

    def read(self, pull: Pull) -> tuple[GetResult, PullOutcome]:
        """Read a pull's queue from the offset that it has reached.

        Raises:
            EntryDamagedError: a message cannot be read now.
            NotInMemoryError: it has to be read from the disk, and the pull may wait.
        """
        fields, offset = pull.fields, pull.next_offset
        assert pull.is_checked, f"a pull of {fields.topic} reads, and was not checked"
        may_wait = self._loads.may_wait(pull)
        result = get_messages(
            self._state,
            self._log.reader,
            fields.topic,
            fields.queue_id,
            offset=offset,
            count_max=min(max(1, fields.max_msg_nums), _COUNT_MAX),
            log_end=self._log.reader.committed_position,
            bytes_max=fields.max_msg_bytes or 2**31 - 1,
            tag_hashes=pull.tags,
            property_filter=pull.property_filter,
            limits=self._advice.limits,
            may_wait=may_wait,
            may_wait_for_units=may_wait and pull.unit_waits < UNIT_WAITS_MAX,
        )
        return result, outcome_of(result, offset, is_authoritative=self.is_sure(pull))

    def note_overflow(self, fields: PullFields, result: GetResult) -> None:
        """Log an offset above the queue's end. One below its start is common: retention removed what was there."""
        if fields.queue_offset > result.max_offset:
            self._overflows.note(
                self._log.node_id,
                fields.consumer_group,
                fields.topic,
                fields.queue_id,
                offset=fields.queue_offset,
                max_offset=result.max_offset,
            )

    def give(self, pull: Pull, result: GetResult, outcome: PullOutcome) -> None:
        """Answer a pull with what was read, in one frame."""
        pull.is_backlog = self._note_backlog(pull.connection, result.bytes_behind)
        if result.not_loaded:
            self._loads.read_ahead(pull, result.not_loaded)
        body_bytes = sum(map(len, result.records))
        is_cold = pull.is_confirmed and result.bytes_behind > self._advice.cold_bytes
        head = pull_reply_head(
            pull.opaque,
            outcome.code,
            next_begin_offset=outcome.next_offset,
            min_offset=result.min_offset,
            max_offset=outcome.max_offset,
            body_bytes=body_bytes,
            suggested_broker_id=(
                self._advice.for_cold_read(pull.fields.queue_id, result.bytes_behind)
                if is_cold
                else LEADER_BROKER_ID
            ),
            remark=result.status.remark,
        )
        was_held = pull.held_until_ms > 0
        pull.reply_in_pieces((head, *result.records), outcome.code, was_held=was_held)
        if result.count:
            self._note_given(pull.fields, result, body_bytes)
        else:
            self.counts.missed += 1

    def found_at_once(
        self, fields: PullFields, tags: frozenset[int] | None, log_end: Position
    ) -> GetResult | None:
        """Read what a confirmed pull of these fields gets, if it is messages from memory; None: it goes on otherwise.

        Raises:
            NotInMemoryError: it does, too.
        """
        advice = self._advice
        result = get_at_once(
            self._state,
            self._log.reader,
            fields.topic,
            fields.queue_id,
            offset=fields.queue_offset,
            count_max=min(max(1, fields.max_msg_nums), _COUNT_MAX),
            log_end=log_end,
            bytes_max=fields.max_msg_bytes or 2**31 - 1,
            tag_hashes=tags,
            limits=advice.limits,
        )
        return None if result is None or result.bytes_behind > advice.cold_bytes else result

    def head_of_found(
        self, connection: int, opaque: int, fields: PullFields, result: GetResult
    ) -> bytes:
        """Return the head of the answer with what was found at once; it counts as given."""
        self._note_backlog(connection, result.bytes_behind)
        body_bytes = sum(map(len, result.records))
        self._note_given(fields, result, body_bytes)
        return pull_reply_head(
            opaque,
            ResponseCode.SUCCESS,
            next_begin_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            body_bytes=body_bytes,
            suggested_broker_id=LEADER_BROKER_ID,
            remark=result.status.remark,
        )

    def _note_given(self, fields: PullFields, result: GetResult, body_bytes: int) -> None:
        """Count messages that are given, and note how far their group is."""
        group, topic = fields.consumer_group, fields.topic
        self.counts.give(group, topic, result.count, body_bytes)
        self.places.note(group, topic, fields.queue_id, result.next_offset)

    def _note_backlog(self, connection: int, bytes_behind: int) -> bool:
        """Note and return whether the client of a connection reads a backlog; it is expected to go on there."""
        is_backlog = bytes_behind > BACKLOG_BYTES
        if is_backlog:
            self.backlog_readers.add(connection)
        else:
            self.backlog_readers.discard(connection)
        return is_backlog

    def send_away(self, pull: Pull) -> None:
        """Answer that there is nothing new here, with the client's own offset, and name the leader."""
        low, high = self._state.queues.min_max(*pull.place)
        offset = pull.fields.queue_offset
        self.give(
            pull,
            GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, min(low, offset), high),
            PullOutcome(ResponseCode.PULL_NOT_FOUND, offset, max(high, offset)),
        )

    def move(self, pull: Pull, offset: QueueOffset) -> None:
        """Answer that the group was reset: its client goes on at the offset."""
        low, high = self._state.queues.min_max(*pull.place)
        fields = pull.fields
        self.places.note(fields.consumer_group, fields.topic, fields.queue_id, offset)
        self.give(
            pull,
            GetResult(GetStatus.OFFSET_RESET, offset, low, high),
            PullOutcome(ResponseCode.PULL_OFFSET_MOVED, offset, high),
        )

    def ask_again(self, pull: Pull) -> None:
        """Answer with the client's own offset that it shall ask again: nothing was read, and nothing is denied."""
        low, high = self._state.queues.min_max(*pull.place)
        offset = pull.fields.queue_offset
        self.give(
            pull,
            GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, min(low, offset), high),
            PullOutcome(ResponseCode.PULL_RETRY_IMMEDIATELY, offset, max(high, offset)),
        )
