"""A pull that is not answered yet: how far it has come. It must not know what becomes of it."""

from __future__ import annotations

from typing import Final

from broker.server.requests.request import PendingRequest
from dledger_mq.filters import PropertyFilter
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.requests import PullFields

_FILTER_FACTOR: Final = 64
_TAG_BYTES: Final = 80
"""Bytes that a compiled filter keeps for each character of its text, at most, and a set of tags for each tag."""


class Pull(PendingRequest, eq=False):
    """A pull that is not answered yet.

    Attributes:
        is_confirmed: True once this node surely has applied everything that its client can have seen.
        is_checked: True once it may read.
        tags: hashes of the tags that it wants; None for everything.
        property_filter: chooses by properties what it wants; then tags do not count.
        next_offset: first queue offset that was not looked at yet; grows while it is held and nothing matches.
            Invariant: never below the offset that was asked for, once it was read.
        held_until_ms: end of the hold, by the monotonic clock; it is answered with what is there then.
        is_held: True while it waits for a message.
        is_loaded: True from when what it waited for was read from the disk until it reads that.
        unit_waits: how often it has waited for units of its queue, or for where that begins.
        is_backlog: True if what its client was given last, or is given now, is old.
    """

    is_confirmed: bool = False
    is_checked: bool = False
    tags: frozenset[int] | None = None
    property_filter: PropertyFilter | None = None
    next_offset: QueueOffset = QueueOffset(0)
    held_until_ms: int = 0
    is_held: bool = False
    is_loaded: bool = False
    unit_waits: int = 0
    is_backlog: bool = False

    @property
    def shared(self) -> tuple[object, int] | None:
        """See `PendingRequest`: pulls of a group have the same filter, which may keep far more than its text."""
        if self.property_filter is not None:
            return self.property_filter, len(self.property_filter.text) * _FILTER_FACTOR
        return None if self.tags is None else (self.tags, len(self.tags) * _TAG_BYTES)

    @property
    def fields(self) -> PullFields:
        """The fields of its request."""
        return self.command.fields  # type: ignore[union-attr,return-value]  # its handler takes nothing else

    @property
    def place(self) -> tuple[str, QueueId]:
        """The topic and queue id that it reads."""
        return self.fields.topic, self.fields.queue_id

    @property
    def connection(self) -> int:
        """The number of its connection."""
        return self.origin.number
