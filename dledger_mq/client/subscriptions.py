"""What a consumer wants of a topic. Pure.

Brokers filter by a 32-bit hash of the tag and may therefore hand out too much; the client looks at the
tag's text again (rules G4, G5).
"""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.message.names import is_retry_topic, topic_problem

EVERYTHING: Final = "*"


class TopicSubscription(msgspec.Struct, frozen=True):
    """A topic and the tags of interest; no tags: everything.

    Attributes:
        version: time of the subscription, ms; a greater one replaces it at the broker.
    """

    topic: str
    expression: str
    tags: frozenset[str]
    version: int

    def wants(self, tags: str | None) -> bool:
        """Return whether a message with these tags is of interest."""
        return not self.tags or tags in self.tags


def subscribe(topic: str, expression: str, version: int) -> TopicSubscription:
    """Read a subscription: "*", or tags joined with "||".

    Raises:
        ClientUsageError: the topic's name is invalid, or no tag is left of the expression.
    """
    if not all(isinstance(text, str) for text in (topic, expression)):
        raise ClientUsageError(
            f"a subscription is a topic and its tags as text, not {topic!r} and {expression!r}"
        )
    problem = topic_problem(topic)
    if problem is not None:
        raise ClientUsageError(problem)
    text = expression.strip()
    if text in ("", EVERYTHING) or is_retry_topic(topic):
        return TopicSubscription(topic, EVERYTHING, frozenset(), version)
    tags = frozenset(tag.strip() for tag in text.split("||")) - {""}
    if not tags:
        raise ClientUsageError(f"the expression {expression!r} for {topic} holds no tag")
    return TopicSubscription(topic, text, tags, version)
