"""Sends and messages that come back: decided, staged, answered when committed (10, 310, 320, 36)."""

from __future__ import annotations

import logging

from broker.message.errors import RecordError
from broker.message.ids import OffsetIdMaker
from broker.message.properties import (
    REAL_QID,
    REAL_TOPIC,
    encode_property,
    remove_property,
    terminated,
)
from broker.remoting import fields
from broker.remoting.codes import ResponseCode
from broker.remoting.header import RemotingCommand
from broker.remoting.replies import SendReplies
from broker.remoting.requests import SendRequest
from broker.server.commits import Commits
from broker.server.gate import Errand, Gate
from broker.server.origin import answer
from broker.service.catalog import NOTHING_NEW
from broker.service.refusal import Refusal
from broker.service.send import MessagePlan, SendPlan, SendRules
from broker.service.send_back import SendBack, SendBackRules
from broker.store.names import SCHEDULE_TOPIC
from broker.store.staging import StagedEntry
from dledger import DLedgerError, RefusedError

_log = logging.getLogger(__name__)

_SCHEDULE = SCHEDULE_TOPIC.encode()
_SCHEDULE_NAMES = (REAL_TOPIC, REAL_QID)


class Sends:
    """Takes sends while this node leads."""

    def __init__(
        self,
        commits: Commits,
        gate: Gate,
        rules: SendRules,
        back_rules: SendBackRules,
        replies: SendReplies,
        ids: OffsetIdMaker,
    ) -> None:
        self._commits = commits
        self._gate = gate
        self._rules = rules
        self._back_rules = back_rules
        self._replies = replies
        self._ids = ids

    def send(self, errand: Errand, request: SendRequest) -> None:
        """One send, single or batch; the message is the frame's body."""
        if self._turned_away(errand):
            return
        header = request.fields
        plan = self._rules.decide(header, errand.frame.body, request.version)
        if isinstance(plan, Refusal):
            _refuse(errand, plan.code, plan.remark)
            return
        if plan.creation is not NOTHING_NEW:
            self._commits.create(plan.creation)
        try:
            place = self._stage(plan, header.born_timestamp_ms, errand.origin.born_host)
        except RecordError as error:
            _refuse(errand, ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        self._commits.wait(place, _SendWaiter(self, errand, plan.queue_id, len(plan.messages)))

    def _stage(self, plan: SendPlan, born_ms: int, born_host: bytes) -> int:
        """Stage all messages of a plan; gives the place of the first."""
        stage = self._commits.staging.stage
        topic, queue_id = plan.topic.encode(), plan.queue_id
        first = -1
        for message in plan.messages:
            properties = message.properties
            if plan.delay_level:
                properties = _parked(properties, topic, queue_id)
            place = stage(
                _SCHEDULE if plan.delay_level else topic,
                plan.delay_level - 1 if plan.delay_level else queue_id,
                message.body,
                properties,
                born_timestamp_ms=born_ms,
                born_host=born_host,
                sys_flag=plan.sys_flag,
                flag=message.flag,
                reconsume_times=plan.reconsume_times,
            )
            first = place if first < 0 else first
        return first

    def send_back(self, errand: Errand, request: RemotingCommand) -> None:
        """CONSUMER_SEND_MSG_BACK.

        Raises:
            FieldError: a field is missing or impossible.
        """
        if self._turned_away(errand):
            return
        ext = request.ext
        wanted = SendBack(
            fields.int64(ext, "offset"),
            fields.text(ext, "group"),
            fields.int32(ext, "delayLevel", 0),
            fields.int32(ext, "maxReconsumeTimes", None),
        )
        plan = self._back_rules.decide(wanted, request.version)
        if plan is None:
            _reply(errand)
            return
        if isinstance(plan, Refusal):
            _refuse(errand, plan.code, plan.remark)
            return
        self._commits.create(plan.creation)
        message = plan.message
        copy = SendPlan(
            plan.topic,
            plan.queue_id,
            message.sys_flag,
            plan.reconsume_times,
            plan.delay_level,
            (MessagePlan(message.flag, message.body, plan.properties, b""),),
        )
        try:
            place = self._stage(copy, message.born_timestamp_ms, message.born_host)
        except RecordError as error:
            _refuse(
                errand, ResponseCode.SYSTEM_ERROR, f"the message cannot be stored again: {error}"
            )
            return
        self._commits.wait(place, _BackWaiter(self, errand))

    def _turned_away(self, errand: Errand) -> bool:
        if not self._commits.is_full:
            return False
        _refuse(
            errand,
            ResponseCode.SYSTEM_BUSY,
            "[OVERLOAD]system busy: too many sends wait for their commit; nothing was stored",
        )
        return True

    def stored(
        self, errand: Errand, staged: StagedEntry, place: int, queue_id: int, count: int
    ) -> None:
        """Answer a send that is committed."""
        if errand.is_oneway:
            return
        if count == 1:
            ids = self._ids(staged.physical_offset(place))
        else:
            ids = ",".join(self._ids(staged.physical_offset(place + step)) for step in range(count))
        errand.origin.send(
            self._replies.encode(
                errand.opaque,
                msg_id=ids.encode(),
                queue_id=queue_id,
                queue_offset=staged.queue_offset(place),
            )
        )

    def failed(self, errand: Errand, error: DLedgerError) -> None:
        """Answer a send that is not confirmed; one that surely was not stored goes to the next leader."""
        if isinstance(error, RefusedError) and error.retriable:
            errand.cause = str(error)
            self._gate.hold(errand)
        elif isinstance(error, RefusedError):
            _refuse(errand, ResponseCode.MESSAGE_ILLEGAL, f"the message was not stored: {error}")
        else:
            _refuse(
                errand,
                ResponseCode.SYSTEM_ERROR,
                f"outcome unknown: {error}; the message may have been stored",
            )


class _SendWaiter:
    __slots__ = ("_count", "_errand", "_queue_id", "_sends")

    def __init__(self, sends: Sends, errand: Errand, queue_id: int, count: int) -> None:
        self._sends = sends
        self._errand = errand
        self._queue_id = queue_id
        self._count = count

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._sends.stored(self._errand, staged, place, self._queue_id, self._count)

    def failed(self, error: DLedgerError) -> None:
        self._sends.failed(self._errand, error)


class _BackWaiter:
    __slots__ = ("_errand", "_sends")

    def __init__(self, sends: Sends, errand: Errand) -> None:
        self._sends = sends
        self._errand = errand

    def committed(self, staged: StagedEntry, place: int) -> None:
        _reply(self._errand)

    def failed(self, error: DLedgerError) -> None:
        self._sends.failed(self._errand, error)


def _parked(properties: bytes, topic: bytes, queue_id: int) -> bytes:
    """The properties of a message that waits in the schedule topic (M3)."""
    return (
        terminated(remove_property(properties, *_SCHEDULE_NAMES))
        + encode_property(REAL_TOPIC, topic)
        + encode_property(REAL_QID, b"%d" % queue_id)
    )


def _refuse(errand: Errand, code: ResponseCode, remark: str) -> None:
    if not errand.is_oneway:
        answer(errand.origin, errand.opaque, code, remark)


def _reply(errand: Errand) -> None:
    if not errand.is_oneway:
        answer(errand.origin, errand.opaque, ResponseCode.SUCCESS)
