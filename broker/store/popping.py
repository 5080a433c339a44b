"""What the commands of pops do to the state: who is handed out what, and where the group stands then (rules R).

The leader proposes what it has read; here it is decided. A pop counts only if the group stands where the leader saw it,
so that no two pops hand out the same, whoever led when they were proposed.

Nothing here knows how a command came to be, or who waits for it.
"""

from __future__ import annotations

from typing import Protocol

from broker.store import control
from broker.store.consume_queue import ConsumeQueues
from broker.store.locks import QueueLockTable
from broker.store.offsets import ConsumerOffsets
from broker.store.pops import NOTHING, PopKey, PopOutcome, Pops, RequestMode
from broker.store.refusals import RefusalKind
from broker.store.topics import Topics
from dledger_mq.message.numbers import PhysicalOffset, QueueOffset, StoreTimeMs


class PopTables(Protocol):
    """The part of `BrokerState` that pops change."""

    queues: ConsumeQueues
    topics: Topics
    offsets: ConsumerOffsets
    pops: Pops
    locks: QueueLockTable


def carry_out_pop(
    state: PopTables,
    command: control.PopCommand,
    now_ms: StoreTimeMs,
    physical_offset: PhysicalOffset,
) -> RefusalKind | None:
    """Carry out one command; return the reason if it was refused, with nothing changed."""
    if isinstance(command, control.SetRequestMode):
        mode = RequestMode(command.is_pop, command.share_count)
        state.pops.set_mode(command.group, command.topic, mode)
        return None
    key = (command.group, command.topic, command.queue_id)
    skipped_ms = state.locks.skipped_ms
    changes: list[int]
    match command:
        case control.PopMessages():
            if any(command.first + each >= command.end for each in command.taken):
                return RefusalKind.OUT_OF_RANGE
            state.pops.note_pop(physical_offset, _pop(state, command, now_ms))
            return None
        case control.AckMessages():
            changes = _end(state, key, command.handles)
        case control.DropPopped():
            changes = _end(state, key, command.handles, due_by_ms=now_ms - skipped_ms)
        case _:
            popped_ms = state.pops.change(
                key,
                command.offset,
                command.popped_ms,
                now_ms=now_ms,
                skipped_ms=skipped_ms,
                invisible_ms=command.invisible_ms,
            )
            changes = [popped_ms]
    state.pops.note_changes(physical_offset, changes)
    return None


def _pop(state: PopTables, command: control.PopMessages, now_ms: StoreTimeMs) -> PopOutcome:
    """Hand out what the command names, as far as nobody else has it."""
    pops, key = state.pops, (command.group, command.topic, command.queue_id)
    if command.topic not in state.topics:
        return NOTHING
    is_repeat = False
    if command.is_ordered:
        queue = pops.queue(key)
        is_repeat = queue is not None and command.attempt_id in {queue.attempt_id} - {""}
        last_due_ms = None if queue is None else queue.last_due_ms
        if (
            last_due_ms is not None
            and last_due_ms > now_ms - state.locks.skipped_ms
            and not is_repeat
        ):
            return NOTHING
    may_take = (
        command.at == state.offsets.get(*key)
        and command.end <= state.queues.end(command.topic, command.queue_id)
        and (pops.is_idle(key) if command.is_ordered else True)
        and pops.may_take(key, len(command.taken))
    )
    taken = [QueueOffset(command.first + each) for each in command.taken] if may_take else []
    outcome = pops.hand_out(
        key,
        taken,
        command.again,
        now_ms=now_ms,
        skipped_ms=state.locks.skipped_ms,
        invisible_ms=command.invisible_ms,
        is_repeat=is_repeat,
    )
    if may_take and command.is_ordered and taken:
        pops.begin_attempt(key, command.end, command.attempt_id)
        state.offsets.take(*key, command.first)
    elif command.is_ordered and outcome.again:
        pops.follow_attempt(key, command.attempt_id)
    elif may_take and command.end != (command.at or 0):
        # Also without a message: the log may have forgotten all up to there, and who is moved nowhere tries again.
        state.offsets.take(*key, command.end)
    if outcome.popped_ms and not command.is_ordered:
        # A repeat of an earlier one in order would take this one's messages, too.
        pops.follow_attempt(key, "")
    return outcome


def _end(
    state: PopTables,
    key: PopKey,
    handles: list[tuple[QueueOffset, int]],
    *,
    due_by_ms: int | None = None,
) -> list[int]:
    """Take messages out, if they are due by then; return 1 for each that was in flight under its handle, else 0."""
    queue = state.pops.queue(key)
    end = None if queue is None else queue.end
    done = []
    for offset, popped_ms in handles:
        found = queue.find(offset, popped_ms) if queue is not None else None
        is_wanted = found is not None and (due_by_ms is None or found.due_ms <= due_by_ms)
        done.append(int(is_wanted and state.pops.acknowledge(key, offset, popped_ms)))
    if end is not None and state.pops.is_idle(key):
        state.offsets.take(*key, end)
    return done
