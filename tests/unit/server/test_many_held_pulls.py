"""Many held pulls when a topic is deleted, or the role changes: turns are short, and each pull is judged in its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from broker.server.handlers.held_looks import AT_ONCE_MAX
from broker.server.handlers.pulls import READ_AT_ONCE_MAX
from broker.service.refusal import Refusal
from broker.store.control import DeleteTopic, PutTopic
from broker.store.topics import TopicConfig
from dledger_mq.remoting.codes import ResponseCode
from tests.unit.server.test_pulls_of_damaged_entries import Bench, Origin

HOLD_MS = 15_000
COUNT = AT_ONCE_MAX + 1
GONE = Refusal(ResponseCode.TOPIC_NOT_EXIST, "gone")


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.pulls.looks.run)
        nursery.start_soon(bench.pulls.turns.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def answered(origins: list[Origin]) -> int:
    return sum(bool(origin.frames) for origin in origins)


def codes(origins: list[Origin]) -> set[int]:
    return {answer.code for origin in origins for answer in origin.answers()}


@pytest.fixture
def bench() -> Bench:
    """A leader with two topics."""
    bench = Bench(held_max=COUNT)
    for topic in ("T", "other"):
        bench.broker.command(PutTopic(TopicConfig(topic, 4, 4)))
    bench.broker.send()
    bench.pulls.applied()
    return bench


async def test_those_of_a_deleted_topic_begin_anew_in_turns(bench: Bench) -> None:
    origins = [bench.pull(1, HOLD_MS) for _ in range(COUNT)]
    async with running(bench):
        bench.checks.refusal = GONE
        bench.broker.command(DeleteTopic("T"))
        bench.pulls.applied()
        assert answered(origins) == 0
        seen: list[int] = []
        bench.pulls.looks.answered = lambda: seen.append(answered(origins))
        await trio.testing.wait_all_tasks_blocked()
        assert (len(seen), seen[0] < COUNT) == (2, True)
        assert codes(origins) == {ResponseCode.TOPIC_NOT_EXIST}
        assert (answered(origins), bench.pulls.held_count) == (COUNT, 0)


async def test_those_of_other_topics_go_on_waiting(bench: Bench) -> None:
    origins = [bench.pull(1, HOLD_MS) for _ in range(COUNT)]
    async with running(bench):
        bench.checks.refusal = GONE  # whoever begins anew is told so
        bench.broker.command(DeleteTopic("other"))
        bench.pulls.applied()
        await trio.testing.wait_all_tasks_blocked()
    assert (answered(origins), bench.pulls.held_count) == (0, COUNT)


async def test_who_leads_no_more_when_a_pull_has_its_turn_does_not_judge_it(
    bench: Bench,
) -> None:
    """They wait above the end of their queue, which only a leader can tell from a place that is not here yet."""
    count = 2 * READ_AT_ONCE_MAX
    bench.log.is_serving = False
    bench.send_away()
    origins = [bench.pull(5, HOLD_MS) for _ in range(count)]
    assert bench.pulls.held_count == count
    async with running(bench):
        bench.log.is_serving = True
        bench.pulls.looks.answered = lambda: setattr(bench.log, "is_serving", False)
        for _ in range(2):
            bench.pulls.role_changed()
            await trio.testing.wait_all_tasks_blocked()
            assert answered(origins) == READ_AT_ONCE_MAX
        assert codes(origins) == {ResponseCode.PULL_OFFSET_MOVED}
        bench.pulls.looks.answered = lambda: None
        bench.log.is_serving = True
        bench.pulls.role_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert answered(origins) == count
