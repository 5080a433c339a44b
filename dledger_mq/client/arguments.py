"""What callers give the client, checked where it is given.

The type hints say the same, but not everybody runs a type checker: a text where a number belongs would fail deep
inside with an error that names nothing of the caller's, or be sent as it is. Each function here accepts the
value, or raises `ClientUsageError` with a sentence that names the argument, what came and what was wanted.

A truth is no number. Settings take Python's own numbers; offsets, times and ids may be of any type that has
`__index__`, such as numpy's, and are converted. Pure.
"""

from __future__ import annotations

import math
import operator
import ssl
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import SupportsIndex

from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.names import group_problem, topic_problem
from dledger_mq.message.numbers import QueueOffset


def wrong_type(name: str, value: object, wanted: str) -> str:
    """Return the sentence about an argument of a wrong type."""
    return f"{name} is {type(value).__name__} {value!r:.80}, not {wanted}"


def check_text(name: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ClientUsageError(wrong_type(name, value, "text"))
    return value


def check_optional_text(name: str, value: object) -> str | None:
    """Return a text or None."""
    return None if value is None else check_text(name, value)


def check_tls(value: object) -> ssl.SSLContext | None:
    """Return the context of the argument `tls`, or None."""
    if value is None or isinstance(value, ssl.SSLContext):
        return value
    raise ClientUsageError(
        wrong_type("tls", value, "a context of the module ssl (see make_tls_context)")
    )


def check_credentials(value: object) -> Credentials | None:
    """Return the argument `credentials`, or None."""
    if value is None or isinstance(value, Credentials):
        return value
    # What it is may be a secret.
    raise ClientUsageError(
        f"credentials is {type(value).__name__}, not Credentials (see read_credentials)"
    )


def check_int(name: str, value: object) -> int:
    """Return a number of a setting, an `int`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClientUsageError(wrong_type(name, value, "a whole number"))
    return value


def check_seconds(name: str, value: object) -> float:
    """Return a time in seconds, whole or not; it may be infinite and may be below 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ClientUsageError(wrong_type(name, value, "a number of seconds"))
    seconds = float(value)
    if math.isnan(seconds):
        raise ClientUsageError(f"{name} is {value}, not a number of seconds")
    return seconds


def check_truth(name: str, value: object) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise ClientUsageError(wrong_type(name, value, "True or False"))
    return value


def check_optional_truth(name: str, value: object) -> bool | None:
    """Return True, False or None."""
    return None if value is None else check_truth(name, value)


def check_callable(name: str, value: object) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise ClientUsageError(wrong_type(name, value, "a function"))


def check_instance(name: str, value: object, kinds: type | tuple[type, ...]) -> None:
    """Refuse an object of another class."""
    if not isinstance(value, kinds):
        classes = kinds if isinstance(kinds, tuple) else (kinds,)
        wanted = " or ".join(f"a {kind.__name__}" for kind in classes)
        raise ClientUsageError(wrong_type(name, value, wanted))


def whole_number(name: str, value: object) -> int:
    """Return an offset, a time or an id as an `int`."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ClientUsageError(wrong_type(name, value, "a whole number"))
    return operator.index(value)


def queue_offset(name: str, value: object) -> QueueOffset:
    """Return the offset of a message in its queue."""
    return QueueOffset(whole_number(name, value))


def check_queue(value: object) -> MessageQueue:
    """Return a queue."""
    if not isinstance(value, MessageQueue):
        raise ClientUsageError(wrong_type("queue", value, "a MessageQueue"))
    return value


def check_key(value: object) -> None:
    """Refuse a key that chooses no queue."""
    if not isinstance(value, str | bytes | bytearray | memoryview):
        raise ClientUsageError(wrong_type("key", value, "text or bytes"))


def queue_list(values: object) -> list[MessageQueue]:
    """Return queues as a list."""
    if not isinstance(values, Iterable):
        raise ClientUsageError(wrong_type("queues", values, "a list of MessageQueue"))
    return [check_queue(value) for value in values]


def queue_offsets(values: object) -> dict[MessageQueue, QueueOffset]:
    """Return offsets by queue."""
    if not isinstance(values, Mapping):
        raise ClientUsageError(wrong_type("offsets", values, "a dict of MessageQueue and offset"))
    return {
        check_queue(queue): queue_offset(f"the offset of {queue}", offset)
        for queue, offset in values.items()
    }


def text_list(name: str, values: object) -> list[str]:
    """Return texts as a list; one text alone is none, though it could be iterated over."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ClientUsageError(wrong_type(name, values, "a list of texts"))
    return [check_text(f"one of {name}", value) for value in values]


def check_group(group: object) -> str:
    """Return the valid name of a group."""
    name = check_text("group", group)
    problem = group_problem(name)
    if problem is not None:
        raise ClientUsageError(problem)
    return name


def check_topic(topic: object) -> str:
    """Return the valid name of a topic."""
    name = check_text("topic", topic)
    problem = topic_problem(name)
    if problem is not None:
        raise ClientUsageError(problem)
    return name
