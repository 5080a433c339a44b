"""Names of topics and groups: which are valid, which are the system's, which are derived from others.

Pure rules of text (rules B1 to B5, B7, B11); no state. The refusal texts are RocketMQ's
own, because tools and users search for them.
"""

from __future__ import annotations

import re
from typing import Final

VALID_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"
_VALID = re.compile(r"[%|a-zA-Z0-9_-]+")

TOPIC_LENGTH_MAX: Final = 127
RETRY_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

CONTROL_PREFIX: Final = "rmq_sys_dledger_"
"""Topics of control records (docs/formats/control.md): readable like any topic, written by the leader only."""

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Clients may not send to these (B4)."""

_SYSTEM_TOPICS: Final = SEND_FORBIDDEN_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that exist from the start (B11), in this order."""


def is_retry_topic(topic: str) -> bool:
    """Return whether the topic holds the retries of a group."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Return whether the topic holds the dead letters of a group."""
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic that a group's failed messages come back on."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic that a group's messages end on after the last retry."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic that replies to request messages of a cluster name; nothing is stored there."""
    return cluster + REPLY_TOPIC_SUFFIX


def is_system_topic(topic: str) -> bool:
    """Return whether users may neither create nor delete the topic (B7)."""
    return topic in _SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether the group belongs to the system (B7, B11)."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_control_topic(topic: str) -> bool:
    """Return whether the fold carries out records on the topic, so that clients must never send to it."""
    return topic.startswith(CONTROL_PREFIX)


def topic_problem(topic: str) -> str | None:
    """Return why a topic name is invalid, in RocketMQ's words, or None (B1, B2)."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _VALID.fullmatch(topic):
        return f"The specified topic contains illegal characters, allowing only {VALID_PATTERN}"
    is_long_kind = is_retry_topic(topic) or is_dlq_topic(topic)
    if len(topic) > (RETRY_TOPIC_LENGTH_MAX if is_long_kind else TOPIC_LENGTH_MAX):
        return "The specified topic is longer than topic max length."
    return None


def group_problem(group: str) -> str | None:
    """Return why a group name is invalid, in RocketMQ's words, or None (B3)."""
    if not group.strip():
        return "The specified group is blank."
    if not _VALID.fullmatch(group):
        return f"The specified group contains illegal characters, allowing only {VALID_PATTERN}"
    if len(group) > GROUP_LENGTH_MAX:
        return f"The specified group is longer than group max length {GROUP_LENGTH_MAX}."
    return None


TRACE_IS_OFF: Final = (
    "Message trace is off here: traceTopicEnable=true in broker.conf creates this topic, or the one that "
    "msgTraceTopicName names"
)

LIGHT_PREFIX: Final = "%LMQ%"
NO_LIGHT_QUEUES: Final = "Light queues (%LMQ%, INNER_MULTI_DISPATCH) are not supported"


def missing_because(topic: str) -> str:
    """Return a sentence to be put behind "it does not exist", with a space before it; empty: nothing is known (V2)."""
    if topic.startswith(LIGHT_PREFIX):
        return f" {NO_LIGHT_QUEUES}."
    return f" {TRACE_IS_OFF}." if topic == TRACE_TOPIC else ""


def send_problem(topic: str) -> str | None:
    """Return why clients may not send to a topic although its name is valid, or None (B4).

    Unlike RocketMQ's this refuses the timer topic too: the fold carries out what stands there.
    """
    if topic in SEND_FORBIDDEN_TOPICS or topic == TIMER_TOPIC or is_control_topic(topic):
        return f"Sending message to topic[{topic}] is forbidden."
    return None


def system_topic_problem(topic: str) -> str | None:
    """Return why users may not create or delete a topic, or None (B7)."""
    if is_system_topic(topic):
        return f"The topic[{topic}] is conflict with system topic."
    return None
