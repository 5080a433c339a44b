"""Transactions: committed once, rolled back never, half never visible, undecided never.

The model. A transaction stores a half message that nobody sees, decides, and then stands in its queue once (commit) or
never (rollback). The producer's word is the truth: a broker that did not hear it asks, and is told the same. A
producer that never decides leaves its message invisible for ever.

    txn    invoke {"key": "t2-9", "decision": "commit" | "rollback" | "none"}
           ok     {..., "decided_ns": moment in time of the run before which nobody could know the decision (optional),
                   "confirmed": "commit" | "rollback" (optional: what a broker said that it has recorded)}
           `ok`: the half message is stored and the decision stands; whether the broker was told does not matter.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jepsen.checkers.messages import (
    Place,
    QueueHistory,
    never_sent,
    operations,
    read_queue_history,
)
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op, Pair

NAME = "transactions"
CHECKED = "checked"

_VISIBLE_KINDS = {"rollback": "rolled-back-visible", "none": "undecided-visible"}


@dataclass(slots=True)
class _Seen:
    """One place at which a message was read, with the first operation that read it there."""

    places: dict[Place, int] = field(default_factory=dict)
    first_ns: int = 0
    first_op: int = 0


def check_transactions(ops: Sequence[Op]) -> CheckResult:
    """Hold what was read against what was decided."""
    transactions = {
        pair.invoke.value["key"]: pair for pair in operations(ops) if pair.invoke.f == "txn"
    }
    history = read_queue_history(ops)
    seen: dict[str, _Seen] = {}
    for poll in history.polls:
        for message in poll.messages:
            if message.key in transactions:
                at = seen.setdefault(
                    message.key, _Seen({}, poll.completion.t_ns, poll.completion.index)
                )
                at.places.setdefault(message.place, poll.completion.index)
    ends = Counter((pair.invoke.value["decision"], pair.type) for pair in transactions.values())
    committed = [
        pair for pair in transactions.values() if _is(pair, "commit") and pair.type == "ok"
    ]
    missing = [pair for pair in committed if pair.invoke.value["key"] not in seen]
    last_end = max((op for pair in committed for op in _ops(pair)), default=0)
    is_drained = _is_drained(history, last_end)
    anomalies = [_lost(pair) for pair in missing] if is_drained else []
    for key, at in seen.items():
        anomalies += _wrongly_seen(transactions[key], at)
    anomalies += [one for pair in transactions.values() for one in _contradiction(pair)]
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


def _is(pair: Pair, decision: str) -> bool:
    return bool(pair.invoke.value["decision"] == decision)


def _ops(pair: Pair) -> tuple[int, ...]:
    return tuple(op.index for op in (pair.invoke, pair.completion) if op is not None)


def _told(pair: Pair) -> Mapping[str, Any]:
    value = pair.completion.value if pair.completion is not None else None
    return value if isinstance(value, dict) else {}


def _lost(pair: Pair) -> Anomaly:
    return Anomaly("lost", f"{pair.invoke.value['key']} was committed and never read", _ops(pair))


def _wrongly_seen(pair: Pair, seen: _Seen) -> Iterator[Anomaly]:
    key, decision = pair.invoke.value["key"], pair.invoke.value["decision"]
    queue, offset = next(iter(seen.places))
    where = f"read at {offset} of {queue}"
    ops = (*_ops(pair), seen.first_op)
    if pair.type == "fail":
        yield Anomaly("aborted-read", f"{key} was refused and {where}", ops)
    elif decision in _VISIBLE_KINDS:
        words = "rolled back" if decision == "rollback" else "never decided"
        yield Anomaly(_VISIBLE_KINDS[decision], f"{key} was {words} and {where}", ops)
    else:
        decided_ns = _told(pair).get("decided_ns", pair.invoke.t_ns)
        if seen.first_ns < decided_ns:
            early_ms = (decided_ns - seen.first_ns) / 1e6
            text = f"{key} was {where} {early_ms:.1f} ms before it was decided"
            yield Anomaly("half-visible", text, ops)
    if len(seen.places) > 1:
        places = " and ".join(f"{at} of {name}" for name, at in sorted(seen.places))
        yield Anomaly("duplicate", f"{key} stands at {places}", tuple(seen.places.values()))


def _contradiction(pair: Pair) -> Iterator[Anomaly]:
    confirmed = _told(pair).get("confirmed")
    if confirmed is not None and not _is(pair, confirmed):
        key, decision = pair.invoke.value["key"], pair.invoke.value["decision"]
        text = f"{key}: the decision is {decision}, a broker confirmed {confirmed}"
        yield Anomaly("contradiction", text, _ops(pair))
