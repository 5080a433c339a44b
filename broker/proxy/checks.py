"""What a client may give: names of topics and groups, tags, keys, and the application's own properties. Pure.

The rules are those of Apache's proxy, whose codes clients know; limits that brokers have too are left to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError
from dledger_mq.client.messages import MESSAGE_GROUP_BYTES_MAX
from dledger_mq.message.names import (
    group_problem,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    send_problem,
    topic_problem,
)
from dledger_mq.message.properties import has_control_character

PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
"""Of the application's properties, tag and keys of a message; Apache's proxy has the same limits."""

NAME_CHARS_KEPT_MAX: Final = 128
"""Of names about which it is remembered what is wrong with them."""

SYSTEM_PROPERTIES: Final = frozenset(
    {
        "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
        "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME",
        "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INSTANCE_ID",
        "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE",
        "__SHARDINGKEY", "__transactionId__", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "TIMER_DELIVER_MS",
        "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELAY_LEVEL", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
        "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET", "TRACE_CONTEXT", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__BORNHOST",
        "BORN_TIMESTAMP", "__CRC32#", "SINK_ROW",
    }
)  # fmt: skip
"""Names that brokers and clients give a meaning: an application's property may not have them, nor is it shown them."""


def topic_of(resource: Any) -> str:
    """Return the name of a topic that clients may use; dead letters are consumed as any topic is.

    Raises:
        CallRefusedError: it is none.
    """
    name = _name(resource)
    find_problem = _kept_problem if len(name) <= NAME_CHARS_KEPT_MAX else _topic_problem
    problem = find_problem(name)
    if problem is not None:
        raise CallRefusedError(Code.ILLEGAL_TOPIC, problem)
    return name


def _topic_problem(name: str) -> str | None:
    problem = topic_problem(name) or send_problem(name)
    if problem is None and (is_system_topic(name) or is_retry_topic(name)):
        problem = f"topic {name} is the system's"
    return problem


_kept_problem: Final = lru_cache(maxsize=1024)(_topic_problem)  # every message asks


def group_of(resource: Any) -> str:
    """Return the name of a consumer group that clients may use.

    Raises:
        CallRefusedError: it is none.
    """
    name = _name(resource)
    problem = group_problem(name)
    if problem is None and is_system_group(name):
        problem = f"group {name} is the system's"
    if problem is not None:
        raise CallRefusedError(Code.ILLEGAL_CONSUMER_GROUP, problem)
    return name


def _name(resource: Any) -> str:
    """Return a name; one in a namespace is the namespace, `%` and the name, as clients of release 4 have it."""
    name = str(resource.name)
    return f"{resource.resource_namespace}%{name}" if resource.resource_namespace else name


def name_topic(resource: Any, topic: str, namespace: str) -> None:
    """Write a topic's name into a resource, as a client that has this namespace names it."""
    if namespace and topic.startswith(f"{namespace}%"):
        resource.resource_namespace = namespace
    resource.name = topic.removeprefix(f"{namespace}%") if namespace else topic


def check_text(text: str, what: str, code: Code) -> str:
    """Return a text that labels a message.

    Raises:
        CallRefusedError: it is blank, or holds a control character: these separate properties.
    """
    if text.isspace():
        raise CallRefusedError(code, f"{what} is blank")
    if has_control_character(text):
        raise CallRefusedError(code, f"{what} {text[:80]!r} holds a control character")
    return text


def check_tag(tag: str) -> str:
    """Return a tag; empty is none.

    Raises:
        CallRefusedError: it cannot be subscribed to.
    """
    if "|" in tag:
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_TAG, f"the tag {tag[:80]!r} holds a |")
    return check_text(tag, "the tag", Code.ILLEGAL_MESSAGE_TAG)


def check_key(key: str) -> str:
    """Return a key under which a message can be found.

    Raises:
        CallRefusedError: it is none; a blank in it would make it two.
    """
    if not key or any(char.isspace() for char in key):
        raise CallRefusedError(
            Code.ILLEGAL_MESSAGE_KEY, f"the key {key[:80]!r} is empty or has blanks"
        )
    return check_text(key, "the key", Code.ILLEGAL_MESSAGE_KEY)


def check_message_group(group: str) -> str:
    """Return the group within which messages keep their order.

    Raises:
        CallRefusedError: it is too long, or blank.
    """
    if len(group.encode()) > MESSAGE_GROUP_BYTES_MAX:
        text = (
            f"the message group has {len(group.encode())} bytes, at most {MESSAGE_GROUP_BYTES_MAX}"
        )
        raise CallRefusedError(Code.ILLEGAL_MESSAGE_GROUP, text)
    return check_text(group, "the message group", Code.ILLEGAL_MESSAGE_GROUP)


def check_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the application's properties.

    Raises:
        CallRefusedError: there are too many, or one has a name of the system's, is empty, or holds a control character.
    """
    code = Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    if len(properties) > PROPERTIES_MAX:
        text = f"the message has {len(properties)} properties, at most {PROPERTIES_MAX}"
        raise CallRefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for name, value in properties.items():
        if name in SYSTEM_PROPERTIES:
            raise CallRefusedError(code, f"property {name} is the system's")
        if not name or not value:
            raise CallRefusedError(code, f"property {name!r} has an empty name or value")
        check_text(name, "the name of a property", code)
        if has_control_character(value):
            raise CallRefusedError(code, f"the value of property {name} holds a control character")
    return dict(properties)
