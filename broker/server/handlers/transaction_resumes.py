"""Checks that begin anew at an operator's word: RESUME_CHECK_HALF_MESSAGE (323).

A half message that is open has its checks counted from the start. One that was given up is stored as a
half message again, with a new half queue offset; what was decided about the old one stays decided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from broker.server.handlers.transactions import TransactionEnds
from broker.server.requests.commits import Commits, OnCommit
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.sameness import RequestedMessage, requested_by_record
from broker.store.control import ResumeTransaction
from broker.store.recent_sends import COPIES_MAX
from broker.store.transactions import OpenHalf, TransactionKey, Transactions, TransactionVerdict
from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.names import CHECK_MAX_TOPIC, HALF_TOPIC
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import REAL_TOPIC, TRANSACTION_ID
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

_HALF = HALF_TOPIC.encode()


class _CountAnew(NamedTuple):
    """The checks of an open half message are counted from the start."""

    queue_offset: QueueOffset


class _StoreAgain(NamedTuple):
    """One that was given up is stored as a half message again, unless that is on its way."""

    asked: RequestedMessage
    is_on_its_way: bool


class TransactionResumes:
    """Carries out RESUME_CHECK_HALF_MESSAGE (323) while this node leads."""

    def __init__(
        self,
        commits: Commits,
        router: Router,
        transactions: Callable[[], Transactions],
        ends: TransactionEnds,
        *,
        load: Callable[[PhysicalOffset], StoredMessage | None],
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the resuming of checks; `load` returns the committed message at a physical offset, or None."""
        self._commits = commits
        self._router = router
        self._transactions = transactions
        self._ends = ends
        self._load = load
        self._now_ms = now_ms
        self._storing: set[RequestedMessage] = set()

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        return (
            Handler(
                RequestCode.RESUME_CHECK_HALF_MESSAGE,
                self.resume,
                RequestKind.UPDATE,
                is_confirmed=True,
            ),
        )

    def resume(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out RESUME_CHECK_HALF_MESSAGE.

        Raises:
            FieldError: the message id is missing.
        """
        text = fields.text(command.ext, "msgId")
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        try:
            message = self._load(PhysicalOffset(parse_offset_msg_id(text)[2]))
        except MessageIdError as error:
            request.refuse(ResponseCode.SYSTEM_ERROR, str(error))
            return
        if message is None:
            request.refuse(ResponseCode.SYSTEM_ERROR, f"there is no message {text}")
            return
        match self._decide(message):
            case None:
                problem = f"{text} is no half message that is open or was given up"
                request.refuse(ResponseCode.SYSTEM_ERROR, problem)
                return
            case _CountAnew(queue_offset):
                self._commits.stage_control(ResumeTransaction(queue_offset, self._now_ms()))
            case _StoreAgain(asked, is_on_its_way):
                if not is_on_its_way:
                    self._store_again(message, asked)
        self._router.when_staged_committed(request, lambda: request.answer(ResponseCode.SUCCESS))

    def _decide(self, message: StoredMessage) -> _CountAnew | _StoreAgain | None:
        """Decide how the checks of a message begin anew; None if there is nothing to check."""
        topic, name = message.find(REAL_TOPIC), message.find(TRANSACTION_ID)
        if message.topic == HALF_TOPIC:
            queue_offset = QueueOffset(message.queue_offset)
            verdict = self._transactions().verdict(queue_offset)
            if verdict is TransactionVerdict.OPEN:
                return _CountAnew(queue_offset)
            if verdict is not TransactionVerdict.GIVEN_UP:
                return None
        elif message.topic != CHECK_MAX_TOPIC:
            return None
        if topic is None or name is None:
            return None
        key = (topic, name)
        asked = requested_by_record(msgspec.structs.replace(message, topic=HALF_TOPIC))
        known = self._open_copy(key, asked)
        if known is not None:
            return _CountAnew(known.queue_offset)
        return _StoreAgain(asked, self._ends.is_beginning(key, asked) or asked in self._storing)

    def _open_copy(self, key: TransactionKey, asked: RequestedMessage) -> OpenHalf | None:
        """Find the same half message among the open ones with that transaction id."""
        for half in self._transactions().newest(key, COPIES_MAX):
            record = self._load(half.physical_offset)
            if record is not None and requested_by_record(record) == asked:
                return half
        return None

    def _store_again(self, message: StoredMessage, asked: RequestedMessage) -> None:
        """Stage the half message anew; until that is decided, a second request for the same one stores nothing."""
        place = self._commits.staging.stage(
            _HALF,
            QueueId(0),
            message.body,
            message.properties,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            sys_flag=message.sys_flag,
            flag=message.flag,
            reconsume_times=message.reconsume_times,
        )
        self._storing.add(asked)
        self._commits.wait(
            place,
            OnCommit(
                lambda _staged, _place: self._storing.discard(asked),
                lambda _error: self._storing.discard(asked),
            ),
        )
