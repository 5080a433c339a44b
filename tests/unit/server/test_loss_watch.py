"""What a leader concludes from the furthest place that a name server remembers of its group."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from broker.server.watches.loss_watch import Loss, LossWatch, find_loss
from dledger import AckTimeoutError, Index, LogServer, NotLeaderError, Term
from dledger.runtime.group_check import EntryFingerprint
from dledger_mq.remoting.log_point import LogPoint

FURTHEST = LogPoint(10, 3, 77)


@pytest.mark.parametrize(
    ("confirmed_index", "chain_crc", "loss"),
    [
        (9, None, Loss(10, 10)),
        (4, None, Loss(5, 10)),
        (10, 77, None),
        (50, 77, None),
        (10, 78, Loss(10, 10)),
        (50, 78, Loss(10, 10)),
        (50, None, None),
    ],
)
def test_a_loss_is_a_log_that_ends_before_or_has_another_entry(
    confirmed_index: int, chain_crc: int | None, loss: Loss | None
) -> None:
    found = find_loss(
        FURTHEST, restoration="", confirmed_index=confirmed_index, chain_crc=chain_crc
    )
    assert found == loss


@pytest.mark.parametrize(("told", "own"), [("", "x"), ("x", ""), ("x", "y")])
def test_incarnations_are_not_compared(told: str, own: str) -> None:
    furthest = LogPoint(10, 3, 77, told)
    assert find_loss(furthest, restoration=own, confirmed_index=4, chain_crc=None) is None
    assert find_loss(furthest, restoration=own, confirmed_index=20, chain_crc=1) is None
    assert find_loss(furthest, restoration=told, confirmed_index=4, chain_crc=None)


class FakeLog:
    """A member whose log has the entries up to `commit_index`, kept from `first_index` on."""

    node_id = "n0"
    config = SimpleNamespace(group="broker-a")

    def __init__(self, commit_index: int = 4) -> None:
        self.reader = self.status = self
        self.commit_index = Index(commit_index)
        self.first_index = 1
        self.term = Term(4)
        self.restoration = ""
        self.is_serving = True
        self.chain_crc = 77
        self.refusal: Exception | None = None
        self.barrier_count = 0
        self.shown: dict[str, str] = {}
        self.may_confirm = trio.Event()
        self.may_confirm.set()

    async def barrier(self, *, timeout_s: float) -> Index:
        self.barrier_count += 1
        with trio.fail_after(timeout_s):
            await self.may_confirm.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.commit_index

    def committed_fingerprint(self, index: Index) -> EntryFingerprint | None:
        is_there = self.first_index <= index <= self.commit_index
        return EntryFingerprint(Term(3), self.chain_crc) if is_there else None

    def show(self, name: str, value: str) -> None:
        self.shown[name] = value


def watch(log: FakeLog) -> LossWatch:
    return LossWatch(cast("LogServer", log))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if each.startswith("group-went-back")]


async def test_a_leader_tells_once_for_each_term(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog()
    went_back = watch(log)
    assert went_back.notice == ""
    await went_back.judge(FURTHEST)
    await went_back.judge(FURTHEST)
    (line,) = lines(caplog)
    assert caplog.records[-1].levelno == logging.ERROR
    for part in ("node=n0", "was_index=10", "was_term=3", "index=4", "term=4", "lost=5..10"):
        assert part in line.split(), part
    assert "docs/restoring.md" in line
    assert "lost at least 5..10" in went_back.notice
    assert log.shown == {"went_back": went_back.notice}
    log.term = Term(5)
    await went_back.judge(FURTHEST)
    assert len(lines(caplog)) == 2


async def test_a_follower_that_lags_judges_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog()
    log.is_serving = False
    await watch(log).judge(FURTHEST)
    assert (log.barrier_count, lines(caplog)) == (0, [])


@pytest.mark.parametrize("refusal", [NotLeaderError(None, 5), AckTimeoutError("no majority")])
async def test_a_stale_leader_judges_nothing(
    refusal: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    log = FakeLog()
    log.refusal = refusal
    went_back = watch(log)
    await went_back.judge(FURTHEST)
    assert (went_back.notice, lines(caplog)) == ("", [])
    log.refusal = None
    await went_back.judge(FURTHEST)
    assert lines(caplog), "the next registration asks again"


async def test_the_log_is_looked_at_after_the_lead_is_confirmed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A registration that was written early, and answered after others told more."""
    log = FakeLog()
    log.may_confirm = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch(log).judge, FURTHEST)
        await trio.testing.wait_all_tasks_blocked()
        log.commit_index = Index(12)
        log.may_confirm.set()
    assert lines(caplog) == []


async def test_one_question_at_a_time() -> None:
    log = FakeLog()
    log.may_confirm = trio.Event()
    went_back = watch(log)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(went_back.judge, FURTHEST)
        await trio.testing.wait_all_tasks_blocked()
        await went_back.judge(FURTHEST)
        assert log.barrier_count == 1
        log.may_confirm.set()


async def test_the_same_index_but_another_log(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog(commit_index=30)
    log.chain_crc = 78
    await watch(log).judge(FURTHEST)
    assert "lost=10..10" in lines(caplog)[0]
    log.first_index = 11
    await watch(log).judge(FURTHEST)
    assert len(lines(caplog)) == 1, "nobody can tell what is not kept"


def test_a_node_tells_what_it_knows_to_be_committed() -> None:
    log = FakeLog()
    log.restoration = "evening"
    assert watch(log).own_point() == LogPoint(4, 3, 77, "evening")
    log.commit_index = Index(0)
    assert watch(log).own_point() is None, "nothing is known yet after a start"


def test_a_log_without_records_names_no_group() -> None:
    log = FakeLog()
    has_records = False
    went_back = LossWatch(cast("LogServer", log), lambda: has_records)
    assert went_back.own_point() is None
    has_records = True
    assert went_back.own_point() == LogPoint(4, 3, 77)
