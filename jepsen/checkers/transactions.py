"""Transactions: committed once, rolled back never, half never visible, undecided never.

The model. A transaction stores a half message that nobody sees, decides, and then stands in its queue once (commit) or
never (rollback). The producer's word is the truth: a broker that did not hear it asks, and is answered the same. A
producer that never decides leaves its message invisible for ever.

    txn    invoke {"key": "t2-9", "decision": "commit" | "rollback" | "none"}
           ok     {..., "decided_ns": moment in time of the run before which nobody could know the decision (optional),
                   "confirmed": "commit" | "rollback" (optional: what a broker said that it has recorded)}
           `ok`: the half message is stored and the decision stands; whether the broker heard it does not matter.
           `fail`: the half message was surely not stored. `info`: it may have been; then the decision holds too.
    poll, receive, drained: as in `messages.py`; the message of a transaction carries its key.

    lost                committed, and not read though the reader drained every queue
    duplicate           at more than one queue offset
    rolled-back-visible read, and rolled back
    undecided-visible   read, and never decided
    aborted-read        read, though the half message was refused
    half-visible        read before it was decided
    contradiction       a broker confirmed another end than the decided one
    unexpected          read, and neither a transaction nor a plain send

`checks` counts the questions of brokers, which the workload notes as "checked" of the observer. What plain sends sent
is other checkers' business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jepsen.checkers.messages import (
    Place,
    QueueHistory,
    never_sent,
    operations,
    read_queue_history,
)
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op, OpType, Pair
from jepsen.history.values import Decision, TxnAnswer, TxnAsked, shaped

NAME = "transactions"
CHECKED = "checked"

_VISIBLE_KINDS = {"rollback": "rolled-back-visible", "none": "undecided-visible"}


@dataclass(frozen=True, slots=True)
class _Txn:
    """One transaction.

    Attributes:
        type: of its completion.
        begun_ns: moment of its invocation.
        ops: its operations in the history.
        answer: of its completion, whatever its type; empty where there is none.
    """

    key: str
    decision: Decision
    type: OpType
    begun_ns: int
    ops: tuple[int, ...]
    answer: TxnAnswer


def _read(pair: Pair) -> _Txn | None:
    """Return the transaction that a pair is; None for other operations."""
    if pair.invoke.f != "txn":
        return None
    asked = shaped(pair.invoke.value, TxnAsked)
    value = pair.completion.value if pair.completion is not None else None
    return _Txn(
        asked["key"],
        asked["decision"],
        pair.type,
        pair.invoke.t_ns,
        tuple(op.index for op in (pair.invoke, pair.completion) if op is not None),
        shaped(value if isinstance(value, dict) else {}, TxnAnswer),
    )


@dataclass(slots=True)
class _Seen:
    """One place at which a message was read, with the first operation that read it there."""

    places: dict[Place, int] = field(default_factory=dict)
    first_ns: int = 0
    first_op: int = 0


def check_transactions(ops: Sequence[Op]) -> CheckResult:
    """Compare the messages that were read with the decisions on their transactions."""
    transactions = {txn.key: txn for txn in map(_read, operations(ops)) if txn is not None}
    history = read_queue_history(ops)
    seen: dict[str, _Seen] = {}
    for poll in history.polls:
        for message in poll.messages:
            if message.key in transactions:
                at = seen.setdefault(
                    message.key, _Seen({}, poll.completion.t_ns, poll.completion.index)
                )
                at.places.setdefault(message.place, poll.completion.index)
    ends = Counter((txn.decision, txn.type) for txn in transactions.values())
    committed = [
        txn for txn in transactions.values() if txn.decision == "commit" and txn.type == "ok"
    ]
    missing = [txn for txn in committed if txn.key not in seen]
    last_end = max((op for txn in committed for op in txn.ops), default=0)
    is_drained = _is_drained(history, last_end)
    anomalies = [_lost(txn) for txn in missing] if is_drained else []
    for key, at in seen.items():
        anomalies += _wrongly_seen(transactions[key], at)
    anomalies += [one for txn in transactions.values() for one in _contradiction(txn)]
    anomalies += never_sent(history, transactions)
    counts: dict[str, object] = {
        "committed": len(committed),
        "rolled_back": ends["rollback", "ok"],
        "undecided": ends["none", "ok"],
        "refused": sum(count for (_, type_), count in ends.items() if type_ == "fail"),
        "unknown": sum(count for (_, type_), count in ends.items() if type_ == "info"),
        "checks": sum(op.f == CHECKED for op in ops),
        "received": len(seen),
        "lost": len(missing) if is_drained else 0,
        "unseen": 0 if is_drained else len(missing),
    }
    why = ""
    if not committed:
        why = "no transaction was committed"
    elif missing and not is_drained:
        why = f"{len(missing)} committed messages were not read, and nobody drained the queues"
    return judged(NAME, anomalies, counts, why)


def _is_drained(history: QueueHistory, last_end: int) -> bool:
    """Return whether every known queue was read to its end after that: a transaction does not name its queue."""
    queues = {queue for poll in history.polls for queue in poll.queues} | history.drained.keys()
    ends = [history.drained.get(queue) for queue in queues]
    return bool(ends) and all(end is not None and end.op > last_end for end in ends)


def _lost(txn: _Txn) -> Anomaly:
    return Anomaly("lost", f"{txn.key} was committed and never read", txn.ops)


def _wrongly_seen(txn: _Txn, seen: _Seen) -> Iterator[Anomaly]:
    """Yield what is wrong with a message that was read: it had to be committed, decided by then, and stored once."""
    key, decision = txn.key, txn.decision
    queue, offset = next(iter(seen.places))
    where = f"read at {offset} of {queue}"
    ops = (*txn.ops, seen.first_op)
    if txn.type == "fail":
        yield Anomaly("aborted-read", f"{key} was refused and {where}", ops)
    elif decision in _VISIBLE_KINDS:
        words = "rolled back" if decision == "rollback" else "never decided"
        yield Anomaly(_VISIBLE_KINDS[decision], f"{key} was {words} and {where}", ops)
    else:
        decided_ns = txn.answer.get("decided_ns", txn.begun_ns)
        if seen.first_ns < decided_ns:
            early_ms = (decided_ns - seen.first_ns) / 1e6
            text = f"{key} was {where} {early_ms:.1f} ms before it was decided"
            yield Anomaly("half-visible", text, ops)
    if len(seen.places) > 1:
        places = " and ".join(f"{at} of {name}" for name, at in sorted(seen.places))
        yield Anomaly("duplicate", f"{key} stands at {places}", tuple(seen.places.values()))


def _contradiction(txn: _Txn) -> Iterator[Anomaly]:
    confirmed = txn.answer.get("confirmed")
    if confirmed is not None and confirmed != txn.decision:
        text = f"{txn.key}: the decision is {txn.decision}, a broker confirmed {confirmed}"
        yield Anomaly("contradiction", text, txn.ops)
