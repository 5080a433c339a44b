"""Reads at a node that does not lead: confirmed by a question that the leader got after they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.server.links.private_codes import NOT_CARRIED_OUT, READ_POINT_FIELD, PrivateCode
from broker.server.requests.read_points import CONFIRM_MS, NotConfirmed, ReadPoints
from dledger import NotLeaderError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command, make_request, make_response


class FakeLog:
    node_id = "n1"

    def __init__(self) -> None:
        self.reader = self
        self.is_serving = False
        self.expected = 0
        self.applied_index = 5

    def expect_applied(self, index: int) -> None:
        self.expected = index


class FakeLink:
    """Keeps the waiters of what is asked."""

    def __init__(self) -> None:
        self.is_open = self.has_room = True
        self.asked: list[Any] = []

    def ask(
        self, code: int, waiter: Any, *, ext: dict[str, str], body: bytes, timeout_ms: int
    ) -> bool:
        assert (code, ext, body, timeout_ms) == (PrivateCode.READ_POINT, {}, b"", CONFIRM_MS)
        if self.is_open and self.has_room:
            self.asked.append(waiter)
        return self.is_open and self.has_room


class FakeLinear:
    """Confirms nothing before it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Callable[[Any], None]]] = []

    def read(self, act: Callable[[], None], failed: Callable[[Any], None]) -> None:
        self.waiting.append((act, failed))


class Bench:
    def __init__(self, waiting_max: int = 10) -> None:
        self.now_ms = 0
        self.log, self.link, self.linear = FakeLog(), FakeLink(), FakeLinear()
        self.done: list[int] = []
        self.failed: list[str] = []
        self.had_leader: list[bool] = []
        self.points = ReadPoints(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            self.link,  # type: ignore[arg-type]  # the part of a link that is used here
            self.linear,  # type: ignore[arg-type]  # the part of it that is used here
            waiting_max=waiting_max,
            now_ms=lambda: self.now_ms,
        )

    def read(self, number: int) -> None:
        self.points.read(lambda: self.done.append(number), self.fail)

    def fail(self, why: NotConfirmed) -> None:
        self.failed.append(why.reason)
        self.had_leader.append(why.has_leader)

    def answer(self, question: int, index: int) -> None:
        """Answer a question as the leader does."""
        answer = make_response(1, 0, ext={READ_POINT_FIELD: str(index)})
        self.link.asked[question].answered(answer)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_reads_that_come_while_one_is_asked_for_need_a_question_of_their_own(bench: Bench) -> None:
    bench.read(1)
    bench.read(2)
    bench.read(3)
    assert len(bench.link.asked) == 1
    bench.answer(0, 5)
    assert bench.done == [1], "what was committed since the question is not in the answer to it"
    bench.answer(1, 5)
    assert bench.done == [1, 2, 3]


def test_a_read_waits_until_the_node_has_applied_as_much(bench: Bench) -> None:
    bench.read(1)
    bench.answer(0, 7)
    bench.log.applied_index = 6
    bench.points.applied()
    assert bench.done == []
    bench.log.applied_index = 7
    bench.points.applied()
    assert bench.done == [1]


def test_but_not_for_ever(bench: Bench) -> None:
    bench.read(1)
    bench.answer(0, 7)
    bench.points.expire(CONFIRM_MS - 1)
    assert bench.failed == []
    bench.points.expire(CONFIRM_MS)
    assert bench.failed == ["n1 has yet to apply entry 7"]
    bench.log.applied_index = 7
    bench.points.applied()
    assert bench.done == []


def test_without_a_link_it_fails_at_once(bench: Bench) -> None:
    bench.link.is_open = False
    bench.read(1)
    assert bench.failed == ["no leader can be asked"]


@pytest.mark.parametrize(
    "answer",
    [
        make_response(1, NOT_CARRIED_OUT, "this node does not lead"),
        make_response(1, 0, "this node does not lead", ext={READ_POINT_FIELD: "many"}),
        make_response(1, 3, "this node does not lead"),
    ],
)
def test_an_answer_without_a_point_confirms_nothing(bench: Bench, answer: RemotingCommand) -> None:
    bench.read(1)
    bench.link.asked[0].answered(answer)
    assert (bench.done, bench.failed) == ([], ["this node does not lead"])


def test_a_question_that_gets_lost_fails_its_reads_and_those_after_it_are_asked_for(
    bench: Bench,
) -> None:
    bench.read(1)
    bench.read(2)
    bench.link.asked[0].broken("the connection broke")
    assert bench.failed == ["the connection broke"]
    bench.answer(1, 5)
    assert bench.done == [2]


def test_nobody_waits_for_a_leader_of_the_past_whose_answer_counts_no_more(bench: Bench) -> None:
    bench.read(1)
    bench.points.role_changed()
    assert bench.failed == ["n1 has another leader, or another role"]
    bench.read(2)
    bench.answer(0, 5)
    assert bench.done == []
    bench.answer(1, 5)
    assert bench.done == [2]


def test_no_more_wait_than_may() -> None:
    bench = Bench(waiting_max=2)
    for number in (1, 2, 3):
        bench.read(number)
    assert bench.failed == ["2 reads wait for the leader already"]
    bench.answer(0, 5)
    bench.read(4)
    assert len(bench.failed) == 1


def test_reads_that_wait_at_the_leader_itself_are_bounded_as_well() -> None:
    bench = Bench(waiting_max=2)
    bench.log.is_serving = True
    for number in (1, 2, 3):
        bench.read(number)
    assert (len(bench.linear.waiting), bench.had_leader) == (2, [True])
    (act, _), (_, failed) = bench.linear.waiting
    act()
    failed(NotLeaderError("n2", 3))
    for number in (4, 5):
        bench.read(number)
    assert (len(bench.linear.waiting), len(bench.failed), bench.done) == (4, 2, [1])


def test_a_node_that_leads_confirms_itself(bench: Bench) -> None:
    bench.log.is_serving = True
    bench.read(1)
    bench.read(2)
    (act, _), (_, failed) = bench.linear.waiting
    act()
    failed(NotLeaderError("n2", 3))
    assert (bench.done, len(bench.failed), bench.link.asked) == ([1], 1, [])


def test_a_read_that_fails_says_whether_a_leader_was_there(bench: Bench) -> None:
    bench.read(1)
    bench.answer(0, 7)
    bench.points.expire(CONFIRM_MS)
    assert bench.had_leader == [True], "it has answered, and this node is behind"
    bench.read(2)
    bench.link.asked[1].broken("no answer")
    bench.read(3)
    bench.link.asked[2].answered(make_response(1, NOT_CARRIED_OUT, "this node does not lead"))
    bench.link.has_room = False
    bench.read(4)
    bench.link.is_open = False
    bench.read(5)
    assert bench.had_leader == [True, False, False, True, False]


def test_the_word_of_a_leader_is_told_before_it_is_applied(bench: Bench) -> None:
    told: list[int] = []
    bench.points.watch_answers(lambda: told.append(len(bench.done)))
    bench.read(1)
    bench.link.asked[0].answered(make_response(1, NOT_CARRIED_OUT, "this node does not lead"))
    assert told == []
    bench.read(2)
    bench.answer(1, 7)
    assert (told, bench.done) == ([0], [])


def test_somebody_can_be_asked_while_there_is_a_link_or_this_node_leads(bench: Bench) -> None:
    assert bench.points.can_ask
    bench.link.is_open = False
    assert not bench.points.can_ask
    bench.log.is_serving = True
    assert bench.points.can_ask


class FakeOrigin:
    def __init__(self) -> None:
        self.answers: list[RemotingCommand] = []

    def send(self, frame: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(frame)
        self.answers += map(decode_command, decoder.frames())


@pytest.mark.parametrize("ending", ["confirmed", "not confirmed", "no leader"])
def test_the_leader_names_a_point_only_when_it_is_confirmed(bench: Bench, ending: str) -> None:
    origin = FakeOrigin()
    bench.log.is_serving = ending != "no leader"
    request = make_request(PrivateCode.READ_POINT, 9)
    bench.points.answer_node(origin, request)  # type: ignore[arg-type]  # a fake
    if ending != "no leader":
        assert origin.answers == []
        ((act, failed),) = bench.linear.waiting
        bench.log.applied_index = 8
        if ending == "confirmed":
            act()
        else:
            failed(NotLeaderError("n2", 3))
    (answer,) = origin.answers
    assert answer.opaque == 9
    if ending == "confirmed":
        assert (answer.code, answer.ext) == (0, {READ_POINT_FIELD: "8"})
    else:
        assert answer.code == NOT_CARRIED_OUT
