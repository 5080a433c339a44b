"""What changes in a group while a stream reads it: queues are added, offsets reset, messages deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from broker.admin.ask import ask_all
from dledger_mq import MessageQueue
from dledger_mq.blocking import Admin, PullConsumer
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from jepsen.processes import Group, poll
from pipeline.spark.failures import reason_of
from pipeline.spark.streams import Restarts, start_stream
from tests.integration.broker.conftest import Wire, send_ext
from tests.integration.pipeline.second_way import committed_rows
from tests.integration.pipeline.topics import PATIENCE_S, Topics

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def start(spark: Any, namesrv: str, topic: str, folder: Path, *, once: bool, **options: str) -> Any:
    """Start a query from a topic's beginning into Parquet."""
    when = {"availableNow": True} if once else {"processingTime": "0 seconds"}
    return start_stream(
        spark,
        {"nameServer": namesrv, "topic": topic, "startingOffsets": "earliest"} | options,
        lambda frame: (
            frame.select("queueId", "queueOffset", "body")
            .writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .trigger(**when)
        ),
        checkpoint=str(folder / "checkpoint"),
        restarts=Restarts(most=0),
    )


def bodies(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def test_queues_that_are_added_and_offsets_that_are_reset_change_nothing_in_the_rows(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic, group, sent = topics.fresh(), "shown-only", 0
    query: Any = None

    def send_and_see(count: int, queues: int) -> None:
        nonlocal sent
        topics.fill(topic, count, first=sent, queues=queues)
        sent += count
        assert poll(
            lambda: query is None or len(committed_rows(tmp_path / "out")) >= sent,
            PATIENCE_S,
            0.3,  # each look reads all files anew
        )

    send_and_see(20, queues=4)
    with (
        Admin(topics.namesrv, timeout_s=PATIENCE_S) as admin,
        PullConsumer(topics.namesrv, group, timeout_s=PATIENCE_S) as shown,
    ):
        assert len(shown.queues(topic)) == 4
        query = start(
            spark,
            topics.namesrv,
            topic,
            tmp_path,
            once=False,
            commitGroup=group,
            maxOffsetsPerTrigger="16",
        )

        def is_shown() -> bool:
            places = [MessageQueue(topic, topics.group.group, number) for number in range(queues)]
            return sum(max(shown.committed(each) or 0, 0) for each in places) == sent

        queues = 4
        send_and_see(20, queues)
        assert poll(is_shown, PATIENCE_S, 0.2), "all that is done, under the group's name"

        assert set(admin.reset_offsets(group, topic, "first").values()) == {0}
        send_and_see(8, queues)
        assert poll(is_shown, PATIENCE_S, 0.2), "shown anew with the next batch"

        admin.create_topic(topic, queues=8)
        queues = 8
        send_and_see(32, queues)
        assert set(admin.reset_offsets(group, topic, "last")) == {
            MessageQueue(topic, topics.group.group, number) for number in range(8)
        }
        send_and_see(32, queues)
        assert poll(is_shown, PATIENCE_S, 0.2)
        query.processAllAvailable()
        query.stop()
        rows = committed_rows(tmp_path / "out")
        assert bodies(rows) == list(range(sent))
        ends = {
            queue.queue_id: end for queue, (_, end) in shown.bounds(shown.queues(topic)).items()
        }
    assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [
        (number, offset) for number in range(8) for offset in range(ends[number])
    ]


BODY_BYTES = 200_000
HELD_BYTES = 3 * 1024 * 1024
SENT = 30
"""Twice what is held, so that what a stream is to read next is gone."""

HELD_TO_A_SIZE = (
    f"mappedFileSizeCommitLog=1048576\nsnapshotLogBytes=1048576\nretentionBytes={HELD_BYTES}\n"
    "cleanResourceInterval=100\ncleanFileForciblyEnable=false\ndiskSpaceWarningLevelRatio=100\nstopForwardSec=0\n"
)
"""A log of three small segments, however full the disk of the tests is."""


@contextmanager
def forgetful(folder: Path) -> Iterator[Group]:
    """A group of one node that soon deletes what it stored."""
    with Group(folder, nodes=1, settings=HELD_TO_A_SIZE) as group:
        group.start()
        group.wait_listening()
        yield group


def held_bytes(group: Group) -> int:
    """How much log the node still has."""
    (answer,) = trio.run(ask_all, [group.nodes[0].address])
    return int(answer.table["commitLogMaxOffset"]) - int(answer.table["commitLogMinOffset"])


def send_plainly(group: Group, topic: str, numbers: range) -> None:
    """Send messages to queue 0 as a client may that never sends one again: of those with a unique key the log keeps the
    last minute, whatever its size."""

    async def send() -> None:
        host, _, port = group.nodes[0].address.rpartition(":")
        async with trio.open_nursery() as nursery:
            connection = await connect(Address(host, int(port)), nursery, timeout_s=PATIENCE_S)
            wire = Wire(connection)
            nursery.start_soon(wire.run)
            for number in numbers:
                body = b"%d" % number + b" " * BODY_BYTES
                while True:  # until the node leads
                    answer = await wire.ask(RequestCode.SEND_MESSAGE_V2, send_ext(topic), body)
                    if answer.code == ResponseCode.SUCCESS:
                        break
                    assert number == numbers[0], answer
                    await trio.sleep(0.05)
            connection.close("all is sent")
            nursery.cancel_scope.cancel()

    trio.run(send)


def test_a_stream_that_retention_overtakes_fails_or_goes_on_with_what_is_left(
    spark: Any, tmp_path: Path
) -> None:
    with forgetful(tmp_path / "group") as group:
        queue = MessageQueue("Short", group.group, 0)
        send_plainly(group, queue.topic, range(4))

        def run(**options: str) -> None:
            query = start(spark, group.namesrv, queue.topic, tmp_path, once=True, **options)
            assert query.awaitTermination(PATIENCE_S)

        run()
        assert bodies(committed_rows(tmp_path / "out")) == list(range(4))
        send_plainly(group, queue.topic, range(4, SENT))
        with PullConsumer(group.namesrv, "reader", timeout_s=PATIENCE_S) as reader:
            is_cut = poll(lambda: held_bytes(group) <= HELD_BYTES, PATIENCE_S, 0.3)
            assert is_cut, group.nodes[0].log_tail()
            begins = reader.min_offset(queue)
            assert 4 < begins < SENT, "some of what was to come next is gone, and some is left"
            with pytest.raises(Exception, match="Loss") as caught:
                run()
            told = f"{queue} begins at {begins}, 4 was next"
            assert told in reason_of(caught.value)
            assert bodies(committed_rows(tmp_path / "out")) == list(range(4)), (
                "nothing of the batch that failed"
            )

            run(failOnDataLoss="false")
            assert reader.min_offset(queue) == begins
        rows = committed_rows(tmp_path / "out")
        assert bodies(rows) == [*range(4), *range(begins, SENT)]
        assert sorted(row["queueOffset"] for row in rows) == bodies(rows)
        assert len(rows) == SENT - (begins - 4), "the rest is gone, and counted by its offsets"
