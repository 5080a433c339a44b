"""What a pull brings is checked before it is believed: the offsets of its records, and where the next pull starts."""

from __future__ import annotations

import pytest

from dledger_mq import ConnectionLostError, MessageQueue
from dledger_mq.client.group_requests import PullAnswer, PulledRecords, decode_pulled
from dledger_mq.client.subscriptions import subscribe
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import encode_record

HOST = pack_host("10.1.2.3", 4567)


def pulled(*offsets: int, next_offset: int) -> PullAnswer:
    records = b"".join(
        encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=offset,
            physical_offset=0,
            sys_flag=0,
            born_timestamp_ms=1,
            born_host=HOST,
            store_timestamp_ms=1,
            store_host=HOST,
            body=b"%d" % offset,
            properties=b"",
        )
        for offset in offsets
    )
    bounds = (QueueOffset(next_offset), QueueOffset(0), QueueOffset(9))
    return decode_pulled(
        PulledRecords(records, *bounds, is_offset_wrong=False, is_empty=False),
        MessageQueue("T", "b", 0),
        QueueOffset(5),
        subscribe("T", "*", 1),
    )


def test_what_lies_before_the_offset_asked_for_is_dropped() -> None:
    assert [one.body for one in pulled(4, 5, 7, next_offset=8).messages] == [b"5", b"7"]


@pytest.mark.parametrize(
    ("offsets", "next_offset"), [((5, 5), 9), ((6, 5), 9), ((5, 6), 6), ((5, 6), 5), ((-1,), 9)]
)
def test_offsets_that_cannot_be_are_refused(offsets: tuple[int, ...], next_offset: int) -> None:
    with pytest.raises(ConnectionLostError, match="comes next"):
        pulled(*offsets, next_offset=next_offset)
