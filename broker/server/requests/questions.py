"""Questions that a client must not be left alone with: 14 and 38, answered in time whatever happens inside.

A request may wait for a leader, on the link to one that is silent, for a commit or for a round. For most that is
all the same. But some clients take their own impatience for "there is no offset" (service.asking_again), so these two
are answered before that, in the way that makes the client ask again.
"""

from __future__ import annotations

from collections import deque

from broker.server.requests.request import HOLD_MS, PendingRequest
from broker.service.asking_again import (
    LATE_MS,
    OFFSET_UNKNOWN,
    UnknownOffsetAnswer,
    unknown_offset_answer,
    wants_empty_list,
)
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.group_bodies import encode_consumer_list
from dledger_mq.remoting.header import RemotingCommand


class Question(PendingRequest):
    """A request of code 14 or 38, to be answered before its client gives up.

    Attributes:
        late_refusal: code and remark of the answer once the client has given up by itself.
    """

    late_refusal: tuple[ResponseCode, str] | None = None

    def give_up(self, code: ResponseCode, remark: str) -> None:
        """Let the client ask again, since nobody can answer. Some clients are shown `code` and `remark`."""
        command = self.command
        assert isinstance(command, RemotingCommand), "14 and 38 are read the general way"
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            if wants_empty_list(command.language, command.version):
                self.answer(ResponseCode.SUCCESS, remark, body=encode_consumer_list([]))
            else:
                self.answer(code, remark)
            return
        match unknown_offset_answer(command.language, command.version):
            case UnknownOffsetAnswer.REASON:
                self.answer(code, remark)
            case UnknownOffsetAnswer.NO_OFFSET:
                self.answer(ResponseCode.SUCCESS, remark, {"offset": str(OFFSET_UNKNOWN)})
            case UnknownOffsetAnswer.LATE_REASON:
                # What is found out until then is as true, and may come in time.
                self.late_refusal = code, remark

    def refuse_late(self) -> None:
        """Answer with the reason, for those who look on: the client has given up by itself."""
        if self.late_refusal is not None:
            self.answer(*self.late_refusal)


class Questions:
    """The open questions of this node's own clients, oldest first: all have the same time."""

    def __init__(self) -> None:
        self._open: deque[Question] = deque()
        self._late: deque[tuple[int, Question]] = deque()

    def add(self, question: Question) -> None:
        """Watch a question of this node's own client; deadlines never decrease. Other nodes watch theirs."""
        while self._open and self._open[0].is_closed:
            self._open.popleft()
        if not (question.origin.is_forwarded or question.is_oneway):
            self._open.append(question)

    def expire(self, now_ms: int, why: str) -> None:
        """Give up those that have waited long enough; `why` is for people."""
        while self._open and (self._open[0].is_closed or self._open[0].deadline_ms <= now_ms):
            question = self._open.popleft()
            if not question.is_closed:
                question.give_up(ResponseCode.SERVICE_NOT_AVAILABLE, why)
            if not question.is_closed:
                self._late.append((question.deadline_ms + LATE_MS - HOLD_MS, question))
        while self._late and (self._late[0][1].is_closed or self._late[0][0] <= now_ms):
            self._late.popleft()[1].refuse_late()
