"""Attributes of topics, as `mqadmin updateTopic -a` changes them: which there are, and what their values may be. Pure.

RocketMQ's names, and its words where it refuses (common/attribute/AttributeUtil.java, AttributeParser.java). What it
has and this broker does not is refused, rather than stored and passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RESERVE_TIME: Final = "reserve.time"
"""Hours for which messages of the topic are shown; 0 or less: as long as the log has them."""

HOURS_MAX: Final = 876_000
"""A hundred years: more would not fit times in milliseconds."""

MESSAGE_TYPE: Final = "message.type"
"""The kind of messages that a topic is for, which is shown and not enforced."""

_CHOICES: Final[Mapping[str, tuple[frozenset[str], Mapping[str, str]]]] = {
    MESSAGE_TYPE: (
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
        {},
    ),
    "queue.type": (
        frozenset({"SimpleCQ"}),
        {"BatchCQ": "queues of batches are not supported: every message has an offset of its own"},
    ),
    "cleanup.policy": (
        frozenset({"DELETE"}),
        {"COMPACTION": "compaction is not supported: a log is deleted from its front only"},
    ),
}
"""By key: values that are stored, and why others of RocketMQ's are refused."""

_TEXT_MAX: Final = 1024


class TopicAttributeError(ValueError):
    """A change of attributes that makes no sense; nothing is changed."""


def alter(text: str, current: Mapping[str, str], *, is_new: bool) -> dict[str, str]:
    """Return a topic's attributes after a change: `+key=value` and `-key`, with `,` between them.

    Args:
        text: the change; empty: none.
        current: the attributes until now.
        is_new: the topic does not exist.

    Raises:
        TopicAttributeError: a key is unknown, a value wrong, or the change is none.
    """
    changed = dict(current)
    seen: set[str] = set()
    if len(text) > _TEXT_MAX:
        raise TopicAttributeError(
            f"attributes of {len(text)} characters, at most {_TEXT_MAX} may be"
        )
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, value = _parse(part)
        if key in seen:
            raise TopicAttributeError(f"key duplication: {key}")
        seen.add(key)
        if value is not None:
            _check(key, value)
            changed[key] = value
        elif is_new:
            raise TopicAttributeError(
                f"only add attribute is supported while creating topic. key: {key}"
            )
        elif changed.pop(key, None) is None:
            raise TopicAttributeError(f"attempt to delete a nonexistent key: {key}")
    return changed


def reserve_hours(attributes: Mapping[str, str]) -> int:
    """Return for how many hours messages of a topic are shown; 0: as long as the log has them."""
    text = attributes.get(RESERVE_TIME, "")
    return int(text) if _is_hours(text) else 0


def _parse(part: str) -> tuple[str, str | None]:
    """Read one change: a key and its value, or None for one that is removed.

    Raises:
        TopicAttributeError: it is neither.
    """
    sign, rest = part[:1], part[1:]
    key, equals, value = rest.partition("=")
    if sign == "+" and key and equals and value and "=" not in value:
        return key, value
    if sign == "-" and key and not equals:
        return key, None
    if "=" in part:
        raise TopicAttributeError(f"add/alter attribute format is wrong: {part[:200]}")
    raise TopicAttributeError(f"delete attribute format is wrong: {part[:200]}")


def _check(key: str, value: str) -> None:
    """Refuse a value that the key cannot have.

    Raises:
        TopicAttributeError: the reason.
    """
    if key == RESERVE_TIME:
        if value != "-1" and not (value == "0" or _is_hours(value)):
            raise TopicAttributeError(
                f"{RESERVE_TIME}={value[:40]} is not a number of hours from 1 to {HOURS_MAX}, or -1 for none"
            )
        return
    if key not in _CHOICES:
        known = ", ".join(sorted((RESERVE_TIME, *_CHOICES)))
        raise TopicAttributeError(f"unsupported key: {key[:100]}; there are {known}")
    values, refused = _CHOICES[key]
    if value in refused:
        raise TopicAttributeError(f"{key}={value}: {refused[value]}")
    if value not in values:
        raise TopicAttributeError(f"{key}={value[:40]} is not one of {', '.join(sorted(values))}")


def _is_hours(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9 and 0 < int(text) <= HOURS_MAX
