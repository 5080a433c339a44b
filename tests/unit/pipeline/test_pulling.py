"""Ranges are pulled whole, from whichever node still has them, and never without an end."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import cast

import pytest

from dledger_mq.blocking import PullConsumer
from dledger_mq.client.errors import ClientError
from dledger_mq.client.group_requests import PulledRecords
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from pipeline.errors import DataLossError
from pipeline.pulling import RangePuller
from pipeline.ranges import QueueRange
from pipeline.selection import MessageChoice
from pipeline.source_options import SourceOptions

QUEUE = MessageQueue("T", "broker-a", 0)
RECORD_BYTES = 28
END = 10
PULLS_MAX = 100


def record(offset: int) -> bytes:
    return struct.pack(">i16xq", RECORD_BYTES, offset)


class Nodes:
    """Nodes whose queue begins at different offsets: the leader is number 0; None: does not answer."""

    def __init__(self, *begins: int | None, end: int = END) -> None:
        self._begins = begins
        self._end = end
        self.asked: list[int | None] = []

    def pull_records(
        self, _queue: MessageQueue, offset: int, *, max_messages: int, node: int | None, **_: object
    ) -> PulledRecords:
        self.asked.append(node)
        assert len(self.asked) < PULLS_MAX, "it asks for ever"
        begins = self._begins[(node or 0) % len(self._begins)]
        if begins is None:
            raise ClientError("nobody answers")
        is_wrong = offset < begins
        end = offset if is_wrong else min(offset + min(max_messages, 3), self._end)
        records = b"".join(map(record, range(offset, end)))
        following = QueueOffset(begins if is_wrong else end)
        bounds = (QueueOffset(begins), QueueOffset(self._end))
        return PulledRecords(records, following, *bounds, is_wrong, not records)


def pulled(nodes: Nodes, *, fails: bool = True) -> list[int]:
    options = SimpleNamespace(
        reads_followers=False,
        pull_batch_size=3,
        selection=MessageChoice(),
        pull_timeout_ms=1000,
        retry_timeout_ms=1000,
        fail_on_data_loss=fails,
    )
    puller = RangePuller(cast("PullConsumer", nodes), cast("SourceOptions", options))
    chunks = puller.chunks([QueueRange(QUEUE, QueueOffset(0), QueueOffset(END))])
    records = b"".join(chunk.records for chunk in chunks)
    return [
        struct.unpack_from(">q", records, at + 20)[0] for at in range(0, len(records), RECORD_BYTES)
    ]


def test_a_range_is_read_from_the_leader() -> None:
    nodes = Nodes(0, 0, 0)
    assert pulled(nodes) == list(range(END))
    assert set(nodes.asked) == {None}


@pytest.mark.parametrize("begins", [(5, 0, 5), (5, None, 0), (END, 3, 0)])
def test_what_the_leader_has_forgotten_is_read_from_a_node_that_has_it(
    begins: tuple[int | None, ...],
) -> None:
    assert pulled(Nodes(*begins)) == list(range(END))


def test_what_no_node_has_is_lost() -> None:
    with pytest.raises(DataLossError, match=r"begins at 5: offsets 0 to 4"):
        pulled(Nodes(5, 6, None))
    assert pulled(Nodes(5, 6, None), fails=False) == list(range(5, END))
    assert pulled(Nodes(5, 3, None), fails=False) == list(range(3, END))
