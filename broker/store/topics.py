"""The topic table: what a topic's queues and permissions are. Changed by control records only.

Nothing here knows routes, or which topics exist elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from crc32c import crc32c

from broker.store.refusals import RefusalKind
from dledger_mq.message import names
from dledger_mq.message.numbers import StoreTimeMs

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_PRIORITY: Final = 8
PERM_DEFAULT: Final = PERM_READ | PERM_WRITE
PERM_ALL: Final = PERM_DEFAULT | PERM_INHERIT

QUEUE_COUNT_MAX: Final = 65_536
"""Our own bound, so that no record can make a replica list queues without end."""

DELAY_LEVELS_DEFAULT_COUNT: Final = 18


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One topic (docs/formats/remoting.md, "Tables for tools").

    Attributes:
        perm: PERM_ bits.
        filter_type: SINGLE_TAG or MULTI_TAG.
        sys_flag: bit 0 unit, bit 1 unit subscription.
    """

    name: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = PERM_DEFAULT
    is_order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    attributes: dict[str, str] = {}

    @property
    def is_readable(self) -> bool:
        """True if consumers may pull."""
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        """True if clients route sends here."""
        return bool(self.perm & PERM_WRITE)

    @property
    def is_inherited(self) -> bool:
        """True if topics may be created after this one (rule B8)."""
        return bool(self.perm & PERM_INHERIT)


class DataVersion(msgspec.Struct, frozen=True):
    """The version of a table, by which name servers and tools see a change; the time is that record's."""

    counter: int = 0
    timestamp_ms: StoreTimeMs = StoreTimeMs(0)

    def next(self, now_ms: StoreTimeMs) -> DataVersion:
        """Return the version after one more change."""
        return DataVersion(self.counter + 1, now_ms)


def _plain(name: str, queue_count: int, perm: int = PERM_DEFAULT) -> TopicConfig:
    return TopicConfig(name, queue_count, queue_count, perm)


CONTROL_TOPICS: Final = tuple(
    names.CONTROL_PREFIX + part
    for part in (
        "topics",
        "groups",
        "offsets",
        "locks",
        "schedule",
        "digests",
        "transactions",
        "sinks",
        "retention",
        "settings",
    )
)
"""Topics of control records; one queue each (docs/formats/control.md)."""

SYSTEM_TOPICS: Final = (
    _plain(names.SELF_TEST_TOPIC, 1),
    _plain(names.BENCHMARK_TOPIC, 1024),
    _plain(names.OFFSET_MOVED_TOPIC, 1),
    _plain(names.SCHEDULE_TOPIC, DELAY_LEVELS_DEFAULT_COUNT),
    _plain(names.HALF_TOPIC, 1),
    _plain(names.OP_HALF_TOPIC, 1),
    _plain(names.TIMER_TOPIC, 1),
    *(_plain(name, 1, PERM_READ) for name in CONTROL_TOPICS),
)
"""In every broker from the start (rule B6), so they need no record."""

_FIXED_NAMES: Final = frozenset(config.name for config in SYSTEM_TOPICS)


def is_deletable(name: str) -> bool:
    """Return whether a command can delete the topic. Asked by the fold and, ahead of it, by staging."""
    return name not in _FIXED_NAMES


def configured_system_topics(
    cluster: str, broker: str, *, auto_create: bool, trace: bool
) -> list[TopicConfig]:
    """Return the system topics whose names or existence depend on the configuration (rule B6).

    They arrive as control records: replicas must not read their own configuration in the fold.
    """
    return [
        *([_plain(names.AUTO_CREATE_TOPIC, 8, PERM_ALL)] if auto_create else []),
        *([_plain(names.TRACE_TOPIC, 1)] if trace else []),
        _plain(cluster, 16, PERM_ALL),
        _plain(broker, 1, PERM_ALL),
        _plain(names.reply_topic(cluster), 1),
        _plain(f"{names.SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}", 8),
        _plain(f"{names.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1),
    ]


class Topics:
    """The table. `put` and `delete` are for the fold; everybody else reads.

    Attributes:
        version: changes with every change of the table.
        digest: CRC32C chained over every change.
    """

    def __init__(self) -> None:
        self.version = DataVersion()
        self.digest: int = 0
        self._table = {config.name: config for config in SYSTEM_TOPICS}

    def __iter__(self) -> Iterator[TopicConfig]:
        """Go through them in the order of creation, system topics first."""
        return iter(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def get(self, name: str) -> TopicConfig | None:
        """Return the topic's configuration, or None."""
        return self._table.get(name)

    def put(
        self, config: TopicConfig, now_ms: StoreTimeMs, *, only_if_missing: bool = False
    ) -> RefusalKind | None:
        """Create or replace a topic; return the reason if it was refused. Nothing to change is no refusal."""
        if names.topic_problem(config.name) is not None:
            return RefusalKind.INVALID_NAME
        counts = (config.read_queue_count, config.write_queue_count)
        if not all(0 <= count <= QUEUE_COUNT_MAX for count in counts) or not 0 <= config.perm <= 15:
            return RefusalKind.OUT_OF_RANGE
        known = self._table.get(config.name)
        if known == config or (known is not None and only_if_missing):
            return None
        self._table[config.name] = config
        self._changed(msgspec.msgpack.encode(config), now_ms)
        return None

    def delete(self, name: str, now_ms: StoreTimeMs) -> None:
        """Remove a topic, if it is there."""
        if self._table.pop(name, None) is not None:
            self._changed(b"-" + name.encode(), now_ms)

    def dump(self) -> bytes:
        """Return the table as a snapshot keeps it."""
        saved = (list(self._table.values()), self.version, self.digest)
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Replace the table by a dumped one.

        Raises:
            msgspec.DecodeError: it is none; nothing has changed.
        """
        configs, version, digest = msgspec.msgpack.decode(
            data, type=tuple[list[TopicConfig], DataVersion, int]
        )
        self._table = {config.name: config for config in configs}
        self.version, self.digest = version, digest

    def _changed(self, what: bytes, now_ms: StoreTimeMs) -> None:
        """Count a change in version and digest."""
        assert now_ms >= self.version.timestamp_ms, (
            f"the topics change at {now_ms}, after a change at {self.version.timestamp_ms}"
        )
        self.version = self.version.next(now_ms)
        self.digest = crc32c(what, crc32c(str(now_ms).encode(), self.digest))
