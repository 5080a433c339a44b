"""What is shown of a state at a time: rows of offsets, open transactions, locks, and of what waits for its time.

Each yields as many rows as somebody takes: a state may have very many. Nothing here knows how the state came to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.store.locks import LOCK_LIVE_MS
from broker.store.state import BrokerState
from broker.store.timers import TIMER_UNIT
from dledger_mq.message.numbers import QueueOffset


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A consumer group in a queue.

    Attributes:
        offset: committed.
        end: of the queue, at that time.
        lag: messages between; 0 if the offset is beyond the end.
        in_flight: popped, and not acknowledged.
    """

    group: str
    topic: str
    queue: int
    offset: int
    end: int
    lag: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """An open transaction.

    Attributes:
        half_offset: in the half topic.
        physical_offset: of its half message.
        checked_ms: time of the last check; null without any.
    """

    topic: str
    transaction_id: str
    half_offset: int
    physical_offset: int
    stored_ms: int
    checks: int
    checked_ms: int | None


@dataclass(frozen=True, slots=True)
class LockRow:
    """A queue that a client holds.

    Attributes:
        free_ms: when others may have it, unless it is renewed.
    """

    group: str
    topic: str
    queue: int
    client_id: str
    free_ms: int


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A message that waits for its time.

    Attributes:
        level: delay level; null: it has a due time of its own.
        topic: that it is for; null: only its record says it, and that was not read.
    """

    due_ms: int
    physical_offset: int
    level: int | None
    topic: str | None = None


def offsets(state: BrokerState, group: str | None, topic: str | None) -> Iterator[OffsetRow]:
    """Yield where groups stand, by topic and group; None: all groups, all topics."""
    for of_topic, of_group, queues in sorted(state.offsets.items(), key=lambda row: row[:2]):
        if group not in {None, of_group} or topic not in {None, of_topic}:
            continue
        for queue_id, offset in sorted(queues.items()):
            end = state.queues.end(of_topic, queue_id)
            popped = state.pops.queue((of_group, of_topic, queue_id))
            yield OffsetRow(
                of_group,
                of_topic,
                queue_id,
                offset,
                end,
                max(0, end - offset),
                0 if popped is None else popped.count,
            )


def transactions(state: BrokerState, topic: str | None) -> Iterator[TransactionRow]:
    """Yield the open transactions, oldest first; None: for all topics."""
    for half in state.transactions:
        of_topic = half.topic.decode(errors="replace")
        if topic not in {None, of_topic}:
            continue
        yield TransactionRow(
            of_topic,
            "" if half.key is None else half.key[1].decode(errors="replace"),
            half.queue_offset,
            half.physical_offset,
            half.store_ms,
            half.check_count,
            half.checked_ms if half.check_count else None,
        )


def locks(state: BrokerState, group: str | None, topic: str | None) -> Iterator[LockRow]:
    """Yield the queues that somebody holds, by group; None: of all groups, of all topics."""
    for key, lock in sorted(state.locks.items()):
        of_group, of_topic, queue_id = key
        if group not in {None, of_group} or topic not in {None, of_topic}:
            continue
        if state.locks.holder(*key, state.last_store_ms) is not None:
            free_ms = lock.renewed_ms + LOCK_LIVE_MS + state.locks.skipped_ms
            yield LockRow(of_group, of_topic, queue_id, lock.client_id, free_ms)


def waiting(state: BrokerState) -> Iterator[WaitingRow]:
    """Yield what waits for its time: first by delay level, then with due times of their own; each in order."""
    for level, queue, start in state.schedule.waiting():
        for offset in range(start, queue.max_offset):
            unit = queue.unit(QueueOffset(offset))
            yield WaitingRow(unit.tag_hash, unit.physical_offset, level)
    for piece in state.timers.units():
        for due_ms, physical_offset in TIMER_UNIT.iter_unpack(piece):
            yield WaitingRow(due_ms, physical_offset, None)
