"""Mistakes of ours in acts that waited: one request is answered with what is true, the next one is served.

Only a broker keeps them in. Where nobody asks for that (the simulator, these benches) they go up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from broker.server.environment import Environment
from broker.server.handlers.client_exchange import ClientExchange
from broker.server.handlers.members import Members
from broker.server.handlers.pop_acks import PopAcks
from broker.server.links.private_codes import NOT_CARRIED_OUT
from broker.server.mistakes import LOG_AGAIN_S, Mistakes
from broker.server.requests.commits import OnCommit
from broker.server.requests.read_points import NotConfirmed
from broker.server.requests.request import PendingRequest
from broker.server.requests.short_waits import ShortWaits
from broker.service.catalog import Creation
from broker.service.wait_room import FREE_BYTES
from broker.store.groups import SubscriptionGroupConfig
from dledger import CorruptionError, DiskFailedError, LeadershipLostError
from dledger_mq.message.properties import encode_properties
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    encode_command,
    make_request,
    make_response,
)
from dledger_mq.remoting.requests import SendRequest, decode_request
from tests.unit.server import (
    test_commits,
    test_offsets,
    test_pulls_of_damaged_entries,
    test_repeated_sends,
    test_router,
)
from tests.unit.server.lone_leader import LoneLeader
from tests.unit.server.pending import ParkingRouter, pending
from tests.unit.server.row_bench import RowBench, result_of
from tests.unit.server.test_router import FakeOrigin, answer_of

LEADING_READ = 30
NOTHING = (
    "internal error (KeyError), which this node has logged; nothing is said of what this asks for"
)
UNKNOWN = "outcome unknown: internal error (KeyError), which this node has logged; it may have been carried out"


def blunder(*_: object, **__: object) -> Any:
    """The mistake: what nobody expects."""
    raise KeyError("a bug")


def damage(*_: object, **__: object) -> Any:
    """What ends a node wherever it comes up."""
    raise CorruptionError("log/0", 7, "a checksum")


def once(act: Callable[..., Any]) -> Callable[..., Any]:
    """The same act, with a mistake the first time."""
    tries: list[object] = []

    def fail_once(*args: Any, **named: Any) -> Any:
        tries.append(args)
        return blunder() if len(tries) == 1 else act(*args, **named)

    return fail_once


@pytest.fixture
def mistakes() -> Mistakes:
    """As a broker has them."""
    return Mistakes(keeps=True)


# What becomes of one.


def test_nobody_keeps_one_in_who_was_not_told_to() -> None:
    assert Environment.__dataclass_fields__["mistakes"].default_factory is Mistakes
    request = pending(FakeOrigin(), LEADING_READ)
    assert not Mistakes().answer(KeyError("a bug"), request)
    assert not request.is_answered


@pytest.mark.parametrize(
    "error",
    [
        CorruptionError("log/0", 7, "a checksum"),
        DiskFailedError("fsync"),
        OSError(5, "I/O error"),
        ExceptionGroup("tasks", [KeyError("a bug"), DiskFailedError("fsync")]),
    ],
)
def test_what_is_said_of_the_store_ends_the_node(mistakes: Mistakes, error: Exception) -> None:
    request = pending(FakeOrigin(), LEADING_READ)
    assert not mistakes.answer(error, request)
    assert (mistakes.count, request.is_answered) == (0, False)


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (LEADING_READ, NOTHING),
        (38, NOTHING),
        (310, UNKNOWN),
        (36, UNKNOWN),
        (17, UNKNOWN),
        (15, UNKNOWN),
    ],
)
def test_a_request_is_answered_with_what_is_true(
    mistakes: Mistakes, caplog: pytest.LogCaptureFixture, code: int, remark: str
) -> None:
    request = pending(FakeOrigin(), code)
    assert mistakes.answer(KeyError("a bug"), request)
    answer = answer_of(request)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert mistakes.count == 1
    (record,) = caplog.records
    assert record.message == f"internal error in a request of 1.2.3.4:5, code {code}"
    assert record.exc_info is not None


def test_a_mistake_while_one_is_answered_is_another_one(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled, other = (pending(FakeOrigin(), LEADING_READ) for _ in range(2))
    monkeypatch.setattr(spoiled.origin, "send", blunder)
    assert mistakes.answer(KeyError("a bug"), spoiled, other)
    assert answer_of(other).remark == NOTHING
    assert mistakes.count == 2


def test_what_fails_again_and_again_is_counted_and_seldom_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    mistakes = Mistakes(keeps=True, now_s=lambda: now_s)

    def fail(act: Callable[[], object]) -> None:
        with pytest.raises((KeyError, ValueError)) as failed:
            act()
        assert mistakes.note(failed.value, "a request")

    for _ in range(20):
        fail(blunder)
    fail(partial(int, "x"))
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        KeyError,
        ValueError,
    ]
    now_s = LOG_AGAIN_S
    fail(blunder)
    assert caplog.messages[-1] == (
        "internal error in a request (19 more in the same line were not logged)"
    )
    assert mistakes.count == 22


# The router.


class RouterBench(test_router.Bench):
    """A leader of whose requests the first meets a mistake; both are large, so that each has to give its room back."""

    def __init__(self, mistakes: Mistakes) -> None:
        self.waiters: list[OnCommit] = []
        wait: Any = SimpleNamespace(
            staged_end=0,
            wait=lambda _place, waiter, _kept_bytes: self.waiters.append(waiter),
            wait_for_staged=self.waiters.append,
            drop_unfinished=lambda _begun: None,
        )
        super().__init__(commits=wait)
        self.router.mistakes = mistakes
        self.log.is_serving = True
        body = bytes(2 * FREE_BYTES)
        self.first = self.request(LEADING_READ, serve=blunder, body=body)
        self.next = self.request(LEADING_READ, body=body)

    def act(self, request: PendingRequest) -> Callable[..., None]:
        """What the request comes to."""
        if request is self.first:
            return blunder
        return lambda *_: request.answer(ResponseCode.SUCCESS)

    def assert_nothing_waits(self) -> None:
        router = self.router
        waits: list[ShortWaits] = [router._confirming, router._behind_staged]
        assert [each.count for each in waits] == [0, 0]
        rooms = [router._room, *(each._room for each in waits)]
        assert [room.used_bytes for room in rooms] == [0, 0, 0]
        assert not router.waiting_count


def _routed(bench: RouterBench, request: PendingRequest) -> None:
    bench.router.route(request)


def _unparked(bench: RouterBench, request: PendingRequest) -> None:
    bench.log.is_serving = False
    bench.router.route(request)
    bench.log.is_serving = True
    bench.router.unpark()


def _confirmed(bench: RouterBench, request: PendingRequest) -> None:
    bench.router.when_confirmed(request, bench.act(request))
    confirmed, _ = bench.confirming.pop()
    confirmed()


def _committed(bench: RouterBench, request: PendingRequest) -> None:
    bench.router.when_committed(request, 0, bench.act(request))
    bench.waiters.pop().committed(MagicMock(), 0)


def _ended(bench: RouterBench, request: PendingRequest) -> None:
    ends: list[object] = []
    bench.router.when_committed(request, 0, bench.act(request), ended=ends.append)
    bench.waiters.pop().committed(MagicMock(), 0)
    assert ends == [None]


def _all_committed(bench: RouterBench, request: PendingRequest) -> None:
    bench.router.when_staged_committed(request, bench.act(request))
    bench.waiters.pop().committed(MagicMock(), 0)


BRINGS = [_routed, _unparked, _confirmed, _committed, _ended, _all_committed]


@pytest.mark.parametrize("bring", BRINGS)
def test_an_act_of_a_request_that_waited_fails(
    mistakes: Mistakes, bring: Callable[[RouterBench, PendingRequest], None]
) -> None:
    bench = RouterBench(mistakes)
    for request in (bench.first, bench.next):
        bring(bench, request)
    assert answer_of(bench.first).remark == NOTHING
    assert bench.next in bench.served or answer_of(bench.next).code == ResponseCode.SUCCESS
    bench.assert_nothing_waits()


@pytest.mark.parametrize("bring", BRINGS)
def test_and_in_the_simulator_it_goes_up(
    bring: Callable[[RouterBench, PendingRequest], None],
) -> None:
    bench = RouterBench(Mistakes())
    with pytest.raises(KeyError):
        bring(bench, bench.first)


def test_those_that_wait_behind_it_go_on_or_are_given_up(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RouterBench(mistakes)
    late = [bench.request(LEADING_READ, body=bytes(2 * FREE_BYTES)) for _ in range(2)]
    bench.log.is_serving = False
    for request in (bench.first, bench.next):
        bench.router.route(request)
    bench.log.is_serving = True
    bench.router.unpark()
    assert answer_of(bench.first).remark == NOTHING
    assert bench.served == [bench.next]
    bench.log.is_serving = False
    for request in late:
        bench.router.route(request)
    monkeypatch.setattr(bench.router, "_obstacle", once(bench.router._obstacle))
    bench.router.expire(10**6)
    assert answer_of(late[0]).remark == NOTHING
    assert answer_of(late[1]).code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.assert_nothing_waits()


def test_what_is_not_confirmed_and_cannot_be_concluded_from(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RouterBench(mistakes)
    send = bench.request()
    bench.router.when_committed(send, 0, bench.act(send))
    monkeypatch.setattr(bench.router, "_conclude", blunder)
    bench.waiters.pop().failed(LeadershipLostError("gone"))
    assert answer_of(send).remark == UNKNOWN


def test_an_answer_of_the_leader_of_which_nothing_can_be_made(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RouterBench(mistakes)
    bench.log.is_serving, bench.link.is_open = False, True
    sends = [bench.request() for _ in range(3)]
    for send in sends:
        bench.router.route(send)
    answered, broken, sound = (asked[1] for asked in bench.link.asked)
    answered.answered(make_response(1, 0, body=b"no frame"))
    with monkeypatch.context() as patched:
        patched.setattr(bench.router, "_conclude", blunder)
        broken.broken("the link broke")
    assert mistakes.count == 2
    sound.answered(make_response(1, NOT_CARRIED_OUT, "no leader"))
    assert sends[0].is_answered
    assert answer_of(sends[1]).remark == UNKNOWN
    assert bench.router.waiting_count == 1


def test_what_cannot_be_passed_on_to_the_leader(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RouterBench(mistakes)
    bench.log.is_serving, bench.link.is_open = False, True
    send = bench.request()
    with monkeypatch.context() as patched:
        patched.setattr(bench.link, "ask", blunder)
        bench.router.route(send)
    assert answer_of(send).remark == UNKNOWN
    bench.router.route(bench.next)
    assert len(bench.link.asked) == 1


# What was staged by halves.


def stage(bench: test_commits.Bench, body: bytes) -> int:
    return bench.commits.staging.stage(
        b"T", 1, body, b"", born_timestamp_ms=1, born_host=test_commits.HOST
    )


def test_of_what_belongs_together_no_part_is_written() -> None:
    bench, told = test_commits.Bench(), test_commits.Told()
    kept, lost = SubscriptionGroupConfig("kept"), SubscriptionGroupConfig("lost")
    bench.commits.create(Creation(groups=(kept,)))
    bench.stage(told, b"whole")
    begun = bench.commits.staged_end
    bench.commits.create(Creation(groups=(lost,)))
    stage(bench, b"half of it")
    bench.commits.drop_unfinished(begun)
    assert (bench.catalog.group("kept"), bench.catalog.group("lost")) == (kept, None)
    bench.stage(told, b"next")
    bench.commits.flush()
    ((body, _),) = bench.log.proposed
    assert [part in body for part in (b"kept", b"whole", b"next")] == [True] * 3
    assert [part in body for part in (b"lost", b"half of it")] == [False] * 2
    bench.log.decide(0)
    assert told.places == [(1, 0), (2, 1)]
    assert bench.commits.is_idle


def test_what_was_waited_for_stays_though_the_act_fails_then() -> None:
    bench, told = test_commits.Bench(), test_commits.Told()
    begun = bench.commits.staged_end
    bench.stage(told, b"whole")
    stage(bench, b"half of it")
    bench.commits.drop_unfinished(begun)
    test_commits.flush_all(bench)
    assert told.places == [(0, 0)]
    ((body, _),) = bench.log.proposed
    assert b"half of it" not in body


def test_what_an_act_around_it_has_staged_stays() -> None:
    """An act that goes on must find its record where it staged it: it is told what became of that place."""
    bench, told = test_commits.Bench(), test_commits.Told()
    place = stage(bench, b"of the act around")
    begun = bench.commits.staged_end
    stage(bench, b"half of it")
    bench.commits.drop_unfinished(begun)
    bench.commits.wait(place, told)
    test_commits.flush_all(bench)
    ((body, _),) = bench.log.proposed
    assert b"of the act around" in body
    assert b"half of it" not in body
    assert told.places == [(0, 0)]


def test_places_are_right_behind_entries_that_took_a_part() -> None:
    bench, told = test_commits.Bench(entry_bytes_max=400), test_commits.Told()
    for _ in range(8):
        bench.stage(told, bytes(120))
    bench.commits.flush()
    assert 0 < bench.commits.staging.staged_count < 8
    begun = bench.commits.staged_end
    stage(bench, b"half of it")
    bench.commits.drop_unfinished(begun)
    assert bench.commits.staged_end == begun
    bench.stage(told, b"next")
    test_commits.flush_all(bench)
    assert [offset for _, offset in told.places] == list(range(9))
    assert not any(b"half of it" in body for body, _ in bench.log.proposed)


def test_an_act_that_fails_half_way_leaves_nothing_staged(mistakes: Mistakes) -> None:
    leader = LoneLeader()
    router = ParkingRouter(leader.commits)
    router.mistakes = mistakes

    def half(request: PendingRequest) -> None:
        leader.commits.create(Creation(groups=(SubscriptionGroupConfig("lost"),)))
        request.answer(blunder())

    request = pending(FakeOrigin(), 310)
    router.attempt(request, partial(half, request))
    assert answer_of(request).remark == UNKNOWN
    assert leader.commits.is_idle


# Sends.


def sends_bench(mistakes: Mistakes) -> test_repeated_sends.Bench:
    """A leader that keeps mistakes in, and knows its topic."""
    bench = test_repeated_sends.Bench()
    bench.router.mistakes = mistakes
    assert bench.sends.lane is not None
    bench.sends.lane._mistakes = mistakes
    bench.router._log.is_serving = True  # type: ignore[misc]  # a namespace stands for it
    return bench


def assert_nothing_is_ahead(bench: test_repeated_sends.Bench) -> None:
    assert bench.sends._known is not None
    assert not bench.sends._known.ahead


def test_a_send_that_stands_and_is_not_answered_is_found_by_its_repeat(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sends_bench(mistakes)
    with monkeypatch.context() as patched:
        patched.setattr(bench.sends, "_answer", blunder)
        spoiled = bench.send("k")
        bench.commit()
    (refusal,) = spoiled.answers()
    assert (refusal.code, refusal.remark) == (ResponseCode.SYSTEM_ERROR, UNKNOWN)
    repeat, other = bench.send("k", born_ms=10**6), bench.send("l")
    bench.commit()
    assert [test_repeated_sends.place(each)[1] for each in (repeat, other)] == ["0", "1"]
    assert bench.stored() == 2
    assert_nothing_is_ahead(bench)


def test_what_joined_a_send_that_is_not_answered_has_its_own_answer(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sends_bench(mistakes)
    monkeypatch.setattr(bench.sends, "_answer", blunder)
    spoiled, joined = bench.send("k"), bench.send("k")
    bench.commit()
    assert [each.answers()[0].code for each in (spoiled, joined)] == [ResponseCode.SYSTEM_ERROR, 0]
    assert bench.stored() == 1
    assert_nothing_is_ahead(bench)


def test_a_repeat_whose_answer_fails_is_found_by_the_next_one(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sends_bench(mistakes)
    monkeypatch.setattr(bench.sends, "_answer_parts", once(bench.sends._answer_parts))
    _first, repeat = bench.send("k"), bench.send("k")
    bench.commit()
    assert repeat.answers()[0].remark == UNKNOWN
    again = bench.send("k", born_ms=10**6)
    bench.commit()
    assert test_repeated_sends.place(again)[1] == "0"
    assert bench.stored() == 1


def test_an_answer_that_waited_for_name_servers(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sends_bench(mistakes)
    bench.hold_routes()
    first, second = bench.send("k", topic="New"), bench.send("l", topic="New")
    bench.commit()
    monkeypatch.setattr(bench.sends, "_answer", once(bench.sends._answer))
    bench.take_routes()
    (refusal,) = first.answers()
    assert refusal.remark == UNKNOWN
    assert test_repeated_sends.place(second)
    repeat = bench.send("k", topic="New", born_ms=10**6)
    bench.commit()
    assert test_repeated_sends.place(repeat)[1] == "0"


def test_a_batch_whose_rest_is_not_answered_is_found_as_a_whole(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, gone = sends_bench(mistakes), test_repeated_sends.Origin()
    bench.send("a", b"1", origin=gone)
    gone.is_closed = True
    bench.commit()
    items = [("a", b"1"), ("b", b"2")]
    with monkeypatch.context() as patched:
        patched.setattr(bench.sends._known, "rest_committed", blunder)
        spoiled = bench.send(None, items=items)
        bench.commit()
    assert spoiled.answers()[0].remark == UNKNOWN
    again = bench.send(None, items=items, born_ms=10**6)
    bench.commit()
    assert bench.bodies(again) == [b"1", b"2"]
    assert bench.stored() == 2


def send_burst(bench: test_repeated_sends.Bench, *keys: str) -> test_repeated_sends.Origin:
    """Plain sends, as one read brings them."""
    usual = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    decoder = FrameDecoder()
    for opaque, key in enumerate(keys):
        ext = {**usual, "i": encode_properties({"UNIQ_KEY": key}).decode(), "j": "0", "k": "false"}
        decoder.feed(encode_command(make_request(310, opaque, ext, b"body")))
    frames: list[Frame] = decoder.frames()
    origin, lane, command = (
        test_repeated_sends.Origin(),
        bench.sends.lane,
        decode_request(frames[0]),
    )
    assert lane is not None
    assert isinstance(command, SendRequest)
    assert lane.take(origin, frames, 0, command, deadline_ms=0) == (len(keys), None)
    return origin


@pytest.mark.parametrize("name", ["_known", "_calls_of", "_replies"])
def test_sends_that_have_no_joined_answer_are_answered_one_by_one(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bench = sends_bench(mistakes)
    bench.send("z")  # the topic is known to be plain from here on
    bench.commit()
    origin, lane = send_burst(bench, "a", "b"), bench.sends.lane
    with monkeypatch.context() as patched:
        if name == "_known":
            patched.setattr(bench.sends._known, "leave_together", blunder)
        else:
            patched.setattr(lane, name, blunder)
        bench.commit()
    assert mistakes.count == 1
    assert [answer.opaque for answer in origin.answers()] == [0, 1]
    assert [answer.ext["queueOffset"] for answer in origin.answers()] == ["1", "2"]
    assert_nothing_is_ahead(bench)
    again, after = bench.send("a", born_ms=10**6), send_burst(bench, "c", "d")
    bench.commit()
    assert test_repeated_sends.place(again)[1] == "3", "it was answered, so this is on purpose"
    assert [answer.ext["queueOffset"] for answer in after.answers()] == ["4", "5"]


def test_a_burst_that_stands_and_is_not_answered_is_found_by_its_repeats(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sends_bench(mistakes)
    bench.send("z")
    bench.commit()
    spoiled = send_burst(bench, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(bench.sends.lane, "_answer", blunder)
        patched.setattr(bench.sends, "_answer", blunder)
        bench.commit()
    assert [answer.remark for answer in spoiled.answers()] == [UNKNOWN] * 2
    assert [answer.opaque for answer in spoiled.answers()] == [0, 1]
    assert_nothing_is_ahead(bench)
    repeat, after = bench.send("a", born_ms=10**6), send_burst(bench, "c", "d")
    bench.commit()
    assert test_repeated_sends.place(repeat)[1] == "1"
    assert [answer.ext["queueOffset"] for answer in after.answers()] == ["3", "4"]
    assert bench.stored() == 5


def test_rows_behind_those_that_are_not_answered_are_decided_on(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = RowBench()
    bench.router.mistakes = mistakes
    spoiled, behind = bench.rows("1 s", 1, 2), bench.rows("1 s", 2)
    monkeypatch.setattr(bench.sends._rows, "_answer", blunder)
    bench.commit()
    monkeypatch.undo()
    assert spoiled.answers()[0].remark == UNKNOWN
    bench.bring_held()
    assert result_of(behind) == "0"
    assert not bench.sends._rows._flying


# Offsets.


def test_offset_commits_of_a_batch_that_fails_are_all_answered(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = test_offsets.Bench()
    bench.router.mistakes = mistakes
    askers = [test_offsets.commit(bench, number) for number in (1, 2)]
    bench.tick()
    monkeypatch.setattr(bench.leader.state.locks, "fenced_at", blunder)
    bench.leader.commit()
    monkeypatch.undo()
    askers.append(test_offsets.commit(bench, 3))
    bench.tick()
    bench.leader.commit()
    assert [test_offsets.answers_of(each)[0][0] for each in askers] == [1, 1, 0]
    assert not bench.offsets._asking_count


@pytest.mark.parametrize("name", ["stage_control", "wait"])
def test_commits_that_cannot_be_staged_are_never_called_a_success(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Somebody else's query makes them be staged: it is not the only one that has to hear of it."""
    bench = test_offsets.Bench()
    bench.router.mistakes = mistakes
    committer = test_offsets.commit(bench, 0, consumerGroup="G")
    with monkeypatch.context() as patched:
        patched.setattr(bench.leader.commits, name, blunder)
        query = bench.query()
    assert test_offsets.answers_of(committer) == [(1, None)]
    assert mistakes.count == 1
    assert bench.leader.commits.is_idle, "nothing of it is written behind their backs"
    assert (bench.offsets._waiting, bench.offsets._asking_count) == ([], 0)
    assert test_offsets.answers_of(query) == [(22, None)], "nothing is committed yet"
    bench.tick()
    assert len(test_offsets.answers_of(committer)) == 1
    assert bench.leader.commits.is_idle
    again = test_offsets.commit(bench, 0, consumerGroup="G")
    bench.tick()
    bench.leader.commit()
    assert test_offsets.answers_of(again)[0][0] == 0


# Groups of clients that are created beside.


async def test_a_heartbeat_whose_groups_cannot_be_created(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members.__new__(Members)
    members._mistakes, members._waiting = mistakes, ShortWaits("with a heartbeat", 1)
    members._log, members._outputs = MagicMock(is_serving=True), MagicMock()
    monkeypatch.setattr(members, "create", blunder, raising=False)
    request = pending(FakeOrigin(), 34)
    assert members._waiting.enter(request)
    await members._finish_heartbeat(request, MagicMock())
    assert answer_of(request).remark == UNKNOWN
    assert members._waiting.count == 0


async def test_clients_of_another_node_whose_groups_cannot_be_created(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = ClientExchange.__new__(ClientExchange)
    exchange._mistakes, exchange._outputs = mistakes, MagicMock()
    monkeypatch.setattr(exchange, "_create", blunder, raising=False)
    told: list[bool] = []
    monkeypatch.setattr(exchange, "_answer_sync", lambda *_, is_known: told.append(is_known))
    await exchange._finish_sync(cast("Any", None), 1, MagicMock(node="n1"), MagicMock())
    assert (told, mistakes.count) == ([True], 1)
    exchange._mistakes = Mistakes()
    with pytest.raises(KeyError):
        await exchange._finish_sync(cast("Any", None), 1, MagicMock(node="n1"), MagicMock())


# Pulls.


def pulls_bench(mistakes: Mistakes) -> test_pulls_of_damaged_entries.Bench:
    bench = test_pulls_of_damaged_entries.Bench()
    bench.pulls.mistakes = mistakes
    bench.broker.send()
    return bench


def assert_no_pull_waits(bench: test_pulls_of_damaged_entries.Bench) -> None:
    assert not bench.pulls.held_count
    assert not bench.pulls._unconfirmed
    assert not bench.pulls._put_off


def test_pulls_that_are_held_are_each_for_itself(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = pulls_bench(mistakes)
    origins = [bench.pull(1, 10_000) for _ in range(2)]
    monkeypatch.setattr(bench.pulls._answers, "read", once(bench.pulls._answers.read))
    bench.broker.send()
    bench.pulls.applied()
    assert [each.answers()[0].code for each in origins] == [ResponseCode.SYSTEM_ERROR, 0]
    assert "internal error (KeyError)" in (origins[0].answers()[0].remark or "")
    assert_no_pull_waits(bench)
    bench.broker.send()
    bench.pulls.applied()
    assert [len(each.answers()) for each in origins] == [1, 1]


@pytest.mark.parametrize("is_held", [True, False])
def test_pulls_whose_time_is_over_are_each_for_itself(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    bench = pulls_bench(mistakes)
    bench.log.is_serving, bench.points.has_leader = is_held, True
    origins = [bench.pull(1, 5_000) for _ in range(2)]
    name = "give" if is_held else "send_away"
    answers = bench.pulls._answers
    monkeypatch.setattr(answers, name, once(getattr(answers, name)))
    bench.expire(20_000)
    assert [each.answers()[0].code for each in origins] == [ResponseCode.SYSTEM_ERROR, 19]
    assert_no_pull_waits(bench)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_pulls_that_wait_for_their_confirmation_are_each_for_itself(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, is_confirmed: bool
) -> None:
    bench = pulls_bench(mistakes)
    bench.log.is_serving, bench.points.confirms = False, None
    origins = [bench.pull(0) for _ in range(2)]
    assert len(bench.pulls._unconfirmed) == 2
    name = "_check_and_read" if is_confirmed else "_do_without"
    monkeypatch.setattr(bench.pulls, name, once(getattr(bench.pulls, name)))
    bench.now_ms = 20_000
    for act, failed in bench.points.asked:
        if is_confirmed:
            act()
        else:
            failed(NotConfirmed("nobody", has_leader=True))
    codes = [each.answers()[0].code for each in origins]
    assert codes == [ResponseCode.SYSTEM_ERROR, 0 if is_confirmed else 19]
    assert_no_pull_waits(bench)


@pytest.mark.parametrize("name", ["_go_on", "_resume"])
def test_pulls_that_go_on_after_a_wait_are_each_for_itself(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bench = pulls_bench(mistakes)
    origins = [bench.pull(1, 10_000) for _ in range(2)]
    pulls = bench.pulls._held.take_due(10**6)
    monkeypatch.setattr(bench.pulls, "_check_and_read", once(bench.pulls._check_and_read))
    bench.broker.send()
    for pull in pulls:
        getattr(bench.pulls, name)(pull)
    assert [each.answers()[0].code for each in origins] == [ResponseCode.SYSTEM_ERROR, 0]


# What is noted about messages that a request changes.


def test_a_batch_of_acknowledgements_that_cannot_be_staged_keeps_no_message_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed: list[object] = []
    returns: Any = SimpleNamespace(changing=lambda *how: changed.append(how))
    commits: Any = SimpleNamespace(is_full=False, stage_control=blunder)
    acks = PopAcks(
        MagicMock(),
        commits,
        MagicMock(),
        returns,
        broker_name="b",
        freed=lambda _key: None,
    )
    pop = SimpleNamespace(group="G", topic="T", queue_id=0, offsets=[1], popped_ms=1)
    module = "broker.server.handlers.pop_acks"
    monkeypatch.setattr(f"{module}.decode_batch_ack", lambda _body: [pop])
    monkeypatch.setattr(f"{module}.batch_broker_name", lambda _body: None)
    with pytest.raises(KeyError):
        acks.acknowledge_batch(
            pending(FakeOrigin(), 200151), RemotingCommand(code=200151, opaque=1)
        )
    assert not changed


# What is to end the node does so wherever it comes up.


@pytest.mark.parametrize("bring", BRINGS)
def test_damage_goes_up_through_the_router(
    mistakes: Mistakes,
    monkeypatch: pytest.MonkeyPatch,
    bring: Callable[[RouterBench, PendingRequest], None],
) -> None:
    bench = RouterBench(mistakes)
    monkeypatch.setattr(bench, "act", lambda _request: damage)
    with pytest.raises(CorruptionError):
        bring(bench, bench.request(LEADING_READ, serve=damage))


@pytest.mark.parametrize("name", ["_conclude", "answered", "broken", "_give_up"])
def test_damage_goes_up_through_conclusions(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bench = RouterBench(mistakes)
    bench.log.is_serving, bench.link.is_open = False, name != "_give_up"
    send = bench.request()
    bench.router.route(send)
    monkeypatch.setattr(bench.router, name, damage)
    if name == "_conclude":
        act = partial(bench.router.unconfirmed, send, LeadershipLostError("gone"))
    elif name == "_give_up":
        act = partial(bench.router.expire, 10**6)
    else:
        act = partial(getattr(bench.link.asked[0][1], name), MagicMock())
    with pytest.raises(CorruptionError):
        act()


@pytest.mark.parametrize("keys", [("k",), ("a", "b"), ("k", "k")])
def test_damage_goes_up_through_sends(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    bench = sends_bench(mistakes)
    bench.send("z")
    bench.commit()
    if keys == ("a", "b"):
        send_burst(bench, *keys)
    else:
        for key in keys:
            bench.send(key)
    name = "_answer_parts" if keys == ("k", "k") else "_answer"
    monkeypatch.setattr(bench.sends, name, damage)
    monkeypatch.setattr(bench.sends.lane, "_answer", damage)
    with pytest.raises(CorruptionError):
        bench.commit()


def test_damage_goes_up_through_answers_that_waited_for_name_servers(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = sends_bench(mistakes)
    bench.hold_routes()
    bench.send("k", topic="New")
    bench.commit()
    monkeypatch.setattr(bench.sends, "_answer", damage)
    with pytest.raises(CorruptionError):
        bench.take_routes()


def test_damage_goes_up_through_rows(mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RowBench()
    bench.router.mistakes = mistakes
    bench.rows("1 s", 1)
    monkeypatch.setattr(bench.sends._rows, "_answer", damage)
    with pytest.raises(CorruptionError):
        bench.commit()


@pytest.mark.parametrize("name", ["_stage_all", "_answer_committed"])
def test_damage_goes_up_through_commits_of_offsets(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bench = test_offsets.Bench()
    bench.router.mistakes = mistakes
    test_offsets.commit(bench, 1)
    monkeypatch.setattr(bench.offsets, name, damage)
    with pytest.raises(CorruptionError):  # noqa: PT012  # whichever of them comes to it
        bench.tick()
        bench.leader.commit()


def test_damage_goes_up_through_pulls(mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = pulls_bench(mistakes)
    bench.pull(1, 10_000)
    monkeypatch.setattr(bench.pulls._answers, "read", damage)
    bench.broker.send()
    with pytest.raises(CorruptionError):
        bench.pulls.applied()


async def test_damage_goes_up_through_tasks(
    mistakes: Mistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, exchange = Members.__new__(Members), ClientExchange.__new__(ClientExchange)
    members._mistakes = exchange._mistakes = mistakes
    members._waiting, members._log = ShortWaits("with a heartbeat", 1), MagicMock(is_serving=True)
    for owner, name in ((members, "create"), (exchange, "_create")):
        failing = MagicMock(side_effect=OSError(5, "I/O error"))
        monkeypatch.setattr(owner, name, failing, raising=False)
    request = pending(FakeOrigin(), 34)
    assert members._waiting.enter(request)
    with pytest.raises(OSError, match="I/O error"):
        await members._finish_heartbeat(request, MagicMock())
    with pytest.raises(OSError, match="I/O error"):
        await exchange._finish_sync(cast("Any", None), 1, MagicMock(node="n1"), MagicMock())
