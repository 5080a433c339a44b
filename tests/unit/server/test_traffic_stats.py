"""The samples of all counters of a node: what counts from when, and what stays bounded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from broker.server.handlers.pull_answers import PullCounts
from broker.server.watches import traffic_stats
from broker.server.watches.traffic_stats import ROUND_MS, Traffic, TrafficStats
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger_mq.message.numbers import QueueId, StoreTimeMs

NOW = StoreTimeMs(1)


@dataclass
class Node:
    """A node whose clock, queues and readers a test moves."""

    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.state = BrokerState()
        self.counts = PullCounts()
        self.stats = TrafficStats(
            self.state,
            self.counts.by_reader,
            all_given=lambda: self.counts.messages,
            now_ms=lambda: self.now_ms,
        )

    def create(self, *topics: str) -> None:
        for topic in topics:
            self.state.topics.put(TopicConfig(topic), NOW)

    def put(self, topic: str, count: int) -> None:
        key = topic.encode(), QueueId(0)
        queue = self.state.queues.by_key.get(key) or self.state.queues.create(key)
        for _ in range(count):
            queue.append(0, 100, 0)
        self.state.put_count += count

    def round(self) -> None:
        """Ten seconds go by, and all counters are looked at."""
        self.now_ms += ROUND_MS
        for _ in range(50):
            self.stats.tick()

    def minute(self, kind: Traffic, topic: str, group: str = "") -> tuple[int, int]:
        growth = self.stats.growth(kind, topic, group)[0]
        return growth.messages, growth.size_bytes


def test_what_stood_there_at_the_start_is_not_of_today_and_what_comes_is() -> None:
    node = Node()
    node.create("old")
    node.put("old", 1000)
    node.stats.restart()
    node.stats.begin()
    assert node.minute(Traffic.PUT, "old") == (0, 0)
    node.create("between")
    node.put("between", 4)
    node.round()
    assert node.minute(Traffic.PUT, "old") == (0, 0)
    assert node.minute(Traffic.PUT, "between") == (4, 400)
    node.put("old", 3)
    assert node.minute(Traffic.PUT, "old") == (3, 300)
    node.round()
    assert node.minute(Traffic.PUT, "old") == (3, 300)
    assert node.stats.growth_of_all(is_put=True)[0].messages == 7


def test_a_new_topic_counts_from_its_first_message() -> None:
    node = Node()
    node.round()
    node.create("new")
    node.put("new", 40)
    assert node.minute(Traffic.PUT, "new") == (40, 4000)
    for _ in range(7):
        node.round()
    minute, hour, day = node.stats.growth(Traffic.PUT, "new")
    assert (minute.messages, hour.messages, day.messages) == (0, 40, 40)


def test_what_groups_were_given_is_counted_by_topic_and_group() -> None:
    node = Node()
    node.round()
    node.create("T")
    node.counts.give("G", "T", 5, 500)
    node.counts.give("H", "T", 7, 700)
    node.round()
    assert node.minute(Traffic.GIVEN, "T", "G") == (5, 500)
    assert node.minute(Traffic.GIVEN, "T", "H") == (7, 700)
    assert node.stats.growth_of_all(is_put=False)[0].messages == 12


def test_what_a_snapshot_brings_is_not_of_today() -> None:
    node = Node()
    node.round()
    node.create("T")
    node.put("T", 1000)
    node.state.restored_index = 77  # type: ignore[assignment]
    node.round()
    assert node.minute(Traffic.PUT, "T") == (0, 0)


def test_a_deleted_topic_that_comes_again_counts_anew() -> None:
    node = Node()
    node.round()
    node.create("T")
    node.put("T", 10)
    node.round()
    node.state.topics.delete("T", NOW)
    node.state.queues.drop_topic("T")
    node.round()
    node.create("T")
    node.put("T", 2)
    node.round()
    assert node.minute(Traffic.PUT, "T") == (2, 200)


def test_counters_that_move_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_stats, "ACTIVE_MAX", 3)
    node = Node()
    node.round()
    names = [f"T{number}" for number in range(5)]
    node.create(*names)
    for name in names:
        node.put(name, 1)
    node.round()
    assert len(node.stats._windows) == 3


def test_a_round_looks_at_some_in_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_stats, "LOOKS", 2)
    node = Node()
    count = len(node.state.topics)
    looked_at = []
    for _ in range(count):
        node.stats.tick()
        looked_at.append(len(node.stats._begun))
    assert looked_at == [min(count, 2 * tick) for tick in range(1, count + 1)]
