"""What happened to a message, step by step: as a line for people, and as JSON for scripts.

Nothing here knows how a step is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

STEPS_MAX: Final = 4096
"""Steps that are told of; a message that is popped again and again has no end of them."""


class StepKind(Enum):
    """The kinds of steps. Scripts know them by these values: never rename."""

    STORED = "stored"
    HALF = "half_stored"
    CHECKED = "checked"
    CHECKS_ANEW = "checks_anew"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    GIVEN_UP = "given_up"
    DELAYED = "delayed"
    TIMED = "timed"
    RECALLED = "recalled"
    DELIVERED = "delivered"
    LEFT_OUT = "left_out"
    SENT_BACK = "sent_back"
    RETRIED = "retried"
    DEAD = "dead_lettered"
    RESENT = "resent"
    REFUSED = "refused"
    POPPED = "popped"
    ACKNOWLEDGED = "acknowledged"
    INVISIBLE = "invisible_time_changed"
    DROPPED = "handed_on"
    FORGOTTEN = "pop_forgotten"
    PASSED = "passed"
    MOVED_BACK = "moved_back"
    REMOVED = "offsets_removed"
    EXPIRED = "expired"
    HIDDEN = "hidden"
    TOPIC_DELETED = "topic_deleted"


@dataclass(frozen=True, slots=True)
class StoryStep:
    """Something that happened.

    Attributes:
        event: its kind.
        index, term: of the entry that says so.
        at_ms: store time of the record in it.
        place: physical offset of the record of the message that is meant.
        text: in words; names of others in it are as they were sent.
        group: the consumer group; empty: it is about none.
        facts: numbers and names for scripts.
        is_sure: False if the state before the entry is not known, so that the entry's record may have had no effect.
    """

    event: StepKind
    index: int
    term: int
    at_ms: int
    place: int
    text: str
    group: str = ""
    facts: dict[str, object] = field(default_factory=dict)
    is_sure: bool = True

    def as_json(self, proven_index: int) -> dict[str, object]:
        """Return it as scripts read it."""
        return {
            "event": self.event.value,
            "entry": self.index,
            "term": self.term,
            "at_ms": self.at_ms,
            "physical_offset": self.place,
            "group": self.group or None,
            "text": self.text,
            "facts": self.facts,
            "is_sure": self.is_sure,
            "is_proven": self.index <= proven_index,
        }
