"""Judges delayed messages: none early, none twice, none lost; and counts how late they came.

The model. A message with a due time becomes visible once, at its due time or later. Sends with "due_ns" are of this
kind (`messages.py`); the due time of a delay counts from the moment at which the broker stores it, so it lies between
the bound on `invoke` and that on `ok`.

    early       read before its due time, with a grace for two clocks that drift: CLOCK_NS, and where the run set clocks
                wrong SLEW_PER_MILLE of the time that had passed: brokers may follow a wrong clock so slowly, and two
                of them in opposite directions, where most clocks are wrong or were when members last read them
                (docs/guarantees.md). Minutes are never excused: one wrong clock of three is outvoted, also at a start
    duplicate   at more than one queue offset
    lost        acknowledged, due before its queue was drained, and not read
    unexpected  refused or never sent, and read
    late        a reader asked in vain more than `late_max_ns` after the due time, outages taken off; only judged where
                a bound is given. That nobody asked is no lateness of the broker. What a push consumer was handed
                (`receive`) is late by its own time

Lateness is counted over messages that name their due time exactly and met no outage from there to their arrival;
`excused` counts those that were late by the clock and not when outages are taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from jepsen.checkers.messages import (
    Place,
    QueueHistory,
    SendOp,
    never_sent,
    read_queue_history,
)
from jepsen.checkers.outages import Outage, meets, outages, overdue_ns
from jepsen.checkers.percentiles import percentile
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import NEMESIS, RECEIVE, Op

NAME = "delay"

CLOCK_NS: Final = 5_000_000
"""The clock of due times and that of the history drift apart at most so far while a message waits."""

SLEW_PER_MILLE: Final = 2
"""Each of two brokers follows its wall clock by one per mille."""

LATE_NS: Final = 1_000_000_000


@dataclass(slots=True)
class _Arrivals:
    came_ns: int = 0
    op: int = 0
    asked_ns: int = 0  # when it was last asked for in vain; of what was pushed, when it came
    places: dict[Place, int] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _Tally:
    late_ms: list[float] = field(default_factory=list)
    excused: int = 0


def check_delay(ops: Sequence[Op], *, late_max_ns: int | None = None) -> CheckResult:
    """Compare the arrivals of delayed messages with their due times."""
    history = read_queue_history(ops)
    delayed = {send.key: send for send in history.sends if send.due_from_ns is not None}
    arrivals = _arrivals(history, delayed)
    spans, tally = outages(ops), _Tally()
    anomalies: list[Anomaly] = []
    missing = [send for send in delayed.values() if send.is_ok and send.key not in arrivals]
    lost = [send for send in missing if _was_due(ops, history, send)]
    anomalies += [_lost(send) for send in lost]
    anomalies += never_sent(history, ())
    are_clocks_set = any(op.process == NEMESIS and op.f.startswith("clock") for op in ops)
    for key, arrived in arrivals.items():
        slewed_ns = arrived.came_ns * SLEW_PER_MILLE // 1000 if are_clocks_set else 0
        anomalies += _wrong(delayed[key], arrived, CLOCK_NS + slewed_ns)
        anomalies += _late(delayed[key], arrived, spans, tally=tally, late_max_ns=late_max_ns)
    acknowledged = sum(send.is_ok for send in delayed.values())
    kinds = [one.kind for one in anomalies]
    counts: dict[str, object] = {
        "acknowledged": acknowledged,
        "received": len(arrivals),
        "lost": len(lost),
        "unseen": len(missing) - len(lost),
        "early": kinds.count("early"),
        "duplicate": kinds.count("duplicate"),
        "late": kinds.count("late"),
        "excused": tally.excused,
        "redelivered": sum(one.count - len(one.places) for one in arrivals.values()),
        "late_ms": {
            f"p{percent}": round(percentile(tally.late_ms, percent), 1) if tally.late_ms else None
            for percent in (50, 99)
        },
    }
    why = ""
    if not acknowledged:
        why = "no message with a due time was acknowledged"
    elif not arrivals:
        why = "no message with a due time was read"
    elif len(missing) > len(lost):
        why = f"{len(missing) - len(lost)} messages were not read, in queues not drained after they fell due"
    return judged(NAME, anomalies, counts, why)


def _arrivals(history: QueueHistory, delayed: dict[str, SendOp]) -> dict[str, _Arrivals]:
    """Find each delayed message's first arrival, and the last earlier question to its queue that found nothing."""
    arrivals: dict[str, _Arrivals] = {}
    vain: dict[str, int] = {}  # by queue: the beginning of the last question that found nothing
    for poll in history.polls:
        for queue, messages in poll.queues.items():
            if not messages:
                vain[queue] = max(vain.get(queue, 0), poll.invoke.t_ns)
        for message in poll.messages:
            if message.key in delayed:
                op = poll.completion
                arrived = arrivals.get(message.key)
                if arrived is None:
                    asked_ns = vain.get(message.queue, 0) if op.f != RECEIVE else op.t_ns
                    arrived = arrivals[message.key] = _Arrivals(op.t_ns, op.index, asked_ns)
                arrived.places.setdefault(message.place, op.index)
                arrived.count += 1
    return arrivals


def _was_due(ops: Sequence[Op], history: QueueHistory, send: SendOp) -> bool:
    """Return whether the message's queue was read to its end some time after the message fell due."""
    drain = history.drained.get(send.queue or "")
    due_ns = send.due_to_ns if send.due_to_ns is not None else send.due_from_ns
    if drain is None or due_ns is None or not history.is_drained_after(send):
        return False
    began = next(op for op in ops if op.index == drain.op)
    return began.t_ns >= due_ns + LATE_NS


def _lost(send: SendOp) -> Anomaly:
    text = f"{send.key} was acknowledged, fell due, and was never read in {send.queue}"
    return Anomaly("lost", text, send.ops)


def _wrong(send: SendOp, arrived: _Arrivals, grace_ns: int) -> list[Anomaly]:
    """Judge one message that was read; `grace_ns` allows for the difference between clocks."""
    found = []
    ops = (*send.ops, arrived.op)
    if send.type == "fail":
        found.append(Anomaly("unexpected", f"{send.key} was refused and read", ops))
    early_ns = (send.due_from_ns or 0) - arrived.came_ns
    if early_ns > grace_ns:
        found.append(Anomaly("early", f"{send.key} came {early_ns / 1e6:.1f} ms early", ops))
    if len(arrived.places) > 1:
        places = " and ".join(f"{offset} of {queue}" for queue, offset in sorted(arrived.places))
        text = f"{send.key} stands at {places}"
        found.append(Anomaly("duplicate", text, tuple(arrived.places.values())))
    return found


def _late(
    send: SendOp,
    arrived: _Arrivals,
    spans: Sequence[Outage],
    *,
    tally: _Tally,
    late_max_ns: int | None,
) -> list[Anomaly]:
    """Count how late a message came; yield an anomaly where that exceeds the given bound."""
    due_ns = send.due_to_ns
    if due_ns is None:
        return []
    bound_ns = LATE_NS if late_max_ns is None else late_max_ns
    late_ns = overdue_ns(due_ns, arrived.asked_ns, spans, late_ns=bound_ns)
    tally.excused += late_ns <= bound_ns < arrived.asked_ns - due_ns
    if send.due_from_ns == due_ns and not meets(due_ns, arrived.came_ns, spans):
        tally.late_ms.append((arrived.came_ns - due_ns) / 1e6)
    if late_max_ns is None or late_ns <= late_max_ns:
        return []
    text = f"{send.key} had not come {late_ns / 1e6:.0f} ms after its due time, outages taken off"
    return [Anomaly("late", text, (*send.ops, arrived.op))]
