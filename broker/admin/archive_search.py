"""The values by which messages of an archive are meant: what commands ask for, and what the pipeline looks for.

It must not know who asks, nor how an archive is read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSearch:
    """The values that a message has to have; None: any.

    Attributes:
        topic: it stands in; None only with a message id.
        message_id: its offset message id.
        unique_key: its UNIQ_KEY.
        key: one of its KEYS.
        any_key: one of its KEYS, or its UNIQ_KEY.
        queue_id: of its queue.
        first_offset, last_offset: bounds of its queue offset, both included.
        begin_ms, end_ms: bounds of the time at which it was stored, both included; ms since 1970.
        after_place: it stands in the log behind this physical offset.
    """

    topic: str | None = None
    message_id: str | None = None
    unique_key: str | None = None
    key: str | None = None
    any_key: str | None = None
    queue_id: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    after_place: int | None = None
