"""Sends and messages that come back: decided, staged, answered when committed (10, 310, 320, 36)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from broker.server.commits import Commits
from broker.server.known_sends import Ahead, Found, KnownSends, Part
from broker.server.request import Handler, PendingRequest
from broker.server.router import Router
from broker.server.row_sends import RowSends
from broker.server.transactions import TransactionEnds
from broker.service.catalog import NOTHING_NEW
from broker.service.conclusions import Kind
from broker.service.refusal import Refusal
from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import stored_as
from broker.service.send import MessagePlan, SendPlan, SendRules
from broker.service.send_back import SendBack, SendBackRules
from broker.store.sinks import Sinks
from broker.store.staging import StagedEntry
from dledger import DLedgerError, RefusedError
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import OffsetIdMaker, parse_offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.recall_handle import RecallHandle
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import SendRequest

_UNDECIDED = SendPlan("", QueueId(0), 0, 0, 0, ())


@dataclass(slots=True, eq=False)
class _Parts:
    """What is known of a send of which a part came before.

    Attributes:
        asked: what its client sent; its `plan` is the rest of that.
        parts: for each message of `asked` where it stands.
        own: physical offsets of those parts that no other send on its way is told of.
        open_count: entries that decide about its parts and are not decided.
        error: what one of them failed with.
    """

    asked: SendPlan
    parts: list[Part]
    own: list[PhysicalOffset]
    open_count: int
    error: DLedgerError | None = None


class Send(PendingRequest, eq=False):
    """A send from its frame to its answer; it is told what becomes of what was staged of it.

    Attributes:
        service: that decided on it.
        born_ms: when its client made it.
        plan: what is staged of it.
        parts: None when nothing of it came before.
        joined: sends whose messages are staged with this one: they are told what becomes of them.
        steps: see `steps_of`.
    """

    service: Sends | None = None
    born_ms: int = 0
    plan: SendPlan = _UNDECIDED
    parts: _Parts | None = None
    joined: list[Send] | None = None
    steps: dict[tuple[bytes, bytes], list[int]] | None = None

    def steps_of(self, key: bytes, body: bytes) -> list[int]:
        """See `SendOnItsWay`."""
        if self.steps is None:
            self.steps = {}
            for step, message in enumerate(self.plan.messages):
                self.steps.setdefault((message.uniq_key, message.body), []).append(step)
        return self.steps.get((key, body), [])

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""
        service = self.service
        assert service is not None, "it was staged by one"
        service.committed(self, staged, place)
        if self.joined is not None:
            for other in self.joined:
                service.ahead_committed(other, self, staged, place)

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`."""
        service, joined = self.service, self.joined
        assert service is not None, "it was staged by one"
        self.joined = self.steps = None  # it may be staged again
        service.failed(self, error)
        for other in joined or ():
            service.decided(other, error)


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
        self._known = None if repeats is None else KnownSends(repeats)
        self._ends = ends
        self._rows = RowSends(commits, router, sinks, ids, stage=self._stage)

    def handlers(self) -> tuple[Handler[Any], ...]:
        """What it takes."""
        code = RequestCode
        return (
            Handler(code.SEND_MESSAGE, self.send, Kind.SEND, request_type=Send),
            Handler(code.SEND_MESSAGE_V2, self.send, Kind.SEND, request_type=Send),
            Handler(code.SEND_BATCH_MESSAGE, self.send, Kind.SEND, request_type=Send),
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
        born_ms = header.born_timestamp_ms
        if header.sink_batch is not None:
            self._rows.send(request, plan, header.sink_batch, born_ms)
        elif plan.is_half:
            self._ends.begin(request, plan, born_ms)
        else:
            assert isinstance(request, Send), "its handler says so"
            request.service, request.born_ms = self, born_ms
            self._store(request, plan)

    def _store(self, send: Send, plan: SendPlan) -> None:
        """Stage what is new of a send, and wait for what is not."""
        known = self._known
        rest, place = plan, -1
        try:
            found = None if known is None else known.look_back(plan, send.born_ms)
            if found is not None:
                rest = found.rest
            if rest.messages:
                place = self._stage(rest, send.born_ms, send.origin.born_host)
        except RecordError as error:
            send.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        send.plan = rest
        if found is not None:
            self._join(send, plan, found)
        if place >= 0:
            if known is not None:
                known.enter(send)
            self._commits.wait(place, send)

    # What becomes of a send.

    def committed(self, send: Send, staged: StagedEntry, place: int) -> None:
        """What was staged of a send is committed; the usual case is that this is all of it."""
        if self._known is not None:
            self._known.leave(send)
        if send.parts is not None:
            self._place_own(send, send.parts, staged, place)
            return
        plan = send.plan
        count = len(plan.messages)
        if send.is_oneway:
            return
        if count == 1:
            ids = self._ids(staged.physical_offset(place))
        else:
            offsets = range(place, place + count)
            ids = ",".join(self._ids(staged.physical_offset(each)) for each in offsets)
        send.reply(
            self._replies.encode(
                send.opaque,
                msg_id=ids.encode(),
                queue_id=plan.queue_id,
                queue_offset=staged.queue_offset(place),
                recall_handle=self._recall_handle(plan, plan.due_ms) if plan.due_ms else None,
            )
        )
        if self._repeats is not None:
            is_there = send.is_received
            if not is_there or send.was_held:
                stored = [
                    PhysicalOffset(staged.physical_offset(each))
                    for each in range(place, place + count)
                ]
                self._repeats.note_answer(stored, is_received=is_there, link=send.link)
                self._repeats.note_asked(stored, self._router.waited_until_ms(send, send.born_ms))

    def failed(self, send: Send, error: DLedgerError) -> None:
        """What was staged of a send is not confirmed."""
        if self._known is not None:
            self._known.leave(send)
        self.decided(send, error)

    def _join(self, send: Send, asked: SendPlan, found: Found) -> None:
        """Wait for the parts of a send that are known already and are on their way."""
        assert self._repeats is not None, "nothing is known without it"
        own = [part.physical_offset for part in found.parts if isinstance(part, EarlierSend)]
        self._repeats.claim(own, send.born_ms)
        firsts = {part.first: None for part in found.parts if isinstance(part, Ahead)}
        for first in firsts:
            assert isinstance(first, Send), "only sends enter"
            first.joined = [*(first.joined or ()), send]
        open_count = len(firsts) + bool(found.rest.messages)
        send.parts = _Parts(asked, found.parts, own, open_count)
        if not open_count:
            self._tell_parts(send, send.parts)

    def _place_own(self, send: Send, known: _Parts, staged: StagedEntry, place: int) -> None:
        """The rest of a send that was partly known stands."""
        for at, part in enumerate(known.parts):
            if part is None:
                known.parts[at] = self._place_of(send.plan, staged, place)
                known.own.append(PhysicalOffset(staged.physical_offset(place)))
                place += 1
        self.decided(send)

    def ahead_committed(self, send: Send, first: Send, staged: StagedEntry, place: int) -> None:
        """What another send had on its way stands; parts of this one are that."""
        known = send.parts
        assert known is not None, "it joined the other"
        for at, part in enumerate(known.parts):
            if isinstance(part, Ahead) and part.first is first:
                known.parts[at] = self._place_of(first.plan, staged, place + part.step)
        self.decided(send)

    def decided(self, send: Send, error: DLedgerError | None = None) -> None:
        """One of the entries that a send waits for is decided; the last one brings the answer.

        If one of them is of unknown outcome, so is the send.
        """
        known = send.parts
        if known is None:
            assert error is not None, "what is committed is answered"
            self._router.unconfirmed(send, error)
            return
        known.open_count -= 1
        if error is not None and (known.error is None or isinstance(known.error, RefusedError)):
            known.error = error
        if known.open_count:
            return
        if known.error is None:
            self._tell_parts(send, known)
            return
        # A repeat finds the parts that are stored.
        assert self._repeats is not None, "nothing is known without it"
        self._repeats.not_answered(
            part.physical_offset for part in known.parts if isinstance(part, EarlierSend)
        )
        send.parts = None  # it may be staged again
        self._router.unconfirmed(send, known.error)

    def _tell_parts(self, send: Send, known: _Parts) -> None:
        """Answer with where all messages of a send stand, some of which were sent before.

        The queue offset is that of the first one; the ids name each: they need not follow one another.
        """
        assert self._repeats is not None, "nothing is known without it"
        stored = [part for part in known.parts if isinstance(part, EarlierSend)]
        if send.is_oneway:
            return
        ids = ",".join(one.msg_id for one in stored)
        due_ms = stored[0].due_ms
        send.reply(
            self._replies.encode(
                send.opaque,
                msg_id=ids.encode(),
                queue_id=stored[0].queue_id,
                queue_offset=stored[0].queue_offset,
                recall_handle=self._recall_handle(known.asked, due_ms) if due_ms else None,
            )
        )
        self._repeats.note_asked(
            [one.physical_offset for one in stored],
            self._router.waited_until_ms(send, send.born_ms),
        )
        if send.is_received:
            self._repeats.answered(one.physical_offset for one in stored)
        else:
            self._repeats.note_answer(known.own, is_received=False, link=send.link)

    def _place_of(self, plan: SendPlan, staged: StagedEntry, place: int) -> EarlierSend:
        offset = PhysicalOffset(staged.physical_offset(place))
        queue_offset = QueueOffset(staged.queue_offset(place))
        return EarlierSend(offset, plan.queue_id, queue_offset, self._ids(offset), plan.due_ms)

    def _recall_handle(self, plan: SendPlan, due_ms: int) -> str:
        """What the producer of a message with a due time gets to recall it with."""
        unique_key = plan.messages[0].uniq_key.decode()
        return RecallHandle(plan.topic, self._broker_name, due_ms, unique_key).encode()

    # What is heard of answers.

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
            PhysicalOffset(fields.int64(ext, "offset")),
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


def _offsets_of(msg_ids: str) -> list[PhysicalOffset]:
    """Return the physical offsets that message ids of ours name."""
    found = []
    for text in msg_ids.split(","):
        with suppress(MessageIdError):
            found.append(PhysicalOffset(parse_offset_msg_id(text)[2]))
    return found
