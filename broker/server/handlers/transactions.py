"""Half messages and their ends at the leader: SEND with TRAN_MSG, END_TRANSACTION (rules O1 to O13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.plan_staging import stage_plan
from broker.server.handlers.send_answers import SendAnswers
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.refusal import Refusal
from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import RequestedMessage, is_same, requested_by_plan
from broker.service.send import SendPlan
from broker.service.transactions import (
    CommitPlan,
    Ending,
    EndRules,
    Recorded,
    RollbackPlan,
    answer_to_ending,
    ending_of,
    is_undecided,
)
from broker.store.recent_sends import COPIES_MAX
from broker.store.staging import StagedEntry, Staging
from broker.store.transactions import TransactionKey, Transactions, TransactionVerdict, encode_op
from dledger import DLedgerError, LogServer, RefusedError
from dledger_mq.message.errors import RecordError
from dledger_mq.message.names import OP_HALF_TOPIC
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.properties import REAL_TOPIC
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

_OP = OP_HALF_TOPIC.encode()

TOPICS_MAX: Final = 8192
"""Of so many topics the ends are counted by topic."""


class EndCounts:
    """Transactions that producers have ended here since the start, by how they ended and by topic.

    Attributes:
        by_topic: those of topics beyond TOPICS_MAX are not in it.
    """

    def __init__(self) -> None:
        self.by_topic: dict[tuple[TransactionVerdict, str], int] = {}

    def add(self, verdict: TransactionVerdict, topic: str) -> None:
        """Count one end."""
        known = self.by_topic.get((verdict, topic))
        if known is not None or len(self.by_topic) < TOPICS_MAX:
            self.by_topic[verdict, topic] = (known or 0) + 1


class _HalfSend(NamedTuple):
    """A send of one half message.

    Attributes:
        born_ms: the time at which its client made it, by the client's clock.
        key: the topic and the transaction id.
        asked: the message as it would be stored.
    """

    request: PendingRequest
    plan: SendPlan
    born_ms: int
    key: TransactionKey
    asked: RequestedMessage


class TransactionEnds:
    """Stores half messages, and ends transactions: each exactly once.

    Invariant: an end is staged only for a half message that is open in the fold and for which none is
    staged or on its way (`_ending`). A new leader has applied everything before it serves, so it starts
    with none on its way.

    Attributes:
        counts: of the ends that were carried out here.
    """

    def __init__(
        self,
        log: LogServer,
        commits: Commits,
        router: Router,
        transactions: Callable[[], Transactions],
        *,
        rules: EndRules,
        answers: SendAnswers,
        repeats: Repeats | None,
        new_topics: NewTopics,
        open_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the transactions; half messages are refused while `open_max` transactions are open.

        `repeats` recognises half messages that were stored before; None: every one is stored.
        """
        self.counts = EndCounts()
        self._log = log
        self._commits = commits
        self._router = router
        self._transactions = transactions
        self._rules = rules
        self._answers = answers
        self._repeats = repeats
        self._new_topics = new_topics
        self._open_max = open_max
        self._now_ms = now_ms
        self._beginning: dict[TransactionKey, list[RequestedMessage]] = {}
        self._beginning_count = 0
        self._ending: set[QueueOffset] = set()

    def leadership_began(self) -> None:
        """Forget what was in flight: this node leads from now on, and has applied all before."""
        self._beginning.clear()
        self._beginning_count = 0
        self._ending.clear()

    def is_beginning(self, key: TransactionKey, asked: RequestedMessage) -> bool:
        """Return True if that half message is staged or in flight."""
        return asked in self._beginning.get(key, ())

    def is_ending(self, queue_offset: QueueOffset) -> bool:
        """Return True if an end of that half message is staged or in flight."""
        return queue_offset in self._ending

    # Half messages.

    def begin(self, request: PendingRequest, plan: SendPlan, born_ms: int) -> None:
        """Store a half message; one that is the same as an open one is that one, sent again.

        Another one under the same transaction id is a transaction of its own: each ends by its offset.

        Raises:
            EntryDamagedError: it cannot be compared with the open ones now; nothing was done.
        """
        assert plan.is_half, (
            f"a plan for {plan.topic} begins a transaction, and has no half message"
        )
        assert len(plan.messages) == 1, f"a transaction of {len(plan.messages)} messages"
        message = plan.messages[0]
        key = (plan.topic.encode(), message.uniq_key)
        try:
            asked = requested_by_plan(plan, message)
        except RecordError as error:
            request.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        half = _HalfSend(request, plan, born_ms, key, asked)
        repeats = self._repeats
        known = None if repeats is None else self._earlier(repeats, half)
        if repeats is not None and known is not None:
            repeats.claim([known.physical_offset], born_ms)
            self._answer_half(half, known)
        elif repeats is not None and self._is_ahead(half):
            self._router.when_staged_committed(request, partial(self.begin, request, plan, born_ms))
        elif len(self._transactions()) + self._beginning_count >= self._open_max:
            request.refuse(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy: {self._open_max} transactions are open; nothing was stored",
            )
        else:
            self._store_half(half)

    def _earlier(self, repeats: Repeats, half: _HalfSend) -> EarlierSend | None:
        """Find where this half message was stored before: among the open ones, or the recent sends."""
        key, any_queue = half.key, half.plan.any_queue
        open_ones = self._transactions().newest(key, COPIES_MAX)
        offsets = [each.physical_offset for each in open_ones]
        known = repeats.find_among(offsets, half.asked, any_queue=any_queue)
        if known is None and key[1] in repeats.recent_keys:
            known = repeats.find(key[1], half.asked, half.born_ms, any_queue=any_queue)
        return known

    def _is_ahead(self, half: _HalfSend) -> bool:
        """Return True if the same half message is staged or in flight."""
        newest = self._beginning.get(half.key, [])[-COPIES_MAX:]
        return any(is_same(half.asked, each, any_queue=half.plan.any_queue) for each in newest)

    def _store_half(self, half: _HalfSend) -> None:
        """Stage a half message that is new, and answer once it is committed."""
        request = half.request
        try:
            place = stage_plan(
                self._commits.staging, half.plan, half.born_ms, request.origin.born_host
            )
        except RecordError as error:
            request.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        self._beginning.setdefault(half.key, []).append(half.asked)
        self._beginning_count += 1
        self._new_topics.note(half.plan)
        self._router.when_committed(
            request,
            place,
            partial(self._half_stored, half),
            ended=lambda _error: self._begun(half.key, half.asked),
        )

    def _half_stored(self, half: _HalfSend, staged: StagedEntry, place: int) -> None:
        """Answer a half message that is committed."""
        stored = self._answers.place_of(half.plan, staged, place)
        give = partial(self._answer_half, half, stored)
        self._new_topics.answer(half.request, half.plan.topic, give)

    def _begun(self, key: TransactionKey, asked: RequestedMessage) -> None:
        """Note that a half message is in flight no more; after a change of leader nothing is known of any."""
        known = self._beginning.get(key)
        if known is None or asked not in known:
            return
        known.remove(asked)
        self._beginning_count -= 1
        assert self._beginning_count >= 0, f"{self._beginning_count} half messages are in flight"
        if not known:
            del self._beginning[key]

    def _answer_half(self, half: _HalfSend, stored: EarlierSend) -> None:
        """Answer with where a half message stands, and note whether its client is there to take it."""
        request = half.request
        if request.is_oneway:
            return
        request.reply(
            self._answers.replies.encode(
                request.opaque,
                msg_id=stored.msg_id.encode(),
                queue_id=stored.queue_id,
                queue_offset=stored.queue_offset,
                transaction_id=half.plan.messages[0].uniq_key.decode(errors="replace"),
            )
        )
        if self._repeats is None:
            return
        places = [stored.physical_offset]
        self._repeats.note_answer(places, is_received=request.is_received, link=request.link)
        if request.was_held:
            until_ms = self._router.waited_until_ms(request, half.born_ms)
            self._repeats.note_asked(places, until_ms)

    # Ends.

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        return (
            Handler(RequestCode.END_TRANSACTION, self.route_end, RequestKind.UPDATE, Where.ANY),
        )

    def route_end(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Route END_TRANSACTION; without a decision it has neither effect nor answer (O5), else it is the leader's."""
        if is_undecided(command.ext):
            return
        if self._log.is_serving:
            self._router.when_confirmed(request, partial(self.end, request, command))
        else:
            self._router.route(request)

    def end(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out END_TRANSACTION with a decision, at the leader.

        Raises:
            FieldError: a field is missing or impossible.
            EntryDamagedError: its half message cannot be read now; nothing was done.
        """
        self._end(request, ending_of(command.ext))

    def _end(self, request: PendingRequest, ending: Ending) -> None:
        """End a transaction, or wait for room or for an end in flight; after a wait it begins again from the top."""
        if ending.queue_offset in self._ending:  # the first one decides, this one is answered then
            if self._commits.is_idle:
                self._router.park(request)
                return
            self._router.when_staged_committed(request, partial(self._end, request, ending))
            return
        if self._commits.is_full:
            self._router.park(request)
            return
        plan = self._rules.decide(ending, self._now_ms())
        if isinstance(plan, Refusal):
            request.refuse(plan.code, plan.remark)
            return
        if isinstance(plan, Recorded):
            _answer_end(request, wanted=ending.wanted, recorded=plan.verdict)
            return
        try:
            place = stage_end(self._commits.staging, plan, self._now_ms())
        except RecordError as error:
            request.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        offsets = [plan.half.queue_offset]
        topic = (plan.half.find(REAL_TOPIC) or b"").decode(errors="replace")
        self.note_ending(offsets)
        # If it is not confirmed, whoever leads next knows, and asking twice is harmless.
        self._router.when_committed(
            request,
            place,
            partial(self._end_committed, request, ending, topic=topic),
            ended=partial(self.ended, offsets),
        )

    def note_ending(self, queue_offsets: Sequence[QueueOffset]) -> None:
        """Note that ends were staged; `ended` is to be called when they are decided."""
        assert self._ending.isdisjoint(queue_offsets), (
            f"of {queue_offsets} an end is in flight, and another one was staged"
        )
        self._ending.update(queue_offsets)

    def ended(
        self, queue_offsets: Sequence[QueueOffset], error: DLedgerError | None = None
    ) -> None:
        """Note that ends are applied, or failed; those of unknown outcome stay in flight until `leadership_began`."""
        if error is None or isinstance(error, RefusedError):
            self._ending.difference_update(queue_offsets)

    def _end_committed(
        self,
        request: PendingRequest,
        ending: Ending,
        _staged: StagedEntry,
        _place: int,
        *,
        topic: str,
    ) -> None:
        """Answer with the verdict that the fold recorded, since an end is applied."""
        verdict = self._transactions().verdict(ending.queue_offset)
        recorded = ending.wanted if verdict is None else verdict
        self.counts.add(recorded, topic)
        _answer_end(request, wanted=ending.wanted, recorded=recorded)


def stage_end(staging: Staging, plan: CommitPlan | RollbackPlan, now_ms: int) -> int:
    """Stage the end of one transaction as a unit: all of it belongs in one entry.

    Returns:
        The place of the op record.

    Raises:
        RecordError: the real message cannot be stored; nothing was staged.
    """
    if isinstance(plan, RollbackPlan):
        return stage_op(staging, [plan.half.queue_offset], TransactionVerdict.ROLLED_BACK, now_ms)
    half = plan.half
    staging.stage(
        plan.topic,
        plan.queue_id,
        half.body,
        plan.properties,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=half.born_host,
        sys_flag=plan.sys_flag,
        flag=half.flag,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=half.physical_offset,
    )
    return stage_op(staging, [half.queue_offset], TransactionVerdict.COMMITTED, now_ms)


def stage_op(
    staging: Staging, queue_offsets: Sequence[QueueOffset], verdict: TransactionVerdict, now_ms: int
) -> int:
    """Stage an op record; return its place."""
    body, properties = encode_op(queue_offsets, verdict)
    return staging.stage(
        _OP, QueueId(0), body, properties, born_timestamp_ms=now_ms, born_host=staging.store_host
    )


def _answer_end(
    request: PendingRequest, *, wanted: TransactionVerdict, recorded: TransactionVerdict
) -> None:
    """Answer the end of a transaction that was `wanted`, of which the fold has `recorded` the verdict."""
    code, remark, ext = answer_to_ending(wanted=wanted, recorded=recorded)
    request.answer(code, remark, ext)
