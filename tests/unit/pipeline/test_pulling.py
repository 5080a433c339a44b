"""Ranges are pulled whole, from whichever node still has them, and never without an end."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

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


class ManyAtOnce:
    """A leader that may be asked for several stretches together, and what it makes of each pull.

    Args:
        counts: how many records each answer has at most, one after the other and again; 0: it does not answer,
            below: the queue is said to begin behind the place that was asked for.
    """

    def __init__(self, counts: list[int], end: int) -> None:
        self._counts = counts
        self._end = end
        self.asked = 0
        self.together = 0
        self.client = SimpleNamespace(pull_records=self._pull_records)

    def call(
        self, function: Callable[..., Awaitable[object]], *arguments: object, **named: object
    ) -> object:
        self.together += 1
        return trio.run(partial(function, *arguments, **named))

    async def _pull_records(self, *arguments: object, **named: object) -> PulledRecords:
        assert named.pop("node") == 0, "the leader"
        await trio.lowlevel.checkpoint()
        count = self._counts[self.asked % len(self._counts)]
        return self.pull_records(*arguments, count=count, **named)  # type: ignore[arg-type]

    def pull_records(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int,
        count: int | None = None,
        **_: object,
    ) -> PulledRecords:
        """Answer; without a `count` three records, or fewer: what is asked for by itself is never in vain."""
        self.asked += 1
        if count == 0:
            raise ClientError("nobody answers")
        begins = offset + 1 if count is not None and count < 0 else 0
        end = offset if begins else min(offset + min(max_messages, count or 3), self._end)
        records = b"".join(map(record, range(offset, end)))
        bounds = QueueOffset(begins), QueueOffset(self._end)
        return PulledRecords(
            records, QueueOffset(begins or end), *bounds, bool(begins), not records
        )


@given(
    st.lists(st.sampled_from([3, 3, 3, 2, 1, 7, 0, -1]), min_size=1, max_size=9),
    st.integers(1, 60),
    st.integers(1, 20),
)
@example([3], 60, 20)
@example([3, 0, 3], 60, 20)
@example([3] * 6 + [7], 60, 20)
def test_what_is_asked_for_together_comes_whole_and_in_order(
    counts: list[int], end: int, batch: int
) -> None:
    leader = ManyAtOnce(counts, end)
    assert pulled(leader, batch=batch, end=end) == list(range(end))
    if counts == [3] and batch == 20 and end == 60:
        assert (leader.together, leader.asked) == (3, 20)


def pulled(
    nodes: Nodes | ManyAtOnce, *, fails: bool = True, batch: int = 3, end: int = END
) -> list[int]:
    options = SimpleNamespace(
        reads_followers=False,
        pull_batch_size=batch,
        selection=MessageChoice(),
        pull_timeout_ms=1000,
        retry_timeout_ms=1000,
        fail_on_data_loss=fails,
    )
    puller = RangePuller(cast("PullConsumer", nodes), cast("SourceOptions", options))
    chunks = puller.chunks([QueueRange(QUEUE, QueueOffset(0), QueueOffset(end))])
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
