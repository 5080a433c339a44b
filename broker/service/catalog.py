"""Topics and groups as the next entry will find them, and those that a request may bring into being.

Requests are decided before the entry that carries them is committed, so they must see what the entries
before it will have created and deleted: the applied tables, and over them what is staged (`Catalog.note_*`).
What is only read sees a topic until its deletion is committed. Pure: it must not know what makes a record
of a creation, nor when that is committed; it is notified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.service.refusal import Refusal
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import PERM_DEFAULT, PERM_INHERIT, QUEUE_COUNT_MAX, TopicConfig
from dledger_mq.message import names
from dledger_mq.remoting.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class Creation:
    """Topics and groups that have to be created before the request itself takes effect."""

    topics: tuple[TopicConfig, ...] = ()
    groups: tuple[SubscriptionGroupConfig, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.topics or self.groups)


class Catalog:
    """Lookup by name: applied, or staged and on its way."""

    def __init__(
        self,
        topic: Callable[[str], TopicConfig | None],
        group: Callable[[str], SubscriptionGroupConfig | None],
    ) -> None:
        self._applied_topic = topic
        self._applied_group = group
        self._staged_topics: dict[str, TopicConfig] = {}
        self._staged_groups: dict[str, SubscriptionGroupConfig] = {}
        self._deletions: list[str] = []
        """One item for each deletion that is staged and not yet decided; a topic may be deleted twice."""
        self._group_deletions: list[str] = []
        """The same of groups."""

    def topic(self, name: str) -> TopicConfig | None:
        """Return a topic as what is staged now will find it, or None."""
        if name in self._deletions:
            return self._staged_topics.get(name)
        return self._applied_topic(name) or self._staged_topics.get(name)

    def visible_topic(self, name: str) -> TopicConfig | None:
        """Return a topic whose deletion is not committed, or None; one that is being created has no messages yet."""
        return self._applied_topic(name) or self._staged_topics.get(name)

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, applied or staged, or None."""
        return self._applied_group(name) or self._staged_groups.get(name)

    def note_topic(self, config: TopicConfig) -> None:
        """Note that the creation of a topic was staged."""
        self._staged_topics[config.name] = config

    def note_group(self, config: SubscriptionGroupConfig) -> None:
        """Note that the creation of a group was staged."""
        self._staged_groups[config.name] = config

    def note_deletion(self, name: str) -> None:
        """Note that the deletion of a topic was staged.

        What is staged later does not find the topic, unless it is created again.
        """
        self._staged_topics.pop(name, None)
        self._deletions.append(name)

    def note_group_deletion(self, name: str) -> None:
        """Note that the deletion of a group was staged.

        A creation that was noted before says nothing of it any more, though it is kept while anything is on its way.
        """
        self._staged_groups.pop(name, None)
        self._group_deletions.append(name)

    @property
    def has_deletions(self) -> bool:
        """True while the deletion of any topic or group is staged and not decided."""
        return bool(self._deletions or self._group_deletions)

    def is_being_deleted(self, name: str) -> bool:
        """Return whether a deletion of a topic is staged and not decided.

        What was read of the topic may not be staged then: it would be carried out on the one that is made anew.
        """
        return name in self._deletions

    def is_group_being_deleted(self, name: str) -> bool:
        """Return whether a deletion of a group is staged and not decided: what it takes now, nobody would have then."""
        return name in self._group_deletions

    def deletion_decided(self, name: str) -> None:
        """Forget one deletion of a topic that is applied, or never will be: the applied tables are right again."""
        assert name in self._deletions, f"no deletion of {name} is staged: {self._deletions}"
        self._deletions.remove(name)

    def group_deletion_decided(self, name: str) -> None:
        """Forget one deletion of a group, as of a topic."""
        assert name in self._group_deletions, (
            f"no deletion of {name} is staged: {self._group_deletions}"
        )
        self._group_deletions.remove(name)

    def withdraw(self, creation: Creation) -> None:
        """Forget topics and groups whose creation was refused: nothing that is stored later may rely on them."""
        for topic in creation.topics:
            if self._staged_topics.get(topic.name) is topic:
                del self._staged_topics[topic.name]
        for group in creation.groups:
            if self._staged_groups.get(group.name) is group:
                del self._staged_groups[group.name]

    def settle(self) -> None:
        """Forget what was staged: it is applied, or lost."""
        self._staged_topics.clear()
        self._staged_groups.clear()


NOTHING_NEW = Creation()


def topic_for_send(
    catalog: Catalog, name: str, *, template: str, queue_count: int, auto_create: bool
) -> tuple[TopicConfig, Creation] | Refusal:
    """Find the topic that a send goes to, or create it if that is allowed (rules B8, B9).

    Args:
        catalog: what exists.
        name: a valid topic name.
        template: the topic to create it after, TBW102 unless the client says otherwise.
        queue_count: how many queues the client wants.
        auto_create: the broker's `autoCreateTopicEnable`.
    """
    known = catalog.topic(name)
    if known is not None:
        return known, NOTHING_NEW
    model = catalog.topic(template) if auto_create else None
    if model is not None and model.is_inherited and not names.is_system_topic(name):
        count = max(0, min(queue_count, model.write_queue_count))
        fresh = TopicConfig(name, count, count, model.perm & ~PERM_INHERIT)
        return fresh, Creation(topics=(fresh,))
    if names.is_retry_topic(name):
        fresh = TopicConfig(name, 1, 1, PERM_DEFAULT)
        return fresh, Creation(topics=(fresh,))
    return Refusal(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{name}] not exist, apply first please! Nothing was stored. "
        + _not_created_because(name, template, model, auto_create=auto_create),
    )


def _not_created_because(
    name: str, template: str, model: TopicConfig | None, *, auto_create: bool
) -> str:
    """Say why the broker did not create a topic for a send."""
    if why := names.missing_because(name):
        return why.strip()
    if not auto_create:
        return "The broker does not create topics by itself (autoCreateTopicEnable=false)."
    if model is None:
        return f"The topic {template[:255]}, after which it would be created, does not exist."
    if not model.is_inherited:
        return (
            f"The topic {template[:255]} cannot be inherited from: its permission is {model.perm}."
        )
    return f"{name} is a name of the system."


def group_for_use(
    catalog: Catalog, name: str, *, auto_create: bool
) -> tuple[SubscriptionGroupConfig, Creation] | Refusal:
    """Find the consumer group of a request, or create it with defaults if that is allowed (rule B10)."""
    known = catalog.group(name)
    if known is not None:
        return known, NOTHING_NEW
    problem = names.group_problem(name)
    if problem is None and (auto_create or name.startswith(names.SYSTEM_GROUP_PREFIX)):
        fresh = SubscriptionGroupConfig(name)
        return fresh, Creation(groups=(fresh,))
    return Refusal(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group not exist, {name[:255]}. "
        + (
            problem
            or "The broker does not create groups by itself (autoCreateSubscriptionGroup=false)."
        ),
    )


def special_topic(
    catalog: Catalog, name: str, *, queue_count: int = 1
) -> tuple[TopicConfig, Creation]:
    """Find a retry or dead-letter topic, or create it (L2, L6).

    A group may be in the table whose settings want more queues than the fold takes: it was put there by older versions.
    """
    assert queue_count > 0, f"{name} would have {queue_count} queues"
    known = catalog.topic(name)
    if known is not None:
        return known, NOTHING_NEW
    queue_count = min(queue_count, QUEUE_COUNT_MAX)
    fresh = TopicConfig(name, queue_count, queue_count, PERM_DEFAULT)
    return fresh, Creation(topics=(fresh,))
