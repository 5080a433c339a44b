"""What a driver learns of brokers: an outage is not the end of a topic, and what is wrong is told in time."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
import trio

from dledger_mq.client.queues import MessageQueue
from dledger_mq.testing import FakeGroup, open_fake_group
from pipeline import broker_view
from pipeline.broker_view import BrokerView
from pipeline.errors import DataLossError, InconclusiveError, PipelineUsageError
from pipeline.offsets import Bounds
from pipeline.planning import StreamOffsets
from pipeline.source_options import SourceOptions, read_source_options

Q0 = MessageQueue("T", "broker-a", 0)
START = {"T": {"broker-a": {"0": 1}}}
TOLD_WITHIN_S = 10.0

_T = TypeVar("_T")


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group(nodes=1, queues=1) as fake:
        fake.create_topic("T")
        fake.put("T", 0, b"1")
        yield fake


@pytest.fixture
def short_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        broker_view, "TRY_S", 2.0
    )  # a name server that is only slow must not be taken for one away
    monkeypatch.setattr(broker_view, "TOPICS_FOLLOW_S", 0.01)


def options(server: str, **more: object) -> SourceOptions:
    given: dict[str, object] = {"nameServer": server, "fetchOffset.retryIntervalMs": 1}
    given |= {"fetchOffset.numRetries": 1}
    given |= {"topic": "T"} if "topicPattern" not in more else {}
    return read_source_options({n: str(v) for n, v in (given | more).items()}, "stream")


async def asked(ask: Callable[[], _T]) -> _T:
    return await trio.to_thread.run_sync(ask)


@pytest.mark.parametrize("subject", [{"topic": "T"}, {"topicPattern": "T.*"}])
async def test_a_stream_whose_group_is_away_says_so_and_goes_on_when_it_is_back(
    group: FakeGroup, short_tries: None, subject: dict[str, str]
) -> None:
    view = BrokerView(options(group.namesrv, **subject))
    stream = StreamOffsets(options(group.namesrv, **subject), view)
    assert await asked(lambda: stream.latest(START, None)) == START
    await group.kill(group.nodes[0])
    with pytest.raises(InconclusiveError, match="no leader of any group"):
        await asked(lambda: stream.latest(START, None))
    with pytest.raises(InconclusiveError, match="no leader of any group"):
        await asked(StreamOffsets(options(group.namesrv, **subject), view).initial)
    await group.restart(group.nodes[0])
    group.elect(group.nodes[0])
    assert await asked(lambda: stream.latest(START, None)) == START
    await asked(view.close)


async def test_only_a_group_with_a_leader_can_have_lost_a_topic(
    group: FakeGroup, short_tries: None
) -> None:
    view = BrokerView(options(group.namesrv))
    stream = StreamOffsets(options(group.namesrv), view)
    elsewhere = {"T": START["T"] | {"broker-b": {"0": 7}}}
    with pytest.raises(InconclusiveError, match="no leader of group broker-b"):
        await asked(lambda: stream.latest(elsewhere, None))
    tolerant = StreamOffsets(options(group.namesrv, failOnDataLoss="false"), view)
    assert await asked(lambda: tolerant.latest(elsewhere, None)) == elsewhere
    del group.log.queues["T"]
    await asked(view.close)
    with pytest.raises(DataLossError, match="T@broker-a/0 is gone, 1 was next"):
        await asked(lambda: stream.latest(START, None))
    await asked(view.close)


async def test_a_route_that_comes_a_moment_after_its_leader_is_waited_for(
    group: FakeGroup, short_tries: None
) -> None:
    view = BrokerView(options(group.namesrv))
    assert await asked(lambda: view.look_for([Q0])) == {Q0: Bounds(0, 1)}
    gone = MessageQueue("T", "broker-a", 5)
    assert await asked(lambda: view.look_for([Q0, gone])) == {Q0: Bounds(0, 1)}
    await asked(view.close)


async def test_a_missing_topic_is_told_within_ten_seconds(group: FakeGroup) -> None:
    view = BrokerView(read_source_options({"nameServer": group.namesrv, "topic": "U"}, "stream"))
    began = time.monotonic()
    with pytest.raises(PipelineUsageError) as caught:
        await asked(view.bounds)
    assert time.monotonic() - began < TOLD_WITHIN_S
    assert str(caught.value) == (
        f"topic U does not exist (name server {group.namesrv} knows no route)"
    )


def test_a_dead_name_server_is_told_within_ten_seconds_also_by_a_pickled_view() -> None:
    dead = {"nameServer": "127.0.0.1:1", "topic": "T", "fetchOffset.numRetries": "0"}
    view: BrokerView = pickle.loads(pickle.dumps(BrokerView(read_source_options(dead, "stream"))))
    began = time.monotonic()
    with pytest.raises(InconclusiveError) as caught:
        view.bounds()
    assert time.monotonic() - began < TOLD_WITHIN_S
    told = "topic T cannot be asked about: no name server answers: "
    assert str(caught.value).startswith(told)
    assert "127.0.0.1:1" in str(caught.value)


def test_a_try_that_failed_is_told_before_the_next_one(
    short_tries: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(InconclusiveError):
        BrokerView(options("127.0.0.1:1", **{"fetchOffset.numRetries": 1})).bounds()
    told = "nobody answers about topic T, asking again in 0.001 s (try 2 of 2): no name server"
    assert [told in record.getMessage() for record in caplog.records].count(True) == 1
