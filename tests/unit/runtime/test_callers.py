"""Callers of the log: who waits for which outcome, and when it comes."""

from __future__ import annotations

import trio
import trio.testing

from dledger.errors import LeadershipLostError, ShutdownError
from dledger.raft.effects import Committed, Failed, ReadAt
from dledger.raft.ids import EntryId, Index, Term
from dledger.runtime.callers import Callers


def committed(first: int, last: int) -> Committed:
    return Committed(EntryId(Term(2), Index(first)), EntryId(Term(2), Index(last)))


class Heard:
    """Collects what callbacks are told."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def __call__(self, outcome: object) -> None:
        self.outcomes.append(outcome)


def test_done_comes_when_the_entry_is_applied_and_in_log_order() -> None:
    callers, heard = Callers(), Heard()
    tokens = [callers.add_proposal(heard) for _ in range(3)]
    assert callers.pending_count == 3
    callers.answer([(tokens[0], committed(5, 5)), (tokens[1], committed(6, 6))], Index(4))
    assert heard.outcomes == []
    assert callers.pending_count == 1
    callers.answer([(tokens[2], committed(7, 7))], Index(6))
    assert heard.outcomes == [committed(5, 5), committed(6, 6)]
    callers.answer([], Index(7))
    assert heard.outcomes[-1] == committed(7, 7)


def test_staged_bodies_share_a_proposal_and_each_gets_its_own_entry() -> None:
    callers, first, second = Callers(), Heard(), Heard()
    callers.stage(b"one", first)
    callers.stage(b"two", second)
    token, bodies = callers.take_staged()
    assert bodies == (b"one", b"two")
    assert not callers.has_staged
    callers.answer([(token, committed(8, 9))], Index(9))
    assert first.outcomes == [committed(8, 8)]
    assert second.outcomes == [committed(9, 9)]
    assert callers.pending_count == 0


def test_a_failure_reaches_everybody_once() -> None:
    callers, heard = Callers(), [Heard() for _ in range(4)]
    callers.stage(b"staged", heard[0])
    token = callers.add_proposal(heard[1])
    callers.add(heard[2])
    waiting = callers.add_proposal(heard[3])
    callers.answer([(waiting, committed(5, 5))], Index(4))
    lost = Failed(LeadershipLostError("lost"))
    callers.answer([(token, lost)], Index(4))
    assert heard[1].outcomes == [lost]
    callers.fail_all(ShutdownError("stopped"))
    callers.fail_all(ShutdownError("stopped"))
    for each in (heard[0], heard[2], heard[3]):
        assert [type(outcome) for outcome in each.outcomes] == [Failed]
    assert heard[1].outcomes == [lost]
    assert callers.pending_count == 0


def test_an_outcome_that_came_early_is_kept() -> None:
    callers, heard = Callers(), Heard()
    token = callers.add(heard)
    callers.keep_early(token, ReadAt(Index(3)))
    assert heard.outcomes == []
    callers.answer([], Index(0))
    assert heard.outcomes == [ReadAt(Index(3))]


async def test_waiting_for_applied_ends_with_the_node() -> None:
    callers = Callers()
    woken: list[int] = []

    async def wait(index: int) -> None:
        await callers.wait_applied(Index(index))
        woken.append(index)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for index in (7, 3, 5):
                nursery.start_soon(wait, index)
            await trio.testing.wait_all_tasks_blocked()
            callers.wake_applied(Index(5))
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(woken) == [3, 5]
            callers.fail_all(ShutdownError("stopped"))
    assert sorted(woken) == [3, 5, 7]
