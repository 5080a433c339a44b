"""Judges what transactions, due times and an ordered stream promise, from a history. Pure.

What must hold (the names of the checks in a verdict):

1. *transaction lost*: what a local transaction committed is received.
2. *transaction seen wrongly*: it is stored once where consumers read; what was rolled back, never decided,
   or never sent is not received; and a broker that confirms an end confirms the decided one.
3. *timer early*: nothing is received before its due time.
4. *timer late*: an acknowledged message is received within LATE_MS of its due time. The clock of this rule
   stands still from a kill until a leader answers, while any plain send waits for more than STALL_MS (on a
   machine whose disk is busy nothing is in time), and SETTLE_MS longer; what it excused is counted.
5. *timer twice*, *timer lost*, *timer unexpected*: an acknowledged one is stored once where consumers read and
   received; one that was never sent, or refused, is not.
6. The ordered stream keeps all rules of `checker.py`; its producers are the keys, each of which has its queue.

A due time that counts from the moment when the broker stores a message (a level, a delay) is known within
bounds only: not before the send plus the delay, not after the acknowledgement plus the delay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from jepsen.checker import Anomaly, Verdict, check
from jepsen.history import Event, Stream
from jepsen.progress import failover_gaps_ms, percentile

LATE_MS: Final = 1000.0
SETTLE_MS: Final = 1000.0
"""After the first acknowledged send of a new leader: consumers find it, and what fell due meanwhile comes."""

STALL_MS: Final = 500.0

CLOCK_MS: Final = 5.0
"""How far the clock of due times and that of the history may drift apart while a message waits."""

STREAMS: Final[tuple[Stream, ...]] = ("transactions", "timers", "ordered")

Outage = tuple[float, float]  # ms, both ends
Place = tuple[str, int]  # queue, offset


class TransactionCounts(msgspec.Struct, frozen=True):
    """Transactions by what became of them; `checks` counts the questions of brokers."""

    committed: int
    rolled_back: int
    checks: int
    lost: int
    seen_wrongly: int
    delivered_twice: int


class TimerCounts(msgspec.Struct, frozen=True):
    """Messages with due times; `late_ms` is over exact due times that had no outage before arrival."""

    acknowledged: int
    received: int
    lost: int
    early: int
    twice: int
    late: int
    excused: int
    delivered_twice: int
    late_ms: dict[str, float | None]


class OrderedCounts(msgspec.Struct, frozen=True):
    """The ordered stream; `twice` counts what one offset or two carried to its group again."""

    acknowledged: int
    received: int
    lost: int
    twice: int
    violations: int
    rewinds: int


Counts = TransactionCounts | TimerCounts | OrderedCounts


class Promises(msgspec.Struct, frozen=True):
    """The judgement of the streams.

    Attributes:
        counts: by stream, in the order of `STREAMS`, for the streams that took part.
        anomalies: what was broken.
        idle: streams that proved nothing, since nothing of theirs was acknowledged.
    """

    counts: dict[str, Counts]
    anomalies: tuple[Anomaly, ...]
    idle: tuple[str, ...]

    def added_to(self, verdict: Verdict) -> Verdict:
        """Return the verdict on plain messages and streams together."""
        valid = verdict.valid
        if self.anomalies:
            valid = False
        elif self.idle and valid:
            valid = None
        return Verdict(valid, (*verdict.anomalies, *self.anomalies), verdict.tallies)


def judge(
    events: Sequence[Event], *, streams: Collection[str], ordered_group: str, probe: str
) -> Promises:
    """Judge a finished run whose consumers had the time to read everything.

    Args:
        events: the whole history.
        streams: which took part.
        ordered_group: the consumer group of the ordered stream.
        probe: the producer whose sends tell when a leader answers again.
    """
    counts: dict[str, Counts] = {}
    anomalies: list[Anomaly] = []
    idle: list[str] = []
    for stream in STREAMS:
        if stream not in streams:
            continue
        own = [event for event in events if event.stream == stream]
        match stream:
            case "transactions":
                transactions, found = judge_transactions(own)
                counts[stream], has_some = transactions, transactions.committed > 0
            case "timers":
                timers, found = judge_timers(own, outages_ms(events, probe))
                counts[stream], has_some = timers, timers.acknowledged > 0
            case _:
                ordered, found = judge_ordered(own, ordered_group)
                counts[stream], has_some = ordered, ordered.acknowledged > 0
        anomalies += found
        if not has_some:
            idle.append(stream)
    return Promises(counts, tuple(anomalies), tuple(idle))


def judge_transactions(events: Iterable[Event]) -> tuple[TransactionCounts, list[Anomaly]]:
    """Hold what was received against what the local transactions decided."""
    decided: dict[str, str] = {}
    confirmed: dict[str, str] = {}
    places: dict[str, list[Place]] = defaultdict(list)
    checks = 0
    for event in events:
        match event.kind:
            case "decided":
                decided[event.key] = event.text
            case "ack":
                confirmed[event.key] = event.text
            case "checked":
                checks += 1
            case "receive":
                places[event.key].append((event.queue, event.offset))
            case _:
                pass
    committed = {key for key, state in decided.items() if state == "COMMIT"}
    lost = sorted(committed - places.keys())
    wrong = [
        f"{key} was {decided.get(key, 'never decided')} and is seen at {seen[0]}"
        for key, seen in places.items()
        if key not in committed
    ]
    wrong += [
        f"{key} is seen at {sorted(set(places[key]))}"
        for key in sorted(committed & places.keys())
        if len(set(places[key])) > 1
    ]
    wrong += [
        f"{key} was {decided.get(key, 'never decided')}, a broker confirms {state}"
        for key, state in confirmed.items()
        if decided.get(key) != state
    ]
    counts = TransactionCounts(
        committed=len(committed),
        rolled_back=len(decided) - len(committed),
        checks=checks,
        lost=len(lost),
        seen_wrongly=len(wrong),
        delivered_twice=sum(len(seen) - len(set(seen)) for seen in places.values()),
    )
    anomalies = [Anomaly("transaction lost", f"{key} was committed, not received") for key in lost]
    return counts, anomalies + [Anomaly("transaction seen wrongly", text) for text in wrong]


class _Timer(msgspec.Struct):
    """What is known of one message with a due time."""

    due_from_ms: float
    due_to_ms: float = math.inf
    is_acknowledged: bool = False
    is_refused: bool = False
    places: list[Place] = []
    came_ms: float = math.inf


def judge_timers(
    events: Iterable[Event], outages: Sequence[Outage]
) -> tuple[TimerCounts, list[Anomaly]]:
    """Hold arrivals against due times."""
    timers, anomalies = _gather_timers(events)
    lateness: list[float] = []
    twice = excused = 0
    for name, timer in timers.items():
        if timer.is_acknowledged and not timer.places:
            anomalies.append(Anomaly("timer lost", f"{name} was acknowledged, never received"))
        if not timer.places:
            continue
        if timer.is_refused:
            anomalies.append(Anomaly("timer unexpected", f"{name} was refused and received"))
        if timer.came_ms < timer.due_from_ms - CLOCK_MS:
            text = f"{name} came {timer.due_from_ms - timer.came_ms:.1f} ms early"
            anomalies.append(Anomaly("timer early", text))
        if len(set(timer.places)) > 1:
            twice += 1
            anomalies.append(
                Anomaly("timer twice", f"{name} stands at {sorted(set(timer.places))}")
            )
        if timer.is_acknowledged:
            late = overdue_ms(timer.due_to_ms, timer.came_ms, outages)
            if late > LATE_MS:
                anomalies.append(Anomaly("timer late", f"{name} came {late:.0f} ms late"))
            excused += late <= LATE_MS < timer.came_ms - timer.due_to_ms
            is_exact = timer.due_from_ms == timer.due_to_ms
            if is_exact and not _meets(timer.due_to_ms, timer.came_ms, outages):
                lateness.append(late)
    found = [anomaly.check for anomaly in anomalies]
    counts = TimerCounts(
        acknowledged=sum(timer.is_acknowledged for timer in timers.values()),
        received=sum(bool(timer.places) for timer in timers.values()),
        lost=found.count("timer lost"),
        early=found.count("timer early"),
        twice=twice,
        late=found.count("timer late"),
        excused=excused,
        delivered_twice=sum(len(t.places) - len(set(t.places)) for t in timers.values()),
        late_ms={
            f"p{percent}": round(percentile(lateness, percent), 1) if lateness else None
            for percent in (50, 99)
        },
    )
    return counts, anomalies


def _gather_timers(events: Iterable[Event]) -> tuple[dict[str, _Timer], list[Anomaly]]:
    timers: dict[str, _Timer] = {}
    anomalies: list[Anomaly] = []
    for event in events:
        name = f"{event.producer} #{event.number}"
        if event.kind == "send":
            timers[name] = _Timer(event.due_ms)
        timer = timers.get(name)
        if timer is None:
            anomalies.append(Anomaly("timer unexpected", f"{name} was received, never sent"))
            continue
        match event.kind:
            case "ack":
                timer.is_acknowledged = True
                timer.due_to_ms = event.due_ms
            case "refused":
                timer.is_refused = True
            case "receive":
                timer.places.append((event.queue, event.offset))
                timer.came_ms = min(timer.came_ms, event.t_ms)
            case _:
                pass
    return timers, anomalies


def judge_ordered(events: Sequence[Event], group: str) -> tuple[OrderedCounts, list[Anomaly]]:
    """Apply the rules of plain messages to the ordered stream."""
    verdict = check(events, drained=[group], stream="ordered")
    found = [anomaly.check for anomaly in verdict.anomalies]
    counts = OrderedCounts(
        acknowledged=verdict.total("acknowledged"),
        received=verdict.total("received"),
        lost=verdict.total("lost"),
        twice=verdict.total("duplicated"),
        violations=found.count("order") + found.count("offsets"),
        rewinds=found.count("rewind"),
    )
    return counts, [Anomaly(f"ordered {one.check}", one.text) for one in verdict.anomalies]


def outages_ms(events: Sequence[Event], probe: str) -> list[Outage]:
    """Return when the group did not answer, in order and apart from each other.

    From each kill to the first acknowledgement of a later send; one that was not overcome lasts until
    the next kill, or for ever. And each send of the probe that waited for more than STALL_MS.
    """
    kills = [event.t_ms for event in events if event.kind == "kill"]
    gaps = failover_gaps_ms(events, probe)
    following = [*kills[1:], math.inf][: len(kills)]
    found = [
        (killed, after if gap is None else killed + gap)
        for killed, gap, after in zip(kills, gaps, following, strict=True)
    ]
    return _merged(sorted([*found, *_stalls(events, probe)]))


def _stalls(events: Iterable[Event], probe: str) -> list[Outage]:
    began: dict[tuple[str, int], float] = {}
    found = []
    for event in events:
        if event.producer != probe or event.stream:
            continue
        if event.kind == "send":
            began[event.queue, event.number] = event.t_ms
        elif event.kind in ("ack", "refused", "unknown"):
            start_ms = began.pop((event.queue, event.number))
            if event.t_ms - start_ms > STALL_MS:
                found.append((start_ms, event.t_ms))
    return found


def _merged(outages: Iterable[Outage]) -> list[Outage]:
    merged: list[Outage] = []
    for began, ended in outages:
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged


def overdue_ms(due_ms: float, came_ms: float, outages: Iterable[Outage]) -> float:
    """Return how late a message came, not counting the time in which nobody could deliver it."""
    for began, ended in outages:
        if began < came_ms and began <= due_ms + LATE_MS and ended + SETTLE_MS > due_ms:
            due_ms = ended + SETTLE_MS
    return came_ms - due_ms


def _meets(due_ms: float, came_ms: float, outages: Iterable[Outage]) -> bool:
    """Whether an outage lies between due time and arrival."""
    return any(began < came_ms and ended + SETTLE_MS > due_ms for began, ended in outages)
