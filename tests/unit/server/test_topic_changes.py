"""Changes of one topic that come at once: each is computed from what the one before has made of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.server.handlers import admin
from broker.server.handlers.admin import AdminHandlers
from broker.server.requests.request import PendingRequest
from broker.store.topics import TopicConfig
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import ParkingRouter, pending

CREATE, DELETE = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER


class LeadersRouter(ParkingRouter):
    """Carries out what comes while the node leads, and parks the rest."""

    leads = True

    def route(self, request: PendingRequest) -> None:
        if self.leads:
            self.carry_out(request)
        else:
            self.park(request)


class Bench:
    """A leader with the topic T; what is asked is answered by `commit`."""

    def __init__(self) -> None:
        self.leader = LoneLeader()
        self.router = LeadersRouter(self.leader.commits)
        unused = cast("Any", None)
        handlers = AdminHandlers(
            cast("Any", self.leader.log),
            self.leader.state,
            self.leader.commits,
            self.router,
            members=unused,
            broker_name="broker-a",
            runtime=unused,
            made=unused,
            when_routed=lambda then: then(),
        ).handlers()
        self._by_code = {handler.code: handler for handler in handlers}

    def ask(self, code: int, topic: str = "T", **ext: str) -> Asker:
        asker = Asker()
        command = RemotingCommand(code=code, opaque=9, ext={"topic": topic, **ext}, version=409)
        serve = cast("Any", self._by_code[code].serve)
        request = pending(asker, code, command=command, serve=serve)
        self.router.carry_out(request)
        return asker

    def put(self, attributes: str, topic: str = "T", queues: int = 4) -> Asker:
        counts = {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
        return self.ask(CREATE, topic, perm="6", attributes=attributes, **counts)

    def topic(self, name: str = "T") -> TopicConfig:
        topic = self.leader.state.topics.get(name)
        assert topic is not None
        return topic


def code_of(asker: Asker) -> int:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame).code


def test_attributes_set_at_once_are_all_there() -> None:
    bench = Bench()
    askers = [
        bench.put("+reserve.time=24"),
        bench.put("+message.type=FIFO"),
        bench.put("", queues=8),
        bench.put("-reserve.time"),
        bench.put("+cleanup.policy=DELETE", queues=8),
    ]
    bench.leader.commit()
    assert [code_of(each) for each in askers] == [ResponseCode.SUCCESS] * 5
    assert bench.topic().attributes == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    assert bench.topic().write_queue_count == 8


def test_a_topic_that_is_being_deleted_leaves_no_attributes_to_the_next_one() -> None:
    bench = Bench()
    bench.put("+reserve.time=24")
    bench.leader.commit()
    askers = [bench.ask(DELETE), bench.put("+message.type=FIFO"), bench.ask(DELETE), bench.put("")]
    bench.leader.commit()
    assert [code_of(each) for each in askers] == [ResponseCode.SUCCESS] * 4
    assert bench.topic().attributes == {}


def test_topics_do_not_wait_for_each_other() -> None:
    bench = Bench()
    bench.put("+reserve.time=24")
    bench.put("+message.type=FIFO", "U")
    bench.leader.commits.flush()
    bench.leader.log.commit()
    assert bench.topic().attributes == {"reserve.time": "24"}
    assert bench.topic("U").attributes == {"message.type": "FIFO"}


def test_a_lost_change_gives_the_next_ones_to_the_next_leader() -> None:
    bench = Bench()
    first = bench.put("+reserve.time=24")
    second = bench.put("+message.type=FIFO")
    bench.leader.commits.flush()
    bench.router.leads = False
    bench.leader.log.lose()
    assert code_of(first) == ResponseCode.SYSTEM_ERROR
    assert not second.frames
    (waiting,) = bench.router.held
    assert cast("Any", waiting.origin) is second


def test_a_change_that_is_refused_holds_up_nobody() -> None:
    bench = Bench()
    wrong = bench.put("+no.such.key=1")
    right = bench.put("+reserve.time=24")
    bench.leader.commit()
    assert code_of(wrong) == ResponseCode.SYSTEM_ERROR
    assert code_of(right) == ResponseCode.SUCCESS


def test_a_wrong_change_that_has_waited_is_answered() -> None:
    bench = Bench()
    bench.put("+reserve.time=24")
    wrong = bench.put("+no.such.key=1")
    bench.leader.commit()
    assert code_of(wrong) == ResponseCode.SYSTEM_ERROR
    assert bench.topic().attributes == {"reserve.time": "24"}


def test_changes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_CHANGES_WAITING_MAX", 2)
    bench = Bench()
    askers = [bench.put("+reserve.time=24") for _ in range(4)]
    assert [len(each.frames) for each in askers] == [0, 0, 0, 1]
    assert code_of(askers[3]) == ResponseCode.SYSTEM_BUSY
    bench.leader.commit()
    assert [code_of(each) for each in askers[:3]] == [ResponseCode.SUCCESS] * 3
