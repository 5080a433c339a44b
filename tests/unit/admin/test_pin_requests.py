"""Pins put and removed from outside: what whoever asks is told when members do not answer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from broker.admin import pins
from broker.admin.ask import NobodyAnsweredError
from broker.admin.pins import PinBounds, PinRefusedError, pin_log, unpin_log
from dledger_mq.client.errors import ClientError, NotConnectedError, RequestTimeoutError
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand

NONE = "there is no pin 'a'; there are: none"


def answer(code: int, remark: str = "") -> RemotingCommand:
    return RemotingCommand(code=code, opaque=1, remark=remark, ext={"position": "7"}, version=409)


class Member:
    """A member that gives one answer, or none."""

    def __init__(self, end: RemotingCommand | ClientError) -> None:
        self._end = end

    async def call(self, code: int, ext: Mapping[str, str], *, timeout_s: float) -> RemotingCommand:
        if isinstance(self._end, ClientError):
            raise self._end
        return self._end


def let_answer(monkeypatch: pytest.MonkeyPatch, *ends: RemotingCommand | ClientError) -> list[str]:
    """Let members end like that; return their addresses."""
    members = {f"h:{number}": Member(end) for number, end in enumerate(ends, start=1)}
    monkeypatch.setattr(pins, "make_links", lambda _nursery: members)
    return list(members)


REFUSED = NotConnectedError("h:1: [Errno 111] Connection refused")
SILENT = RequestTimeoutError("h:1: no answer")


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([REFUSED], "no member has done it: h:1: Connection refused; nothing was changed"),
        (
            [answer(ResponseCode.SYSTEM_BUSY, "busy")],
            "no member has done it: h:1: busy; nothing was changed",
        ),
        (
            [SILENT, REFUSED],
            "no member has done it: h:1: no answer; h:1: Connection refused; outcome unknown, it may yet be done",
        ),
        ([], "no member has done it: none is known; nothing was changed"),
    ],
)
def test_without_an_answer_it_is_said_whether_it_may_yet_be_done(
    monkeypatch: pytest.MonkeyPatch, ends: list[RemotingCommand | ClientError], text: str
) -> None:
    addresses = let_answer(monkeypatch, *ends)
    with pytest.raises(NobodyAnsweredError) as told:
        trio.run(unpin_log, addresses, "a")
    assert str(told.value) == text


def test_a_pin_that_an_earlier_try_may_have_removed_is_not_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = answer(ResponseCode.INVALID_PARAMETER, NONE)
    with pytest.raises(PinRefusedError) as told:
        trio.run(unpin_log, let_answer(monkeypatch, SILENT, gone), "a")
    assert str(told.value) == (f"{NONE} (outcome unknown of what was tried before: h:1: no answer)")
    assert not told.value.is_definite
    with pytest.raises(PinRefusedError) as told:
        trio.run(unpin_log, let_answer(monkeypatch, REFUSED, gone), "a")
    assert str(told.value) == NONE
    assert told.value.is_definite
    lost = answer(ResponseCode.SYSTEM_ERROR, "outcome unknown: no leader")
    with pytest.raises(PinRefusedError) as told:
        trio.run(unpin_log, let_answer(monkeypatch, lost), "a")
    assert not told.value.is_definite


def test_the_next_member_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = let_answer(monkeypatch, SILENT, answer(ResponseCode.SUCCESS))
    assert trio.run(pin_log, addresses, "a", PinBounds(1, 1)) == 7
