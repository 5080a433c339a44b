"""Which names are valid and which are the system's (rules B1 to B5, B7)."""

from __future__ import annotations

import pytest

from broker.store.topics import CONTROL_TOPICS
from dledger_mq.message import names

ILLEGAL = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"


@pytest.mark.parametrize(
    "topic", ["T", "a-b_c|d%e0", "%RETRY%group", "x" * 127, "%DLQ%" + "g" * 250]
)
def test_b1_b2_valid_topics(topic: str) -> None:
    assert names.topic_problem(topic) is None


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("", "The specified topic is blank."),
        ("  \t", "The specified topic is blank."),
        ("a.b", ILLEGAL),
        ("a b", ILLEGAL),
        ("../../etc", ILLEGAL),
        ("topic\n", ILLEGAL),
        ("中文", ILLEGAL),
        ("x" * 128, "The specified topic is longer than topic max length."),
        ("%RETRY%" + "g" * 249, "The specified topic is longer than topic max length."),
    ],
)
def test_b1_b2_refusals_in_rocketmq_words(topic: str, text: str) -> None:
    assert names.topic_problem(topic) == text


@pytest.mark.parametrize(
    ("group", "is_valid"),
    [("g", True), ("g" * 120, True), ("g" * 121, False), ("", False), ("a/b", False)],
)
def test_b3_groups(group: str, is_valid: bool) -> None:
    assert (names.group_problem(group) is None) is is_valid


def test_b4_clients_may_not_send_to_system_topics() -> None:
    for topic in (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ):
        assert names.send_problem(topic) == f"Sending message to topic[{topic}] is forbidden."
    assert names.send_problem("BenchmarkTest") is None
    assert names.send_problem("RMQ_SYS_TRACE_TOPIC") is None


def test_clients_may_not_send_what_the_fold_carries_out() -> None:
    assert all(names.send_problem(topic) is not None for topic in CONTROL_TOPICS)


def test_b7_system_names() -> None:
    assert names.is_system_topic("rmq_sys_anything")
    assert names.is_system_topic("TBW102")
    assert not names.is_system_topic("%RETRY%g")
    assert names.is_system_group("CID_RMQ_SYS_x")
    assert names.is_system_group("TOOLS_CONSUMER")
    assert not names.is_system_group("g")
    assert (
        names.system_topic_problem("TBW102") == "The topic[TBW102] is conflict with system topic."
    )


def test_derived_names() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
