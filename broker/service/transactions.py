"""Decisions on the end of transactions: END_TRANSACTION, the half message, the recorded verdicts (rules O4 to O11).

A request that comes again, too late, or against what was decided before, is answered with what was decided: the
verdicts are part of the fold, so any later leader gives the same answer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from broker.service.refusal import Refusal
from broker.service.timers import TimerRules
from broker.store.schedule import delivery, level_of
from broker.store.timers import TIMER_KEY
from broker.store.transactions import VERDICTS_KEPT, Transactions, TransactionVerdict, immunity_of
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    TIMER_OUT_MS,
    encode_property,
)
from dledger_mq.message.record import StoredMessage
from dledger_mq.message.sys_flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode

COMMIT: Final = 8
ROLLBACK: Final = 12

_WANTED: Final = {
    str(COMMIT): TransactionVerdict.COMMITTED,
    str(ROLLBACK): TransactionVerdict.ROLLED_BACK,
}
_ANSWERS: Final = {
    TransactionVerdict.COMMITTED: (ResponseCode.TRANSACTION_SHOULD_COMMIT, COMMIT, "was committed"),
    TransactionVerdict.ROLLED_BACK: (
        ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
        ROLLBACK,
        "was rolled back",
    ),
    TransactionVerdict.GIVEN_UP: (
        ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
        ROLLBACK,
        f"was given up after the last check; its message is in {names.CHECK_MAX_TOPIC}",
    ),
}

RECORDED: Final = "commitOrRollback"
"""Ext field of answers: the end that the log has, 8 or 12."""


class Ending(msgspec.Struct, frozen=True, gc=False):
    """END_TRANSACTION: a producer group, a half message, and the end that it wants.

    Invariant: `wanted` is COMMITTED or ROLLED_BACK.
    """

    group: str
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    wanted: TransactionVerdict
    is_check: bool


class CommitPlan(msgspec.Struct, frozen=True, gc=False):
    """The real message to store; body, flag, born time and host, reconsume times are the half's."""

    half: StoredMessage
    topic: bytes
    queue_id: QueueId
    properties: bytes
    sys_flag: int


class RollbackPlan(msgspec.Struct, frozen=True, gc=False):
    """Store nothing but the op record."""

    half: StoredMessage


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """The transaction was decided before."""

    verdict: TransactionVerdict


def is_undecided(ext: Mapping[str, str]) -> bool:
    """Return True for an END_TRANSACTION that decides nothing: it has neither effect nor answer (O5)."""
    wanted = ext.get("commitOrRollback")
    return wanted is not None and wanted not in _WANTED


def ending_of(ext: Mapping[str, str]) -> Ending:
    """Read the header (O4).

    Raises:
        FieldError: a field is missing or impossible.
    """
    return Ending(
        fields.text(ext, "producerGroup"),
        QueueOffset(fields.int64(ext, "tranStateTableOffset")),
        PhysicalOffset(fields.int64(ext, "commitLogOffset")),
        _WANTED[fields.text(ext, "commitOrRollback")],
        fields.boolean(ext, "fromTransactionCheck", default=False),
    )


def answer_to_ending(
    *, wanted: TransactionVerdict, recorded: TransactionVerdict
) -> tuple[ResponseCode, str | None, dict[str, str]]:
    """Return code, remark and ext of the answer to a request for one end, where another may be recorded.

    Success when they agree, or nothing was stored and nothing was to be; else the code that names the
    recorded end.
    """
    assert recorded in _ANSWERS, f"a transaction that is {recorded} has not ended"
    code, number, text = _ANSWERS[recorded]
    ext = {RECORDED: str(number)}
    if (wanted is TransactionVerdict.COMMITTED) == (recorded is TransactionVerdict.COMMITTED):
        return ResponseCode.SUCCESS, None, ext
    return code, f"the transaction {text}", ext


class EndRules:
    """Decides on END_TRANSACTION. `load` returns the committed message at a physical offset, or None."""

    def __init__(
        self,
        transactions: Callable[[], Transactions],
        *,
        timeout_ms: int,
        delay_level_max: int,
        timers: TimerRules | None,
        load: Callable[[PhysicalOffset], StoredMessage | None],
    ) -> None:
        """Set up the rules for one broker.

        `timeout_ms` is the immunity of messages that ask for the broker's usual one; `timers` decides on
        due times, None where they are switched off.
        """
        self._transactions = transactions
        self.timeout_ms = timeout_ms
        self._delay_level_max = delay_level_max
        self.timers = timers
        self._load = load

    def decide(self, ending: Ending, now_ms: int) -> CommitPlan | RollbackPlan | Recorded | Refusal:
        """Decide on one request; `now_ms` is compared with the born time (O7)."""
        assert ending.wanted in (TransactionVerdict.COMMITTED, TransactionVerdict.ROLLED_BACK), (
            f"nobody can ask for the end {ending.wanted}"
        )
        half = self._load(ending.physical_offset) if ending.physical_offset >= 0 else None
        if half is None or half.topic != names.HALF_TOPIC:  # O6
            return _no_half(ending.physical_offset)
        verdict = self._transactions().verdict(half.queue_offset)
        refusal = self._late(ending, half, verdict, now_ms) or _mismatch(ending, half)
        if refusal is not None:
            return refusal
        if verdict is None:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"half message {half.queue_offset} was decided long ago: the verdicts of the last "
                f"{VERDICTS_KEPT} are remembered; nothing was done",
            )
        if verdict is not TransactionVerdict.OPEN:
            return Recorded(verdict)
        known = self._transactions().get(half.queue_offset)
        if known is None or known.physical_offset != half.physical_offset:
            return _no_half(ending.physical_offset)  # bytes in a message that look like one
        if ending.wanted is TransactionVerdict.COMMITTED:
            return self._commit(half)
        return RollbackPlan(half)

    def _late(
        self, ending: Ending, half: StoredMessage, verdict: TransactionVerdict | None, now_ms: int
    ) -> Refusal | None:
        """Refuse a request after the immunity time (O7); what is decided already is answered at any time."""
        if verdict is not TransactionVerdict.OPEN or ending.is_check:
            return None
        if half.find(CHECK_IMMUNITY_TIME_IN_SECONDS) is None:
            return None
        immunity_ms = immunity_of(half.properties)
        limit_ms = self.timeout_ms if immunity_ms is None else immunity_ms
        age_ms = now_ms - half.born_timestamp_ms
        if age_ms <= limit_ms:
            return None
        return Refusal(
            ResponseCode.ILLEGAL_OPERATION,
            f"the message is {age_ms} ms old, above its immunity time of {limit_ms} ms: "
            "it is decided by the answer to a check; nothing was done",
        )

    def _commit(self, half: StoredMessage) -> CommitPlan | Refusal:
        """Plan a commit (O9): to its real queue, or to wait for its time if it has a delay."""
        target = delivery(half)
        if target is None:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the half message at {half.physical_offset} names no topic and queue to go to (REAL_TOPIC, REAL_QID): "
                "it cannot be committed, the transaction stays open",
            )
        topic, properties = target.topic, target.properties
        queue_id = target.queue_id
        if level := min(level_of(properties), self._delay_level_max):
            topic, queue_id = names.SCHEDULE_TOPIC.encode(), QueueId(level - 1)
        elif b"TIMER_" in properties and TimerRules.asks(properties):
            due_ms = self._due(properties)
            if isinstance(due_ms, Refusal):
                return due_ms
            if due_ms:
                topic, queue_id = TIMER_KEY, QueueId(0)
                properties += encode_property(TIMER_OUT_MS, b"%d" % due_ms)
        assert queue_id >= 0, f"the message at {half.physical_offset} would go to queue {queue_id}"
        sys_flag = half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        return CommitPlan(half, topic, queue_id, properties, sys_flag)

    def _due(self, properties: bytes) -> int | Refusal:
        """Return the due time of a committed message: a delay begins now; a time that has passed means at once."""
        if self.timers is not None:
            return self.timers.due_ms(properties)
        return Refusal(
            ResponseCode.SYSTEM_ERROR,
            "the timer is switched off (timerWheelEnable=false) and the message asks for a due time: "
            "the transaction stays open",
        )


def _mismatch(ending: Ending, half: StoredMessage) -> Refusal | None:
    """Refuse a request whose group and offsets are not those of the half message (O8)."""
    group = half.find(PGROUP)
    if group is None or group != ending.group.encode(errors="replace"):
        owner = "no group" if group is None else group.decode(errors="replace")
        problem = f"the producer group wrong: it is {owner}'s, not {ending.group[:255]}'s"
    elif ending.queue_offset != half.queue_offset:
        problem = (
            f"the transaction state table offset wrong: it is {half.queue_offset}, "
            f"not {ending.queue_offset}"
        )
    elif ending.physical_offset != half.physical_offset:
        problem = (
            f"the commit log offset wrong: it says {half.physical_offset} of itself, "
            f"not {ending.physical_offset}"
        )
    else:
        return None
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"half message at {ending.physical_offset}: {problem}; nothing was done",
    )


def _no_half(physical_offset: PhysicalOffset) -> Refusal:
    return Refusal(
        ResponseCode.SYSTEM_ERROR,
        f"find prepared transaction message failed: none at {physical_offset}; nothing was done",
    )
