"""RocketMQ's config/*.json: topics, consumer groups, consumer offsets, progress of delay levels and timers.

A file that is missing, empty or cannot be read means its copy `.bak`, as RocketMQ does it. The copy is older: that is
noted, and so is a file of which there is neither. Fields that are not known are passed over, since each release has
more.

Nothing here decides what becomes of a table.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from broker.importing.errors import SourceError
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import read_json

_T = TypeVar("_T")

_TIMER_CHECK: Final = struct.Struct(">qqq")

_CLOCKS_APART_MS: Final = 86_400_000
"""By which the clock of the old broker's machine may have been ahead."""


TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"
TIMERS: Final = "timercheck"


class _TopicRow(msgspec.Struct, rename="camel"):
    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    order: bool = False
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    attributes: dict[str, str] | None = None


class _TopicsFile(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, _TopicRow]


class _GroupRow(msgspec.Struct, rename="camel"):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] | None = None


class _GroupsFile(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, _GroupRow]
    forbidden_table: dict[str, dict[str, int]] | None = None


class _OffsetsFile(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]]


class _DelaysFile(msgspec.Struct, rename="camel"):
    offset_table: dict[int, int]


class TimerProgress(msgspec.Struct, frozen=True):
    """The progress of RocketMQ's timers (config/timercheck).

    Attributes:
        read_ms: messages that were due before were delivered.
        queue_offset: messages of the timer topic from here on are in no wheel yet, whenever they are due.
    """

    read_ms: int = 0
    queue_offset: QueueOffset = QueueOffset(0)


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The tables of a store.

    Attributes:
        topics: by name.
        groups: by name.
        forbidden: bits by group and topic.
        offsets: next offset to consume by topic and group, then by queue id.
        delay_offsets: first message that is not delivered, by delay level.
        timers: of 5.x.
        others: files with something in them that has no counterpart here.
        from_copies: files of which the copy was read, and why.
        missing: files of which there is neither.
    """

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]
    forbidden: Mapping[tuple[str, str], int]
    offsets: Mapping[tuple[str, str], Mapping[QueueId, QueueOffset]]
    delay_offsets: Mapping[int, QueueOffset]
    timers: TimerProgress = TimerProgress()
    others: Mapping[str, str] = field(default_factory=dict)
    from_copies: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()


_OTHERS: Final = {
    "topicQueueMapping.json": ("topicQueueMappingInfoMap", "static topics are not known here"),
    "messageRequestMode.json": ("messageRequestModeMap", "which groups pop is for clients to say"),
    "consumerOrderInfo.json": ("table", "what pop consumers in order have in flight is forgotten"),
    "lmqConsumerOffset.json": ("lmqOffsetTable", "offsets of light queues (LMQ)"),
    "consumerFilter.json": (
        "filterDataByTopic",
        "consumers send their filters with each heartbeat",
    ),
}
"""Files of which only a note is made: the field that has to have something in it, and what is to be known."""


def read_tables(folder: Path) -> SourceTables:
    """Read all tables of a store's folder `config`.

    Raises:
        SourceError: topics or groups are missing, or a file is damaged and has no good copy.
    """
    files = _Files(folder)
    topics = files.read(TOPICS, _TopicsFile)
    groups = files.read(GROUPS, _GroupsFile)
    if topics is None:
        raise SourceError(
            f"{folder / TOPICS} is missing: without it nobody knows which messages are of topics that were "
            "deleted"
        )
    offsets = files.read(OFFSETS, _OffsetsFile) or _OffsetsFile({})
    delays = files.read(DELAYS, _DelaysFile) or _DelaysFile({})
    timers = _read_timers(folder)
    missing = (*files.missing, *(() if timers else (TIMERS,)))
    group_rows = groups.subscription_group_table if groups else {}
    forbidden = (groups.forbidden_table if groups else None) or {}
    return SourceTables(
        topics={name: _topic(name, row) for name, row in topics.topic_config_table.items()},
        groups={name: _group(name, row) for name, row in group_rows.items()},
        forbidden={
            (group, topic): bits for group, row in forbidden.items() for topic, bits in row.items()
        },
        offsets={
            _topic_and_group(key): {QueueId(q): QueueOffset(o) for q, o in row.items()}
            for key, row in offsets.offset_table.items()
        },
        delay_offsets={level: QueueOffset(offset) for level, offset in delays.offset_table.items()},
        timers=timers or TimerProgress(),
        others={
            name: reason
            for name, (key, reason) in _OTHERS.items()
            if (files.read(name, dict[str, object]) or {}).get(key)
        },
        from_copies=files.from_copies,
        missing=missing,
    )


def _topic_and_group(key: str) -> tuple[str, str]:
    topic, _, group = key.partition("@")
    return topic, group


def _topic(name: str, row: _TopicRow) -> TopicConfig:
    return TopicConfig(
        name,
        row.read_queue_nums,
        row.write_queue_nums,
        row.perm,
        row.order,
        row.topic_filter_type,
        row.topic_sys_flag,
        row.attributes or {},
    )


def _group(name: str, row: _GroupRow) -> SubscriptionGroupConfig:
    """Return a group as it is kept here."""
    return SubscriptionGroupConfig(
        name,
        row.consume_enable,
        row.consume_from_min_enable,
        row.consume_broadcast_enable,
        row.consume_message_orderly,
        row.retry_queue_nums,
        row.retry_max_times,
        row.broker_id,
        row.which_broker_when_consume_slowly,
        row.notify_consumer_ids_changed_enable,
        row.group_sys_flag,
        row.consume_timeout_minute,
        row.attributes or {},
    )


class _Files:
    """Reads the files of a folder, and notes which were not as they should be.

    Attributes:
        from_copies: those of which the copy was read, and why.
        missing: those of which there is neither.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.from_copies: dict[str, str] = {}
        self.missing: list[str] = []

    def read(self, name: str, kind: type[_T]) -> _T | None:
        """Read one file, or its copy if it is empty, missing or damaged; None if there is neither.

        Raises:
            SourceError: there is one, and no good one.
        """
        problems: list[str] = []
        path = self._folder / name
        for each in (path, path.with_name(f"{name}.bak")):
            try:
                data = each.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(f"{each}: {error.strerror}")
                continue
            if not data.strip():
                problems.append(f"{each} is empty")
                continue
            try:
                found = msgspec.convert(read_json(data), type=kind, str_keys=True)
            except (msgspec.ValidationError, BodyError) as error:
                problems.append(f"{each}: {error}")
                continue
            if each != path:
                self.from_copies[name] = "; ".join(problems) or f"{path} is missing"
            return found
        if problems:
            raise SourceError("; ".join(problems))
        self.missing.append(name)
        return None


def _read_timers(folder: Path) -> TimerProgress | None:
    """Read how far the timers have come; None: nothing says it, as in RocketMQ 4.9, which has none.

    Raises:
        SourceError: the file cannot be read, or says what cannot be: RocketMQ protects it by no checksum.
    """
    path = folder / TIMERS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    if len(data) < _TIMER_CHECK.size:
        raise SourceError(f"{path} has {len(data)} bytes: it is cut")
    read_ms, _, queue_offset = _TIMER_CHECK.unpack_from(data)
    read_ms_max = time.time_ns() // 1_000_000 + _CLOCKS_APART_MS
    if not 0 <= read_ms <= read_ms_max or queue_offset < 0:
        raise SourceError(
            f"{path} is damaged: timers are delivered up to {read_ms} ms, a time that has not come, or their queue is "
            f"read up to offset {queue_offset}; those that wait would count as delivered, or come again"
        )
    return TimerProgress(read_ms, QueueOffset(queue_offset))
