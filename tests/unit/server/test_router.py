"""Where a request goes when this node leads, another does, or nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.links.private_codes import (
    NOT_CARRIED_OUT,
    PERHAPS_CARRIED_OUT,
    WAITED_FIELD,
    PrivateCode,
)
from broker.server.requests.linear import LinearReads
from broker.server.requests.request import HOLD_MS, PendingRequest
from broker.server.requests.router import WAIT_MARGIN_MS, Router
from broker.service.wait_room import ROOM_BYTES
from dledger import (
    DLedgerError,
    EntryDamagedError,
    LeadershipLostError,
    NodeId,
    NotLeaderError,
    Role,
)
from dledger.runtime.full_disks import FULL_ATTRIBUTE, FullDisks
from dledger.runtime.lost_votes import REPORT_COUNT_MIN, VOTE_ATTRIBUTE, LostVotes
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_response,
)
from tests.unit.server.pending import pending


class FakeLog:
    class config:  # noqa: N801  looks like the attribute of a LogServer
        class raft:  # noqa: N801
            node_id = "n0"

    reader = None

    def __init__(self) -> None:
        self.is_serving = False
        self.role = Role.FOLLOWER
        self.term = 3
        self.leader_id: str | None = None
        members = tuple(map(NodeId, ("n0", "n1", "n2")))
        self.full_disks = FullDisks(members[0], members)
        self.lost_votes = LostVotes(
            members[0], members, has_vote=lambda: True, has_begun=lambda: True
        )


class FakeLink:
    def __init__(self) -> None:
        self.is_open = False
        self.is_full = False
        self.asked: list[tuple[int, Any, dict[str, str], bytes]] = []
        self.told: list[tuple[int, dict[str, str]]] = []

    def ask(
        self, code: int, waiter: Any, *, ext: dict[str, str], body: bytes, timeout_ms: int
    ) -> bool:
        assert timeout_ms > 0
        if self.is_open:
            self.asked.append((code, waiter, ext, body))
        return self.is_open

    def watch(self, *, opened: Callable[[], None], settled: Callable[[], None]) -> None:
        assert callable(opened)
        assert callable(settled)

    def has_room(self, size_bytes: int) -> bool:
        assert size_bytes > 0
        return not self.is_full

    def send(self, code: int, *, ext: dict[str, str], body: bytes) -> bool:
        assert ext
        if self.is_open:
            self.told.append((code, ext))
        return self.is_open


class FakeOrigin:
    number = 1
    address = "1.2.3.4:5"
    born_host = bytes(8)
    is_closed = is_gone = False

    def __init__(self, *, is_forwarded: bool = False) -> None:
        self.is_forwarded = is_forwarded
        self.sent: list[bytes] = []
        self.passed_back: list[int] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def pass_back(self, code: int, remark: str) -> None:
        assert remark
        self.passed_back.append(code)

    def answers(self) -> list[RemotingCommand]:
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.sent))
        return [decode_command(frame) for frame in decoder.frames()]


class Bench:
    def __init__(self, waiting_max: int = 10, commits: object = None) -> None:
        self.now_ms = 0
        self.log, self.link = FakeLog(), FakeLink()
        self.served: list[PendingRequest] = []
        self.confirming: list[tuple[Callable[[], None], Callable[[DLedgerError], None]]] = []
        self.router = Router(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            self.link,  # type: ignore[arg-type]  # the part of a link that is used here
            cast("LinearReads", SimpleNamespace(read=lambda *how: self.confirming.append(how))),
            cast("Any", commits or SimpleNamespace(staged_end=0)),
            waiting_max=waiting_max,
            now_ms=lambda: self.now_ms,
        )

    def request(self, code: int = 310, **changes: Any) -> PendingRequest:
        usual: dict[str, Any] = {
            "origin": FakeOrigin(),
            "body": b"body",
            "deadline_ms": self.now_ms + HOLD_MS,
            "serve": lambda request, _command: self.served.append(request),
        }
        return pending(code=code, **(usual | changes))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def answer_of(request: PendingRequest) -> RemotingCommand:
    assert isinstance(request.origin, FakeOrigin)
    (answer,) = request.origin.answers()
    return answer


def test_a_send_that_no_majority_has_room_for_is_refused_at_once_with_the_cause(
    bench: Bench,
) -> None:
    send, query = bench.request(), bench.request(code=14)
    disks = bench.log.full_disks
    disks.own_changed("no room for 65536 bytes")
    bench.router.route(send)
    bench.router.route(query)
    bench.router.expire(0)
    assert bench.router.waiting_count == 2  # the two others may elect one of them
    assert bench.router.without_leader().endswith("; the disk of n0 is full")
    disks.learn(NodeId("n2"), {FULL_ATTRIBUTE: "no room"})
    bench.router.expire(0)
    assert answer_of(send).code == 14
    remark = answer_of(send).remark or ""
    assert remark.startswith("[DISK_FULL]the disks of n0 and n2 are full: ")
    assert remark.endswith("; nothing was done")
    later = bench.request()
    bench.router.route(later)
    assert answer_of(later).remark == remark
    assert bench.router.waiting_count == 1  # what needs no room waits for a leader as ever
    disks.own_changed("")
    disks.leader_changed(NodeId("n1"))
    waiting = bench.request()
    bench.router.route(waiting)
    bench.router.expire(0)
    assert bench.router.waiting_count == 2


def test_who_waits_for_a_leader_is_told_that_there_will_be_none(bench: Bench) -> None:
    for _ in range(REPORT_COUNT_MIN):
        for name in ("n1", "n2"):
            bench.log.lost_votes.learn(NodeId(name), {VOTE_ATTRIBUTE: "true"})
    send = bench.request()
    bench.router.route(send)
    bench.router.expire(HOLD_MS)
    answer = answer_of(send)
    assert answer.code == 14
    assert str(answer.remark).startswith("the majority of the group is lost: the stores of n1 and")
    assert str(answer.remark).endswith("; nothing was done")


def test_what_waits_for_a_leader_is_bounded_in_bytes(bench: Bench) -> None:
    body = bytes(ROOM_BYTES // 6)
    large = [bench.request(body=body) for _ in range(6)]
    for request in large:
        bench.router.route(request)
    assert bench.router.waiting_count == 5
    answer = answer_of(large[5])
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "bytes wait for a leader" in (answer.remark or "")
    bench.router.route(bench.request())  # a small one needs no room
    assert bench.router.waiting_count == 6
    bench.log.is_serving = True
    bench.router.unpark()
    assert len(bench.served) == 6
    for is_late in (False, True):
        bench.log.is_serving = False
        for _ in range(5):
            bench.router.route(bench.request(body=body))
        assert bench.router.waiting_count == 5
        if not is_late:
            bench.router.expire(HOLD_MS)


def confirm(bench: Bench, *requests: PendingRequest) -> None:
    for request in requests:
        bench.router.when_confirmed(request, partial(bench.served.append, request))


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_what_waits_for_the_leaders_confirmation_is_bounded(is_confirmed: bool) -> None:
    bench = Bench(waiting_max=7)
    large = [bench.request(body=bytes(ROOM_BYTES // 6)) for _ in range(6)]
    small = [bench.request() for _ in range(3)]
    confirm(bench, *large, *small)
    assert (
        len(bench.confirming) == 7
    )  # five large ones in bytes, and of the small ones as many as there may be
    for refused in (large[5], small[2]):
        answer = answer_of(refused)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "requests wait to have it confirmed who leads" in (answer.remark or "")
    for act, failed in bench.confirming:
        act() if is_confirmed else failed(NotLeaderError("n1", 2))
    assert bench.served == ([*large[:5], *small[:2]] if is_confirmed else [])
    bench.confirming.clear()
    confirm(bench, *(bench.request(body=bytes(ROOM_BYTES // 6)) for _ in range(5)))
    assert len(bench.confirming) == 5


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_waits_for_what_is_on_its_way_is_bounded(is_committed: bool) -> None:
    waiters: list[Any] = []
    bench = Bench(
        waiting_max=2, commits=SimpleNamespace(staged_end=0, wait_for_staged=waiters.append)
    )
    requests = [bench.request() for _ in range(3)]
    for request in requests:
        bench.router.when_staged_committed(request, partial(bench.served.append, request))
    assert len(waiters) == 2
    assert answer_of(requests[2]).code == ResponseCode.SYSTEM_BUSY
    for waiter in waiters:
        waiter.committed(None, -1) if is_committed else waiter.failed(LeadershipLostError("lost"))
    assert bench.served == (requests[:2] if is_committed else [])
    bench.router.when_staged_committed(bench.request(), lambda: None)
    assert len(waiters) == 3


def test_the_leader_serves(bench: Bench) -> None:
    bench.log.is_serving = True
    request = bench.request()
    bench.router.route(request)
    assert bench.served == [request]


def test_others_pass_on_the_whole_frame(bench: Bench) -> None:
    bench.link.is_open = True
    request = bench.request()
    bench.router.route(request)
    ((code, waiter, ext, body),) = bench.link.asked
    assert (code, ext) == (PrivateCode.FORWARD, {"address": "1.2.3.4:5"})
    decoder = FrameDecoder()
    decoder.feed(body)
    assert decoder.next_frame() == request.frame
    answer = encode_command(make_response(9, 0))
    waiter.answered(make_response(1, 0, body=answer))
    assert isinstance(request.origin, FakeOrigin)
    assert request.origin.sent == [answer]


def test_oneway_requests_are_only_told(bench: Bench) -> None:
    bench.link.is_open = True
    bench.router.route(bench.request(is_oneway=True))
    assert (len(bench.link.told), len(bench.link.asked)) == (1, 0)


def test_without_a_leader_a_request_waits_for_one(bench: Bench) -> None:
    request = bench.request()
    bench.router.route(request)
    bench.router.unpark()
    assert bench.router.waiting_count == 1
    bench.log.is_serving = True
    bench.router.unpark()
    assert (bench.served, bench.router.waiting_count) == ([request], 0)


def test_not_for_ever_and_the_reason_is_told(bench: Bench) -> None:
    request = bench.request()
    request.cause = "the disk is full"
    bench.router.route(request)
    bench.router.expire(HOLD_MS - 1)
    assert bench.router.waiting_count == 1
    bench.router.expire(HOLD_MS)
    answer = answer_of(request)
    assert answer.code == 14
    assert answer.remark == (
        "no leader is known; this node, n0, is follower in term 3; nothing was done "
        "(last try: the disk is full)"
    )


@pytest.mark.parametrize(
    ("role", "leader", "text"),
    [
        (Role.FOLLOWER, "n1", "the leader n1 cannot be reached"),
        (Role.LEADER, "n0", "the new leader does not serve yet"),
        (Role.CANDIDATE, None, "no leader is known"),
    ],
)
def test_why_nobody_leads(bench: Bench, role: Role, leader: str | None, text: str) -> None:
    bench.log.role, bench.log.leader_id = role, leader
    assert text in bench.router.without_leader()


def test_a_node_that_does_not_lead_either_is_no_answer(bench: Bench) -> None:
    bench.link.is_open = True
    request = bench.request()
    bench.router.route(request)
    bench.link.asked[0][1].answered(make_response(1, NOT_CARRIED_OUT, "not me"))
    assert bench.router.waiting_count == 1


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_broken_link_repeats_only_what_is_harmless(bench: Bench, repeatable: bool) -> None:
    bench.link.is_open = True
    request = bench.request(code=15 if repeatable else 310)
    bench.router.route(request)
    bench.link.asked[0][1].broken("it broke")
    assert bench.router.waiting_count == int(repeatable)
    if not repeatable:
        answer = answer_of(request)
        assert answer.code == 1
        assert "outcome unknown: it broke" in (answer.remark or "")


def test_a_passed_on_request_is_not_passed_on_again(bench: Bench) -> None:
    bench.link.is_open = True
    origin = FakeOrigin(is_forwarded=True)
    bench.router.route(bench.request(origin=origin))
    assert bench.link.asked == []
    assert origin.passed_back == [NOT_CARRIED_OUT]


def test_a_leader_that_does_not_serve_yet_keeps_what_was_passed_on(bench: Bench) -> None:
    bench.log.role = Role.LEADER
    origin = FakeOrigin(is_forwarded=True)
    bench.router.route(bench.request(origin=origin))
    assert bench.router.waiting_count == 1
    bench.router.expire(HOLD_MS)
    assert origin.passed_back == [NOT_CARRIED_OUT]


def test_too_many_are_told_so() -> None:
    bench = Bench(waiting_max=1)
    bench.router.route(bench.request())
    late = bench.request()
    bench.router.route(late)
    assert answer_of(late).code == 2
    assert (answer_of(late).remark or "").startswith("[OVERLOAD]system busy")


def test_a_question_is_given_up_in_the_way_of_its_client(bench: Bench) -> None:
    command = RemotingCommand(code=14, opaque=9, language="CPP", version=333)
    request = bench.request(14, command=command)
    bench.router.route(request)
    bench.router.expire(HOLD_MS)
    answer = answer_of(request)
    assert (answer.code, answer.ext) == (0, {"offset": "-2"})
    assert "no leader is known" in (answer.remark or "")


def test_a_request_is_answered_once(bench: Bench) -> None:
    request = bench.request(30)
    request.answer(0)
    request.refuse(ResponseCode.SYSTEM_BUSY, "later")
    assert answer_of(request).code == 0


def test_one_that_wants_no_answer_gets_none(bench: Bench) -> None:
    request = bench.request(is_oneway=True)
    request.reply(b"frame")
    request.refuse_as_busy()
    assert isinstance(request.origin, FakeOrigin)
    assert not request.origin.sent


def fails(error: Exception) -> Callable[..., None]:
    def serve(*_request: object) -> None:
        raise error

    return serve


def test_what_the_client_got_wrong_is_told(bench: Bench) -> None:
    bench.log.is_serving = True
    request = bench.request(serve=fails(FieldError("topic", "is missing")))
    bench.router.route(request)
    assert (answer_of(request).code, answer_of(request).remark) == (1, "the field topic is missing")


def test_what_needs_a_damaged_entry_is_parked_and_carried_out_later(bench: Bench) -> None:
    bench.log.is_serving = True
    error = EntryDamagedError("entry 7 is damaged on n0")
    request = bench.request(serve=fails(error))
    bench.router.route(request)
    assert (bench.router.waiting_count, request.cause) == (1, str(error))


def confirmed(bench: Bench, code: int, **changes: Any) -> PendingRequest:
    """A request whose handler wants a confirmed leader, at a node that leads."""
    bench.log.is_serving = True
    request = bench.request(code, **changes)
    request.handler = dataclasses.replace(request.handler, is_confirmed=True)
    bench.router.route(request)
    return request


def test_what_tells_of_the_state_waits_until_this_node_is_confirmed(bench: Bench) -> None:
    request = confirmed(bench, 30)
    assert bench.served == []
    ((act, _failed),) = bench.confirming
    act()
    assert bench.served == [request]


def test_unconfirmed_it_goes_to_the_next_leader(bench: Bench) -> None:
    request = confirmed(bench, 30)
    ((_act, failed),) = bench.confirming
    failed(NotLeaderError("n1", 2))
    assert bench.router.waiting_count == 1
    assert "n1" in request.cause


def test_a_read_that_meets_a_damaged_entry_is_parked(bench: Bench) -> None:
    request = confirmed(bench, 30, serve=fails(EntryDamagedError("entry 7 is damaged on n0")))
    bench.confirming[0][0]()
    assert (bench.router.waiting_count, request.cause) == (1, "entry 7 is damaged on n0")


def test_a_message_is_not_given_back_for_a_client_that_went_meanwhile(bench: Bench) -> None:
    request = confirmed(bench, 36)
    request.origin.is_gone = True  # type: ignore[misc]  # a fake
    bench.confirming[0][0]()
    assert bench.served == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LeadershipLostError("gone"), 1, "outcome unknown"),
        (NotLeaderError(None, 3), 14, "nothing was done"),
    ],
)
def test_what_was_tried_with_unknown_outcome_is_not_told_to_be_undone(
    bench: Bench, error: DLedgerError, code: int, said: str
) -> None:
    request = bench.request(code=15)
    bench.router.unconfirmed(request, error)
    bench.router.expire(HOLD_MS)
    answer = answer_of(request)
    assert answer.code == code
    assert said in (answer.remark or "")


def test_what_another_node_perhaps_did_is_not_told_to_be_undone(bench: Bench) -> None:
    bench.link.is_open = True
    request = bench.request(code=15)
    bench.router.route(request)
    bench.link.asked[0][1].answered(make_response(1, PERHAPS_CARRIED_OUT, "it leads no longer"))
    bench.router.expire(HOLD_MS)
    assert "outcome unknown" in (answer_of(request).remark or "")


def test_a_later_refusal_does_not_undo_an_earlier_try_of_unknown_outcome(bench: Bench) -> None:
    """Whoever refuses: the leader of the later try, at its client's node or behind it."""
    bench.link.is_open = True
    request = bench.request(code=41)
    bench.router.route(request)
    bench.link.asked[0][1].broken("it broke")
    bench.router.unpark()
    assert [ext.get("tried") for _, _, ext, _ in bench.link.asked] == [None, "true"]
    request.refuse(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy")
    answer = answer_of(request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("outcome unknown: [OVERLOAD]system busy")


def test_a_question_that_finds_no_room_goes_back_to_the_clients_own_node() -> None:
    """Which knows how to tell this client; a code would make most of them skip messages."""
    bench = Bench(waiting_max=0)
    bench.log.role = Role.LEADER
    origin = FakeOrigin(is_forwarded=True)
    bench.router.park(bench.request(origin=origin, code=14))
    assert origin.passed_back == [NOT_CARRIED_OUT]
    assert origin.sent == []


@pytest.mark.parametrize(
    ("code", "is_gone", "told"), [(310, False, ["ABC"]), (310, True, []), (36, False, [])]
)
def test_the_leader_is_told_which_answers_to_sends_find_their_clients(
    bench: Bench, code: int, *, is_gone: bool, told: list[str]
) -> None:
    """For the others the client's retry, through whatever node, is no send on purpose."""
    bench.link.is_open = True
    request = bench.request(code=code)
    bench.router.route(request)
    request.origin.is_gone = is_gone  # type: ignore[misc]  # a fake
    waiter = bench.link.asked[0][1]
    answer = encode_command(make_response(9, 0, ext={"msgId": "ABC"}))
    waiter.answered(make_response(1, 0, body=answer))
    bench.router.report_delivered()
    bench.router.report_delivered()
    assert bench.link.told == [(PrivateCode.DELIVERED, {"msgId": each}) for each in told]


@pytest.mark.parametrize("is_serving", [False, True])
def test_a_send_that_waits_for_nobody_is_dropped(bench: Bench, *, is_serving: bool) -> None:
    """Its client may have sent it again elsewhere: done later, it would be done twice."""
    requests = [
        bench.request(),
        bench.request(is_oneway=True),
        bench.request(code=15),
    ]
    for request in requests:
        bench.router.route(request)
        request.origin.is_gone = True  # type: ignore[misc]  # a fake
    bench.log.is_serving, bench.link.is_open = is_serving, True
    bench.router.unpark()
    done = len(bench.served) if is_serving else len(bench.link.asked) + len(bench.link.told)
    assert done == 2, "not the first one"
    assert bench.router.waiting_count == 0


def test_a_send_is_dropped_though_the_end_of_its_connection_was_not_read_yet(bench: Bench) -> None:
    bench.link.is_open = True
    request = bench.request()
    request.origin.is_gone = True  # type: ignore[misc]  # a fake
    bench.router.route(request)
    bench.router.park(request)
    assert not bench.link.asked
    assert bench.router.waiting_count == 0
    bench.log.is_serving = True
    bench.router.route(request)
    assert bench.served == [request], "what a leader reads is before what comes after it"


def test_what_the_leader_passes_back_is_dropped_if_nobody_waits(bench: Bench) -> None:
    bench.link.is_open = True
    request = bench.request()
    bench.router.route(request)
    request.origin.is_gone = True  # type: ignore[misc]  # a fake
    bench.link.asked[0][1].answered(make_response(1, NOT_CARRIED_OUT, "it leads no longer"))
    assert bench.router.waiting_count == 0
    assert len(bench.link.asked) == 1


def test_a_leader_that_lacks_an_entry_says_so(bench: Bench) -> None:
    bench.log.is_serving = True
    request = bench.request()
    request.cause = "entry 7 is damaged on n0"
    bench.router.park(request)
    bench.router.expire(HOLD_MS)
    assert answer_of(request).code == 14
    assert answer_of(request).remark == "entry 7 is damaged on n0; nothing was done"


def test_what_the_leader_lacks_is_told_by_the_node_that_passed_the_request_on(bench: Bench) -> None:
    bench.link.is_open = True
    request = bench.request()
    bench.router.route(request)
    bench.now_ms = HOLD_MS
    refusal = make_response(1, NOT_CARRIED_OUT, "entry 7 is damaged on n1")
    bench.link.asked[0][1].answered(refusal)
    assert bench.router.waiting_count == 0, "its time is over: it is not passed on once more"
    answer = answer_of(request)
    assert answer.code == 14
    assert "entry 7 is damaged on n1" in (answer.remark or "")


def test_how_long_a_request_was_held_goes_with_it(bench: Bench) -> None:
    """The node that carries it out can tell from it what its client did without an answer."""
    request = bench.request()
    assert bench.router.waited_until_ms(request, 50) == 50
    bench.router.park(request)
    bench.now_ms = 700
    assert bench.router.waited_until_ms(request, 50) == 50 + 700 - WAIT_MARGIN_MS
    bench.link.is_open = True
    bench.router.unpark()
    assert bench.link.asked[0][2][WAITED_FIELD] == "700"
    forwarded = bench.request(was_held=True, waited_ms=700)
    bench.now_ms = 900
    assert bench.router.waited_until_ms(forwarded, 50) == 50 + 900 - WAIT_MARGIN_MS


@pytest.mark.parametrize("may_be_done", [False, True])
def test_what_the_way_to_the_leader_has_no_room_for_is_refused(may_be_done: bool) -> None:
    bench = Bench()
    bench.link.is_open = bench.link.is_full = True
    request = bench.request(may_be_done=may_be_done)
    bench.router.route(request)
    (answer,) = request.origin.answers()  # type: ignore[attr-defined]  # a FakeOrigin
    assert answer.code == (1 if may_be_done else 2)
    assert "too much is on its way to the leader" in (answer.remark or "")
    assert not bench.link.asked
    assert not bench.router.waiting_count


@pytest.mark.parametrize("error", [None, NotLeaderError("n1", 2)])
def test_who_keeps_what_is_on_its_way_is_told_first(error: DLedgerError | None) -> None:
    waiters: list[Any] = []
    commits = SimpleNamespace(
        staged_end=0, wait=lambda _place, one, _kept_bytes: waiters.append(one)
    )
    bench = Bench(commits=commits)
    told: list[object] = []
    request = bench.request()
    act = partial(told.append, "answered")
    bench.router.when_committed(request, 0, lambda _staged, _place: act(), ended=told.append)
    if error is None:
        waiters[0].committed(None, 0)
    else:
        waiters[0].failed(error)
    assert told == ([None, "answered"] if error is None else [error])
    assert bench.router.waiting_count == int(error is not None)
