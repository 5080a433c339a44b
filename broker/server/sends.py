"""Sends and messages that come back: decided, staged, answered when committed (10, 310, 320, 36)."""

from __future__ import annotations

import logging

import msgspec

from broker.message.errors import RecordError
from broker.message.ids import OffsetIdMaker
from broker.message.properties import (
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    encode_property,
    remove_property,
    terminated,
)
from broker.message.recall_handle import RecallHandle
from broker.remoting import fields
from broker.remoting.codes import ResponseCode
from broker.remoting.header import RemotingCommand
from broker.remoting.replies import SendReplies
from broker.remoting.requests import SendRequest
from broker.server.commits import Commits
from broker.server.gate import Errand, Gate
from broker.server.origin import answer
from broker.server.row_sends import RowSends
from broker.server.transactions import TransactionEnds
from broker.service.catalog import NOTHING_NEW
from broker.service.refusal import Refusal
from broker.service.repeats import EarlierSend, Repeats, sent_keys
from broker.service.send import MessagePlan, SendPlan, SendRules
from broker.service.send_back import SendBack, SendBackRules
from broker.store.names import SCHEDULE_TOPIC
from broker.store.schedule import DELIVERY_PROPERTIES_BYTES
from broker.store.sinks import Sinks
from broker.store.staging import StagedEntry
from broker.store.timers import TIMER_KEY
from dledger import DLedgerError

_log = logging.getLogger(__name__)

_SCHEDULE = SCHEDULE_TOPIC.encode()
_SCHEDULE_NAMES = (REAL_TOPIC, REAL_QID, TIMER_OUT_MS)
_TIMED_NAMES = (*_SCHEDULE_NAMES, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)  # M2


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
        ends: TransactionEnds,
        repeats: Repeats | None = None,
        broker_name: str = "",
        *,
        sinks: Sinks,
    ) -> None:
        """Prepare. `repeats` recognises sends that were stored before; None: every send is stored.

        `broker_name` is what recall handles say; `sinks` is the fold's view of them.
        """
        self._commits = commits
        self._gate = gate
        self._rules = rules
        self._back_rules = back_rules
        self._replies = replies
        self._ids = ids
        self._broker_name = broker_name
        self._repeats = repeats
        self._ahead: dict[bytes, _SendWaiter] = {}
        self._ends = ends
        self._rows = RowSends(commits, gate, sinks, ids, stage=self._stage)

    def send(self, errand: Errand, request: SendRequest) -> None:
        """One send, single or batch; the message is the frame's body."""
        if self._turned_away(errand):
            return
        header = request.fields
        plan = self._rules.decide(header, errand.frame.body, request.version)
        if isinstance(plan, Refusal):
            errand.refuse(plan.code, plan.remark)
            return
        if plan.creation is not NOTHING_NEW:
            self._commits.create(plan.creation)
        if header.sink_batch is not None:
            self._rows.send(errand, plan, header.sink_batch, header.born_timestamp_ms)
            return
        if plan.is_half:
            self._ends.begin(errand, plan, header.born_timestamp_ms)
            return
        waiter = _SendWaiter(self, errand, plan)
        if self._repeats is not None and self._is_repeat(waiter, header.born_timestamp_ms):
            return
        try:
            place = self._stage(waiter.plan, header.born_timestamp_ms, errand.origin.born_host)
        except RecordError as error:
            errand.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        if self._repeats is not None:
            for message in waiter.plan.messages:
                self._ahead[message.uniq_key] = waiter
        self._commits.wait(place, waiter)

    # Repeated sends.

    def _is_repeat(self, waiter: _SendWaiter, born_ms: int) -> bool:
        """Whether nothing is to be stored, because all of it was, or is about to be.

        Of a batch that was stored in part only the rest stays in the waiter's plan.
        """
        assert self._repeats is not None, "the caller looked"
        plan, ahead = waiter.plan, self._ahead
        recent = self._repeats.recent_keys
        for message in plan.messages:
            if message.uniq_key in recent or message.uniq_key in ahead:
                break
        else:
            return False
        for message in plan.messages:
            first = ahead.get(message.uniq_key)
            if first is not None and first.holds(plan, message):
                # Nobody was told yet, so this is the same send: whatever becomes of it is the answer.
                first.join(waiter)
                return True
        earlier = self._repeats.find_all(plan, plan.messages, born_ms)
        if not any(earlier):
            return False
        rest = tuple(
            message for message, found in zip(plan.messages, earlier, strict=True) if found is None
        )
        _log.debug(
            "%d of %d messages from %s were stored before and are answered so",
            len(earlier) - len(rest),
            len(earlier),
            waiter.errand.origin.address,
        )
        waiter.earlier = earlier
        if rest:
            waiter.plan = msgspec.structs.replace(plan, messages=rest)
            return False
        self._tell(waiter, [found for found in earlier if found is not None])
        self.settled(waiter)
        return True

    def settled(self, waiter: _SendWaiter) -> None:
        """A send came to its end: later ones with its keys are found in the window, or are new."""
        repeats = self._repeats
        if repeats is None:
            return
        ahead = self._ahead
        for message in waiter.plan.messages:
            if ahead.get(message.uniq_key) is waiter:
                del ahead[message.uniq_key]
        origin = waiter.errand.origin
        if origin.is_closed:
            repeats.not_answered(message.uniq_key for message in waiter.asked.messages)
        elif origin.is_forwarded:
            keys = [message.uniq_key for message in waiter.asked.messages]
            repeats.answered_over(origin.number, keys)

    def settled_together(self, waiters: list[_SendWaiter]) -> None:
        """The same send over several connections: one that stands is enough for a confirmation."""
        assert self._repeats is not None, "nothing joins without it"
        if not all(waiter.errand.origin.is_closed for waiter in waiters):
            self._repeats.answered(message.uniq_key for message in waiters[0].asked.messages)

    def not_delivered(self, request: SendRequest, body: bytes) -> None:
        """Another node could not pass the answer of a send on: its client was gone."""
        if self._repeats is not None:
            self._repeats.not_answered(sent_keys(request.fields, body))

    def connection_closed(self, number: int) -> None:
        """A connection ended; with it the answers that another node had not passed on yet."""
        if self._repeats is not None:
            self._repeats.link_closed(number)

    def lost(self) -> None:
        """Leadership is lost. Sends that are on their way are told by the log."""
        if self._repeats is not None:
            self._repeats.forget()

    # Storing.

    def _stage(self, plan: SendPlan, born_ms: int, born_host: bytes) -> int:
        """Stage all messages of a plan; gives the place of the first."""
        stage = self._commits.staging.stage
        real_topic, real_queue_id = topic, queue_id = plan.topic.encode(), plan.queue_id
        is_parked = True
        if plan.delay_level:
            topic, queue_id = _SCHEDULE, plan.delay_level - 1
        elif plan.due_ms:
            topic, queue_id = TIMER_KEY, 0
        else:
            is_parked = False
        first = -1
        for message in plan.messages:
            properties = message.properties
            if is_parked:
                properties = _parked(properties, real_topic, real_queue_id, plan.due_ms)
            place = stage(
                topic,
                queue_id,
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
            errand.refuse(plan.code, plan.remark)
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
            text = f"the message cannot be stored again: {error}"
            errand.refuse(ResponseCode.SYSTEM_ERROR, text)
            return
        self._commits.wait(place, _BackWaiter(self._gate, errand))

    def _turned_away(self, errand: Errand) -> bool:
        if not self._commits.is_full:
            return False
        errand.refuse(
            ResponseCode.SYSTEM_BUSY,
            "[OVERLOAD]system busy: too many sends wait for their commit; nothing was stored",
        )
        return True

    def stored(self, waiter: _SendWaiter, staged: StagedEntry, place: int) -> None:
        """Answer a send that is committed."""
        errand = waiter.errand
        if errand.is_oneway:
            return
        count = len(waiter.plan.messages)
        if waiter.earlier is not None:
            fresh = iter(range(place, place + count))
            queue_id = waiter.plan.queue_id
            self._tell(
                waiter,
                [
                    found or self._place_of(staged, next(fresh), queue_id)
                    for found in waiter.earlier
                ],
            )
            return
        if count == 1:
            ids = self._ids(staged.physical_offset(place))
        else:
            ids = ",".join(self._ids(staged.physical_offset(place + step)) for step in range(count))
        errand.origin.send(
            self._replies.encode(
                errand.opaque,
                msg_id=ids.encode(),
                queue_id=waiter.plan.queue_id,
                queue_offset=staged.queue_offset(place),
                recall_handle=self._recall_handle(waiter.plan, waiter.plan.due_ms),
            )
        )

    def _recall_handle(self, plan: SendPlan, due_ms: int) -> str | None:
        """What the producer of a message with a due time gets to recall it with; None for others."""
        if not due_ms:
            return None
        unique_key = plan.messages[0].uniq_key.decode()
        return RecallHandle(plan.topic, self._broker_name, due_ms, unique_key).encode()

    def _place_of(self, staged: StagedEntry, place: int, queue_id: int) -> EarlierSend:
        msg_id = self._ids(staged.physical_offset(place))
        return EarlierSend(queue_id, staged.queue_offset(place), msg_id)

    def _tell(self, waiter: _SendWaiter, stored: list[EarlierSend]) -> None:
        """Answer with where the messages were stored, some or all of them before."""
        errand = waiter.errand
        if errand.is_oneway:
            return
        ids = ",".join(one.msg_id for one in stored)
        errand.origin.send(
            self._replies.encode(
                errand.opaque,
                msg_id=ids.encode(),
                queue_id=stored[0].queue_id,
                queue_offset=stored[0].queue_offset,
                recall_handle=self._recall_handle(waiter.asked, stored[0].due_ms),
            )
        )

    def unconfirmed(self, waiters: list[_SendWaiter], error: DLedgerError) -> None:
        """Sends of the same messages are not confirmed."""
        for waiter in waiters:
            self._gate.unconfirmed(waiter.errand, error)


class _SendWaiter:
    """A send that waits for its commit, and the repeats of it that came meanwhile.

    Attributes:
        plan: what is staged of it.
        asked: what its client sent; more than `plan` when a part was stored before.
        earlier: for each message of `asked` where it was stored before; None when none was.
    """

    __slots__ = ("_joined", "_sends", "asked", "earlier", "errand", "plan")

    def __init__(self, sends: Sends, errand: Errand, plan: SendPlan) -> None:
        self.errand = errand
        self.plan = self.asked = plan
        self.earlier: list[EarlierSend | None] | None = None
        self._sends = sends
        self._joined: list[_SendWaiter] | None = None

    def holds(self, plan: SendPlan, message: MessagePlan) -> bool:
        """Whether the message of another send is one of those that are staged here."""
        mine = self.plan
        return (
            mine.topic == plan.topic
            and mine.reconsume_times == plan.reconsume_times
            and mine.delay_level == plan.delay_level
            and len(self.asked.messages) == len(plan.messages)
            and any(
                own.uniq_key == message.uniq_key and own.body == message.body
                for own in mine.messages
            )
        )

    def join(self, repeat: _SendWaiter) -> None:
        """The same send came again: its errand gets the same answer."""
        if self._joined is None:
            self._joined = []
        self._joined.append(repeat)

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._sends.stored(self, staged, place)
        self._sends.settled(self)
        if self._joined is not None:
            for repeat in self._joined:
                repeat.plan, repeat.earlier = self.plan, self.earlier
                self._sends.stored(repeat, staged, place)
                self._sends.settled(repeat)
            self._sends.settled_together([self, *self._joined])

    def failed(self, error: DLedgerError) -> None:
        self._sends.settled(self)
        self._sends.unconfirmed([self, *(self._joined or ())], error)


class _BackWaiter:
    __slots__ = ("_errand", "_gate")

    def __init__(self, gate: Gate, errand: Errand) -> None:
        self._gate = gate
        self._errand = errand

    def committed(self, staged: StagedEntry, place: int) -> None:
        _reply(self._errand)

    def failed(self, error: DLedgerError) -> None:
        self._gate.unconfirmed(self._errand, error)


def _parked(properties: bytes, topic: bytes, queue_id: int, due_ms: int) -> bytes:
    """The properties of a message that waits in the schedule or timer topic (M3, N7).

    Raises:
        RecordError: there would be no room for what is added at the delivery.
    """
    parked = (
        terminated(remove_property(properties, *(_SCHEDULE_NAMES if due_ms else _TIMED_NAMES)))
        + encode_property(REAL_TOPIC, topic)
        + encode_property(REAL_QID, b"%d" % queue_id)
    )
    if due_ms:
        parked += encode_property(TIMER_OUT_MS, b"%d" % due_ms)
    if len(parked) > PROPERTIES_BYTES_MAX - DELIVERY_PROPERTIES_BYTES:
        raise RecordError(
            f"properties of {len(parked)} bytes, a delayed message has room for "
            f"{PROPERTIES_BYTES_MAX - DELIVERY_PROPERTIES_BYTES}"
        )
    return parked


def _reply(errand: Errand) -> None:
    if not errand.is_oneway:
        answer(errand.origin, errand.opaque, ResponseCode.SUCCESS)
