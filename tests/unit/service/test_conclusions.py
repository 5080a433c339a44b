"""What may be concluded: every kind of request, refused, of unknown outcome, or lost on the way to the leader."""

from __future__ import annotations

import pytest

from broker.service.conclusions import AskNext, RequestKind, refusal_after, unanswered, unconfirmed
from broker.service.refusal import Refusal
from dledger import EntryDamagedError, LeadershipLostError, NotLeaderError, TooLargeError
from dledger_mq.remoting.codes import ResponseCode

UNDONE, PERHAPS = AskNext(may_be_done=False), AskNext(may_be_done=True)
READS = (RequestKind.READ, RequestKind.QUESTION)


@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize("error", [NotLeaderError("n1", 2), EntryDamagedError("entry 7")])
def test_what_is_refused_for_now_goes_to_the_next_leader(
    kind: RequestKind, error: NotLeaderError
) -> None:
    assert unconfirmed(kind, error) == UNDONE


@pytest.mark.parametrize(
    ("kind", "code", "remark"),
    [
        (RequestKind.SEND, ResponseCode.MESSAGE_ILLEGAL, "the message was not stored: big"),
        (RequestKind.SEND_BACK, ResponseCode.MESSAGE_ILLEGAL, "the message was not stored: big"),
        (RequestKind.UPDATE, ResponseCode.MESSAGE_ILLEGAL, "nothing was done: big"),
        (
            RequestKind.ADMIN,
            ResponseCode.SYSTEM_ERROR,
            "outcome unknown: big; the change may have been made",
        ),
    ],
)
def test_what_is_refused_for_good_is_told(
    kind: RequestKind, code: ResponseCode, remark: str
) -> None:
    assert unconfirmed(kind, TooLargeError("big")) == Refusal(code, remark)


@pytest.mark.parametrize("kind", [RequestKind.SEND, RequestKind.SEND_BACK])
def test_a_message_of_unknown_outcome_is_told_to_be_that(kind: RequestKind) -> None:
    text = "outcome unknown: gone; the message may have been stored"
    assert unconfirmed(kind, LeadershipLostError("gone")) == Refusal(
        ResponseCode.SYSTEM_ERROR, text
    )


def test_so_is_a_change_that_somebody_watches() -> None:
    text = "outcome unknown: gone; the change may have been made"
    error = LeadershipLostError("gone")
    assert unconfirmed(RequestKind.ADMIN, error) == Refusal(ResponseCode.SYSTEM_ERROR, text)


def test_what_is_as_good_done_twice_is_asked_again_and_no_longer_surely_undone() -> None:
    assert unconfirmed(RequestKind.UPDATE, LeadershipLostError("gone")) == PERHAPS


@pytest.mark.parametrize("kind", READS)
def test_a_read_is_never_of_unknown_outcome(kind: RequestKind) -> None:
    for error in (LeadershipLostError("gone"), TooLargeError("big")):
        assert unconfirmed(kind, error) == UNDONE
    assert unanswered(kind, "it broke") == UNDONE


@pytest.mark.parametrize("kind", RequestKind)
def test_a_silent_leader_is_asked_again_for_what_may_be_repeated(kind: RequestKind) -> None:
    end = unanswered(kind, "it broke")
    if kind in (RequestKind.SEND, RequestKind.SEND_BACK):
        assert isinstance(end, Refusal)
        assert end.code == ResponseCode.SYSTEM_ERROR
        assert end.remark.startswith("outcome unknown: it broke after")
    else:
        assert end == (UNDONE if kind in READS else PERHAPS)


def test_no_refusal_undoes_what_may_have_been_done() -> None:
    busy = Refusal(ResponseCode.SYSTEM_BUSY, "busy")
    assert refusal_after(busy.code, busy.remark, may_be_done=False) == busy
    told = refusal_after(busy.code, busy.remark, may_be_done=True)
    assert told.code == ResponseCode.SYSTEM_ERROR
    assert told.remark == "outcome unknown: busy; an earlier try may have been carried out"
    unknown = Refusal(ResponseCode.SYSTEM_ERROR, "outcome unknown")
    assert refusal_after(unknown.code, unknown.remark, may_be_done=True) == unknown
