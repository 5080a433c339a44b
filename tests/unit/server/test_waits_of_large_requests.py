"""Pulls and pops that keep much while they wait share a room; for what has none there it is as if too many waited."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.server.handlers.pops import Pop
from broker.server.handlers.pull_request import Pull
from broker.server.requests.disk_waits import DiskWaits
from broker.server.requests.request import HOLD_MS
from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from broker.service.wait_room import FREE_BYTES, ROOM_BYTES
from broker.store.not_in_memory import FilesNotLoadedError
from dledger_mq.filters import compile_filter
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.requests import PullFields
from tests.unit.server import test_pops
from tests.unit.server.pending import pending
from tests.unit.server.test_pulls_of_damaged_entries import Bench, Origin

WAIT_MS = 15_000
MUCH = ROOM_BYTES // 2 + 1


def codes(origin: Origin) -> list[int]:
    return [answer.code for answer in origin.answers()]


def test_what_a_request_keeps() -> None:
    usual = pending(Origin(), 10, body=b"x" * 100, command=RemotingCommand(code=10, opaque=1))
    assert 100 < usual.kept_bytes < FREE_BYTES
    large = pending(Origin(), 10, body=b"x" * FREE_BYTES)
    assert large.kept_bytes > FREE_BYTES
    fields = {f"f{number}": "" for number in range(1000)}
    wide = pending(Origin(), 10, command=RemotingCommand(code=10, opaque=1, ext=fields))
    assert wide.kept_bytes > 50_000
    wide.frame = Frame(0, b"x" * FREE_BYTES, b"")
    assert wide.kept_bytes > 50_000 + 2 * FREE_BYTES


def test_what_pulls_share() -> None:
    pull = pending(Origin(), 11, request_type=Pull)
    assert pull.shared is None
    assert isinstance(pull, Pull)
    pull.tags = frozenset(range(1000))
    assert pull.shared == (pull.tags, 80_000)
    pull.property_filter = compile_filter("a = 1")
    assert pull.shared == (pull.property_filter, 320)


def test_pulls_that_keep_much_are_held_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pull, "kept_bytes", MUCH)
    bench = Bench()
    bench.broker.send(body=b"1")
    first, second = bench.pull(1, WAIT_MS), bench.pull(1, WAIT_MS)
    assert (codes(first), codes(second)) == ([], [ResponseCode.PULL_NOT_FOUND])
    bench.expire(WAIT_MS)
    assert codes(first) == [ResponseCode.PULL_NOT_FOUND]
    third = bench.pull(1, WAIT_MS)
    assert codes(third) == []
    bench.pulls.connection_closed(1)
    assert codes(bench.pull(1, WAIT_MS)) == []


class LargeFilters:
    """Each check gives a set of its own, as for expressions that are not remembered."""

    def __init__(self, count: int) -> None:
        self._count = count

    def check(self, _fields: PullFields) -> PullGrant | Refusal:
        return PullGrant(frozenset(range(self._count)))


def test_a_set_of_tags_counts_though_its_pull_is_small() -> None:
    bench = Bench()
    bench.broker.send(body=b"1")
    bench.pulls._rules = LargeFilters(ROOM_BYTES // 80 // 2 + 1)  # type: ignore[assignment]
    first, second = bench.pull(1, WAIT_MS), bench.pull(1, WAIT_MS)
    assert (codes(first), codes(second)) == ([], [ResponseCode.PULL_NOT_FOUND])


def test_pulls_that_wait_for_their_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pull, "kept_bytes", MUCH)
    bench = Bench()
    bench.broker.send(body=b"1")
    bench.log.is_serving, bench.points.confirms, bench.points.has_leader = False, None, True
    first, second = bench.pull(0), bench.pull(0)
    assert codes(first) == []
    assert codes(second) != []  # it is sent to the leader
    act, _ = bench.points.asked.pop()
    act()
    assert codes(first) == [ResponseCode.SUCCESS]
    assert codes(bench.pull(0)) == []


def test_pulls_that_are_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pull, "kept_bytes", MUCH)
    bench = Bench()
    bench.broker.send(body=b"1")
    bench.broker.log.damaged = {bench.broker.log.entries[-1].index}
    first, second = bench.pull(0), bench.pull(0)
    assert (codes(first), codes(second)) == ([], [ResponseCode.SERVICE_NOT_AVAILABLE])
    bench.expire(1)
    assert codes(first) == []
    bench.broker.log.damaged.clear()
    bench.expire(2)
    assert codes(first) == [ResponseCode.SUCCESS]
    bench.broker.log.damaged = {bench.broker.log.entries[-1].index}
    assert codes(bench.pull(0)) == []


def test_pops_that_keep_much_are_held_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pop, "kept_bytes", MUCH)
    bench = test_pops.Bench()
    first, second = bench.pop(pollTime="15000"), bench.pop(pollTime="15000")
    assert first.frames == []
    assert second.code == ResponseCode.POLLING_FULL
    bench.send(b"m")
    assert first.bodies == [b"m"]
    assert bench.pop(pollTime="15000").frames == []


def test_what_waits_for_the_disk() -> None:
    reader = _Reader()
    waits = DiskWaits[Pull](reader, lambda _pull: None, most=10)  # type: ignore[arg-type]
    large = [pending(Origin(), 11, request_type=Pull) for _ in range(3)]
    small = pending(Origin(), 11, request_type=Pull)
    for pull in large:
        pull.frame = Frame(0, b"", bytes(MUCH))
    first, second, third = (pull for pull in large if isinstance(pull, Pull))
    assert isinstance(small, Pull)
    first.deadline_ms = HOLD_MS
    assert waits.has_room_for(first)
    waits.wait_for(first, FilesNotLoadedError(lambda: None), lambda: None)
    assert not waits.has_room_for(second)
    assert waits.has_room_for(small)
    waits.expire(HOLD_MS)
    assert waits.has_room_for(second)
    went_on: list[Pull] = []
    waits.wait_for(second, FilesNotLoadedError(lambda: None), lambda: went_on.append(second))
    assert not waits.has_room_for(third)
    reader.done[-1]()
    assert went_on == [second]
    assert waits.has_room_for(third)


class _Reader:
    """A reader whose work the test ends."""

    def __init__(self) -> None:
        self.done: list[Callable[[], None]] = []

    def read_beside(self, _work: object, done: Callable[[], None], _is_wanted: object) -> None:
        self.done.append(done)
