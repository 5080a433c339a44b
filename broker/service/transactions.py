"""How a transaction ends: END_TRANSACTION against the half message and the log's memory (rules O4 to O11).

A request that comes again, too late, or against what was decided before, is told what was decided: the
memory is part of the fold, so any later leader gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from broker.service.refusal import Refusal
from broker.service.timers import TimerRules
from broker.store.schedule import delivery, level_of
from broker.store.timers import TIMER_KEY
from broker.store.transactions import VERDICTS_KEPT, Transactions, Verdict, immunity_of
from dledger_mq.message import names
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

_WANTED: Final = {str(COMMIT): Verdict.COMMITTED, str(ROLLBACK): Verdict.ROLLED_BACK}
_TOLD: Final = {
    Verdict.COMMITTED: (ResponseCode.TRANSACTION_SHOULD_COMMIT, COMMIT, "was committed"),
    Verdict.ROLLED_BACK: (ResponseCode.TRANSACTION_SHOULD_ROLLBACK, ROLLBACK, "was rolled back"),
    Verdict.GIVEN_UP: (
        ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
        ROLLBACK,
        f"was given up after the last check; its message is in {names.CHECK_MAX_TOPIC}",
    ),
}

RECORDED: Final = "commitOrRollback"
"""Ext field of answers: what the log says, 8 or 12."""


class Ending(msgspec.Struct, frozen=True, gc=False):
    """END_TRANSACTION: who wants which half message to end how."""

    group: str
    queue_offset: int
    physical_offset: int
    wanted: Verdict
    is_check: bool


class CommitPlan(msgspec.Struct, frozen=True, gc=False):
    """The real message to store; body, flag, born time and host, reconsume times are the half's."""

    half: StoredMessage
    topic: bytes
    queue_id: int
    properties: bytes
    sys_flag: int


class RollbackPlan(msgspec.Struct, frozen=True, gc=False):
    """Nothing is stored but the op record."""

    half: StoredMessage


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """It was decided before."""

    verdict: Verdict


def is_undecided(ext: Mapping[str, str]) -> bool:
    """Whether an END_TRANSACTION decides nothing, so that there is neither effect nor answer (O5)."""
    wanted = ext.get("commitOrRollback")
    return wanted is not None and wanted not in _WANTED


def ending_of(ext: Mapping[str, str]) -> Ending:
    """Read the header (O4).

    Raises:
        FieldError: a field is missing or impossible.
    """
    return Ending(
        fields.text(ext, "producerGroup"),
        fields.int64(ext, "tranStateTableOffset"),
        fields.int64(ext, "commitLogOffset"),
        _WANTED[fields.text(ext, "commitOrRollback")],
        fields.boolean(ext, "fromTransactionCheck", default=False),
    )


def told(wanted: Verdict, recorded: Verdict) -> tuple[ResponseCode, str | None, dict[str, str]]:
    """Code, remark and ext of the answer to who wanted one end and is told the recorded one.

    Success when they agree, or nothing was stored and nothing was to be; else the code that names the
    recorded end.
    """
    code, number, text = _TOLD[recorded]
    ext = {RECORDED: str(number)}
    if (wanted is Verdict.COMMITTED) == (recorded is Verdict.COMMITTED):
        return ResponseCode.SUCCESS, None, ext
    return code, f"the transaction {text}", ext


class EndRules:
    """Decides on END_TRANSACTION. `load` gives the committed message at a physical offset, or None."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        timeout_ms: int,
        delay_level_max: int,
        timers: TimerRules | None,
        load: Callable[[int], StoredMessage | None],
    ) -> None:
        """Prepare.

        `timeout_ms` is the immunity of messages that ask for the broker's usual one; `timers` decides on
        due times, None: those are switched off.
        """
        self._transactions = transactions
        self._timeout_ms = timeout_ms
        self._delay_level_max = delay_level_max
        self._timers = timers
        self._load = load

    def decide(self, ending: Ending, now_ms: int) -> CommitPlan | RollbackPlan | Recorded | Refusal:
        """Decide on one request; `now_ms` is compared with the born time (O7)."""
        half = self._load(ending.physical_offset) if ending.physical_offset >= 0 else None
        if half is None or half.topic != names.HALF_TOPIC:  # O6
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"find prepared transaction message failed: none at {ending.physical_offset}",
            )
        verdict = self._transactions.verdict(half.queue_offset)
        refusal = self._late(ending, half, verdict, now_ms) or _mismatch(ending, half)
        if refusal is not None:
            return refusal
        if verdict is None:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"half message {half.queue_offset} was decided long ago: the verdicts of the last "
                f"{VERDICTS_KEPT} are remembered; nothing was done",
            )
        if verdict is not Verdict.OPEN:
            return Recorded(verdict)
        known = self._transactions.get(half.queue_offset)
        if (
            known is None or known.physical_offset != half.physical_offset
        ):  # bytes in a message that look like it
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"find prepared transaction message failed: none at {ending.physical_offset}",
            )
        if ending.wanted is Verdict.COMMITTED:
            return self._commit(half)
        return RollbackPlan(half)

    def _late(
        self, ending: Ending, half: StoredMessage, verdict: Verdict | None, now_ms: int
    ) -> Refusal | None:
        """O7. What is decided already is told at any time."""
        if verdict is not Verdict.OPEN or ending.is_check:
            return None
        if half.find(CHECK_IMMUNITY_TIME_IN_SECONDS) is None:
            return None
        immunity_ms = immunity_of(half.properties)
        limit_ms = self._timeout_ms if immunity_ms is None else immunity_ms
        age_ms = now_ms - half.born_timestamp_ms
        if age_ms <= limit_ms:
            return None
        return Refusal(
            ResponseCode.ILLEGAL_OPERATION,
            f"the message is {age_ms} ms old, above its immunity time of {limit_ms} ms: "
            "it is decided by the answer to a check",
        )

    def _commit(self, half: StoredMessage) -> CommitPlan | Refusal:
        """O9: to its real queue, or to wait for its time if it has a delay."""
        target = delivery(half)
        if target is None:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the half message at {half.physical_offset} names no topic and queue to go to",
            )
        topic, queue_id, properties = target
        if level := min(level_of(properties), self._delay_level_max):
            topic, queue_id = names.SCHEDULE_TOPIC.encode(), level - 1
        elif b"TIMER_" in properties and TimerRules.asks(properties):
            due_ms = self._due(properties)
            if isinstance(due_ms, Refusal):
                return due_ms
            if due_ms:
                topic, queue_id = TIMER_KEY, 0
                properties += encode_property(TIMER_OUT_MS, b"%d" % due_ms)
        sys_flag = half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        return CommitPlan(half, topic, queue_id, properties, sys_flag)

    def _due(self, properties: bytes) -> int | Refusal:
        """A delay begins with the commit; a time that has passed meanwhile means now."""
        if self._timers is not None:
            return self._timers.due_ms(properties)
        return Refusal(
            ResponseCode.SYSTEM_ERROR,
            "the timer is switched off (timerWheelEnable): the transaction stays open",
        )


def _mismatch(ending: Ending, half: StoredMessage) -> Refusal | None:
    """O8: group and offsets must be those of the half message."""
    group = half.find(PGROUP)
    if group is None or group != ending.group.encode(errors="replace"):
        return Refusal(ResponseCode.SYSTEM_ERROR, "the producer group wrong")
    if ending.queue_offset != half.queue_offset:
        return Refusal(ResponseCode.SYSTEM_ERROR, "the transaction state table offset wrong")
    if ending.physical_offset != half.physical_offset:
        return Refusal(ResponseCode.SYSTEM_ERROR, "the commit log offset wrong")
    return None
