"""Checks that begin anew at an operator's word: RESUME_CHECK_HALF_MESSAGE (323).

A half message that is open has its checks counted from the start. One that was given up is stored as a
half message again, with a new half queue offset; what was decided about the old one stays decided. So it may be
stored only while the last that was stored of it was given up, too: after a commit its message would be seen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

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
from dledger_mq.message.properties import REAL_TOPIC, TRANSACTION_ID, UNIQ_KEY
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

_HALF = HALF_TOPIC.encode()

CANDIDATES_MAX: Final = 256
"""Half messages under one key that are looked at, the newest; clients give each its own."""


class _CountAnew(NamedTuple):
    """The checks of an open half message are counted from the start."""

    queue_offset: QueueOffset


class _StoreAgain(NamedTuple):
    """One that was given up is stored as a half message again, unless that is on its way."""

    asked: RequestedMessage
    is_on_its_way: bool


class _Ended(NamedTuple):
    """One that was given up was stored again, and has ended since."""

    verdict: TransactionVerdict


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
        stored: Callable[[str], Iterator[PhysicalOffset]],
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the resuming of checks.

        Args:
            commits: what is resumed is staged here.
            router: waits for its commit.
            transactions: those of the fold.
            ends: half messages that are on their way.
            load: returns the committed message at a physical offset, or None.
            stored: yields where half messages stand, open or not, that may have a unique key, the newest first.
            now_ms: the time of the log.
        """
        self._commits = commits
        self._router = router
        self._transactions = transactions
        self._ends = ends
        self._load = load
        self._stored = stored
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
            case _Ended(verdict):
                how = verdict.name.lower().replace("_", " ")
                problem = f"{text} was stored again, and is {how}: there is nothing to check"
                request.refuse(ResponseCode.SYSTEM_ERROR, problem)
                return
            case _CountAnew(queue_offset):
                record = ResumeTransaction(queue_offset, self._now_ms())
                self._answer_when_committed(request, self._commits.stage_control(record))
            case _StoreAgain(asked, is_on_its_way):
                if is_on_its_way:
                    answer = partial(request.answer, ResponseCode.SUCCESS)
                    self._router.when_staged_committed(request, answer)
                else:
                    self._answer_when_committed(request, self._store_again(message, asked))

    def _answer_when_committed(self, request: PendingRequest, place: int) -> None:
        self._router.when_committed(
            request, place, lambda _staged, _place: request.answer(ResponseCode.SUCCESS)
        )

    def _decide(self, message: StoredMessage) -> _CountAnew | _StoreAgain | _Ended | None:
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
        is_on_its_way = self._ends.is_beginning(key, asked) or asked in self._storing
        verdict = None if is_on_its_way else self._last_verdict(message, asked)
        if verdict in {TransactionVerdict.COMMITTED, TransactionVerdict.ROLLED_BACK}:
            return _Ended(verdict)
        return _StoreAgain(asked, is_on_its_way)

    def _open_copy(self, key: TransactionKey, asked: RequestedMessage) -> OpenHalf | None:
        """Find the same half message among the open ones with that transaction id."""
        for half in self._transactions().newest(key, COPIES_MAX):
            record = self._load(half.physical_offset)
            if record is not None and requested_by_record(record) == asked:
                return half
        return None

    def _last_verdict(
        self, message: StoredMessage, asked: RequestedMessage
    ) -> TransactionVerdict | None:
        """Return how the newest half message ended that is the same; None if that is not known any more."""
        unique_key = message.find(UNIQ_KEY) or b""
        places = self._stored(unique_key.decode(errors="replace"))
        for place in islice(places, CANDIDATES_MAX):
            record = self._load(place)
            if record is not None and requested_by_record(record) == asked:
                return self._transactions().verdict(QueueOffset(record.queue_offset))
        return None

    def _store_again(self, message: StoredMessage, asked: RequestedMessage) -> int:
        """Stage the half message anew, and return its place.

        Until that is decided, a second request for the same one stores nothing.
        """
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
        return place
