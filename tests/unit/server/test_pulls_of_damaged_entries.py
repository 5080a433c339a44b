"""Pulls that meet a damaged entry wait for it a little, are refused with its name then, and skip nothing."""

from __future__ import annotations

from typing import Any

import pytest

from broker.server.handlers.pulls import Pull, Pulls
from broker.server.requests.request import HOLD_MS
from broker.service.pull import PullGrant
from dledger import NodeId
from dledger.runtime.lost_votes import LostVotes
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.requests import PULL_SUSPEND, PullFields, PullRequest
from tests.unit.server.pending import pending
from tests.unit.store.lone_broker import LoneBroker


class Origin:
    number = 1
    address = "1.2.3.4:5"
    is_forwarded = False
    is_closed = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def answers(self) -> list[RemotingCommand]:
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.frames))
        return [decode_command(frame) for frame in decoder.frames()]


class Rules:
    def check(self, fields: PullFields) -> PullGrant:
        return PullGrant(None)


class Log:
    """The part of a `LogServer` that pulls use."""

    is_serving = True
    node_id = "n0"

    def __init__(self, broker: LoneBroker) -> None:
        self.reader = self
        self._log = broker.log
        own = NodeId(self.node_id)
        self.lost_votes = LostVotes(own, (own,), has_vote=lambda: True, has_begun=lambda: True)

    @property
    def committed_position(self) -> int:
        return self._log.end_position

    @property
    def is_current(self) -> bool:
        return self.is_serving

    def entry_at(self, position: Any) -> Any:
        return self._log.entry_at(position)


class Bench:
    def __init__(self, held_max: int = 10) -> None:
        self.broker = LoneBroker()
        self.now_ms = 0
        self.log = Log(self.broker)
        self.pulls = Pulls(
            self.log,  # type: ignore[arg-type]
            self.broker.state,
            None,  # type: ignore[arg-type]  # nothing is created here
            Rules(),  # type: ignore[arg-type]
            held_max=held_max,
            long_polling=True,
            now_ms=lambda: self.now_ms,
            commit_offset=lambda origin, fields: None,
        )

    def pull(self, offset: int, suspend_ms: int = 0) -> Origin:
        fields = PullFields(
            consumer_group="G",
            topic="T",
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUSPEND if suspend_ms else 0,
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
        )
        origin = Origin()
        command = PullRequest(opaque=1, fields=fields)
        request = pending(
            origin,
            11,
            command=command,
            opaque=1,
            deadline_ms=self.now_ms + HOLD_MS,
            request_type=Pull,
        )
        self.pulls.pull(request, command)
        return origin


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    for body in (b"1", b"2"):
        bench.broker.send(body=body)
    bench.broker.log.damaged = {bench.broker.log.entries[-1].index}
    return bench


def bodies(origin: Origin) -> list[bytes]:
    (answer,) = origin.answers()
    assert answer.code == 0, answer.remark
    return [message.body for message in decode_records(answer.body)]


def test_it_is_answered_when_the_entry_is_back(bench: Bench) -> None:
    assert bodies(bench.pull(0)) == [b"1"], "what is whole is given"
    origin = bench.pull(1)
    bench.pulls.expire(1)
    assert origin.frames == []
    bench.broker.log.damaged.clear()
    bench.pulls.expire(2)
    assert bodies(origin) == [b"2"]
    bench.pulls.expire(3)
    assert len(origin.answers()) == 1


def test_it_is_refused_after_a_while_and_the_entry_is_named(bench: Bench) -> None:
    origin = bench.pull(1)
    bench.pulls.expire(HOLD_MS - 1)
    assert origin.frames == []
    bench.pulls.expire(HOLD_MS)
    (answer,) = origin.answers()
    assert (answer.code, answer.remark) == (14, "entry 3 is damaged on n0")


def test_a_pull_whose_client_went_is_dropped(bench: Bench) -> None:
    origin = bench.pull(1)
    origin.is_closed = True
    bench.broker.log.damaged.clear()
    bench.pulls.expire(1)
    assert origin.frames == []


def test_too_many_are_refused_at_once() -> None:
    bench = Bench(held_max=0)
    bench.broker.send(body=b"1")
    bench.broker.log.damaged = {bench.broker.log.entries[-1].index}
    (answer,) = bench.pull(0).answers()
    assert answer.code == 14


def test_a_held_pull_that_finds_a_damaged_entry_waits_for_it_too() -> None:
    bench = Bench()
    bench.broker.send(body=b"1")
    applied, expired = bench.pull(1, suspend_ms=10_000), bench.pull(1, suspend_ms=5)
    assert applied.frames == expired.frames == []
    bench.broker.send(body=b"2")
    bench.broker.log.damaged = {bench.broker.log.entries[-1].index}
    bench.pulls.expire(5)
    bench.pulls.applied()
    assert applied.frames == expired.frames == []
    bench.broker.log.damaged.clear()
    bench.pulls.expire(6)
    assert bodies(applied) == bodies(expired) == [b"2"]
