"""The effect of each control command on the state. Pure dispatch; the rules stand in the components.

Nothing here knows how a command came to be, or who waits for it.
"""

from __future__ import annotations

from typing import Protocol, assert_never

from broker.store import control
from broker.store.consume_queue import ConsumeQueues
from broker.store.digest_marks import DigestMarks
from broker.store.group_settings import GroupSettings
from broker.store.groups import Groups
from broker.store.key_index import KeyIndex
from broker.store.locks import QueueLockTable
from broker.store.needs import oldest_need, oldest_pin
from broker.store.offsets import ConsumerOffsets
from broker.store.pins import Pin
from broker.store.popping import carry_out_pop
from broker.store.pops import Pops
from broker.store.recent_sends import RecentSends
from broker.store.refusals import RefusalKind
from broker.store.retention import Retention
from broker.store.schedule import Schedule
from broker.store.sinks import Sinks
from broker.store.timers import Timers
from broker.store.topics import Topics, is_deletable
from broker.store.transactions import Transactions
from dledger.raft.ids import Index
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs


class Tables(Protocol):
    """The part of `BrokerState` that commands change."""

    queues: ConsumeQueues
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    pops: Pops
    locks: QueueLockTable
    schedule: Schedule
    marks: DigestMarks
    transactions: Transactions
    timers: Timers
    sinks: Sinks
    key_index: KeyIndex
    recent_sends: RecentSends
    retention: Retention
    settings: GroupSettings
    applied_index: Index


def carry_out(
    state: Tables, command: control.Command, now_ms: StoreTimeMs, physical_offset: PhysicalOffset
) -> RefusalKind | None:
    """Carry out one command; return the reason if it was refused, with nothing changed.

    Args:
        state: what is changed.
        command: from the record.
        now_ms: the record's store time.
        physical_offset: of the record; results are kept under it.
    """
    match command:
        case control.PutTopic() | control.DeleteTopic():
            return _change_topics(state, command, now_ms)
        case control.PutGroup() | control.DeleteGroup() | control.ForbidTopic():
            return _change_groups(state, command, now_ms)
        case (
            control.CommitOffsets()
            | control.ResetOffsets()
            | control.AdmitToReset()
            | control.RemoveOffsets()
        ):
            _change_offsets(state, command, now_ms, physical_offset)
        case (
            control.PopMessages()
            | control.AckMessages()
            | control.ChangeInvisible()
            | control.DropPopped()
            | control.SetRequestMode()
        ):
            return carry_out_pop(state, command, now_ms, physical_offset)
        case control.LockQueues() | control.UnlockQueues():
            _change_locks(state, command, now_ms, physical_offset)
        case control.SetDelayLevels() | control.AdvanceSchedule():
            return _change_schedule(state, command)
        case control.DeliverTimers() | control.RecallTimer():
            return _change_timers(state, command, physical_offset)
        case control.MarkDigests():
            state.marks.compare(command.marked_index, command.digests)
        case control.CheckTransactions() | control.ResumeTransaction():
            _change_transactions(state, command)
        case control.TakeRows() | control.PutSettings():
            return _put_whole(state, command, now_ms)
        case control.ForgetBefore() | control.HideBefore() | control.PutPin() | control.DropPin():
            return _change_retention(state, command, now_ms, physical_offset)
        case _:
            assert_never(command)
    return None


def _put_whole(
    state: Tables, command: control.TakeRows | control.PutSettings, now_ms: StoreTimeMs
) -> RefusalKind | None:
    """Put what stands in one command into its table, all or nothing."""
    if isinstance(command, control.TakeRows):
        return state.sinks.take(command.sink_id, command.batch_id, command.keys, now_ms)
    return state.settings.put(command.values, command.by, now_ms)


def _change_retention(
    state: Tables,
    command: control.ForgetBefore | control.HideBefore | control.PutPin | control.DropPin,
    now_ms: StoreTimeMs,
    physical_offset: PhysicalOffset,
) -> RefusalKind | None:
    """Forget the beginning of the log, hide that of topics, put a pin at a place that the log has, or remove one."""
    retention = state.retention
    match command:
        case control.ForgetBefore():
            return _forget(state, command, now_ms, physical_offset)
        case control.HideBefore():
            return _hide(state, command, physical_offset)
        case control.PutPin():
            if not retention.position <= command.position <= physical_offset:
                return RefusalKind.OUT_OF_RANGE
            pin = Pin(command.position, now_ms, command.keep_ms, command.keep_bytes, command.by)
            return retention.pins.put(command.name, pin)
        case control.DropPin():
            retention.pins.drop(command.name)
    return None


def _hide(
    state: Tables, command: control.HideBefore, physical_offset: PhysicalOffset
) -> RefusalKind | None:
    """Hide the beginning of topics, none of them if one cannot be; it never moves back."""
    if not all(is_deletable(name) for name, _ in command.topics):
        return RefusalKind.SYSTEM_NAME  # what waits there is read by its queue offset
    if any(position > physical_offset for _, position in command.topics):
        return RefusalKind.OUT_OF_RANGE
    for name, position in command.topics:
        if name in state.topics and position > state.retention.beginning_of(name):
            state.retention.hide(name, position)
            state.queues.hide(name, position)
    state.queues.sweep()
    return None


def _forget(
    state: Tables,
    command: control.ForgetBefore,
    now_ms: StoreTimeMs,
    physical_offset: PhysicalOffset,
) -> RefusalKind | None:
    """Forget what stands before an entry; nothing, if the group has gone further, or if any of it is needed."""
    index, position = command.index, command.position
    if index <= state.retention.index or position <= state.retention.position:
        return None
    # The entry of this record is not applied yet.
    if index > state.applied_index + 1 or position > physical_offset:
        return RefusalKind.OUT_OF_RANGE
    needs = [oldest_need(state, now_ms, end=physical_offset)]
    if command.cause != "disk":  # a full disk does not wait for an archive
        needs.append(oldest_pin(state.retention.pins, now_ms, end=physical_offset))
    if any(need is not None and need.physical_offset < position for need in needs):
        return RefusalKind.STILL_NEEDED
    state.retention.move(index, position, command.cause, now_ms)
    state.recent_sends.forget_before(position)
    state.key_index.trim(position)
    state.queues.forget(position)
    state.queues.sweep()
    return None


def _commit_offsets(
    state: Tables,
    command: control.CommitOffsets,
    now_ms: StoreTimeMs,
    physical_offset: PhysicalOffset,
) -> None:
    """Store each offset, but none of a queue that another client has locked; a reset asks nobody."""
    is_forced = command.is_forced
    for each in command.commits:
        key = (each.group, each.topic, each.queue_id)
        if not is_forced and state.locks.keeps_out(key, each.client_id, now_ms):
            state.locks.note_fenced(key, each.client_id, physical_offset)
            continue
        if is_forced:  # what is in flight may come again
            state.pops.forget(*key)
        state.offsets.commit(*key, each.offset, is_forced=is_forced, client_id=each.client_id)


def _change_offsets(
    state: Tables,
    command: control.CommitOffsets
    | control.ResetOffsets
    | control.AdmitToReset
    | control.RemoveOffsets,
    now_ms: StoreTimeMs,
    physical_offset: PhysicalOffset,
) -> None:
    """Set or forget a group's offsets, whoever consumes, or let a client commit that follows a reset.

    What is in flight where the group stands elsewhere now is forgotten: it may lie ahead, and come again.
    """
    if isinstance(command, control.CommitOffsets):
        _commit_offsets(state, command, now_ms, physical_offset)
        return
    group, topic = command.group, command.topic
    match command:
        case control.ResetOffsets():
            for queue_id, offset in command.offsets:
                state.pops.forget(group, topic, queue_id)
                state.offsets.reset(group, command.topic, queue_id, offset, since=physical_offset)
        case control.AdmitToReset():
            state.offsets.admit(
                group,
                command.topic,
                command.queue_id,
                client_id=command.client_id,
                since=command.since,
            )
        case control.RemoveOffsets():
            state.offsets.remove(group, topic)
            state.pops.forget(group, topic)


def _change_locks(
    state: Tables,
    command: control.LockQueues | control.UnlockQueues,
    now_ms: StoreTimeMs,
    physical_offset: PhysicalOffset,
) -> None:
    """Lock queues for a client, or release those that it holds."""
    if isinstance(command, control.UnlockQueues):
        state.locks.unlock(command.group, command.client_id, command.queues)
        return
    state.locks.lock(
        command.group,
        command.client_id,
        command.queues,
        now_ms=now_ms,
        physical_offset=physical_offset,
    )


def _change_schedule(
    state: Tables, command: control.SetDelayLevels | control.AdvanceSchedule
) -> RefusalKind | None:
    """Note the progress of a delay level, or replace the levels."""
    if isinstance(command, control.AdvanceSchedule):
        return state.schedule.advance(command.level, command.first, command.end)
    state.schedule.set_delays(command.delays_ms)
    return None


def _change_transactions(
    state: Tables, command: control.CheckTransactions | control.ResumeTransaction
) -> None:
    """Count checks of open transactions, or begin to count them anew."""
    if isinstance(command, control.CheckTransactions):
        state.transactions.check(command.queue_offsets, command.at_ms)
    else:
        state.transactions.resume(command.queue_offset, command.at_ms)


def _change_timers(
    state: Tables,
    command: control.DeliverTimers | control.RecallTimer,
    physical_offset: PhysicalOffset,
) -> RefusalKind | None:
    """Take out what was delivered by its time, or what a client recalls."""
    if isinstance(command, control.DeliverTimers):
        return state.timers.deliver(command.timers)
    state.timers.recall(
        command.due_ms, command.key, command.offsets, physical_offset=physical_offset
    )
    return None


def _change_topics(
    state: Tables, command: control.PutTopic | control.DeleteTopic, now_ms: StoreTimeMs
) -> RefusalKind | None:
    """Create, replace or delete a topic; with a topic goes everything that hangs on its name."""
    if isinstance(command, control.PutTopic):
        return state.topics.put(command.config, now_ms, only_if_missing=command.only_if_missing)
    if not is_deletable(command.name):
        return RefusalKind.SYSTEM_NAME
    state.topics.delete(command.name, now_ms)
    state.queues.drop_topic(command.name)
    state.retention.show(command.name)
    state.offsets.remove_topic(command.name)
    state.pops.forget(None, command.name)
    state.pops.forget_modes(None, command.name)
    state.locks.remove_topic(command.name)
    left = state.queues.of_topic(command.name)
    assert not left, f"topic {command.name} is deleted, {len(left)} queues are left"
    return None


def _change_groups(
    state: Tables,
    command: control.PutGroup | control.DeleteGroup | control.ForbidTopic,
    now_ms: StoreTimeMs,
) -> RefusalKind | None:
    """Create, replace or delete a group, or set what it may not do."""
    match command:
        case control.PutGroup():
            return state.groups.put(command.config, now_ms, only_if_missing=command.only_if_missing)
        case control.DeleteGroup():
            refusal = state.groups.delete(command.name, now_ms)
            if refusal is None:
                state.pops.forget(command.name, None)
                state.pops.forget_modes(command.name, None)
                if command.clean_offsets:
                    state.offsets.remove(command.name, None)
            return refusal
        case control.ForbidTopic():
            return state.groups.forbid(command.group, command.topic, command.bits, now_ms)
