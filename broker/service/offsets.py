"""Consumer offsets: commits that are not staged yet, and the answers to queries (rules I). Pure.

It must not know locks: whether a commit counts, the fold decides.
"""

from __future__ import annotations

from broker.store.control import OffsetCommit
from broker.store.reading import GetLimits
from broker.store.state import BrokerState
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset

COMMITS_PER_RECORD_MAX = 2_048
"""Bounds one control record to about a megabyte."""


QueuePlace = tuple[str, str, QueueId]
"""Group, topic, queue id."""


class PendingOffsets:
    """Offset commits that are not staged yet; the furthest of each queue counts.

    Commits below the stored offset are ignored by the fold anyhow, so nothing is lost by joining them.
    """

    def __init__(self) -> None:
        self._offsets: dict[QueuePlace, dict[str, QueueOffset]] = {}
        self._count = 0
        """Invariant: the offsets in `_offsets`, one for each place and client."""

    def __len__(self) -> int:
        """Count the pending commits; each takes at most 1 KiB in the log."""
        return self._count

    def add(self, place: QueuePlace, offset: QueueOffset, *, client_id: str = "") -> None:
        """Add a commit; those of different clients stay apart, since the queue may be locked."""
        assert offset >= 0, f"offset {offset} of {client_id} for {place} is none to commit"
        of_queue = self._offsets.setdefault(place, {})
        self._count += client_id not in of_queue
        if offset > of_queue.get(client_id, -1):
            of_queue[client_id] = offset

    def has(self, place: QueuePlace) -> bool:
        """Return True if a commit for this queue is pending."""
        return place in self._offsets

    def take(self) -> list[list[OffsetCommit]]:
        """Return all commits, in pieces that fit a record each; nothing is pending afterwards."""
        commits = [
            OffsetCommit(*place, offset, client_id)
            for place, of_queue in self._offsets.items()
            for client_id, offset in of_queue.items()
        ]
        assert len(commits) == self._count, (
            f"{len(commits)} are pending, {self._count} were counted"
        )
        self._offsets.clear()
        self._count = 0
        return [
            commits[start : start + COMMITS_PER_RECORD_MAX]
            for start in range(0, len(commits), COMMITS_PER_RECORD_MAX)
        ]


def is_beyond_end(state: BrokerState, place: QueuePlace, offset: QueueOffset) -> bool:
    """Return whether an offset lies beyond the queue's end, as far as this node has applied; 0 never does.

    What a consumer has read is committed before its commit comes, so a leader that has applied all that was committed
    then knows an end that is no lower.
    """
    _, topic, queue_id = place
    return offset > state.queues.end(topic, queue_id)


def beyond_end_remark(place: QueuePlace, offset: QueueOffset, end: QueueOffset) -> str:
    """Say why a commit was refused that names a place where nothing is yet."""
    group, topic, queue_id = place
    return (
        f"offset {offset} of group {group} for topic {topic} queue {queue_id} was not stored: "
        f"the queue ends at {end}"
    )


def no_room_remark(place: QueuePlace, offset: QueueOffset) -> str:
    """Say why a commit was refused under names of which nothing exists."""
    group, topic, queue_id = place
    return (
        f"offset {offset} of group {group} for topic {topic} queue {queue_id} was not stored: there is no such group "
        "or queue, and too many offsets are kept for more of these"
    )


def fenced_remark(place: QueuePlace, client_id: str, holder: str | None) -> str:
    """Say why a commit was refused, for the client and its owner."""
    group, topic, queue_id = place
    who = f"not by {client_id}" if client_id else "and who commits is not known (no heartbeat yet)"
    return (
        f"the offset of group {group} for topic {topic} queue {queue_id} was not stored: "
        f"the queue is locked by {holder or 'another client'}, {who}"
    )


def consumer_offset(
    state: BrokerState,
    group: str,
    topic: str,
    queue_id: QueueId,
    *,
    zero_if_missing: bool,
    log_end: PhysicalOffset,
) -> QueueOffset | None:
    """Return the answer to a query for a group's offset; None for "not found" (I4).

    A group without an offset starts at 0 on a queue that still has its first message, and has it in
    memory (I5); elsewhere the client decides.

    Args:
        state: the derived state.
        group: the consumer group.
        topic: of the queue.
        queue_id: of the queue.
        zero_if_missing: the request's `setZeroIfNotFound`.
        log_end: end of the committed log, from which "in memory" is judged (D17).
    """
    stored = state.offsets.get(group, topic, queue_id)
    if stored is not None:
        return stored
    if not zero_if_missing:
        return None
    queue = state.queues.get(topic, queue_id)
    if queue is None or queue.max_offset == 0:
        return QueueOffset(0)
    if queue.min_offset > 0:
        return None
    in_memory = (
        log_end - queue.unit(queue.min_offset).physical_offset <= GetLimits().memory_span_bytes
    )
    return QueueOffset(0) if in_memory else None
