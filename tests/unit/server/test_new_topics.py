"""Answers to sends that create a topic, and to those that come right after them."""

from __future__ import annotations

from collections.abc import Callable

from broker.server.handlers.new_topics import AGE_MAX_MS, NewTopics
from broker.service.catalog import Creation
from broker.service.send import SendPlan
from broker.store.topics import TopicConfig
from dledger_mq.message.numbers import QueueId
from tests.unit.server.pending import pending


def plan(topic: str, *, creates: bool = False) -> SendPlan:
    creation = Creation(topics=(TopicConfig(topic, 4, 4),) if creates else ())
    return SendPlan(topic, QueueId(0), 0, 0, 0, (), creation)


class Answers:
    def __init__(self) -> None:
        self.given: list[tuple[str, int]] = []
        self.age_ms = 0
        self.waiting: list[Callable[[], None]] = []
        self.topics = NewTopics(self.waiting.append, lambda _: self.age_ms)

    def commit(self, which: SendPlan, place: int) -> None:
        """A send that is staged and committed."""
        self.topics.note(which)
        self.topics.answer(
            pending(None, 310), which.topic, lambda: self.given.append((which.topic, place))
        )


def test_the_first_send_and_those_beside_it_wait_for_the_route() -> None:
    answers = Answers()
    answers.commit(plan("New", creates=True), 1)
    answers.commit(plan("New"), 2)
    answers.commit(plan("Old"), 3)
    assert answers.given == [("Old", 3)]
    answers.waiting.pop(0)()
    assert answers.given == [("Old", 3), ("New", 1)]
    answers.commit(plan("New"), 4)
    assert answers.given[-1] == ("New", 4), "from now on it is known"
    answers.waiting.pop(0)()
    assert answers.given[-1] == ("New", 2)
    assert not answers.waiting


def test_a_group_alone_is_not_waited_for() -> None:
    answers = Answers()
    answers.commit(plan("Old"), 1)
    assert answers.given == [("Old", 1)]


def test_a_lost_leadership_ends_the_waiting_of_others() -> None:
    answers = Answers()
    answers.topics.note(plan("New", creates=True))
    answers.topics.forget()
    answers.commit(plan("New"), 1)
    assert answers.given == [("New", 1)]


def test_a_send_whose_client_will_not_wait_much_longer_is_answered_at_once() -> None:
    answers = Answers()
    answers.age_ms = AGE_MAX_MS + 1
    answers.commit(plan("New", creates=True), 1)
    assert answers.given == [("New", 1)]
    answers.age_ms = AGE_MAX_MS
    answers.commit(plan("New"), 2)
    assert answers.given == [("New", 1)]
    answers.waiting.pop()()
    assert answers.given[-1] == ("New", 2)
