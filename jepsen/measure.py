"""Measures how long clients wait when the leader dies, or hands over: the same strike many times, under load.

A round's time runs from the strike to the first acknowledgement of a send that began after it. A send that was on its
way when the leader died may have been answered by it; one that was begun afterwards cannot. The next round waits
until all nodes are together. Everything else is judged as in any run; of planned transfers, a send that fails or
stays unknown is a broken promise, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from jepsen.checkers.messages import operations
from jepsen.checkers.percentiles import percentile
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op, OpLog
from jepsen.history.values import BEGINS_INJECTION, SendAsked, shaped, strike_of
from jepsen.nemeses.api import Fault
from jepsen.nemeses.schedule import FaultSchedule, Pace
from jepsen.run import BreakerMaker, RunSettings
from jepsen.systems.api import Subject

SECONDS_PER_ROUND_MAX: Final = 30.0  # the limit of a run that hangs: a round takes about three
SEND: Final = "send"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One kind of measurement: its name, its fault, its pace, and whether a failed send is forgiven."""

    name: str
    nemesis: str
    pace: Pace
    forgives: bool


FAILOVER: Final = Measurement(
    "failover", "kill:leader", Pace(hold_s=(1.0, 1.0), quiet_s=(0.4, 0.8)), forgives=True
)
TRANSFER: Final = Measurement(
    "transfer", "transfer", Pace(hold_s=(0.0, 0.0), quiet_s=(0.4, 0.8)), forgives=False
)
KINDS: Final = {kind.name: kind for kind in (FAILOVER, TRANSFER)}


class Times(msgspec.Struct, frozen=True):
    """The measured times, in ms where nothing else is said.

    Attributes:
        rounds: strikes.
        overcome: those after which a send was acknowledged before the next one.
        p50_ms, p99_ms, worst_ms: of these; None when there are none.
        sends: all that were begun.
        failed_sends: those that ended as `fail` or `info`.
    """

    rounds: int
    overcome: int
    p50_ms: int | None
    p99_ms: int | None
    worst_ms: int | None
    sends: int
    failed_sends: int


def settings_of(
    kind: Measurement, *, rounds: int, seed: int, rate: float, nodes: int
) -> RunSettings:
    """Return the run in which it is measured."""
    return RunSettings(
        "queue",
        kind.nemesis,
        rounds * SECONDS_PER_ROUND_MAX,
        nodes=nodes,
        seed=seed,
        rate=rate,
        pace=kind.pace,
        command=f"dledger-jepsen {kind.name} --rounds {rounds} --nodes {nodes} --rate {rate:g} --seed {seed}",
    )


def in_rounds(rounds: int) -> BreakerMaker:
    """Return the maker of a schedule that injects the fault so many times."""

    def make(
        settings: RunSettings, faults: Sequence[Fault], system: Subject, log: OpLog
    ) -> FaultSchedule:
        return FaultSchedule(
            faults, system, log, seed=settings.seed, pace=settings.pace, rounds=rounds
        )

    return make


def gaps_ms(ops: Sequence[Op]) -> list[float | None]:
    """Return for each strike the time until the first acknowledgement of a send begun after it. Pure.

    None: no such send was acknowledged before the next strike. What began as a strike and struck nothing is none.
    """
    strikes = _strikes(ops)
    sends = [pair for pair in operations(ops) if pair.invoke.f == SEND and pair.type == "ok"]
    ends = [strike.t_ns for strike in strikes[1:]] + [ops[-1].t_ns + 1 if ops else 0]
    found: list[float | None] = []
    for strike, end_ns in zip(strikes, ends, strict=False):
        acked = [
            pair.completion.t_ns
            for pair in sends
            if pair.completion is not None
            and pair.invoke.index > strike.index
            and pair.completion.t_ns < end_ns
        ]
        found.append((min(acked) - strike.t_ns) / 1e6 if acked else None)
    return found


def _strikes(ops: Sequence[Op]) -> list[Op]:
    """Return the beginnings of strikes, but for those that are known to have struck nothing."""
    found: list[Op] = []
    for op in ops:
        strike = strike_of(op)
        if strike is None or strike.get("do") != "inject":
            continue
        if op.value == BEGINS_INJECTION:
            found.append(op)
        elif found and not strike.get("done") and "broken" not in strike:
            found.pop()
    return found


def times_of(ops: Sequence[Op]) -> Times:
    """Return what a history shows. Pure."""
    gaps = gaps_ms(ops)
    known = [gap for gap in gaps if gap is not None]
    sends = [pair for pair in operations(ops) if pair.invoke.f == SEND]
    return Times(
        rounds=len(gaps),
        overcome=len(known),
        p50_ms=round(percentile(known, 50)) if known else None,
        p99_ms=round(percentile(known, 99)) if known else None,
        worst_ms=round(max(known)) if known else None,
        sends=len(sends),
        failed_sends=sum(pair.type != "ok" for pair in sends),
    )


def check_no_failed_sends(ops: Sequence[Op]) -> CheckResult:
    """Judge a run of planned transfers: every send is acknowledged."""
    failed = [pair for pair in operations(ops) if pair.invoke.f == SEND and pair.type != "ok"]
    anomalies = [
        Anomaly(
            "failed-send",
            f"{shaped(pair.invoke.value, SendAsked)['key']} ended as {pair.type}"
            + (f": {pair.completion.error}" if pair.completion else ""),
            (pair.invoke.index,),
        )
        for pair in failed
    ]
    return judged("no-failed-sends", anomalies, {"failed": len(failed)})
