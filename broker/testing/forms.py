"""Messages as clients send them and find them again, whatever brokers add to them on the way.

Nothing here judges what became of a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dledger_mq.message import names
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import REAL_QID, REAL_TOPIC, UNIQ_KEY, decode_properties
from dledger_mq.message.record import StoredMessage

_ADDED: Final = frozenset(
    {
        *("MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC", "REAL_QID", "WAIT"),
        *("TIMER_OUT_MS", "TIMER_DEQUEUE_MS", "__transactionId__"),
    }
)
"""Properties that no client of ours sends: brokers add them."""

WAITING_TOPICS: Final = frozenset({names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC})
"""Topics on which a message waits to come to its own one."""


class Form(NamedTuple):
    """One message, in everything that its client asked to have stored; `properties` are sorted."""

    topic: str
    queue_id: int
    body: bytes
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, topic: str, queue_id: int, body: bytes, properties: Mapping[str, str]) -> Form:
        """Build the message that a client makes up."""
        return cls(topic, queue_id, body, tuple(sorted(properties.items())))

    @property
    def key(self) -> bytes:
        """Its unique key; several messages may have the same."""
        return dict(self.properties).get("UNIQ_KEY", "").encode()


def form_of(record: StoredMessage) -> Form:
    """Return what a client asked for, if this is what became of it."""
    topic, queue_id = record.topic, record.queue_id
    if topic in WAITING_TOPICS:
        topic = (record.find(REAL_TOPIC) or b"").decode()
        queue_id = QueueId(int(record.find(REAL_QID) or b"-1"))
    named = decode_properties(record.properties)
    kept = {name: value for name, value in named.items() if name not in _ADDED}
    return Form.of(topic, queue_id, record.body, kept)


@dataclass(slots=True)
class Fate:
    """A client's wish for a message, and what became of it.

    Attributes:
        is_renewed: each attempt is made anew, so that it may be stored again.
        is_transaction: it is a half message first.
        is_committed: its producer has decided to commit; before that it must not be seen.
        is_rolled_back: its producer has decided against it.
        is_recalled: the broker said that it will not be delivered.
        due_ms: no member's clock can show so early a time before the message is due, in true time.
        places: of its records in its own topic.
    """

    is_renewed: bool = False
    is_transaction: bool = False
    is_committed: bool = False
    is_rolled_back: bool = False
    is_recalled: bool = False
    due_ms: int = 0
    places: list[StoredMessage] = field(default_factory=list)


@dataclass(slots=True)
class Sent:
    """Counts of what consumers gave back of the messages under one key.

    Attributes:
        asked_back_count: how often a consumer asked to have one again.
        back_count: of these, how often one was stored for that.
        answered_back_count: and how often a consumer read so in an answer.
    """

    asked_back_count: int = 0
    back_count: int = 0
    answered_back_count: int = 0


def key_of(message: StoredMessage) -> bytes:
    """Return the unique key of a message; empty when it has none."""
    return message.find(UNIQ_KEY) or b""
