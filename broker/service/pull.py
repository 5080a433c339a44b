"""Decisions on pulls: may one read, with which filter, and with which code is it answered (rules E and F). Pure.

Codes are those of release 4.9.8 (1 where 5.3.2 says 29), but for 25: a pull that names a newer subscription
than any that was reported here reads without a filter (adr/0165), unless either of the two is one by SQL92, at which
clients do not look again (adr/0232).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.service.catalog import NOTHING_NEW, Catalog, Creation, group_for_use
from broker.service.clients import ConsumerClient, newest_subscription
from broker.service.property_filters import (
    CLASS_FILTERS_REFUSED,
    SWITCHED_OFF_HERE,
    CompiledFilters,
)
from broker.service.refusal import Refusal
from broker.service.tags import TagExpressionError, tag_hashes
from broker.store.reading import GetResult, GetStatus
from broker.store.topics import PERM_READ
from dledger_mq.filters import FilterTextError, PropertyFilter
from dledger_mq.message.names import is_retry_topic, missing_because
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.heartbeat import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    MessageModel,
    Subscription,
)
from dledger_mq.remoting.requests import PULL_CLASS_FILTER, PULL_SUBSCRIPTION, PullFields

Members = Callable[[str], "dict[str, ConsumerClient]"]
"""The live members of a consumer group, by client id."""


class PullGrant(NamedTuple):
    """A pull that may read.

    Attributes:
        tags: hashes of the tags that it wants; None for everything.
        creation: a group that should be created for it.
        property_filter: chooses by properties what it wants; then tags do not count.
    """

    tags: frozenset[int] | None
    creation: Creation = NOTHING_NEW
    property_filter: PropertyFilter | None = None


def _selection(
    filters: CompiledFilters, wanted: Subscription, *, property_filters: bool
) -> PullGrant | Refusal:
    """Return what a subscription selects, or why it cannot be used.

    On a retry topic stands what its group has wanted before: an SQL92 expression does not count there (G9).
    """
    if wanted.is_class_filter:
        return Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, CLASS_FILTERS_REFUSED)
    try:
        if wanted.expression_type == EXPRESSION_TAG:
            return PullGrant(tag_hashes(wanted.expression))
        if wanted.expression_type != EXPRESSION_SQL92:
            return Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"there are expressions of the types {EXPRESSION_TAG} and {EXPRESSION_SQL92}, "
                f"and none of the type {wanted.expression_type[:80]!r}",
            )
        if not property_filters:
            return Refusal(ResponseCode.SYSTEM_ERROR, SWITCHED_OFF_HERE)
        if is_retry_topic(wanted.topic):
            return PullGrant(None)
        return PullGrant(None, property_filter=filters.get(wanted.expression))
    except FilterTextError as error:
        return Refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"no SQL92 expression for {wanted.topic}: {error}",
        )
    except TagExpressionError as error:
        return Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))


class PullRules:
    """Decides who may read what."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        permission: int,
        auto_create_groups: bool,
        property_filters: bool = True,
        members: Members,
        forbidden_bits: Callable[[str, str], int],
    ) -> None:
        """Set up the rules.

        Args:
            catalog: the topics and groups that there are.
            permission: of this broker.
            auto_create_groups: whether a pull creates its group.
            property_filters: whether SQL92 expressions are taken.
            members: the consumers of a group.
            forbidden_bits: of a group for a topic; it may not read if there are any.
        """
        self._catalog = catalog
        self.permission = permission
        self.auto_create_groups = auto_create_groups
        self.property_filters = property_filters
        self._filters = CompiledFilters()
        self._members = members
        self._forbidden_bits = forbidden_bits

    def judge(self, wanted: Subscription) -> Refusal | None:
        """Return why a subscription cannot be used, or None (CHECK_CLIENT_CONFIG)."""
        found = self.select(wanted)
        return found if isinstance(found, Refusal) else None

    def select(self, wanted: Subscription) -> PullGrant | Refusal:
        """Return what a subscription selects, or why it cannot be used."""
        return _selection(self._filters, wanted, property_filters=self.property_filters)

    def check(self, fields: PullFields) -> PullGrant | Refusal:
        """Go through E1 to E7 in their order."""
        if not self.permission & PERM_READ:
            return Refusal(
                ResponseCode.NO_PERMISSION,
                "the broker pulling message is forbidden (brokerPermission)",
            )
        found = group_for_use(
            self._catalog, fields.consumer_group, auto_create=self.auto_create_groups
        )
        if isinstance(found, Refusal):
            return found
        group, creation = found
        if not group.consume_enable:
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {fields.consumer_group}",
            )
        refusal = self._topic_refusal(fields)
        if refusal is not None:
            return refusal
        wanted = self._wanted(fields, broadcast_allowed=group.consume_broadcast_enable)
        if isinstance(wanted, Refusal):
            return wanted
        selection = self.select(wanted)
        if isinstance(selection, PullGrant):
            return selection if creation is NOTHING_NEW else selection._replace(creation=creation)
        is_reported = not fields.sys_flag & PULL_SUBSCRIPTION
        if (
            is_reported
            and wanted.expression_type == EXPRESSION_SQL92
            and selection.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        ):  # a heartbeat is not refused, and what it said is not known as a filter (H8)
            return Refusal(ResponseCode.FILTER_DATA_NOT_EXIST, selection.remark)
        return selection

    def _topic_refusal(self, fields: PullFields) -> Refusal | None:
        """Check the topic and the queue of a pull (E3)."""
        topic = self._catalog.visible_topic(fields.topic)
        if topic is None:
            return Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{fields.topic[:255]}] not exist, apply first please!"
                + missing_because(fields.topic),
            )
        if not topic.is_readable:
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{fields.topic}] pulling message is forbidden",
            )
        if not 0 <= fields.queue_id < topic.read_queue_count:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_count}]",
            )
        return None

    def _wanted(self, fields: PullFields, *, broadcast_allowed: bool) -> Subscription | Refusal:
        """Return the subscription: from the header (E5), or from the heartbeats of the group (E6)."""
        is_class_filter = bool(fields.sys_flag & PULL_CLASS_FILTER)
        if fields.sys_flag & PULL_SUBSCRIPTION:
            return Subscription(
                fields.topic,
                fields.subscription or "*",
                fields.expression_type or EXPRESSION_TAG,
                is_class_filter=is_class_filter,
            )
        members = self._members(fields.consumer_group)
        if not members:
            return Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: no live consumer of {fields.consumer_group} is known yet",
            )
        is_broadcast = any(c.message_model is MessageModel.BROADCASTING for c in members.values())
        if is_broadcast and not broadcast_allowed:
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] can not consume by broadcast way",
            )
        if self._forbidden_bits(fields.consumer_group, fields.topic):
            return Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] is forbidden for topic[{fields.topic}]",
            )
        newest = newest_subscription(members.values(), fields.topic)
        if newest is None:
            return Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: {fields.consumer_group} does not subscribe to {fields.topic}",
            )
        if newest.version < fields.sub_version:
            return self._not_reported_yet(fields, newest)
        return newest

    @staticmethod
    def _not_reported_yet(fields: PullFields, newest: Subscription) -> Subscription | Refusal:
        """Return what a pull gets that names a newer subscription than the newest that was reported here."""
        expression_type = fields.expression_type or newest.expression_type
        if expression_type == EXPRESSION_TAG and not newest.is_class_filter:
            # What it wants now is not known here yet: everything, since clients look at tags again (G4).
            return Subscription(fields.topic)
        return Refusal(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the consumer's subscription not latest: {fields.consumer_group} pulls {fields.topic} by version "
            f"{fields.sub_version} of its {expression_type[:80]} expression, and the newest that was reported here is "
            f"{newest.version}",
        )


class PullOutcome(NamedTuple):
    """Code and offsets with which a read is answered."""

    code: ResponseCode
    next_offset: QueueOffset
    max_offset: QueueOffset


_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_QUEUE_START = QueueOffset(0)
_AHEAD = (GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.NO_MESSAGE_IN_QUEUE)


def outcome_of(result: GetResult, offset: QueueOffset, *, is_authoritative: bool) -> PullOutcome:
    """Choose the code and the next offset of a read from `offset` (E9).

    A node that does not lead may be behind its clients. What the leader would call illegal, an offset
    above the queue's end, is only not here yet: 19 with the client's own offset, never a way back.
    """
    if result.status in _AHEAD and not is_authoritative:
        return PullOutcome(ResponseCode.PULL_NOT_FOUND, offset, max(offset, result.max_offset))
    if result.status is GetStatus.NO_MESSAGE_IN_QUEUE:
        code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        return PullOutcome(code, _QUEUE_START, result.max_offset)
    assert result.status is not GetStatus.FOUND or result.next_offset > offset, (
        f"messages from {offset} on were found, and the next offset is {result.next_offset}"
    )
    return PullOutcome(_CODES[result.status], result.next_offset, result.max_offset)
