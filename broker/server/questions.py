"""Questions that a client must not be left alone with: 14 and 38, answered in time whatever happens inside.

A request may wait at the gate, behind the link to a leader that is silent, for a commit or for a round. For most
that is all the same. But some clients take their own impatience for "there is no offset" (service.asking_again), so
these two are answered before that, in the way that makes the client ask again.
"""

from __future__ import annotations

from collections import deque

from broker.server.gate import HOLD_MS
from broker.server.origin import Origin, OriginProxy, answer
from broker.service.asking_again import (
    LATE_MS,
    OFFSET_UNTOLD,
    Untold,
    offset_untold,
    wants_empty_list,
)
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.group_bodies import encode_consumer_list
from dledger_mq.remoting.header import RemotingCommand


class Question(OriginProxy):
    """An origin that takes one answer: the first. Later ones are dropped."""

    __slots__ = ("_is_answered", "_refusal", "_request", "deadline_ms")

    def __init__(self, origin: Origin, request: RemotingCommand, deadline_ms: int) -> None:
        super().__init__(origin)
        self._request = request
        self._is_answered = False
        self._refusal: tuple[ResponseCode, str] | None = None
        self.deadline_ms = deadline_ms

    @property
    def is_closed(self) -> bool:
        """Whether nobody wants an answer any more."""
        return self._is_answered or self._origin.is_closed

    def send(self, frame: bytes) -> None:
        """See `Origin`."""
        if not self._is_answered:
            self._is_answered = True
            self._origin.send(frame)

    def pass_back(self, code: int, remark: str) -> None:
        """Never: it was not forwarded."""
        self._origin.pass_back(code, remark)

    def give_up(self, code: ResponseCode, remark: str) -> None:
        """Nobody can say: let the client ask again. `code` and `remark` are for those that can be told."""
        request = self._request
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            if wants_empty_list(request.language, request.version):
                answer(
                    self,
                    request.opaque,
                    ResponseCode.SUCCESS,
                    remark,
                    body=encode_consumer_list([]),
                )
            else:
                answer(self, request.opaque, code, remark)
            return
        match offset_untold(request.language, request.version):
            case Untold.REASON:
                answer(self, request.opaque, code, remark)
            case Untold.NO_OFFSET:
                ext = {"offset": str(OFFSET_UNTOLD)}
                answer(self, request.opaque, ResponseCode.SUCCESS, remark, ext=ext)
            case Untold.LATE_REASON:
                # What is found out until then is as true, and may come in time.
                self._refusal = code, remark

    def refuse(self) -> None:
        """The client has given up by itself: say why, for those who look on."""
        if self._refusal is not None:
            answer(self, self._request.opaque, *self._refusal)


class Questions:
    """The open questions of this node's own clients, oldest first: all have the same time."""

    def __init__(self) -> None:
        self._open: deque[Question] = deque()
        self._late: deque[tuple[int, Question]] = deque()

    def ask(self, origin: Origin, request: RemotingCommand, deadline_ms: int) -> Question:
        """Take one in, whose time of `HOLD_MS` ends then; deadlines never decrease."""
        while self._open and self._open[0].is_closed:
            self._open.popleft()
        question = Question(origin, request, deadline_ms)
        self._open.append(question)
        return question

    def expire(self, now_ms: int, why: str) -> None:
        """Give up those that have waited long enough; `why` is for people."""
        while self._open and (self._open[0].is_closed or self._open[0].deadline_ms <= now_ms):
            question = self._open.popleft()
            if not question.is_closed:
                question.give_up(ResponseCode.SERVICE_NOT_AVAILABLE, why)
            if not question.is_closed:
                self._late.append((question.deadline_ms + LATE_MS - HOLD_MS, question))
        while self._late and (self._late[0][1].is_closed or self._late[0][0] <= now_ms):
            self._late.popleft()[1].refuse()
