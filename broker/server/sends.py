"""Sends and messages that come back: decided, staged, answered when committed (10, 310, 320, 36)."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from broker.server.commits import Commits
from broker.server.request import Handler, PendingRequest
from broker.server.router import Router
from broker.server.row_sends import RowSends
from broker.server.transactions import TransactionEnds
from broker.service.catalog import NOTHING_NEW
from broker.service.conclusions import Kind
from broker.service.refusal import Refusal
from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import Essence, essence_of_plan, is_same, stored_as
from broker.service.send import MessagePlan, SendPlan, SendRules
from broker.service.send_back import SendBack, SendBackRules
from broker.store.recent_sends import COPIES_MAX
from broker.store.sinks import Sinks
from broker.store.staging import StagedEntry
from dledger import DLedgerError, RefusedError
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import OffsetIdMaker, parse_offset_msg_id
from dledger_mq.message.recall_handle import RecallHandle
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import SendRequest

_log = logging.getLogger(__name__)


class Sends:
    """Takes sends while this node leads."""

    def __init__(
        self,
        commits: Commits,
        router: Router,
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
        self._router = router
        self._rules = rules
        self._back_rules = back_rules
        self._replies = replies
        self._ids = ids
        self._broker_name = broker_name
        self._repeats = repeats
        self._ahead: dict[bytes, tuple[_SendWaiter, ...]] = {}
        self._ends = ends
        self._rows = RowSends(commits, router, sinks, ids, stage=self._stage)

    def handlers(self) -> tuple[Handler[Any], ...]:
        """What it takes."""
        code = RequestCode
        return (
            Handler(code.SEND_MESSAGE, self.send, Kind.SEND),
            Handler(code.SEND_MESSAGE_V2, self.send, Kind.SEND),
            Handler(code.SEND_BATCH_MESSAGE, self.send, Kind.SEND),
            Handler(code.CONSUMER_SEND_MSG_BACK, self.send_back, Kind.SEND_BACK, is_confirmed=True),
        )

    def send(self, request: PendingRequest, command: SendRequest) -> None:
        """One send, single or batch; the message is the frame's body."""
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        header = command.fields
        plan = self._rules.decide(header, request.frame.body, command.version)
        if isinstance(plan, Refusal):
            request.refuse(plan.code, plan.remark)
            return
        if plan.creation is not NOTHING_NEW:
            self._commits.create(plan.creation)
        if header.sink_batch is not None:
            self._rows.send(request, plan, header.sink_batch, header.born_timestamp_ms)
            return
        if plan.is_half:
            self._ends.begin(request, plan, header.born_timestamp_ms)
            return
        born_ms = header.born_timestamp_ms
        waiter = _SendWaiter(self, request, plan, born_ms)
        place = -1
        try:
            if self._repeats is not None:
                self._look_back(waiter, born_ms, self._repeats)
            if waiter.plan.messages:
                place = self._stage(waiter.plan, born_ms, request.origin.born_host)
        except RecordError as error:
            request.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        if waiter.parts is not None:
            self._join(waiter)
        if place >= 0:
            if self._repeats is not None:
                self._enter(waiter)
            self._commits.wait(place, waiter)

    # Repeated sends.

    def _look_back(self, waiter: _SendWaiter, born_ms: int, repeats: Repeats) -> None:
        """Find what of a send stands already, or is on its way; only the rest stays in the waiter's plan.

        Nothing is noted. All parts are in one queue, since one answer names one: if the client leaves the queue to
        the broker, the first part that is found decides.

        Raises:
            RecordError: a message cannot be stored as it is.
            EntryDamagedError: what was stored before cannot be read now.
        """
        plan, ahead, recent = waiter.plan, self._ahead, repeats.recent_keys
        for message in plan.messages:
            if message.uniq_key in recent or message.uniq_key in ahead:
                break
        else:
            return
        parts: list[_Part] = []
        taken: set[object] = set()
        for message in plan.messages:
            part: _Part = None
            key = message.uniq_key
            if key in recent or key in ahead:
                asked = essence_of_plan(plan, message)
                part = self._find_ahead(plan, key, asked, taken) or repeats.find(
                    key, asked, born_ms, any_queue=plan.any_queue, taken=taken
                )
            if part is not None:
                taken.add(part.physical_offset if isinstance(part, EarlierSend) else part)
                if plan.any_queue:
                    plan = msgspec.structs.replace(plan, queue_id=part.queue_id, any_queue=False)
            parts.append(part)
        if not taken:
            return
        fresh = tuple(
            message for message, part in zip(plan.messages, parts, strict=True) if part is None
        )
        _log.debug(
            "%d of %d messages from %s were sent before",
            len(parts) - len(fresh),
            len(parts),
            waiter.request.origin.address,
        )
        waiter.parts = parts
        waiter.plan = msgspec.structs.replace(plan, messages=fresh)

    def _find_ahead(
        self, plan: SendPlan, key: bytes, asked: Essence, taken: set[object]
    ) -> _Ahead | None:
        """The same message on its way. Nobody was told yet, so whatever becomes of it is the answer."""
        candidates = (
            _Ahead(first, step)
            for first in self._ahead.get(key, ())
            for step in first.steps_of(key, asked.body)
        )
        for found in islice(candidates, COPIES_MAX):
            own = found.first.plan
            if found not in taken and is_same(
                asked, essence_of_plan(own, own.messages[found.step]), any_queue=plan.any_queue
            ):
                return found
        return None

    def _join(self, waiter: _SendWaiter) -> None:
        """Nothing speaks against a send that is partly known: wait for its parts that are on their way."""
        assert self._repeats is not None, "nothing is known without it"
        assert waiter.parts is not None, "some of it is known"
        waiter.own = [
            part.physical_offset for part in waiter.parts if isinstance(part, EarlierSend)
        ]
        self._repeats.claim(waiter.own, waiter.born_ms)
        firsts = {part.first: None for part in waiter.parts if isinstance(part, _Ahead)}
        for first in firsts:
            first.join(waiter)
        waiter.open_count = len(firsts) + bool(waiter.plan.messages)
        if not waiter.open_count:
            self.stored(waiter)

    def _enter(self, waiter: _SendWaiter) -> None:
        """What is staged of a send is on its way."""
        ahead, alone = self._ahead, (waiter,)
        for message in waiter.plan.messages:
            held = ahead.setdefault(message.uniq_key, alone)
            if held is not alone and held[-1] is not waiter:
                ahead[message.uniq_key] = (*held, waiter)[-COPIES_MAX:]

    def leave(self, waiter: _SendWaiter) -> None:
        """What was staged of a send is decided: it is found in the window, or is new."""
        if self._repeats is None:
            return
        ahead = self._ahead
        for message in waiter.plan.messages:
            held = ahead.pop(message.uniq_key, None)
            if held is not None and (len(held) > 1 or held[0] is not waiter):
                ahead[message.uniq_key] = tuple(other for other in held if other is not waiter)

    def delivered(self, msg_ids: str) -> None:
        """Another node passes answers with these message ids on, to clients that are there."""
        if self._repeats is not None:
            self._repeats.answered(_offsets_of(msg_ids))

    def connection_closed(self, number: int) -> None:
        """A connection ended; with it perhaps the node that was to pass answers on."""
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
        topic, queue_id = plan.topic.encode(), plan.queue_id
        waits = plan.delay_level or plan.due_ms
        first = -1
        for message in plan.messages:
            properties = message.properties
            if waits:
                topic, queue_id, properties = stored_as(plan, message)
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

    def send_back(self, request: PendingRequest, command: RemotingCommand) -> None:
        """CONSUMER_SEND_MSG_BACK.

        Raises:
            FieldError: a field is missing or impossible.
        """
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        ext = command.ext
        wanted = SendBack(
            fields.int64(ext, "offset"),
            fields.text(ext, "group"),
            fields.int32(ext, "delayLevel", 0),
            fields.int32(ext, "maxReconsumeTimes", None),
        )
        plan = self._back_rules.decide(wanted, command.version)
        if plan is None:
            request.answer(ResponseCode.SUCCESS)
            return
        if isinstance(plan, Refusal):
            request.refuse(plan.code, plan.remark)
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
            request.refuse(ResponseCode.SYSTEM_ERROR, text)
            return
        self._router.when_committed(
            request, place, lambda _staged, _place: request.answer(ResponseCode.SUCCESS)
        )

    def committed(self, waiter: _SendWaiter, staged: StagedEntry, place: int) -> None:
        """What was staged of a send is committed; the usual case is that this is all of it."""
        self.leave(waiter)
        if waiter.parts is not None:
            self._place_own(waiter, staged, place)
            return
        request, plan = waiter.request, waiter.plan
        count = len(plan.messages)
        if not request.is_oneway:
            if count == 1:
                ids = self._ids(staged.physical_offset(place))
            else:
                offsets = range(place, place + count)
                ids = ",".join(self._ids(staged.physical_offset(each)) for each in offsets)
            request.reply(
                self._replies.encode(
                    request.opaque,
                    msg_id=ids.encode(),
                    queue_id=plan.queue_id,
                    queue_offset=staged.queue_offset(place),
                    recall_handle=self._recall_handle(plan, plan.due_ms),
                )
            )
            if self._repeats is not None:
                is_there = request.is_received
                if not is_there or request.was_held:
                    stored = [staged.physical_offset(each) for each in range(place, place + count)]
                    self._repeats.told(stored, is_received=is_there, link=request.link)
                    self._repeats.asked(
                        stored, self._router.waited_until_ms(request, waiter.born_ms)
                    )

    def _place_own(self, waiter: _SendWaiter, staged: StagedEntry, place: int) -> None:
        """The rest of a send that was partly known stands."""
        assert waiter.parts is not None, "the caller looked"
        for at, part in enumerate(waiter.parts):
            if part is None:
                waiter.parts[at] = self._place_of(waiter.plan, staged, place)
                waiter.own.append(staged.physical_offset(place))
                place += 1
        waiter.decided()

    def ahead_committed(
        self, waiter: _SendWaiter, first: _SendWaiter, staged: StagedEntry, place: int
    ) -> None:
        """What another send had on its way stands; parts of this one are that."""
        assert waiter.parts is not None, "it joined the other"
        for at, part in enumerate(waiter.parts):
            if isinstance(part, _Ahead) and part.first is first:
                waiter.parts[at] = self._place_of(first.plan, staged, place + part.step)
        waiter.decided()

    def _place_of(self, plan: SendPlan, staged: StagedEntry, place: int) -> EarlierSend:
        offset = staged.physical_offset(place)
        return EarlierSend(
            offset, plan.queue_id, staged.queue_offset(place), self._ids(offset), plan.due_ms
        )

    def stored(self, waiter: _SendWaiter) -> None:
        """Answer with where all messages of a send stand, some of which were sent before.

        The queue offset is that of the first one; the ids name each: they need not follow one another.
        """
        assert self._repeats is not None, "nothing is known without it"
        assert waiter.parts is not None, "some of it was known"
        request = waiter.request
        stored = [part for part in waiter.parts if isinstance(part, EarlierSend)]
        if not request.is_oneway:
            ids = ",".join(one.msg_id for one in stored)
            request.reply(
                self._replies.encode(
                    request.opaque,
                    msg_id=ids.encode(),
                    queue_id=stored[0].queue_id,
                    queue_offset=stored[0].queue_offset,
                    recall_handle=self._recall_handle(waiter.asked, stored[0].due_ms),
                )
            )
            self._repeats.asked(
                [one.physical_offset for one in stored],
                self._router.waited_until_ms(request, waiter.born_ms),
            )
            if request.is_received:
                self._repeats.answered(one.physical_offset for one in stored)
            else:
                link = request.link
                self._repeats.told(waiter.own, is_received=False, link=link)

    def unconfirmed(self, waiter: _SendWaiter, error: DLedgerError) -> None:
        """Not all of a send is confirmed; what stands of it is found by its repeat."""
        if self._repeats is not None and waiter.parts is not None:
            self._repeats.not_answered(
                part.physical_offset for part in waiter.parts if isinstance(part, EarlierSend)
            )
        self._router.unconfirmed(waiter.request, error)

    def _recall_handle(self, plan: SendPlan, due_ms: int) -> str | None:
        """What the producer of a message with a due time gets to recall it with; None for others."""
        if not due_ms:
            return None
        unique_key = plan.messages[0].uniq_key.decode()
        return RecallHandle(plan.topic, self._broker_name, due_ms, unique_key).encode()


class _Ahead(NamedTuple):
    """A message that is staged or on its way: of which send, and which of what is staged of that."""

    first: _SendWaiter
    step: int

    @property
    def queue_id(self) -> int:
        """The queue that it will stand in."""
        return self.first.plan.queue_id


_NOTHING: Final[list[int]] = []

_Part = EarlierSend | _Ahead | None
"""Where a message of a send stands, or whose fate it shares; None: it is staged."""


class _SendWaiter:
    """A send that waits for its commit.

    Attributes:
        born_ms: when its client made it.
        plan: what is staged of it.
        asked: what its client sent; more than `plan` when a part was sent before.
        parts: for each message of `asked` where it stands; None when nothing of it was sent before.
        own: physical offsets of those parts that no other send on its way is told of.
        open_count: entries that decide about its parts and are not decided.
    """

    __slots__ = (
        "_error",
        "_joined",
        "_sends",
        "_steps",
        "asked",
        "born_ms",
        "open_count",
        "own",
        "parts",
        "plan",
        "request",
    )

    def __init__(self, sends: Sends, request: PendingRequest, plan: SendPlan, born_ms: int) -> None:
        self.request = request
        self.born_ms = born_ms
        self.plan = self.asked = plan
        self.parts: list[_Part] | None = None
        self.own: list[int] = _NOTHING
        self.open_count = 1
        self._sends = sends
        self._steps: dict[tuple[bytes, bytes], list[int]] | None = None
        self._error: DLedgerError | None = None
        self._joined: list[_SendWaiter] | None = None

    def steps_of(self, key: bytes, body: bytes) -> list[int]:
        """Which messages of `plan` have a key and a body."""
        if self._steps is None:
            self._steps = {}
            for step, message in enumerate(self.plan.messages):
                self._steps.setdefault((message.uniq_key, message.body), []).append(step)
        return self._steps.get((key, body), _NOTHING)

    def join(self, other: _SendWaiter) -> None:
        """Messages of another send are staged here: it is told what becomes of them."""
        if self._joined is None:
            self._joined = []
        self._joined.append(other)

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._sends.committed(self, staged, place)
        if self._joined is not None:
            for other in self._joined:
                self._sends.ahead_committed(other, self, staged, place)

    def failed(self, error: DLedgerError) -> None:
        self._sends.leave(self)
        self.decided(error)
        for other in self._joined or ():
            other.decided(error)

    def decided(self, error: DLedgerError | None = None) -> None:
        """One of the entries that it waits for is decided; the last one brings the answer.

        If one of them is of unknown outcome, so is the send.
        """
        self.open_count -= 1
        if error is not None and (self._error is None or isinstance(self._error, RefusedError)):
            self._error = error
        if self.open_count:
            return
        if self._error is None:
            self._sends.stored(self)
        else:
            self._sends.unconfirmed(self, self._error)


def _offsets_of(msg_ids: str) -> list[int]:
    """The physical offsets that message ids of ours name."""
    found = []
    for text in msg_ids.split(","):
        with suppress(MessageIdError):
            found.append(parse_offset_msg_id(text)[2])
    return found
