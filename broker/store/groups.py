"""The table of consumer groups and what they may not read. Changed by control records only.

Nothing here knows which clients are in a group now.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from broker.store.refusals import RefusalKind
from broker.store.topics import DataVersion
from dledger_mq.message import names
from dledger_mq.message.numbers import StoreTimeMs


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One consumer group (docs/formats/remoting.md, "Tables for tools").

    `broker_id` and `slow_broker_id` are RocketMQ's brokerId and whichBrokerWhenConsumeSlowly.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = 1
    retry_times_max: int = 16
    broker_id: int = 0
    slow_broker_id: int = 1
    notify_consumer_ids_changed: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: dict[str, str] = {}


class Groups:
    """The table. Changes are for the fold; everybody else reads.

    Attributes:
        version: changes with every change of the table.
        digest: CRC32C chained over every change.
    """

    def __init__(self) -> None:
        self.version = DataVersion()
        self.digest: int = 0
        self._table = {name: SubscriptionGroupConfig(name) for name in names.SYSTEM_GROUPS}
        self._forbidden: dict[tuple[str, str], int] = {}

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        """Go through them in the order of creation, system groups first."""
        return iter(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, or None."""
        return self._table.get(name)

    @property
    def prohibition_count(self) -> int:
        """The count of topics that groups may not read, one for each group."""
        return len(self._forbidden)

    def forbidden_bits(self, group: str, topic: str) -> int:
        """Return what the group may not do with the topic, a bit mask; 0 for nothing (rule B12)."""
        return self._forbidden.get((group, topic), 0)

    def forbidden(self) -> Iterator[tuple[str, str, int]]:
        """Yield group, topic and bits of every prohibition, in the order they were made."""
        return ((group, topic, bits) for (group, topic), bits in self._forbidden.items())

    def put(
        self, config: SubscriptionGroupConfig, now_ms: StoreTimeMs, *, only_if_missing: bool = False
    ) -> RefusalKind | None:
        """Create or replace a group; return the reason if it was refused. Nothing to change is no refusal."""
        if names.group_problem(config.name) is not None:
            return RefusalKind.INVALID_NAME
        known = self._table.get(config.name)
        if known == config or (known is not None and only_if_missing):
            return None
        self._table[config.name] = config
        self._changed(msgspec.msgpack.encode(config), now_ms)
        return None

    def delete(self, name: str, now_ms: StoreTimeMs) -> RefusalKind | None:
        """Remove a group and its prohibitions; return the reason if it was refused."""
        if name not in self._table:
            return RefusalKind.UNKNOWN_GROUP
        if name in names.SYSTEM_GROUPS:
            return RefusalKind.SYSTEM_NAME
        del self._table[name]
        for key in [key for key in self._forbidden if key[0] == name]:
            del self._forbidden[key]
        self._changed(b"-" + name.encode(), now_ms)
        return None

    def forbid(self, group: str, topic: str, bits: int, now_ms: StoreTimeMs) -> RefusalKind | None:
        """Set what a group may not do with a topic; 0 allows everything again."""
        if group not in self._table:
            return RefusalKind.UNKNOWN_GROUP
        if self._forbidden.get((group, topic), 0) == bits:
            return None
        if bits:
            self._forbidden[group, topic] = bits
        else:
            del self._forbidden[group, topic]
        self._changed(msgspec.msgpack.encode((group, topic, bits)), now_ms)
        return None

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved = (list(self._table.values()), list(self.forbidden()), self.version, self.digest)
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        configs, forbidden, version, digest = msgspec.msgpack.decode(
            data,
            type=tuple[list[SubscriptionGroupConfig], list[tuple[str, str, int]], DataVersion, int],
        )
        self._table = {config.name: config for config in configs}
        self._forbidden = {(group, topic): bits for group, topic, bits in forbidden}
        self.version, self.digest = version, digest

    def _changed(self, what: bytes, now_ms: StoreTimeMs) -> None:
        """Count a change in version and digest."""
        assert now_ms >= self.version.timestamp_ms, (
            f"the groups change at {now_ms}, after a change at {self.version.timestamp_ms}"
        )
        self.version = self.version.next(now_ms)
        self.digest = crc32c(what, crc32c(str(now_ms).encode(), self.digest))
