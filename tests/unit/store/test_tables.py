"""Topics, groups, consumer offsets and locks as the fold keeps them."""

from __future__ import annotations

import pytest

from broker.store.control import (
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    ForbidTopic,
    LockQueues,
    OffsetCommit,
    PutGroup,
    PutTopic,
    RemoveOffsets,
    UnlockQueues,
)
from broker.store.groups import SubscriptionGroupConfig
from broker.store.locks import LOCK_LIVE_MS, PRUNE_EVERY
from broker.store.refusals import RefusalKind
from broker.store.topics import (
    CONTROL_TOPICS,
    DataVersion,
    TopicConfig,
    Topics,
    configured_system_topics,
)
from dledger_mq.message.names import SYSTEM_GROUPS
from dledger_mq.message.numbers import QueueId
from tests.unit.store.lone_broker import START_MS, LoneBroker


def refusal(broker: LoneBroker, at: int) -> RefusalKind | None:
    found = broker.state.refusals.at(at)
    return found.kind if found else None


# Topics


def test_b6_system_topics_are_there_from_the_start() -> None:
    queues = {topic.name: topic.write_queue_count for topic in Topics()}
    expected = {
        "SELF_TEST_TOPIC": 1,
        "BenchmarkTest": 1024,
        "OFFSET_MOVED_EVENT": 1,
        "SCHEDULE_TOPIC_XXXX": 18,
        "RMQ_SYS_TRANS_HALF_TOPIC": 1,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
        "rmq_sys_wheel_timer": 1,
    }
    assert queues == expected | dict.fromkeys(CONTROL_TOPICS, 1)


def test_b6_system_topics_named_by_the_configuration() -> None:
    found = configured_system_topics("c", "b", auto_create=True, trace_topic="RMQ_SYS_TRACE_TOPIC")
    assert {topic.name: (topic.write_queue_count, topic.perm) for topic in found} == {
        "TBW102": (8, 7),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "c": (16, 7),
        "b": (1, 7),
        "c_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_c": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 6),
    }
    assert "TBW102" not in [
        t.name for t in configured_system_topics("c", "b", auto_create=False, trace_topic="")
    ]


def test_b5_permission_bits() -> None:
    assert TopicConfig("T", perm=7).is_inherited
    assert not TopicConfig("T").is_inherited
    assert TopicConfig("T", perm=2).is_writable
    assert not TopicConfig("T", perm=2).is_readable


def test_putting_a_topic_advances_the_version_with_the_time_of_the_record() -> None:
    broker = LoneBroker()
    config = TopicConfig("T", 4, 4, 6, attributes={"message.type": "NORMAL"})
    broker.command(PutTopic(config))
    assert broker.state.topics.get("T") == config
    assert broker.state.topics.version == DataVersion(1, START_MS)
    broker.now_ms += 5
    broker.command(PutTopic(config))
    assert broker.state.topics.version == DataVersion(1, START_MS), "nothing changed"
    broker.command(PutTopic(TopicConfig("T", 8, 8)))
    assert broker.state.topics.version == DataVersion(2, START_MS + 5)


def test_b8_of_two_automatic_creations_the_first_wins() -> None:
    broker = LoneBroker()
    broker.command(PutTopic(TopicConfig("T", 4, 4), only_if_missing=True))
    at = broker.command(PutTopic(TopicConfig("T", 8, 8), only_if_missing=True))
    assert refusal(broker, at) is None
    assert broker.state.topics.get("T") == TopicConfig("T", 4, 4)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (TopicConfig("a/b"), RefusalKind.INVALID_NAME),
        (TopicConfig("x" * 128), RefusalKind.INVALID_NAME),
        (TopicConfig("T", -1, 4), RefusalKind.OUT_OF_RANGE),
        (TopicConfig("T", 4, 65_537), RefusalKind.OUT_OF_RANGE),
        (TopicConfig("T", perm=16), RefusalKind.OUT_OF_RANGE),
    ],
)
def test_a_topic_that_cannot_be_is_a_recorded_refusal(
    config: TopicConfig, kind: RefusalKind
) -> None:
    broker = LoneBroker()
    before = broker.state.topics.digest
    assert refusal(broker, broker.command(PutTopic(config))) == kind
    assert config.name not in broker.state.topics
    assert broker.state.topics.digest == before


def test_b13_deleting_a_topic_takes_its_queues_offsets_and_locks() -> None:
    broker = LoneBroker()
    broker.command(PutTopic(TopicConfig("T", 1, 1)))
    broker.send("T")
    broker.send("other")
    broker.command(CommitOffsets([OffsetCommit("g", "T", 0, 1), OffsetCommit("g", "other", 0, 1)]))
    broker.command(LockQueues("g", "c", [("T", 0)]))
    broker.command(DeleteTopic("T"))
    state = broker.state
    assert "T" not in state.topics
    assert state.queues.min_max("T", 0) == (0, 0)
    assert state.queues.min_max("other", 0) == (0, 1)
    assert state.offsets.topics_of("g") == ["other"]
    assert state.locks.holder("g", "T", 0, broker.now_ms) is None


def test_topics_that_every_broker_has_cannot_be_deleted() -> None:
    broker = LoneBroker()
    for name in ("SCHEDULE_TOPIC_XXXX", *CONTROL_TOPICS):
        assert refusal(broker, broker.command(DeleteTopic(name))) == RefusalKind.SYSTEM_NAME
        assert name in broker.state.topics
    assert refusal(broker, broker.command(DeleteTopic("never seen"))) is None


# Groups


def test_b11_system_groups_are_there_from_the_start() -> None:
    assert [group.name for group in LoneBroker().state.groups] == list(SYSTEM_GROUPS)


def test_groups_are_put_and_deleted() -> None:
    broker = LoneBroker()
    groups = broker.state.groups
    config = SubscriptionGroupConfig("g", retry_times_max=3)
    broker.command(PutGroup(config))
    broker.command(PutGroup(SubscriptionGroupConfig("g"), only_if_missing=True))
    assert groups.get("g") == config
    assert groups.version.counter == 1
    broker.command(CommitOffsets([OffsetCommit("g", "T", 0, 1)]))
    broker.command(DeleteGroup("g"))
    assert "g" not in groups
    assert broker.state.offsets.get("g", "T", 0) == 1
    broker.command(PutGroup(config))
    broker.command(DeleteGroup("g", clean_offsets=True))
    assert broker.state.offsets.get("g", "T", 0) is None


def test_group_refusals() -> None:
    broker = LoneBroker()
    bad = broker.command(PutGroup(SubscriptionGroupConfig("a b")))
    assert refusal(broker, bad) == RefusalKind.INVALID_NAME
    assert refusal(broker, broker.command(DeleteGroup("g"))) == RefusalKind.UNKNOWN_GROUP
    assert refusal(broker, broker.command(ForbidTopic("g", "T", 1))) == RefusalKind.UNKNOWN_GROUP
    system = broker.command(DeleteGroup("TOOLS_CONSUMER"))
    assert refusal(broker, system) == RefusalKind.SYSTEM_NAME


def test_b12_a_group_can_be_forbidden_a_topic() -> None:
    broker = LoneBroker()
    groups = broker.state.groups
    broker.command(PutGroup(SubscriptionGroupConfig("g")))
    broker.command(ForbidTopic("g", "T", 2))
    assert groups.forbidden_bits("g", "T") == 2
    assert list(groups.forbidden()) == [("g", "T", 2)]
    broker.command(ForbidTopic("g", "T", 0))
    broker.command(ForbidTopic("g", "T", 0))
    assert groups.forbidden_bits("g", "T") == 0
    broker.command(ForbidTopic("g", "U", 2))
    broker.command(DeleteGroup("g"))
    assert groups.forbidden_bits("g", "U") == 0


# Consumer offsets


def commit(broker: LoneBroker, offset: int, *, is_forced: bool = False) -> int | None:
    broker.command(CommitOffsets([OffsetCommit("g", "T", 0, offset)], is_forced))
    return broker.state.offsets.get("g", "T", 0)


def with_messages(count: int) -> LoneBroker:
    broker = LoneBroker()
    for _ in range(count):
        broker.stage("T")
    if count:
        broker.commit()
    return broker


def test_i1_changed_a_late_commit_does_not_rewind() -> None:
    broker = with_messages(10)
    assert commit(broker, 7) == 7
    assert commit(broker, 3) == 7
    assert broker.state.offsets.ignored_count == 1
    assert commit(broker, 7) == 7
    assert commit(broker, 8) == 8


def test_a_forced_commit_rewinds() -> None:
    broker = with_messages(10)
    commit(broker, 7)
    assert commit(broker, 3, is_forced=True) == 3


def test_a_commit_below_counts_when_the_stored_one_is_above_the_queues_end() -> None:
    broker = with_messages(10)
    assert commit(broker, 50) == 50, "I3: no range check"
    assert commit(broker, 4) == 4
    assert commit(broker, 10) == 10
    assert commit(broker, 9) == 10, "the end itself is a place to be"


def test_offsets_by_group_and_topic() -> None:
    broker = LoneBroker()
    offsets = broker.state.offsets
    commits = [("g", "A", 0, 5), ("g", "A", 1, 6), ("g", "B", 0, 7), ("h", "A", 0, 8)]
    broker.command(CommitOffsets([OffsetCommit(*fields) for fields in commits]))
    assert offsets.of("g", "A") == {0: 5, 1: 6}
    assert offsets.of("nobody", "A") == {}
    assert offsets.topics_of("g") == ["A", "B"]
    assert offsets.groups_of("A") == ["g", "h"]
    assert [(t, g, dict(q)) for t, g, q in offsets.items()] == [
        ("A", "g", {0: 5, 1: 6}),
        ("B", "g", {0: 7}),
        ("A", "h", {0: 8}),
    ]
    broker.command(RemoveOffsets("g", "A"))
    assert offsets.topics_of("g") == ["B"]
    broker.command(RemoveOffsets("g"))
    assert offsets.topics_of("g") == []
    assert offsets.get("h", "A", 0) == 8


def test_consumed_counts_forward_moves() -> None:
    broker = with_messages(10)
    for offset in (2, 5, 4, 9):
        commit(broker, offset)
    assert broker.state.offsets.consumed_count("g", "T") == 7


# Locks


def lock(broker: LoneBroker, client: str, *queues: int) -> list[int]:
    at = broker.command(LockQueues("g", client, [("T", QueueId(queue)) for queue in queues]))
    granted = broker.state.locks.granted_at(at)
    assert granted is not None
    return [queue for _, queue in granted]


def test_p2_free_queues_are_granted_and_held_ones_refused() -> None:
    broker = LoneBroker()
    assert lock(broker, "c1", 0, 1) == [0, 1]
    assert lock(broker, "c2", 1, 2) == [2]
    assert lock(broker, "c1", 0, 2) == [0]
    locks = broker.state.locks
    assert [locks.holder("g", "T", n, broker.now_ms) for n in range(4)] == ["c1", "c1", "c2", None]


def test_p1_a_lock_expires_by_the_time_of_the_records() -> None:
    broker = LoneBroker()
    lock(broker, "c1", 0)
    broker.now_ms += LOCK_LIVE_MS
    assert lock(broker, "c2", 0) == []
    broker.now_ms += 1
    assert broker.state.locks.holder("g", "T", 0, broker.now_ms) is None
    assert not broker.state.locks.has_live_lock("g", broker.now_ms)
    assert lock(broker, "c2", 0) == [0]


def test_p3_a_renewal_prolongs() -> None:
    broker = LoneBroker()
    lock(broker, "c1", 0)
    for _ in range(4):
        broker.now_ms += 20_000
        assert lock(broker, "c1", 0) == [0]
    assert broker.state.locks.has_live_lock("g", broker.now_ms), "L16"
    assert not broker.state.locks.has_live_lock("h", broker.now_ms)


def test_p2_only_the_holder_unlocks() -> None:
    broker = LoneBroker()
    lock(broker, "c1", 0)
    broker.command(UnlockQueues("g", "c2", [("T", 0)]))
    assert lock(broker, "c2", 0) == []
    broker.command(UnlockQueues("g", "c1", [("T", 0)]))
    assert lock(broker, "c2", 0) == [0]


def test_p1_groups_do_not_disturb_each_other() -> None:
    broker = LoneBroker()
    lock(broker, "c1", 0)
    at = broker.command(LockQueues("h", "c2", [("T", 0)]))
    assert broker.state.locks.granted_at(at) == (("T", 0),)


def test_expired_locks_of_clients_that_died_are_forgotten() -> None:
    broker = LoneBroker()
    lock(broker, "dead", *range(100))
    broker.now_ms += LOCK_LIVE_MS + 1
    for _ in range(PRUNE_EVERY):
        broker.staging.stage_control(LockQueues("g", "c1", [("U", 0)]), broker.now_ms)
    broker.commit()
    assert len(broker.state.locks) == 1
