"""Queries of consumer offsets at the leader: no commit that came before is overlooked, wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.handlers.offsets import Offsets
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import NoResets, ParkingRouter, pending

QUEUE = {"consumerGroup": "G", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"}

ENDS_AT = 5
"""Messages in the queue."""


class Bench:
    """A leader that holds its lease, but while `is_confirmed` is False."""

    def __init__(self) -> None:
        self.is_confirmed = True
        self.unconfirmed: list[Callable[[], None]] = []
        self.leader = LoneLeader()
        self.router = ParkingRouter(self.leader.commits, SimpleNamespace(read=self._read))
        self.offsets = Offsets(
            cast("Any", self.leader.log),
            self.leader.state,
            self.leader.commits,
            self.router,
            committers=cast(
                "Any", SimpleNamespace(who=lambda *_place, address, given_id: given_id)
            ),
            resets=cast("Any", NoResets()),
            now_ms=lambda: self.leader.now_ms,
        )
        for number in range(ENDS_AT):
            self.leader.send(b"%d" % number)
        self.leader.commit()

    def _read(self, act: Callable[[], None], _failed: Callable[..., None]) -> None:
        if self.is_confirmed:
            act()
        else:
            self.unconfirmed.append(act)

    def note(self, offset: int) -> None:
        """An offset that came with a pull."""
        self.offsets.note("G", "T", 0, offset, address="1.2.3.4:5", given_id="c")

    def tick(self) -> None:
        self.leader.now_ms += 1000
        self.offsets.tick(self.leader.now_ms)

    def query(self) -> Asker:
        asker = Asker()
        command = RemotingCommand(code=14, opaque=9, ext=QUEUE, version=409)
        self.offsets.query(pending(asker, 14), command)
        return asker


def answers_of(asker: Asker) -> list[tuple[int, str | None]]:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    answers = [decode_command(frame) for frame in decoder.frames()]
    return [(answer.code, answer.ext.get("offset")) for answer in answers]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_committed_is_told_at_once(bench: Bench) -> None:
    bench.note(5)
    bench.tick()
    bench.leader.commit()
    assert answers_of(bench.query()) == [(0, "5")]


def test_what_gathers_is_committed_first(bench: Bench) -> None:
    bench.note(5)
    asker = bench.query()
    assert answers_of(asker) == []
    bench.leader.commit()
    assert answers_of(asker) == [(0, "5")]


def test_what_is_staged_is_waited_for(bench: Bench) -> None:
    bench.note(5)
    bench.tick()
    asker = bench.query()
    assert answers_of(asker) == []
    bench.leader.commit()
    assert answers_of(asker) == [(0, "5")]


def test_what_is_on_its_way_is_waited_for(bench: Bench) -> None:
    bench.note(5)
    bench.tick()
    bench.leader.commits.flush()
    asker = bench.query()
    assert answers_of(asker) == []
    bench.leader.commit()
    assert answers_of(asker) == [(0, "5")]


def test_a_commit_of_an_earlier_proposal_does_not_say_who_leads_now(bench: Bench) -> None:
    bench.note(5)
    bench.tick()
    bench.leader.commits.flush()
    bench.is_confirmed = False
    asker = bench.query()
    bench.leader.commit()
    assert answers_of(asker) == []
    (act,) = bench.unconfirmed
    act()
    assert answers_of(asker) == [(0, "5")]


def test_a_query_whose_leader_is_gone_goes_to_the_next(bench: Bench) -> None:
    bench.note(5)
    bench.tick()
    bench.leader.commits.flush()
    asker = bench.query()
    bench.leader.log.lose()
    assert answers_of(asker) == []
    assert [request.command.code for request in bench.router.held] == [14]


def commit(bench: Bench, number: int, **more: str) -> Asker:
    ext = {"consumerGroup": f"G{number}", "topic": "T", "queueId": "0", "commitOffset": "1", **more}
    asker = Asker()
    command = RemotingCommand(code=15, opaque=9, ext=ext, version=409)
    bench.offsets.update(pending(asker, 15), command)
    return asker


def test_a_commit_beyond_the_end_is_refused_once_this_node_surely_leads(bench: Bench) -> None:
    assert answers_of(commit(bench, 1, commitOffset=str(ENDS_AT + 1))) == [(29, None)]
    assert answers_of(commit(bench, 1, queueId="1")) == [(29, None)], "nothing was ever sent there"
    bench.is_confirmed = False
    for offset in (ENDS_AT + 1, 2**63 - 1):
        asker = commit(bench, 1, commitOffset=str(offset))
        assert answers_of(asker) == []
        bench.unconfirmed.pop()()
        assert answers_of(asker) == [(29, None)]
    bench.tick()
    assert bench.leader.commits.is_idle


def test_a_leader_that_was_behind_takes_what_is_not_beyond_the_end_after_all(bench: Bench) -> None:
    bench.is_confirmed = False
    asker = commit(bench, 1, commitOffset=str(ENDS_AT + 1))
    bench.leader.send(b"what the consumer has read elsewhere")
    bench.leader.commit()
    bench.unconfirmed.pop()()
    bench.tick()
    bench.leader.commit()
    assert answers_of(asker) == [(0, None)]
    assert bench.leader.state.offsets.get("G1", "T", 0) == ENDS_AT + 1


def test_the_end_and_0_may_always_be_committed_and_a_pull_may_not_go_beyond(bench: Bench) -> None:
    taken = [
        commit(bench, 1, commitOffset=str(ENDS_AT)),
        commit(bench, 2, commitOffset="0", queueId="7"),
        commit(bench, 3, commitOffset="0", topic="nowhere"),
    ]
    bench.note(ENDS_AT + 1)
    bench.tick()
    bench.leader.commit()
    assert [answers_of(asker) for asker in taken] == [[(0, None)]] * 3
    offsets = bench.leader.state.offsets
    assert offsets.get("G1", "T", 0) == ENDS_AT
    assert offsets.get("G", "T", 0) is None


def test_commits_that_gather_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gathers is staged at the bound; when enough is staged, too, more are turned away."""
    monkeypatch.setattr("broker.server.handlers.offsets.PENDING_MAX", 3)
    commits = bench.leader.commits
    taken = [commit(bench, number) for number in range(4)]
    assert commits.staging.staged_count == 1
    monkeypatch.setattr(type(commits), "is_full", True)
    taken += [commit(bench, number) for number in range(4, 6)]
    refused = commit(bench, 6)
    assert answers_of(refused) == [(2, None)]
    bench.offsets.note("G7", "T", 0, 1, address="1.2.3.4:5")
    assert len(bench.offsets._pending) == 3
    assert commits.staging.staged_count == 1
    monkeypatch.undo()
    bench.tick()
    bench.leader.commit()
    assert [answers_of(asker) for asker in taken] == [[(0, None)]] * 6


def test_a_query_waits_when_the_commit_before_it_cannot_be_staged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.note(5)
    monkeypatch.setattr(type(bench.leader.commits), "is_full", True)
    asker = bench.query()
    assert not answers_of(asker)
    assert bench.leader.commits.is_idle
    assert bench.router.held


@pytest.mark.parametrize(
    "what", [{"queueId": "-1"}, {"consumerGroup": "g" * 256}, {"topic": "t" * 256}]
)
def test_what_cannot_be_kept_is_not_acknowledged(bench: Bench, what: dict[str, str]) -> None:
    assert answers_of(commit(bench, 1, **what)) == [(1, None)]
    bench.tick()
    assert bench.leader.commits.is_idle


def test_commits_in_several_records_after_a_full_entry_are_judged_by_their_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.service.offsets.COMMITS_PER_RECORD_MAX", 1)
    leader = bench.leader
    leader.send(b"first")
    monkeypatch.setattr(leader.commits, "_entry_bytes_max", 250)
    leader.send(b"second")
    taken = [commit(bench, number) for number in range(2)]
    bench.tick()
    leader.commit()
    leader.commit()
    assert [answers_of(asker) for asker in taken] == [[(0, None)]] * 2


READS = {29: {"timestamp": "0"}, 30: {}, 31: {}, 32: {}}


@pytest.mark.parametrize("code", READS)
def test_a_read_is_answered_once_this_node_is_confirmed(bench: Bench, code: int) -> None:
    bench.is_confirmed = False
    read = next(each.serve for each in bench.offsets.handlers() if each.code == code)
    asker = Asker()
    ext = {"topic": "T", "queueId": "0", **READS[code]}
    read(pending(asker, code), RemotingCommand(code=code, opaque=9, ext=ext, version=409))
    assert answers_of(asker) == []
    (act,) = bench.unconfirmed
    act()
    assert [answer[0] for answer in answers_of(asker)] == [0]


@pytest.mark.parametrize("code", READS)
def test_what_is_wrong_with_a_read_is_told_at_once(bench: Bench, code: int) -> None:
    bench.is_confirmed = False
    read = next(each.serve for each in bench.offsets.handlers() if each.code == code)
    with pytest.raises(FieldError):
        read(pending(Asker(), code), RemotingCommand(code=code, opaque=9, version=409))
    assert bench.unconfirmed == []
