"""Resets of consumer offsets that a group's clients have yet to follow: who of them may commit there again.

A reset is a record like any other, but the clients of the group hold places of before it, and go on committing them.
So from the reset on only those clients commit a queue's offset that were *admitted*: after the reset they asked where
the group stands, or read from there. The name of a reset is the place of its record, so that an admission to an earlier
one does not count for the next.

A reset is over once the group has come, through admitted clients, to where the queue ended when it was made: what
anybody still holds from before is no further, and commits never rewind.

Nothing here knows where a group stands (broker/store/offsets.py), or who asks.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset

ADMITTED_MAX: Final = 256
"""Clients that are admitted to one reset; of more, those that were admitted first are forgotten, and ask again."""


class Reset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One queue's reset that is not over.

    Attributes:
        since: place of its record.
        end: where the queue ended, or the group was set to, if that is further.
        admitted: ids of the clients that follow it; "" for all that are not known by an id.
    """

    since: PhysicalOffset
    end: QueueOffset
    admitted: tuple[str, ...] = ()


SavedResets = list[tuple[str, str, list[tuple[QueueId, Reset]]]]


class Resets:
    """The table. Changes are for the fold; everybody else reads."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[QueueId, Reset]] = {}

    def __bool__(self) -> bool:
        return bool(self._table)

    def get(self, group: str, topic: str, queue_id: QueueId) -> Reset | None:
        """Return the reset of a queue that is not over, or None."""
        return self._table.get((topic, group), {}).get(queue_id)

    def keeps_out(self, group: str, topic: str, queue_id: QueueId, client_id: str) -> bool:
        """Return whether a commit by this client is to be ignored: it may come from before the reset."""
        reset = self.get(group, topic, queue_id)
        return reset is not None and client_id not in reset.admitted

    def put(self, group: str, topic: str, queue_id: QueueId, reset: Reset) -> None:
        """Begin a reset, in place of an earlier one."""
        self._table.setdefault((topic, group), {})[queue_id] = reset

    def admit(
        self, group: str, topic: str, queue_id: QueueId, *, client_id: str, since: PhysicalOffset
    ) -> bool:
        """Admit a client to the reset of that record; return False if it is over, another, or the client is known."""
        reset = self.get(group, topic, queue_id)
        if reset is None or reset.since != since or client_id in reset.admitted:
            return False
        admitted = (*reset.admitted, client_id)[-ADMITTED_MAX:]
        self.put(group, topic, queue_id, Reset(since, reset.end, admitted))
        return True

    def passed(self, group: str, topic: str, queue_id: QueueId, offset: QueueOffset) -> None:
        """Note where the group stands in a queue: the reset is over if that is far enough and anybody follows it."""
        reset = self.get(group, topic, queue_id)
        if reset is not None and reset.admitted and offset >= reset.end:
            of_topic = self._table[topic, group]
            del of_topic[queue_id]
            if not of_topic:
                del self._table[topic, group]

    def forget(self, group: str, topic: str) -> None:
        """Forget the resets of a group in a topic, with its offsets."""
        self._table.pop((topic, group), None)

    def saved(self) -> SavedResets | None:
        """Return the table as a snapshot keeps it; None without any."""
        rows = [
            (topic, group, list(queues.items())) for (topic, group), queues in self._table.items()
        ]
        return rows or None

    def take(self, saved: SavedResets | None) -> None:
        """Replace the table by a saved one."""
        self._table = {(topic, group): dict(queues) for topic, group, queues in saved or ()}
