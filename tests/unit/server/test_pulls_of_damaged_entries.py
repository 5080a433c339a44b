"""Pulls that meet a damaged entry wait for it a little, are refused with its name then, and skip nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.server.handlers.followers import Followers
from broker.server.handlers.pull_advice import PullAdvice
from broker.server.handlers.pull_request import Pull
from broker.server.handlers.pulls import Pulls
from broker.server.requests.read_points import NotConfirmed
from broker.server.requests.request import HOLD_MS
from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from broker.store.reading import GetLimits
from dledger import NodeId
from dledger.runtime.lost_votes import LostVotes
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.requests import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullFields, PullRequest
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

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.frames.append(b"".join(pieces))

    def answers(self) -> list[RemotingCommand]:
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.frames))
        return [decode_command(frame) for frame in decoder.frames()]


class Rules:
    refusal: Refusal | None = None

    def check(self, fields: PullFields) -> PullGrant | Refusal:
        return self.refusal or PullGrant(None)


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

    def views(self, runs: Sequence[tuple[int, int]], end: Any) -> Sequence[memoryview] | None:
        return self._log.views(runs, end)

    def stretches(self, starts: Any, sizes: Any, end: Any) -> Any:
        return self._log.stretches(starts, sizes, end)

    def span_at(self, position: Any, size_bytes: int, *, only_memory: bool = False) -> Any:
        return self._log.span_at(position, size_bytes, only_memory=only_memory)


class Points:
    """Confirmations as `confirms` says; None lets them wait. A node that leads needs none."""

    confirms: bool | None = False
    has_leader = False

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], None], Callable[[NotConfirmed], None]]] = []
        self.leader_answers: Callable[[], None] = lambda: None

    def watch_answers(self, callback: Callable[[], None]) -> None:
        self.leader_answers = callback

    @property
    def can_ask(self) -> bool:
        return self.confirms is not False or self.has_leader

    def read(self, act: Callable[[], None], failed: Callable[[NotConfirmed], None]) -> None:
        self.asked.append((act, failed))
        if self.confirms:
            act()
        elif self.confirms is not None:
            failed(NotConfirmed("nobody confirms it", self.has_leader))


class Bench:
    """Pulls from the state of one broker; `n1` follows it, as far as it has reported."""

    log_type: type[Log] = Log

    def __init__(self, held_max: int = 10, *, memory_span_bytes: int = 8 << 30) -> None:
        self.broker = LoneBroker()
        self.now_ms = 0
        self.log = self.log_type(self.broker)
        self.points = Points()
        self.checks = Rules()
        self.followers = Followers({"n0": 1, "n1": 2, "n2": 3}.get, lambda: self.now_ms)
        self.committed: list[int] = []
        self.pulls = Pulls(
            self.log,  # type: ignore[arg-type]
            self.broker.state,
            None,  # type: ignore[arg-type]  # nothing is created here
            self.checks,  # type: ignore[arg-type]
            points=self.points,  # type: ignore[arg-type]  # confirms as the test says
            advice=PullAdvice(
                self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
                self.followers,
                own_id=1,
                limits=GetLimits(memory_span_bytes=memory_span_bytes),
                slave_reads=True,
                now_ms=lambda: self.now_ms,
            ),
            held_max=held_max,
            long_polling=True,
            now_ms=lambda: self.now_ms,
            commit_offset=lambda origin, fields: self.committed.append(fields.commit_offset),
        )

    def expire(self, now_ms: int) -> None:
        """Let this time come."""
        self.now_ms = now_ms
        self.pulls.expire(now_ms)

    def send_away(self) -> None:
        """Let a reader of the queue come back that this node, which nobody confirms, has sent to the leader."""
        origin = self.pull(0)
        self.expire(self.now_ms + HOLD_MS)
        (answer,) = origin.answers()
        assert answer.code == 19, answer.remark
        self.now_ms = 0

    def pull(
        self, offset: int, suspend_ms: int = 0, *, commit_offset: int = -1, count: int = 32
    ) -> Origin:
        fields = PullFields(
            consumer_group="G",
            topic="T",
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=(PULL_SUSPEND if suspend_ms else 0)
            | (PULL_COMMIT_OFFSET if commit_offset >= 0 else 0),
            commit_offset=max(0, commit_offset),
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
    bench.expire(1)
    assert origin.frames == []
    bench.broker.log.damaged.clear()
    bench.expire(2)
    assert bodies(origin) == [b"2"]
    bench.expire(3)
    assert len(origin.answers()) == 1


def test_it_is_refused_after_a_while_and_the_entry_is_named(bench: Bench) -> None:
    origin = bench.pull(1)
    bench.expire(HOLD_MS - 1)
    assert origin.frames == []
    bench.expire(HOLD_MS)
    (answer,) = origin.answers()
    assert (answer.code, answer.remark) == (14, "entry 3 is damaged on n0")


def test_a_pull_whose_client_went_is_dropped(bench: Bench) -> None:
    origin = bench.pull(1)
    origin.is_closed = True
    bench.broker.log.damaged.clear()
    bench.expire(1)
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
    bench.expire(5)
    bench.pulls.applied()
    assert applied.frames == expired.frames == []
    bench.broker.log.damaged.clear()
    bench.expire(6)
    assert bodies(applied) == bodies(expired) == [b"2"]
