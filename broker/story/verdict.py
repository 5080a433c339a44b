"""Whether a message can be consumed at the end of what was read, where, who has passed it; and if not, why not.

It is asked of the folded state alone, and without one of what was told. What the log does not hold cannot be said:
filters of subscriptions, clients that do not ask, permissions in a member's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.store.state import BrokerState
from broker.store.transactions import TransactionVerdict
from broker.story.copies import WAITING, Copy, CopyRole
from broker.story.orders import in_flight_of
from broker.story.steps import StepKind, StoryStep
from broker.times import time_text
from dledger_mq.message.numbers import QueueId, QueueOffset

GROUPS_MAX: Final = 256
"""Consumer groups that are told of, for each record."""

_ENDS: Final = {
    StepKind.ROLLED_BACK: "its transaction was rolled back",
    StepKind.GIVEN_UP: "its transaction was given up: it lies in TRANS_CHECK_MAX_TIME_TOPIC",
    StepKind.RECALLED: "it was recalled before its time",
    StepKind.LEFT_OUT: "its time came, and nothing was stored in its place",
    StepKind.EXPIRED: "retention has forgotten it",
    StepKind.HIDDEN: "its topic keeps messages for a shorter time than the log",
    StepKind.TOPIC_DELETED: "its topic was deleted after it was stored",
    StepKind.REFUSED: "the fold did not carry out its record",
}


@dataclass(frozen=True, slots=True)
class GroupStand:
    """A consumer group, and one record.

    Attributes:
        offset: committed, the next one that it consumes.
        is_passed: it stands behind the message.
        until_ms: it is popped, and nobody else gets it before this time; None: it is not in flight.
        times: how often it was popped, if it is in flight.
        locked_by: the client that holds the queue for orderly consumption; empty: none.
    """

    group: str
    offset: int
    is_passed: bool
    until_ms: int | None
    times: int | None
    locked_by: str

    def as_json(self) -> dict[str, object]:
        """Return it as scripts read it."""
        return {
            "group": self.group,
            "offset": self.offset,
            "is_passed": self.is_passed,
            "in_flight_until_ms": self.until_ms,
            "popped_times": self.times,
            "locked_by": self.locked_by or None,
        }


@dataclass(frozen=True, slots=True)
class CopyStanding:
    """One record at the end.

    Attributes:
        is_visible: consumers can get it; None: that is not known.
        reason: why not; what it waits for; if it is visible, where.
        is_ended: something else came of it, or nothing ever will.
        groups: those that have an offset in its topic's queue, if it is visible.
    """

    copy: Copy
    is_visible: bool | None
    reason: str
    is_ended: bool = False
    groups: list[GroupStand] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return it as scripts read it."""
        message = self.copy.message
        return {
            "role": self.copy.role.value,
            "topic": message.topic,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "physical_offset": message.physical_offset,
            "message_id": self.copy.message_id,
            "size_bytes": message.size_bytes,
            "entry": self.copy.index,
            "term": self.copy.term,
            "is_visible": self.is_visible,
            "is_ended": self.is_ended,
            "reason": self.reason,
            "groups": [each.as_json() for each in self.groups],
        }


def standing_of(copy: Copy, steps: list[StoryStep], state: BrokerState) -> CopyStanding:
    """Return how one record stands in a state.

    Args:
        copy: the record.
        steps: of the whole message.
        state: after the last entry that was read.
    """
    ended = _ended(copy, steps)
    if ended is not None:
        return ended
    match copy.role:
        case CopyRole.HALF:
            return _half(copy, state)
        case CopyRole.DELAYED:
            return _delayed(copy, state)
        case CopyRole.TIMED:
            return _timed(copy, state, is_delivered=_is_followed(copy, steps))
        case _:
            return _in_queue(copy, state)


def standing_by_steps(copy: Copy, steps: list[StoryStep]) -> CopyStanding:
    """Return how one record stands as far as steps tell, where no state is known.

    Args:
        copy: the record.
        steps: of the whole message, up to the last entry that was read.
    """
    ended = _ended(copy, steps)
    if ended is not None:
        return ended
    events = {step.event for step in steps if step.place == copy.place}
    if copy.role is CopyRole.HALF and StepKind.COMMITTED in events:
        reason = "its transaction was committed: the message stands elsewhere"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    if copy.role is CopyRole.HALF:
        reason = "half: no end of its transaction was found"
        return CopyStanding(copy, is_visible=False, reason=reason)
    if copy.role in WAITING and _is_followed(copy, steps):
        reason = "it was delivered: the message stands elsewhere"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    if copy.role in WAITING:
        reason = "it waits: no delivery of it was found"
        return CopyStanding(copy, is_visible=False, reason=reason)
    message = copy.message
    reason = (
        f"stored in queue {message.queue_id} of {message.topic} at offset {message.queue_offset}"
    )
    return CopyStanding(copy, is_visible=None, reason=reason)


def _ended(copy: Copy, steps: list[StoryStep]) -> CopyStanding | None:
    """Return how a record stands that has come to an end, or that no queue shows; None: it is another one."""
    events = {step.event for step in steps if step.place == copy.place}
    for event, reason in _ENDS.items():
        if event in events:
            return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    if copy.is_hidden:
        reason = "it is a half message of an old broker, which no queue shows"
        return CopyStanding(copy, is_visible=False, reason=reason)
    return None


def _half(copy: Copy, state: BrokerState) -> CopyStanding:
    """Return how a half message stands."""
    offset = QueueOffset(copy.message.queue_offset)
    half = state.transactions.get(offset)
    if half is not None:
        group = copy.producer_group or "a group that it does not name"
        reason = f"its transaction is open: no producer of {group} has committed it, {half.check_count} checks so far"
        return CopyStanding(copy, is_visible=False, reason=reason)
    verdict = state.transactions.verdict(offset)
    if verdict is TransactionVerdict.COMMITTED:
        reason = "its transaction was committed: the message stands elsewhere"
    else:
        reason = (
            "its transaction has ended" if verdict is None else f"its transaction {verdict.name}"
        )
    return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)


def _delayed(copy: Copy, state: BrokerState) -> CopyStanding:
    """Return how a message at a delay level stands."""
    message = copy.message
    level = message.queue_id + 1
    if state.schedule.progress(level) > message.queue_offset:
        reason = "it was delivered: the message stands elsewhere"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    queue = state.queues.get(message.topic, QueueId(message.queue_id))
    if queue is None or not queue.min_offset <= message.queue_offset < queue.max_offset:
        reason = f"the queue of delay level {level} does not have it"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    due_ms = queue.unit(QueueOffset(message.queue_offset)).tag_hash
    reason = f"it waits at delay level {level} until {_due(due_ms, state)}"
    return CopyStanding(copy, is_visible=False, reason=reason)


def _timed(copy: Copy, state: BrokerState, *, is_delivered: bool) -> CopyStanding:
    if is_delivered:
        reason = "it was delivered: the message stands elsewhere"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    due_ms = int(copy.due_text) if copy.due_text.isdigit() else 0
    return CopyStanding(copy, is_visible=False, reason=f"it waits until {_due(due_ms, state)}")


def _due(due_ms: int, state: BrokerState) -> str:
    """Return a due time in words."""
    is_late = due_ms < state.last_store_ms
    late = (
        ", which is past at the end of the log: no leader has delivered it yet" if is_late else ""
    )
    return f"{time_text(due_ms)}{late}"


def _is_followed(copy: Copy, steps: list[StoryStep]) -> bool:
    """Return whether what waited in a record was delivered behind it."""
    return any(
        step.event is StepKind.DELIVERED and (step.place == copy.place or step.index > copy.index)
        for step in steps
    )


def _in_queue(copy: Copy, state: BrokerState) -> CopyStanding:
    """Return how a record stands that is for consumers."""
    message = copy.message
    topic, queue_id = message.topic, QueueId(message.queue_id)
    offset = QueueOffset(message.queue_offset)
    queue = state.queues.get(topic, queue_id)
    if copy.place < state.retention.beginning_of(topic):
        reason = _ENDS[
            StepKind.HIDDEN if copy.place >= state.retention.position else StepKind.EXPIRED
        ]
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        reason = f"queue {queue_id} of {topic} does not have offset {offset}"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    found = queue.unit(offset).physical_offset
    if found != copy.place:
        reason = f"at offset {offset} of its queue stands another message, at {found} of the log"
        return CopyStanding(copy, is_visible=False, reason=reason, is_ended=True)
    config = state.topics.get(topic)
    if config is None:
        reason = f"topic {topic} does not exist"
        return CopyStanding(copy, is_visible=False, reason=reason)
    if not config.is_readable:
        reason = f"topic {topic} is not readable (perm {config.perm}): pulls are refused"
        return CopyStanding(copy, is_visible=False, reason=reason)
    if queue_id >= config.read_queue_count:
        reason = f"topic {topic} has {config.read_queue_count} queues to read: clients do not ask for queue {queue_id}"
        return CopyStanding(copy, is_visible=False, reason=reason)
    where = f"in queue {queue_id} of {topic} at offset {offset}"
    return CopyStanding(copy, is_visible=True, reason=where, groups=_groups(copy, state))


def _groups(copy: Copy, state: BrokerState) -> list[GroupStand]:
    """Return where the groups stand that have an offset in the queue of a record."""
    message = copy.message
    found: list[GroupStand] = []
    for group in sorted(state.offsets.groups_of(message.topic)):
        key = (group, message.topic, QueueId(message.queue_id))
        offset = state.offsets.get(*key)
        if offset is None:
            continue
        if len(found) == GROUPS_MAX:
            break
        flying = in_flight_of(state, key, message.queue_offset)
        found.append(
            GroupStand(
                group,
                offset,
                is_passed=offset > message.queue_offset,
                until_ms=None if flying is None else flying.due_ms + state.locks.skipped_ms,
                times=None if flying is None else flying.times,
                locked_by=state.locks.holder(*key, state.last_store_ms) or "",
            )
        )
    return found
