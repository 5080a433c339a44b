"""The control records of an entry, as far as they may be about a message: whom they name, and what they ask for.

Nothing here knows what became of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from broker.store import control
from broker.store.errors import NewerVersionError
from broker.store.pops import InFlight
from broker.store.state import BrokerState
from broker.story.errors import StoryError
from dledger_mq.message.numbers import PhysicalOffset, QueueId
from dledger_mq.message.record import StoredMessage

GroupQueue = tuple[str, str, QueueId]
"""Group, topic, queue id."""


@dataclass(frozen=True, slots=True)
class ControlOrder:
    """A control record in an entry."""

    command: control.Command
    message: StoredMessage

    @property
    def place(self) -> PhysicalOffset:
        """Its physical offset, under which the state keeps what became of it."""
        return PhysicalOffset(self.message.physical_offset)


def order_of(message: StoredMessage) -> ControlOrder | None:
    """Read a record on a control topic; None: it is no command, and did nothing.

    Raises:
        StoryError: it was written by a newer version.
    """
    try:
        return ControlOrder(control.decode_control(message.topic, message.body), message)
    except control.MalformedControlError:
        return None
    except NewerVersionError as error:
        raise StoryError(f"physical offset {message.physical_offset}: {error}") from error


def groups_named(command: control.Command) -> Iterable[str]:
    """Return the consumer groups whose offsets, or messages in flight, a command may change."""
    match command:
        case control.CommitOffsets():
            return {each.group for each in command.commits}
        case control.DeleteGroup():
            return (command.name,)
        case (
            control.ResetOffsets()
            | control.RemoveOffsets()
            | control.PopMessages()
            | control.AckMessages()
            | control.DropPopped()
        ):
            return (command.group,)
        case _:
            return ()


def asked_for(orders: Sequence[ControlOrder], key: GroupQueue, before: int | None) -> int | None:
    """Return where a group stands behind commands that did all that they ask for."""
    stand = before
    group, topic, queue_id = key
    for order in orders:
        match order.command:
            case control.CommitOffsets(commits=commits, is_forced=is_forced):
                for each in commits:
                    if (each.group, each.topic, each.queue_id) == key:
                        is_rewind = stand is not None and each.offset < stand
                        stand = stand if is_rewind and not is_forced else each.offset
            case control.ResetOffsets(group=name, topic=where, offsets=offsets):
                if (name, where) == (group, topic):
                    stand = dict(offsets).get(queue_id, stand)
            case control.PopMessages() as pop:
                if (pop.group, pop.topic, pop.queue_id) == key and pop.at == stand:
                    stand = pop.end
            case control.RemoveOffsets(group=name, topic=where):
                if name == group and where in {None, topic}:
                    stand = None
            case _:
                pass
    return stand


def moved_by(orders: Sequence[ControlOrder], key: GroupQueue) -> str:
    """Return in words what moved a group, or who; the last command that names it counts."""
    words = "by its records"
    group, topic, _ = key
    for order in orders:
        match order.command:
            case control.CommitOffsets(commits=commits, is_forced=is_forced):
                mine = [e for e in commits if (e.group, e.topic, e.queue_id) == key]
                if mine:
                    who = mine[-1].client_id
                    words = "set by a tool" if is_forced else f"committed by {who or 'a client'}"
            case control.ResetOffsets(group=name, topic=where):
                words = "by a reset" if (name, where) == (group, topic) else words
            case control.PopMessages() as pop:
                words = "by a pop" if (pop.group, pop.topic, pop.queue_id) == key else words
            case control.AckMessages() | control.DropPopped() as end:
                words = "by the end of a pop" if end.group == group else words
            case control.RemoveOffsets(group=name) | control.DeleteGroup(name=name):
                words = "its offsets were removed" if name == group else words
            case _:
                pass
    return words


def forgets(orders: Sequence[ControlOrder]) -> bool:
    """Return whether commands may let messages in flight be forgotten, which they do not end one by one."""
    return any(
        isinstance(
            order.command, control.ResetOffsets | control.RemoveOffsets | control.DeleteGroup
        )
        or (isinstance(order.command, control.CommitOffsets) and order.command.is_forced)
        for order in orders
    )


def in_flight_of(state: BrokerState, key: GroupQueue, offset: int) -> InFlight | None:
    """Return what a group has in flight at an offset of a queue; None: nothing."""
    queue = state.pops.queue(key)
    if queue is None:
        return None
    return next((each for each in queue.items() if each.offset == offset), None)
