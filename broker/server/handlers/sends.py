"""Sends, single and in batches: decided, staged, answered when committed (10, 310, 320).

Rows of sinks and half messages come as sends too, and are handed to row_sends.py and transactions.py. What came before
is found by known_sends.py.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from broker.server.handlers.known_sends import KnownParts, KnownSends, SendInFlight
from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.plan_staging import stage_plan
from broker.server.handlers.row_sends import RowSends
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.send_bursts import Burst, SendLane
from broker.server.handlers.send_operations import SendOperation
from broker.server.handlers.transactions import TransactionEnds
from broker.server.requests.calls import Calls
from broker.server.requests.commits import Commits
from broker.server.requests.put_times import PutTimes
from broker.server.requests.request import HOLD_MS, Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.catalog import NOTHING_NEW
from broker.service.conclusions import RequestKind
from broker.service.refusal import Refusal
from broker.service.repeats import Repeats
from broker.service.send import MessagePlan, SendPlan, SendRules
from broker.store.staging import StagedEntry
from dledger import DLedgerError
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.requests import SendRequest

SEND_CODES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)


class Sends:
    """Takes sends while this node leads.

    Attributes:
        refused_because: why all are refused now; empty: they are taken.
        lane: takes plain sends that come in one read together; None where repeats are not recognised.
    """

    def __init__(
        self,
        commits: Commits,
        router: Router,
        rules: SendRules,
        answers: SendAnswers,
        *,
        ends: TransactionEnds,
        rows: RowSends,
        repeats: Repeats | None,
        new_topics: NewTopics,
        put_times: PutTimes,
    ) -> None:
        """Set up the answers to sends; `repeats` recognises those stored before, None stores every send."""
        self.refused_because = ""
        self._commits = commits
        self._router = router
        self._rules = rules
        self._answers = answers
        self._replies = answers.replies
        self._ids = answers.ids
        self._ends = ends
        self._rows = rows
        self._repeats = repeats
        self._new_topics = new_topics
        self._known = None if repeats is None else KnownSends(repeats, answers.place_of)
        # Made once: what a burst counts has to be what is registered.
        self._by_code: dict[int, Handler[SendRequest]] = {
            code: Handler(
                code,
                self.send,
                RequestKind.SEND,
                request_type=SendOperation,
                calls=Calls(put_times),
            )
            for code in SEND_CODES
        }
        self.lane = None
        if self._known is not None:
            self.lane = SendLane(
                commits,
                rules,
                self._known,
                answers,
                new_topics=new_topics,
                is_open=lambda: router.is_serving and not self.refused_because,
                single_out=self._single_out,
                mistakes=router.mistakes,
                calls_of=lambda code: self._by_code[code].calls,
            )

    def handlers(self) -> tuple[Handler[SendRequest], ...]:
        """Return the handlers of its codes."""
        return tuple(self._by_code.values())

    def send(self, request: PendingRequest, command: SendRequest) -> None:
        """Carry out one send, single or batch; the message is the frame's body."""
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        if self.refused_because:
            request.refuse(ResponseCode.SERVICE_NOT_AVAILABLE, self.refused_because)
            return
        header = command.fields
        plan = self._rules.decide(header, request.frame.body, command.version)
        if isinstance(plan, Refusal):
            if plan.code == ResponseCode.TOPIC_NOT_EXIST:
                # A node that leads no more must not say that.
                self._router.when_confirmed(request, partial(self._deny, request, command))
            else:
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
            assert isinstance(request, SendOperation), "its handler says so"
            assert request.parts is None, "it waits for parts that came before"
            request.service, request.born_ms = self, born_ms
            self._store(request, plan)

    def _deny(self, request: PendingRequest, command: SendRequest) -> None:
        """Refuse a send whose topic was not there before it was confirmed that this node leads, if it still is not."""
        plan = self._rules.decide(command.fields, request.frame.body, command.version)
        if isinstance(plan, Refusal):
            request.refuse(plan.code, plan.remark)
        else:
            self.send(request, command)

    def _store(self, send: SendOperation, plan: SendPlan) -> None:
        """Stage what is new of a send, and wait for what is not."""
        known = self._known
        rest, place, found = plan, -1, None
        try:
            # Of a topic that begins with this send nothing is there, and what is ahead goes with the one before it.
            is_first = plan.creation is not NOTHING_NEW and plan.topic in (
                topic.name for topic in plan.creation.topics
            )
            if known is not None and not is_first:
                # Nor does what stands count behind a deletion that is not decided, though somebody else began it anew.
                is_deleted = self._commits.deletes(plan.topic)
                found = known.look_back(plan, send.born_ms, only_ahead=is_deleted)
            if found is not None:
                rest = found.rest
            if rest.messages:
                place = stage_plan(self._commits.staging, rest, send.born_ms, send.origin.born_host)
        except RecordError as error:
            send.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        send.plan = rest
        if known is not None and found is not None:
            parts = known.join(send, plan, found)
            if not parts.open_count:
                self._answer_parts_when_routed(send, parts)
        if place >= 0:
            if known is not None:
                known.enter(send)
            if plan.creation is not NOTHING_NEW:
                self._new_topics.note(plan)
            self._commits.wait(place, send, send.kept_bytes)

    def _single_out(self, burst: Burst, at: int) -> SendOperation:
        """Make of a send that was staged in a burst what `send` would have made of it."""
        command = burst.command(at)
        fields = command.fields
        queue_end, body, properties, sys_flag, *_, folded = burst.messages[at]
        message = MessagePlan(fields.flag, body, properties, burst.keys[at], folded)
        send = SendOperation(
            burst.origin_of(at),
            self._by_code[command.code],
            burst.frames[at],
            command,
            command.opaque,
            is_oneway=False,
            deadline_ms=burst.deadline_ms,
            arrived_ms=burst.deadline_ms - HOLD_MS,
        )
        send.service, send.born_ms = self, fields.born_timestamp_ms
        send.plan = SendPlan(fields.topic, queue_end.key[1], sys_flag, 0, 0, (message,))
        return send

    # The outcome of a send.

    def committed(self, send: SendOperation, staged: StagedEntry, place: int) -> None:
        """Answer a send of which the staged part is committed; the usual case is that this is all of it."""
        try:
            self._committed(send, staged, place)
        except Exception as error:
            if not self._router.mistakes.answer(error, send):
                raise
            self._spoiled(send, staged, place)

    def _committed(self, send: SendOperation, staged: StagedEntry, place: int) -> None:
        if self._known is not None:
            self._known.leave(send)
            if send.parts is not None:
                self._known.rest_committed(send, send.parts, staged, place)
                self.decided(send)
                return
        if send.plan.topic in self._new_topics.names:
            self._answer_late(send, staged, place)
        else:
            self._answer(send, staged, place)

    def _spoiled(self, send: SendOperation, staged: StagedEntry, place: int) -> None:
        """Let a retry find what stands of a send that was answered without its place."""
        if self._repeats is not None and not send.is_oneway:
            self._repeats.not_answered(staged.physical_offsets(place, len(send.plan.messages)))
            if send.parts is not None:  # it had claimed these
                self._repeats.not_answered(each.physical_offset for each in send.parts.standing)

    def _answer_late(self, send: SendOperation, staged: StagedEntry, place: int) -> None:
        """Answer a send to a new topic; until then its messages stand, and their client has no answer."""
        stored = staged.physical_offsets(place, len(send.plan.messages))
        notes = None if send.is_oneway else self._repeats
        if notes is not None:
            notes.not_answered(stored)

        def give() -> None:
            if notes is not None:
                notes.answered(stored)  # unless the client is found to be gone
            try:
                self._answer(send, staged, place)
            except Exception as error:
                if not self._router.mistakes.answer(error, send):
                    raise
                self._spoiled(send, staged, place)

        self._new_topics.answer(send, send.plan.topic, give)

    def _answer(self, send: SendOperation, staged: StagedEntry, place: int) -> None:
        """Answer a send, nothing of which came before."""
        plan = send.plan
        count = len(plan.messages)
        if send.is_oneway:
            return
        if count == 1:
            ids = self._ids(staged.physical_offset(place))
        else:
            ids = self._ids.join(staged.packed_offsets(place, count))
        due_ms = plan.due_ms
        send.reply(
            self._replies.encode(
                send.opaque,
                msg_id=ids.encode(),
                queue_id=plan.queue_id,
                queue_offset=staged.queue_offset(place),
                recall_handle=self._answers.recall_handle(plan, due_ms) if due_ms else None,
            )
        )
        if self._repeats is not None:
            is_there = send.is_received
            if not is_there or send.was_held:
                stored = staged.physical_offsets(place, count)
                self._repeats.note_answer(stored, is_received=is_there, link=send.link)
                self._repeats.note_asked(stored, self._router.waited_until_ms(send, send.born_ms))

    def failed(self, send: SendOperation, error: DLedgerError) -> None:
        """Conclude what follows for a send of which the staged part is not confirmed."""
        if self._known is not None:
            self._known.leave(send)
        self.decided(send, error)

    def joined_committed(self, first: SendOperation, staged: StagedEntry, place: int) -> None:
        """Pass on to the sends that joined `first` where their parts stand."""
        known = self._known
        assert known is not None, "a send joined another one, and nothing is known of any"
        for send in first.joined or ():
            known.ahead_committed(send, staged, place, first=first)
            self.decided(send)

    def decided(self, send: SendInFlight, error: DLedgerError | None = None) -> None:
        """Count one of the entries that a send waits for as decided; the last one brings the answer."""
        parts = send.parts
        if parts is None:
            assert error is not None, f"send {send.opaque} is committed and was not answered"
            self._router.unconfirmed(send, error)
        elif parts.decide(error):
            if parts.error is None:
                self._answer_parts_when_routed(send, parts)
            else:
                assert self._known is not None, "parts are known, and nothing is"
                self._known.failed(send, parts)
                self._router.unconfirmed(send, parts.error)

    def _answer_parts_when_routed(self, send: SendInFlight, known: KnownParts) -> None:
        """Answer with parts that stand: later if the topic is new, like those who sent them first."""

        def give() -> None:
            try:
                self._answer_parts(send, known)
            except Exception as error:
                if not self._router.mistakes.answer(error, send):
                    raise
                assert self._known is not None, "parts are known, and nothing is"
                self._known.failed(send, known)

        self._new_topics.answer(send, known.asked.topic, give)

    def _answer_parts(self, send: SendInFlight, known: KnownParts) -> None:
        """Answer with where all messages of a send stand, some of which were sent before.

        The queue offset is that of the first one; the ids name each: they need not follow one another.
        """
        assert self._known is not None, "parts are known, and nothing is"
        stored = known.standing
        assert len(stored) == len(known.parts), (
            f"{len(known.parts) - len(stored)} messages of an answered send do not stand"
        )
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
                recall_handle=self._answers.recall_handle(known.asked, due_ms) if due_ms else None,
            )
        )
        self._known.answered(send, known, self._router.waited_until_ms(send, send.born_ms))

    # Whether answers arrived.

    def delivered(self, msg_ids: str) -> None:
        """Note that another node passes on answers with these message ids, to clients that are connected."""
        if self._repeats is not None:
            self._repeats.answered(_offsets_of(msg_ids))

    def connection_closed(self, number: int) -> None:
        """Note that a connection ended; with it perhaps the node that was to pass answers on."""
        if self._repeats is not None:
            self._repeats.link_closed(number)

    def lost(self) -> None:
        """Forget what was noted of answers, since leadership is lost. The log notifies the sends in flight."""
        self._new_topics.forget()
        if self._repeats is not None:
            self._repeats.forget()


def _offsets_of(msg_ids: str) -> list[PhysicalOffset]:
    """Return the physical offsets that message ids of ours name."""
    found = []
    for text in msg_ids.split(","):
        with suppress(MessageIdError):
            found.append(PhysicalOffset(parse_offset_msg_id(text)[2]))
    return found
