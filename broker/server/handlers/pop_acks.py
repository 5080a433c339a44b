"""Acknowledgements of popped messages, and changes of their time (200051, 200151, 200053).

Each is a record, and answered with what the fold has made of it: success only if the message was in flight under that
handle, so that it never comes again. RocketMQ says success to a handle that is too late, too (ZZ12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.server.handlers.pop_returns import PopReturns
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.pop import invisible_ms
from broker.service.pop_handle import ORDER_REVIVE_QUEUE, parse_handle
from broker.service.refusal import Refusal
from broker.store.control import AckMessages, ChangeInvisible
from broker.store.pops import PopKey
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.pop_bodies import (
    EACH_FIELD,
    ENDED_FIELD,
    AckMark,
    batch_broker_name,
    decode_batch_ack,
)

NOT_IN_FLIGHT: Final = (
    "the message is not in flight under this handle: it was acknowledged, its time was changed, or it was over and "
    "somebody else has it; this request has changed nothing"
)

_Act = Callable[[PendingRequest, int], None]


class PopAcks:
    """Takes acknowledgements while this node leads."""

    def __init__(
        self,
        state: BrokerState,
        commits: Commits,
        router: Router,
        returns: PopReturns,
        *,
        broker_name: str,
        freed: Callable[[PopKey], None],
    ) -> None:
        """Set up the acknowledgements.

        Args:
            state: the fold, with what is in flight.
            commits: acknowledgements are staged here.
            router: waits for their commit.
            returns: lets messages alone that are being acknowledged.
            broker_name: handles of others are refused.
            freed: is called with a queue in order of which all is acknowledged: others may go on there.
        """
        self._state = state
        self._commits = commits
        self._router = router
        self._returns = returns
        self._broker_name = broker_name
        self._freed = freed

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, update = RequestCode, RequestKind.UPDATE
        return (
            Handler(code.ACK_MESSAGE, self.acknowledge, update, is_confirmed=True),
            Handler(code.BATCH_ACK_MESSAGE, self.acknowledge_batch, update),
            Handler(code.CHANGE_MESSAGE_INVISIBLETIME, self.change, update, is_confirmed=True),
        )

    def acknowledge(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out ACK_MESSAGE.

        Raises:
            FieldError: a field is missing or impossible.
        """
        found = self._meant(request, command)
        if found is None:
            return
        key, offset, popped_ms = found
        self._stage(request, AckMessages(*key, [(offset, popped_ms)]), self._acknowledged)

    def change(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CHANGE_MESSAGE_INVISIBLETIME: answered with what makes the new handle.

        Raises:
            FieldError: a field is missing or impossible.
        """
        wanted_ms = invisible_ms(command.ext)
        found = self._meant(request, command)
        if found is None:
            return
        key, offset, popped_ms = found
        changed = partial(self._changed, wanted_ms, self._is_in_order(key))
        self._stage(request, ChangeInvisible(*key, offset, popped_ms, wanted_ms), changed)

    def acknowledge_batch(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out BATCH_ACK_MESSAGE: success if all of them were in flight, since one answer is for all.

        One that does look asks for it with EACH_FIELD.

        Raises:
            BodyError, FieldError: the body is no batch, or of another broker, or the field no truth.
        """
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        tells_each = fields.boolean(command.ext, EACH_FIELD, default=False)
        broker_name = batch_broker_name(command.body)
        if broker_name not in {None, self._broker_name}:
            raise BodyError(f"the batch of acknowledgements is of broker {broker_name[:80]!r}")
        pops = decode_batch_ack(command.body)
        if not pops:
            request.answer(ResponseCode.NO_MESSAGE, "the batch names no message")
            return
        places: list[int] = []
        for pop in pops:
            handles = [(offset, pop.popped_ms) for offset in pop.offsets]
            record = AckMessages(pop.group, pop.topic, pop.queue_id, handles)
            places.append(self._commits.stage_control(record))
        # Not before all of it is staged: nobody would let them go again.
        decided = [
            self._changing((pop.group, pop.topic, pop.queue_id), pop.offsets) for pop in pops
        ]
        back = [places[-1] - place for place in places]
        self._router.when_committed(
            request,
            places[-1],
            partial(self._batch_acknowledged, request, back, tells_each=tells_each),
            ended=partial(_all_decided, decided),
        )

    def _meant(
        self, request: PendingRequest, command: RemotingCommand
    ) -> tuple[PopKey, QueueOffset, int] | None:
        """Return the queue, the offset and the pop time that a request means; None: it was refused (R14, R15).

        Raises:
            FieldError: a field is missing or impossible, or the handle is of another message.
        """
        if self._commits.is_full:
            request.refuse_as_busy()
            return None
        ext = command.ext
        topic, queue_id = fields.text(ext, "topic"), QueueId(fields.int32(ext, "queueId"))
        offset = QueueOffset(fields.int64(ext, "offset"))
        group = fields.text(ext, "consumerGroup")
        refusal = self._refusal(topic, queue_id, offset)
        if refusal is not None:
            request.refuse(refusal.code, refusal.remark)
            return None
        handle = parse_handle(fields.text(ext, "extraInfo"), offset)
        if handle.queue_id != queue_id:
            raise FieldError("extraInfo", f"is of queue {handle.queue_id}, not of {queue_id}")
        if handle.broker_name != self._broker_name:
            raise FieldError("extraInfo", f"is of broker {handle.broker_name[:80]!r}")
        return (group, topic, queue_id), offset, handle.popped_ms

    def _refusal(self, topic: str, queue_id: QueueId, offset: QueueOffset) -> Refusal | None:
        """Return the refusal of a place that is not in a topic; None: it is."""
        config = self._state.topics.get(topic)
        if config is None:
            text = f"topic[{topic[:255]}] not exist, apply first please!"
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        if not 0 <= queue_id < config.read_queue_count:
            text = f"queueId[{queue_id}] is illegal, topic[{topic}] has {config.read_queue_count}"
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, text)
        low, high = self._state.queues.min_max(topic, queue_id)
        if not low <= offset <= high:
            text = f"offset is illegal, key:{topic}@{queue_id}, min:{low}, max:{high}"
            return Refusal(ResponseCode.NO_MESSAGE, text)
        return None

    def _is_in_order(self, key: PopKey) -> bool:
        queue = self._state.pops.queue(key)
        return queue is not None and queue.end is not None

    def _stage(
        self,
        request: PendingRequest,
        record: AckMessages | ChangeInvisible,
        act: _Act,
    ) -> None:
        """Stage a record about one message; `act` answers with what became of it."""
        key = (record.group, record.topic, record.queue_id)
        offset = record.offset if isinstance(record, ChangeInvisible) else record.handles[0][0]
        self._router.when_committed(
            request,
            self._commits.stage_control(record),
            partial(self._done, request, act),
            ended=self._changing(key, [offset]),
        )

    def _changing(self, key: PopKey, offsets: list[QueueOffset]) -> Callable[[object], None]:
        """Let nobody else end these until what this returns is called, which tells who waits for a queue in order."""
        decided = self._returns.changing(key, offsets)
        if not self._is_in_order(key):
            return decided

        def ended(error: object) -> None:
            decided(error)
            if self._state.pops.is_idle(key):
                self._freed(key)

        return ended

    def _done(self, request: PendingRequest, act: _Act, staged: StagedEntry, place: int) -> None:
        changes = self._state.pops.changed_at(staged.physical_offset(place))
        if changes and changes[0]:
            act(request, changes[0])
        else:
            request.refuse(ResponseCode.NO_MESSAGE, NOT_IN_FLIGHT)

    @staticmethod
    def _acknowledged(request: PendingRequest, _done: int) -> None:
        request.answer(ResponseCode.SUCCESS)

    @staticmethod
    def _changed(wanted_ms: int, in_order: bool, request: PendingRequest, popped_ms: int) -> None:
        ext = {
            "popTime": str(popped_ms),
            "invisibleTime": str(wanted_ms),
            "reviveQid": str(ORDER_REVIVE_QUEUE if in_order else 0),
        }
        request.answer(ResponseCode.SUCCESS, ext=ext)

    def _batch_acknowledged(
        self,
        request: PendingRequest,
        back: list[int],
        staged: StagedEntry,
        place: int,
        *,
        tells_each: bool,
    ) -> None:
        """Answer a batch whose records stand so far before the last one (`back`), wherever its entry began.

        Who asks is told of each message what became of it.
        """
        changed_at = self._state.pops.changed_at
        changes = [changed_at(staged.physical_offset(place - steps)) for steps in back]
        done = sum(map(sum, changes))
        if not done:
            request.refuse(ResponseCode.NO_MESSAGE, NOT_IN_FLIGHT)
        elif tells_each:
            not_now = AckMark.PERHAPS_EARLIER if request.may_be_done else AckMark.NOT_IN_FLIGHT
            marks = (AckMark.ENDED if one else not_now for counts in changes for one in counts)
            request.answer(ResponseCode.SUCCESS, ext={ENDED_FIELD: "".join(marks)})
        elif all(all(counts) for counts in changes):
            request.answer(ResponseCode.SUCCESS)
        else:
            text = f"{done} messages are acknowledged; the others were not in flight under their handles"
            request.refuse(ResponseCode.NO_MESSAGE, text)


def _all_decided(decided: Sequence[Callable[[object], None]], error: object) -> None:
    for each in decided:
        each(error)
