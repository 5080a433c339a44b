"""What operators may have cleaned: 306, 316, 329."""

from __future__ import annotations

from typing import Any

import pytest

from broker.server.handlers.cleaning import TOPICS_MAX, Cleaning
from broker.service.catalog import Creation
from broker.store.control import DeleteTopic
from broker.store.topics import TopicConfig
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import pending
from tests.unit.store.lone_broker import HOST


class Bench:
    """A leader with messages in T, and in Gone, which does not exist."""

    def __init__(self) -> None:
        self.leader = LoneLeader()
        self.leader.send(b"kept")
        self.deliver("Gone")
        self.asked = 0
        self.held_up_by = ""
        leader: Any = self.leader
        self.cleaning = Cleaning(
            leader.commits,
            leader.router,
            leader.commits._catalog,
            lambda: leader.state.queues,
            ask_retention=self._ask,
        )

    def _ask(self) -> str:
        self.asked += 1
        return self.held_up_by

    def deliver(self, topic: str) -> None:
        """Store a message as late deliveries do, whether or not its topic exists."""
        staging = self.leader.commits.staging
        staging.stage(topic.encode(), 0, b"late", b"", born_timestamp_ms=1, born_host=HOST)  # type: ignore[arg-type] # a queue id
        self.leader.commit()

    def ask(self, code: RequestCode) -> Asker:
        asker = Asker()
        by_code = {handler.code: handler for handler in self.cleaning.handlers()}
        command = RemotingCommand(code=code, opaque=9, ext={}, version=409)
        by_code[code].serve(pending(asker, code), command)
        return asker

    @property
    def topics(self) -> set[str]:
        return {name for name in self.leader.state.queues.topics() if "_dledger_" not in name}


def answer_to(asker: Asker) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame)


def code_of(asker: Asker) -> int:
    return answer_to(asker).code


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_queues_of_topics_that_do_not_exist_go_and_no_others(bench: Bench) -> None:
    assert bench.topics == {"T", "Gone"}
    asker = bench.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert not asker.frames, "it is answered when it is done"
    bench.leader.commit()
    assert code_of(asker) == ResponseCode.SUCCESS
    assert bench.topics == {"T"}
    assert [message.body for message in bench.leader.stored()] == [b"kept"]


def test_a_topic_whose_creation_is_on_its_way_is_used(bench: Bench) -> None:
    bench.leader.commits.create(Creation(topics=(TopicConfig("Gone", 4, 4),)))
    asker = bench.ask(RequestCode.CLEAN_UNUSED_TOPIC)
    assert code_of(asker) == ResponseCode.SUCCESS
    bench.leader.commit()
    assert bench.topics == {"T", "Gone"}


def test_nothing_is_written_where_nothing_is_unused(bench: Bench) -> None:
    bench.leader.commits.stage_control(DeleteTopic("Gone"))
    bench.leader.commit()
    end = bench.leader.log.end_position
    assert code_of(bench.ask(RequestCode.CLEAN_UNUSED_TOPIC)) == ResponseCode.SUCCESS
    bench.leader.commit()
    assert bench.leader.log.end_position == end


def test_many_go_in_several_requests(bench: Bench) -> None:
    for n in range(TOPICS_MAX):
        bench.deliver(f"Gone{n}")
    for left in (2, 1):
        asker = bench.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        bench.leader.commit()
        assert code_of(asker) == ResponseCode.SUCCESS
        assert len(bench.topics) == left


def test_an_operator_may_ask_for_what_is_due(bench: Bench) -> None:
    assert code_of(bench.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)) == ResponseCode.SUCCESS
    assert bench.asked == 1


def test_an_operator_is_told_what_keeps_all_that_is_due(bench: Bench) -> None:
    bench.held_up_by = "the pin 'archive', at position 7"
    answer = answer_to(bench.ask(RequestCode.DELETE_EXPIRED_COMMITLOG))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        "nothing of what is due goes now; the reason: the pin 'archive', at position 7"
    )
    assert bench.asked == 1


def test_cleaning_of_queues_is_a_success(bench: Bench) -> None:
    assert code_of(bench.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)) == ResponseCode.SUCCESS
