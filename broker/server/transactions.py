"""Half messages and their ends at the leader: SEND with TRAN_MSG, END_TRANSACTION (semantics O1 to O13)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from broker.message.errors import RecordError
from broker.message.ids import OffsetIdMaker
from broker.message.properties import (
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    TRANSACTION_ID,
    encode_property,
    remove_property,
    terminated,
)
from broker.remoting.codes import ResponseCode
from broker.remoting.header import RemotingCommand
from broker.remoting.replies import SendReplies
from broker.server.commits import Commits, Waiter
from broker.server.gate import Errand, Gate
from broker.server.origin import answer
from broker.service.refusal import Refusal
from broker.service.repeats import EarlierSend, Repeats
from broker.service.send import SendPlan
from broker.service.transactions import (
    CommitPlan,
    Ending,
    EndRules,
    Recorded,
    RollbackPlan,
    ending_of,
    told,
)
from broker.store.names import HALF_TOPIC, OP_HALF_TOPIC
from broker.store.schedule import DELIVERY_PROPERTIES_BYTES
from broker.store.staging import StagedEntry, Staging
from broker.store.transactions import TransactionKey, Transactions, Verdict, encode_op
from dledger import DLedgerError, EntryDamagedError, RefusedError

ROOM_BYTES = DELIVERY_PROPERTIES_BYTES + 40
"""What a half message leaves free for its commit, its due time and its delivery."""

_HALF = HALF_TOPIC.encode()
_OP = OP_HALF_TOPIC.encode()
_REPLACED = (REAL_TOPIC, REAL_QID, TRANSACTION_ID)


class TransactionEnds:
    """Stores half messages, and ends transactions: each exactly once.

    Invariant: an end is staged only for a half message that is open in the fold and for which none is
    staged or on its way (`_ending`). A new leader has applied everything before it serves, so it starts
    with none on its way.
    """

    def __init__(
        self,
        commits: Commits,
        gate: Gate,
        transactions: Transactions,
        rules: EndRules,
        replies: SendReplies,
        ids: OffsetIdMaker,
        repeats: Repeats | None = None,
        *,
        open_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Prepare; at `open_max` open transactions half messages are turned away.

        `repeats` recognises half messages that were stored before; None: every one is stored.
        """
        self._commits = commits
        self._gate = gate
        self._transactions = transactions
        self._rules = rules
        self._replies = replies
        self._ids = ids
        self._repeats = repeats
        self._open_max = open_max
        self._now_ms = now_ms
        self._beginning: set[TransactionKey] = set()
        self._ending: set[int] = set()

    def start_reign(self) -> None:
        """This node leads from now on."""
        self._beginning.clear()
        self._ending.clear()

    def is_beginning(self, key: TransactionKey) -> bool:
        """Whether a half message of that transaction is staged or on its way."""
        return key in self._beginning

    def is_ending(self, queue_offset: int) -> bool:
        """Whether an end of that half message is staged or on its way."""
        return queue_offset in self._ending

    # Half messages.

    def begin(self, errand: Errand, plan: SendPlan, born_ms: int) -> None:
        """Store a half message; one whose transaction is open already is that one, sent again.

        Raises:
            EntryDamagedError: whether it is that one cannot be told now; nothing was done.
        """
        key = (plan.topic.encode(), plan.messages[0].uniq_key)
        known = self._earlier(plan, key, born_ms)
        if known is not None:
            self._answer_half(errand, plan, known.msg_id, known.queue_offset)
        elif key in self._beginning and self._repeats is not None:
            self._commits.wait_for_staged(
                _Again(lambda: self.begin(errand, plan, born_ms), errand, self._gate.unconfirmed)
            )
        elif len(self._transactions) + len(self._beginning) >= self._open_max:
            errand.refuse(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy: {self._open_max} transactions are open; nothing was stored",
            )
        else:
            self._store_half(errand, plan, born_ms, key)

    def _earlier(self, plan: SendPlan, key: TransactionKey, born_ms: int) -> EarlierSend | None:
        """Where this half message was stored before, if it is that one: open, or a recent send."""
        if self._repeats is None:
            return None
        known = self._transactions.find(key)
        if known is not None:
            msg_id = self._ids(known.physical_offset)
            return EarlierSend(plan.queue_id, known.queue_offset, msg_id)
        if key[1] not in self._repeats.recent_keys:
            return None
        half_plan = msgspec.structs.replace(plan, topic=HALF_TOPIC)
        return self._repeats.find(half_plan, plan.messages[0], born_ms)

    def _store_half(
        self, errand: Errand, plan: SendPlan, born_ms: int, key: TransactionKey
    ) -> None:
        message = plan.messages[0]
        try:
            properties = _half_properties(message.properties, key, plan.queue_id)
            place = self._commits.staging.stage(
                _HALF,
                0,
                message.body,
                properties,
                born_timestamp_ms=born_ms,
                born_host=errand.origin.born_host,
                sys_flag=plan.sys_flag,
                flag=message.flag,
                reconsume_times=plan.reconsume_times,
            )
        except RecordError as error:
            errand.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        self._beginning.add(key)
        self._commits.wait(place, _HalfWaiter(self, errand, plan, key))

    def half_stored(
        self, errand: Errand, plan: SendPlan, key: TransactionKey, staged: StagedEntry, place: int
    ) -> None:
        """A half message is committed."""
        self._beginning.discard(key)
        msg_id = self._ids(staged.physical_offset(place))
        self._answer_half(errand, plan, msg_id, staged.queue_offset(place))
        if self._repeats is not None:
            if errand.origin.is_closed:
                self._repeats.not_answered([key[1]])
            elif errand.origin.is_forwarded:
                self._repeats.answered_over(errand.origin.number, [key[1]])

    def half_failed(self, errand: Errand, key: TransactionKey, error: DLedgerError) -> None:
        """A half message is not confirmed."""
        self._beginning.discard(key)
        self._gate.unconfirmed(errand, error)

    def _answer_half(self, errand: Errand, plan: SendPlan, msg_id: str, queue_offset: int) -> None:
        if errand.is_oneway:
            return
        errand.origin.send(
            self._replies.encode(
                errand.opaque,
                msg_id=msg_id.encode(),
                queue_id=plan.queue_id,
                queue_offset=queue_offset,
                transaction_id=plan.messages[0].uniq_key.decode(errors="replace"),
            )
        )

    # Ends.

    def end(self, errand: Errand, request: RemotingCommand) -> None:
        """END_TRANSACTION with a decision.

        Raises:
            FieldError: a field is missing or impossible.
            EntryDamagedError: its half message cannot be read now; nothing was done.
        """
        self._end(errand, ending_of(request.ext))

    def _end(self, errand: Errand, ending: Ending) -> None:
        if ending.queue_offset in self._ending:  # what was first decides; then this one is told
            if self._commits.is_idle:
                self._gate.hold(errand)
                return
            self._commits.wait_for_staged(
                _Again(lambda: self._end(errand, ending), errand, self._end_failed)
            )
            return
        if self._commits.is_full:
            self._gate.hold(errand)
            return
        plan = self._rules.decide(ending, self._now_ms())
        if isinstance(plan, Refusal):
            errand.refuse(plan.code, plan.remark)
            return
        if isinstance(plan, Recorded):
            _tell(errand, ending.wanted, plan.verdict)
            return
        try:
            place = stage_end(self._commits.staging, plan, self._now_ms())
        except RecordError as error:
            errand.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            return
        self.wait_for_end([plan.half.queue_offset], place, _EndWaiter(self, errand, ending))

    def wait_for_end(self, queue_offsets: list[int], place: int, waiter: Waiter) -> None:
        """Ends were staged; `waiter` calls `ended` when they are decided."""
        self._ending.update(queue_offsets)
        self._commits.wait(place, waiter)

    def ended(self, queue_offsets: list[int], error: DLedgerError | None = None) -> None:
        """Ends are applied, or failed. Those of unknown outcome stay on their way: `start_reign`."""
        if error is None or isinstance(error, RefusedError):
            self._ending.difference_update(queue_offsets)

    def committed_end(self, errand: Errand, ending: Ending) -> None:
        """An end is applied: tell what the fold recorded."""
        self.ended([ending.queue_offset])
        verdict = self._transactions.verdict(ending.queue_offset)
        _tell(errand, ending.wanted, ending.wanted if verdict is None else verdict)

    def failed_end(self, errand: Errand, ending: Ending, error: DLedgerError) -> None:
        """An end is not confirmed: whoever leads next knows, and asking twice is harmless."""
        self.ended([ending.queue_offset], error)
        self._end_failed(errand, error)

    def _end_failed(self, errand: Errand, error: DLedgerError) -> None:
        errand.cause = str(error)
        self._gate.hold(errand)


def stage_end(staging: Staging, plan: CommitPlan | RollbackPlan, now_ms: int) -> int:
    """Stage the end of one transaction, whole: nothing may be staged in another entry.

    Returns:
        The place of the op record.

    Raises:
        RecordError: the real message cannot be stored; nothing was staged.
    """
    if isinstance(plan, RollbackPlan):
        return stage_op(staging, [plan.half.queue_offset], Verdict.ROLLED_BACK, now_ms)
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
    return stage_op(staging, [half.queue_offset], Verdict.COMMITTED, now_ms)


def stage_op(staging: Staging, queue_offsets: list[int], verdict: Verdict, now_ms: int) -> int:
    """Stage an op record; gives its place."""
    body, properties = encode_op(queue_offsets, verdict)
    return staging.stage(
        _OP, 0, body, properties, born_timestamp_ms=now_ms, born_host=staging.store_host
    )


class _HalfWaiter:
    def __init__(
        self, ends: TransactionEnds, errand: Errand, plan: SendPlan, key: TransactionKey
    ) -> None:
        self._ends = ends
        self._errand = errand
        self._plan = plan
        self._key = key

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._ends.half_stored(self._errand, self._plan, self._key, staged, place)

    def failed(self, error: DLedgerError) -> None:
        self._ends.half_failed(self._errand, self._key, error)


class _EndWaiter:
    def __init__(self, ends: TransactionEnds, errand: Errand, ending: Ending) -> None:
        self._ends = ends
        self._errand = errand
        self._ending = ending

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._ends.committed_end(self._errand, self._ending)

    def failed(self, error: DLedgerError) -> None:
        self._ends.failed_end(self._errand, self._ending, error)


class _Again:
    """Looks at a request again once what was staged before it is decided."""

    def __init__(
        self,
        act: Callable[[], None],
        errand: Errand,
        failed: Callable[[Errand, DLedgerError], None],
    ) -> None:
        self._act = act
        self._errand = errand
        self._failed = failed

    def committed(self, staged: StagedEntry, place: int) -> None:
        try:
            self._act()
        except EntryDamagedError as error:  # nothing was done
            self._failed(self._errand, error)

    def failed(self, error: DLedgerError) -> None:
        self._failed(self._errand, error)


def _half_properties(properties: bytes, key: TransactionKey, queue_id: int) -> bytes:
    """The properties of a half message: where it goes, and its transaction (O2).

    Raises:
        RecordError: there would be no room for what is added at its commit and delivery.
    """
    parked = (
        terminated(remove_property(properties, *_REPLACED))
        + encode_property(REAL_TOPIC, key[0])
        + encode_property(REAL_QID, b"%d" % queue_id)
        + encode_property(TRANSACTION_ID, key[1])
    )
    if len(parked) > PROPERTIES_BYTES_MAX - ROOM_BYTES:
        raise RecordError(
            f"properties of {len(parked)} bytes, a half message has room for "
            f"{PROPERTIES_BYTES_MAX - ROOM_BYTES}"
        )
    return parked


def _tell(errand: Errand, wanted: Verdict, recorded: Verdict) -> None:
    if not errand.is_oneway:
        code, remark, ext = told(wanted, recorded)
        answer(errand.origin, errand.opaque, code, remark, ext)
