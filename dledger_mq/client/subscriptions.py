"""What a consumer wants of a topic.

Brokers filter by a 32-bit hash of the tag and may therefore hand out too much; the client looks at the
tag's text again (rules G4, G5). A choice by properties (`BySql`) they carry out in full.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.filters import FilterTextError, compile_filter
from dledger_mq.message.names import is_retry_topic, retry_topic, topic_problem
from dledger_mq.remoting.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG, Subscription

EVERYTHING: Final = "*"


class BySql(msgspec.Struct, frozen=True):
    """A choice of messages by their properties, in SQL92: `BySql("region = 'EU' AND amount > 100")`.

    It stands wherever an expression of tags may. The text is read here, before it is sent (docs/filter.md).

    Raises:
        ClientUsageError: it is no filter; the message says where the mistake is.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ClientUsageError(f"a filter is a text, not {self.text!r}")
        try:
            compile_filter(self.text)
        except FilterTextError as error:
            raise ClientUsageError(
                f"the filter {self.text[:200]!r} cannot be used: {error}"
            ) from error


class TopicSubscription(msgspec.Struct, frozen=True):
    """A topic and the tags of interest; no tags: everything, or what the broker chooses by properties.

    Attributes:
        version: time of the subscription, ms; a greater one replaces it at the broker.
        expression_type: TAG or SQL92.
    """

    topic: str
    expression: str
    tags: frozenset[str]
    version: int
    expression_type: str = EXPRESSION_TAG

    def reported(self) -> Subscription:
        """Return it as brokers are told of it."""
        return Subscription(
            self.topic,
            self.expression,
            self.expression_type,
            tags=tuple(sorted(self.tags)),
            version=self.version,
        )

    def wants(self, tags: str | None) -> bool:
        """Return whether a message with these tags is of interest."""
        return not self.tags or tags in self.tags


def subscribe(topic: str, expression: str | BySql, version: int) -> TopicSubscription:
    """Read a subscription: "*", tags joined with "||", or a choice by properties.

    Raises:
        ClientUsageError: the topic's name is invalid, or no tag is left of the expression.
    """
    if isinstance(expression, BySql):
        found = subscribe(topic, EVERYTHING, version)
        if is_retry_topic(topic):
            return found
        return msgspec.structs.replace(
            found, expression=expression.text, expression_type=EXPRESSION_SQL92
        )
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


def subscribe_all(
    group: str, wanted: Mapping[str, str | BySql], *, with_retries: bool
) -> dict[str, TopicSubscription]:
    """Read the subscriptions of a consumer, as of now, and add the retry topic where the group has one.

    Raises:
        ClientUsageError: one cannot be read, or there is none.
    """
    if not wanted:
        raise ClientUsageError("a consumer needs at least one subscription")
    if not isinstance(wanted, Mapping):
        raise ClientUsageError(
            f'subscriptions is {wanted!r}, not topics with their tags such as {{"Orders": "*"}}'
        )
    version = time.time_ns() // 1_000_000
    found = {topic: subscribe(topic, text, version) for topic, text in wanted.items()}
    if with_retries:
        name = retry_topic(group)
        found[name] = subscribe(name, EVERYTHING, version)
    return found
