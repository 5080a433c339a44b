"""Attributes of topics: RocketMQ's changes, and its words where one makes no sense."""

from __future__ import annotations

import pytest

from broker.service.topic_attributes import (
    HOURS_MAX,
    TopicAttributeError,
    alter,
    reserve_hours,
)


def test_attributes_are_added_changed_and_removed() -> None:
    first = alter("+reserve.time=24,+message.type=FIFO", {}, is_new=True)
    assert first == {"reserve.time": "24", "message.type": "FIFO"}
    assert alter("", first, is_new=False) == first
    second = alter("+reserve.time=48, -message.type", first, is_new=False)
    assert second == {"reserve.time": "48"}
    assert first == {"reserve.time": "24", "message.type": "FIFO"}, "as it was"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reserve.time=24", "add/alter attribute format is wrong: reserve.time=24"),
        ("+reserve.time", "delete attribute format is wrong: +reserve.time"),
        ("+reserve.time=", "format is wrong"),
        ("+reserve.time=1=2", "format is wrong"),
        ("-", "delete attribute format is wrong"),
        ("+reserve.time=24,+reserve.time=25", "key duplication: reserve.time"),
        ("-message.type", "attempt to delete a nonexistent key: message.type"),
        (
            "+retention.ms=5",
            "unsupported key: retention.ms; there are cleanup.policy, message.type",
        ),
        ("+reserve.time=1.5", "is not a number of hours from 1 to 876000, or -1 for none"),
        ("+reserve.time=-2", "is not a number of hours"),
        (f"+reserve.time={HOURS_MAX + 1}", "is not a number of hours"),
        ("+reserve.time=\u0664", "is not a number of hours"),
        ("+cleanup.policy=COMPACTION", "compaction is not supported"),
        ("+queue.type=BatchCQ", "queues of batches are not supported"),
        ("+message.type=ANY", "message.type=ANY is not one of DELAY, FIFO"),
        ("+x=" + "1" * 2000, "attributes of 2003 characters"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(text: str, said: str) -> None:
    with pytest.raises(TopicAttributeError) as raised:
        alter(text, {}, is_new=False)
    assert said in str(raised.value)


def test_a_new_topic_has_nothing_to_remove() -> None:
    with pytest.raises(TopicAttributeError, match="only add attribute is supported while creating"):
        alter("-reserve.time", {}, is_new=True)


@pytest.mark.parametrize(
    ("value", "hours"), [("24", 24), ("-1", 0), ("0", 0), ("", 0), ("soon", 0), ("9" * 30, 0)]
)
def test_hours_are_read_whatever_stands_there(value: str, hours: int) -> None:
    assert reserve_hours({"reserve.time": value}) == hours
    assert reserve_hours({}) == 0
