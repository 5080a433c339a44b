"""Settings that change while a broker runs: which can, and what holds with the changes. Pure.

What belongs to the group is changed through the log (broker/store/group_settings.py), what is a node's own in a file
beside its store (broker/server/node_settings.py). Both win over broker.conf and the command line, last across
restarts, and end when the key is set to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from broker.server.config import BrokerConfig, read_parts
from broker.server.settings.table import BROKER_KEYS
from broker.server.settings.values import Values
from broker.settings.judging import judge
from broker.settings.keys import HonouredKey, Scope
from broker.store.control import SETTING_CHARS_MAX
from broker.store.group_settings import GroupSettings
from broker.store.topics import DataVersion

FIELDS: Final[Mapping[str, str]] = {
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
    "brokerPermission": "permission",
    "cleanFileForciblyEnable": "retention",
    "deleteWhen": "retention",
    "diskMaxUsedSpaceRatio": "retention",
    "diskSpaceCleanForciblyRatio": "retention",
    "diskSpaceWarningLevelRatio": "retention",
    "enablePropertyFilter": "property_filters",
    "fileReservedTime": "retention",
    "longPollingEnable": "long_polling",
    "maxMessageSize": "message_bytes_max",
    "rejectTransactionMessage": "reject_transactions",
    "retentionBytes": "retention",
    "retentionSeconds": "retention",
    "slaveReadEnable": "slave_reads",
    "stopForwardSec": "stop_forward_s",
    "timerMaxDelaySec": "timer_delay_max_ms",
    "transactionCheckInterval": "transaction_check_interval_ms",
    "transactionCheckMax": "transaction_check_max",
    "transactionTimeOut": "transaction_timeout_ms",
}
"""The keys that can change, and the attribute of `BrokerConfig` that each is read into."""


def scope_of(key: str) -> Scope | None:
    """Return whom a change of a key concerns; None: it cannot change while a broker runs."""
    found = BROKER_KEYS.find(key)
    return found[1].scope if found is not None and isinstance(found[1], HonouredKey) else None


def problems(changes: Mapping[str, str], unchangeable: Sequence[str] = ()) -> list[str]:
    """Return why settings cannot be changed like that while a broker runs, all of it; empty: they can.

    Args:
        changes: texts as a broker.conf has them; an empty one ends a change.
        unchangeable: keys that the broker's own settings protect.
    """
    found = [
        f"{key} has {len(value)} characters, at most {SETTING_CHARS_MAX} may be"
        for key, value in changes.items()
        if len(value) > SETTING_CHARS_MAX
    ]
    if found:  # their texts are not to be repeated
        return found
    mistakes, notes = judge(changes, BROKER_KEYS)
    found = [each.text for each in mistakes]
    found += [f"{key} is in configBlackList" for key in changes if key in unchangeable]
    found += [f"{key} is not used: {why}" for key, why in notes]
    named = {*unchangeable, *(each.key for each in mistakes), *(key for key, _ in notes)}
    found += [
        f"{key} is read at the start only: change it where it stands, on all nodes, and start them again"
        for key in changes
        if key not in named and scope_of(key) is None
    ]
    return found or [*overlay(BrokerConfig.stand_in(), changes)[1].values()]


def unheeded(changes: Mapping[str, str], config: BrokerConfig) -> list[str]:
    """Return why changes would hold nowhere, though nothing is wrong with them; empty: they would.

    Args:
        changes: without mistakes.
        config: the settings as they hold now.
    """
    after = overlay(config, changes)[0].retention
    if not (changes.get("fileReservedTime") and after.is_any_hour):
        return []
    text = (
        f"fileReservedTime holds only without retentionSeconds, which is {after.reserved_ms // 1000}: set that to 0 in "
        "the same request, or change it instead"
    )
    return [text]


def overlay(
    config: BrokerConfig, changes: Mapping[str, str]
) -> tuple[BrokerConfig, dict[str, str]]:
    """Return the settings with these changes, and what is wrong with those that are passed over, by key.

    Args:
        config: the settings without them.
        changes: texts as a broker.conf has them; one that is empty changes nothing.
    """
    given = {key: value for key, value in changes.items() if key in FIELDS and value}
    # Several keys make one attribute, so the others are read again as they were.
    texts = {key: value for key, value in config.texts.items() if key in FIELDS}
    values = Values({**texts, **given})
    fresh = read_parts(config, values)
    wrong = {each.key: each.text for each in values.mistakes}
    right = {key: value for key, value in given.items() if key not in wrong}
    if wrong:  # what was wrong was read as its default, and stands in an attribute beside others
        fresh = read_parts(config, Values({**texts, **right}))
    # What stands beside them in an attribute, and cannot change, was not read.
    rules = replace(fresh.retention, round_ms=config.retention.round_ms)
    fresh = replace(fresh, retention=rules)
    fields = {FIELDS[key]: getattr(fresh, FIELDS[key]) for key in right}
    return replace(config, **fields, texts={**config.texts, **right}), wrong


class LiveSettings:
    """The settings of a broker as they hold now.

    Attributes:
        config: with all changes.
        passed_over: changes that this node cannot follow, and why, by key.
    """

    def __init__(
        self,
        base: BrokerConfig,
        group: Callable[[], GroupSettings],
        node_values: Callable[[], Mapping[str, str]],
        adopt: Callable[[BrokerConfig], None],
    ) -> None:
        """Begin with what the node was started with.

        Args:
            base: of files and the command line.
            group: returns the changes in the log, which win over all others.
            node_values: returns the changes of this node alone.
            adopt: is called with the settings whenever they have changed.
        """
        self.config = base
        self.passed_over: dict[str, str] = {}
        self._base = base
        self._group = group
        self._node_values = node_values
        self._seen: DataVersion | None = None
        self._adopt = adopt

    def look(self) -> None:
        """Adopt what has changed in the log, if anything has; called after entries were applied."""
        if self._seen is not self._group().version:
            self.refresh()

    def refresh(self) -> None:
        """Adopt what has changed in the log or on this node."""
        self._seen = self._group().version
        before = self.config
        own, wrong = overlay(self._base, self._node_values())
        self.config, wrong_in_log = overlay(own, self._group().values())
        self.passed_over = wrong | wrong_in_log
        if self.config != before:
            self._adopt(self.config)
