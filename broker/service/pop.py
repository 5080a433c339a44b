"""Decisions on pops: may one read, and with which filter (R1, R2). Pure; it must not know what is there to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.service.catalog import NOTHING_NEW, Catalog, Creation, group_for_use
from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import PERM_READ, TopicConfig
from dledger_mq.filters import PropertyFilter
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.heartbeat import EXPRESSION_TAG, Subscription

COUNT_MAX: Final = 32
"""Messages of one pop."""

ANY_QUEUE: Final = QueueId(-1)

INVISIBLE_MS_MAX: Final = 3 * 24 * 3_600_000
"""Longer than any consumer works on a message, and no longer than logs are kept by default."""

FROM_END: Final = 1
"""`initMode` of a group that begins with what comes from now on."""


class PopFields(NamedTuple):
    """The fields of a pop.

    Attributes:
        queue_id: -1 for any.
        invisible_ms: for how long nobody else gets the messages.
        poll_ms: how long it waits for one.
        attempt_id: the same for a pop in order that repeats one whose answer was lost.
    """

    group: str
    topic: str
    queue_id: QueueId
    count_max: int
    invisible_ms: int
    poll_ms: int
    begins_at_end: bool
    expression: str
    expression_type: str
    is_ordered: bool
    attempt_id: str

    @classmethod
    def read(cls, ext: Mapping[str, str]) -> PopFields:
        """Read them from a header.

        Raises:
            FieldError: one is missing or impossible.
        """
        attempt_id = ext.get("attemptId") or ""
        if len(attempt_id) > 255:
            raise FieldError("attemptId", f"has {len(attempt_id)} characters, at most 255")
        return cls(
            fields.text(ext, "consumerGroup"),
            fields.text(ext, "topic"),
            QueueId(fields.int32(ext, "queueId")),
            fields.int32(ext, "maxMsgNums"),
            invisible_ms(ext),
            fields.int64(ext, "pollTime"),
            fields.int32(ext, "initMode", 0) == FROM_END,
            ext.get("exp") or "*",
            ext.get("expType") or EXPRESSION_TAG,
            fields.boolean(ext, "order", default=False),
            attempt_id,
        )

    @classmethod
    def read_notice(cls, ext: Mapping[str, str]) -> PopFields:
        """Read those of a NOTIFICATION, which claims nothing.

        Raises:
            FieldError: one is missing or impossible.
        """
        claimed = {"maxMsgNums": "1", "invisibleTime": "1"}
        return cls.read({**ext, **claimed})


def invisible_ms(ext: Mapping[str, str]) -> int:
    """Read an invisible time.

    Raises:
        FieldError: it is missing or impossible.
    """
    wanted = fields.int64(ext, "invisibleTime")
    if not 1 <= wanted <= INVISIBLE_MS_MAX:
        raise FieldError("invisibleTime", f"is {wanted} ms, not 1 to {INVISIBLE_MS_MAX}")
    return wanted


class PopGrant(NamedTuple):
    """A pop that may read.

    Attributes:
        tags: hashes of the tags that it wants; None for everything.
        topic: what it reads.
        group: on whose behalf.
        creation: a group that has to be created for it.
        property_filter: chooses by properties what it wants; then tags do not count.
    """

    tags: frozenset[int] | None
    topic: TopicConfig
    group: SubscriptionGroupConfig
    creation: Creation = NOTHING_NEW
    property_filter: PropertyFilter | None = None


class PopRules:
    """Decides who may pop what.

    Attributes:
        permission: of the broker, PERM_READ and PERM_WRITE.
        auto_create_groups: whether an unknown group is created.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        permission: int,
        auto_create_groups: bool,
        forbidden_bits: Callable[[str, str], int],
        select: Callable[[Subscription], PullGrant | Refusal],
    ) -> None:
        """Set up the rules.

        Args:
            catalog: the topics and groups that there are.
            permission: of this broker.
            auto_create_groups: whether a pop creates its group.
            forbidden_bits: of a group for a topic; it may not read if there are any.
            select: tells what a subscription selects, by the rules of pulls.
        """
        self._catalog = catalog
        self.permission = permission
        self.auto_create_groups = auto_create_groups
        self._forbidden_bits = forbidden_bits
        self._select = select

    def check(self, pop: PopFields) -> PopGrant | Refusal:
        """Go through R2 in its order; a pop that comes late is not told from one of a clock that is behind."""
        if not self.permission & PERM_READ:
            return Refusal(
                ResponseCode.NO_PERMISSION, "the broker pop message is forbidden (brokerPermission)"
            )
        if not 1 <= pop.count_max <= COUNT_MAX:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the broker pop message's num is {pop.count_max}, not 1 to {COUNT_MAX}",
            )
        topic = self.topic(pop.topic, pop.queue_id)
        if isinstance(topic, Refusal):
            return topic
        found = group_for_use(self._catalog, pop.group, auto_create=self.auto_create_groups)
        if isinstance(found, Refusal):
            return found
        group, creation = found
        if not group.consume_enable or self._forbidden_bits(pop.group, pop.topic):
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {pop.group} may not consume {pop.topic}",
            )
        selected = self._select(Subscription(pop.topic, pop.expression, pop.expression_type))
        if isinstance(selected, Refusal):
            return selected
        return PopGrant(selected.tags, topic, group, creation, selected.property_filter)

    def topic(self, name: str, queue_id: QueueId) -> TopicConfig | Refusal:
        """Return a topic that may be read in that queue, or in any."""
        topic = self._catalog.visible_topic(name)
        if topic is None:
            return Refusal(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:255]}] not exist, apply first please!"
            )
        if not topic.is_readable:
            return Refusal(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden"
            )
        if not ANY_QUEUE <= queue_id < topic.read_queue_count:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_count}]",
            )
        return topic
