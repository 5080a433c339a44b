"""What becomes of a message that comes back: rules L1 to L10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.service.catalog import Catalog
from broker.service.dead_letters import with_origin
from broker.service.refusal import Refusal
from broker.service.send_back import SendBack, SendBackPlan, SendBackRules
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import QUEUE_COUNT_MAX, TopicConfig
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.properties import decode_properties, encode_property
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.codes import ResponseCode

HOST = pack_host("127.0.0.1", 10911)
GROUPS = {
    "g": SubscriptionGroupConfig("g", retry_times_max=3),
    "none": SubscriptionGroupConfig("none", retry_queue_count=0),
    "many": SubscriptionGroupConfig("many", retry_queue_count=2**40),
}
TOPICS = {"%RETRY%locked": TopicConfig("%RETRY%locked", 1, 1, 4)}


def stored(**changes: Any) -> StoredMessage:
    usual: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "queue_offset": 5,
        "physical_offset": 1000,
        "size_bytes": 100,
        "flag": 7,
        "sys_flag": 1,
        "born_timestamp_ms": 11,
        "born_host": HOST,
        "store_timestamp_ms": 12,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body_crc": 0,
        "body": b"b",
        "properties": b"TAGS\x01A\x02WAIT\x01true\x02",
    }
    return StoredMessage(**(usual | changes))


def decide(
    request: SendBack,
    message: StoredMessage | None,
    *,
    version: int = 409,
    auto: bool = True,
    permission: int = 6,
    may_consume: Callable[[str, str], bool] | None = None,
) -> SendBackPlan | Refusal | None:
    rules = SendBackRules(
        Catalog(TOPICS.get, GROUPS.get),
        permission=permission,
        auto_create_groups=auto,
        delay_level_max=18,
        load=lambda offset: message if offset == 1000 else None,
        pick=lambda below: below - 1,
        may_consume=may_consume,
    )
    return rules.decide(request, version)


def planned(request: SendBack, message: StoredMessage, version: int = 409) -> SendBackPlan:
    plan = decide(request, message, version=version)
    assert isinstance(plan, SendBackPlan), plan
    return plan


@pytest.mark.parametrize(
    ("request_", "auto", "permission", "code"),
    [
        (SendBack(1000, "new", 0), False, 6, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (SendBack(1000, "g", 0), True, 4, ResponseCode.NO_PERMISSION),
        (SendBack(1000, "locked", 0), True, 6, ResponseCode.NO_PERMISSION),
        (SendBack(999, "g", 0), True, 6, ResponseCode.SYSTEM_ERROR),
    ],
    ids=[
        "L1 unknown group",
        "L1 broker not writable",
        "L2 retry topic not writable",
        "L3 no such message",
    ],
)
def test_refused(request_: SendBack, auto: bool, permission: int, code: ResponseCode) -> None:
    refusal = decide(request_, stored(), auto=auto, permission=permission)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code


def test_l1_a_group_without_retry_queues_drops_it() -> None:
    assert decide(SendBack(1000, "none", 0), stored()) is None


def test_a_retry_topic_has_no_more_queues_than_the_fold_takes() -> None:
    """It would not be created, and what is sent back would lie where no topic is."""
    plan = planned(SendBack(1000, "many", 0), stored())
    assert [topic.write_queue_count for topic in plan.creation.topics] == [QUEUE_COUNT_MAX]
    assert plan.queue_id == QUEUE_COUNT_MAX - 1


@pytest.mark.parametrize(
    "topic",
    [
        "rmq_sys_dledger_offsets",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
    ],
)
def test_what_nobody_can_have_consumed_does_not_come_back(topic: str) -> None:
    """The answer to a half message's send says where it stands: a copy would be seen before its transaction ends."""
    assert isinstance(decide(SendBack(1000, "g", 0), stored(topic=topic)), Refusal)


@pytest.mark.parametrize(
    ("topic", "is_taken"),
    [("T", True), ("%RETRY%g", True), ("secret", False), ("%RETRY%h", False), ("%DLQ%h", False)],
)
def test_with_access_control_a_place_in_the_log_reads_no_topic_of_others(
    topic: str, is_taken: bool
) -> None:
    """Whoever may consume with one group had any message copied to its retry topic, and read it there."""
    end = decide(
        SendBack(1000, "g", 0),
        stored(topic=topic),
        may_consume=lambda group, name: (group, name) == ("g", "T"),
    )
    if is_taken:
        assert isinstance(end, SendBackPlan)
    else:
        assert isinstance(end, Refusal)
        assert end.code == ResponseCode.NO_PERMISSION
        assert "secret" not in end.remark


def test_l4_l8_where_it_came_from_is_noted() -> None:
    plan = planned(SendBack(1000, "g", 0), stored())
    assert decode_properties(plan.properties) == {
        "TAGS": "A",
        "WAIT": "false",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": offset_msg_id(HOST, 1000),
        "DELAY": "3",
    }
    assert (plan.topic, plan.reconsume_times, plan.delay_level) == ("%RETRY%g", 1, 3)


def test_a_dead_letter_names_its_origin_as_clients_of_5_read_it_if_there_is_room() -> None:
    for times in (0, 1):
        origin = b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01ID\x02" if times else b""
        dead = planned(SendBack(1000, "g", -1), stored(properties=origin, reconsume_times=times))
        found = decode_properties(dead.properties)
        topic, message_id = ("First", "ID") if times else ("T", offset_msg_id(HOST, 1000))
        assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == (topic, message_id)
        assert (found["DLQ_ORIGIN_TOPIC"], found["DLQ_ORIGIN_MESSAGE_ID"]) == (topic, message_id)
    retried = planned(SendBack(1000, "g", 0), stored())
    assert "DLQ_ORIGIN_TOPIC" not in decode_properties(retried.properties)
    full = encode_property(b"A", b"x" * (32_767 - 80)) + origin
    dead = planned(SendBack(1000, "g", -1), stored(properties=full, reconsume_times=1))
    assert "DLQ_ORIGIN_TOPIC" not in decode_properties(dead.properties)
    assert dead.topic == "%DLQ%g"
    odd = b"RETRY_TOPIC\x01a\x01b\x02"
    assert with_origin(odd) == odd, "a client may have put anything there"


def test_l8_what_was_noted_first_stays() -> None:
    origin = b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01ID\x02DELAY\x013\x02"
    plan = planned(SendBack(1000, "g", 0), stored(properties=origin, reconsume_times=1))
    found = decode_properties(plan.properties)
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"], found["DELAY"]) == (
        "First",
        "ID",
        "4",
    )


@pytest.mark.parametrize(
    ("times", "level", "limit", "version", "topic", "delay"),
    [
        (0, 0, None, 409, "%RETRY%g", 3),
        (2, 0, None, 409, "%RETRY%g", 5),
        (0, 7, None, 409, "%RETRY%g", 7),
        (0, 30, None, 409, "%RETRY%g", 18),
        (3, 0, None, 409, "%DLQ%g", 0),
        (3, 0, 16, 409, "%RETRY%g", 6),
        (3, 0, 16, 120, "%DLQ%g", 0),
        (0, -1, None, 409, "%DLQ%g", 0),
    ],
    ids=[
        "L7 first",
        "L7 third",
        "L7 as given",
        "L10 clamped",
        "L6",
        "L5 client's limit",
        "L5 old client",
        "L6 at once",
    ],
)
def test_where_it_goes(
    times: int, level: int, limit: int | None, version: int, topic: str, delay: int
) -> None:
    plan = planned(SendBack(1000, "g", level, limit), stored(reconsume_times=times), version)
    assert (plan.topic, plan.delay_level, plan.reconsume_times) == (topic, delay, times + 1)
    assert ("DELAY" in decode_properties(plan.properties)) == (delay > 0)


def test_too_many_properties_are_refused_with_the_true_cause() -> None:
    refusal = decide(SendBack(1000, "g", 0), stored(properties=b"k\x01" + b"v" * 32_760 + b"\x02"))
    assert isinstance(refusal, Refusal)
    assert "properties" in refusal.remark
