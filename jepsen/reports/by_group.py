"""The part of the demo's report on machines that share groups: who led, how writes spread, what each kill cost. Pure.

Everything is read from the history and from what the checkers found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
from rich.table import Table

from jepsen.checkers.groups import NAME as GROUPS
from jepsen.checkers.groups import GroupTally, group_of
from jepsen.checkers.messages import operations
from jepsen.checkers.percentiles import percentile
from jepsen.checkers.results import CheckResult
from jepsen.history.ops import NEMESIS, Op
from jepsen.history.phases import span_of
from jepsen.history.values import BEGINS_INJECTION, SendAnswer, shaped, strike_of
from jepsen.reports.timeline import Leadership, leaderships

SEND = "send"
KILLED = "killed "


@dataclass(frozen=True, slots=True)
class AckedSend:
    """An acknowledged send: when, and in which group, where the client says that."""

    t_ns: int
    group: str


@dataclass(frozen=True, slots=True)
class KillCost:
    """The cost of a kill for clients, from there to the next one.

    Attributes:
        t_ns: when it struck.
        machines: that were killed.
        groups: that lost their leader.
        pause_ms: the longest time without an acknowledged send.
        group_pause_ms: the longest time without one in a group that lost its leader; None when none did.
    """

    t_ns: int
    machines: tuple[str, ...]
    groups: tuple[str, ...]
    pause_ms: float
    group_pause_ms: float | None


def acked_sends(ops: Sequence[Op]) -> list[AckedSend]:
    """Return the acknowledged sends in the order of their acknowledgements."""
    found = []
    for pair in operations(ops):
        if pair.invoke.f == SEND and pair.type == "ok" and pair.completion is not None:
            queue = shaped(pair.completion.value, SendAnswer).get("queue")
            found.append(AckedSend(pair.completion.t_ns, group_of(queue) if queue else ""))
    return sorted(found, key=lambda send: send.t_ns)


def kill_costs(ops: Sequence[Op]) -> list[KillCost]:
    """Return what each kill cost, in their order."""
    strikes = [op for op in ops if op.process == NEMESIS and op.value == BEGINS_INJECTION]
    _, end_ns = span_of(ops, "breaking")
    ends = [*(strike.t_ns for strike in strikes), end_ns][1:]
    sends, leads = acked_sends(ops), leaderships(ops)
    found = []
    for strike, until_ns in zip(strikes, ends, strict=True):
        machines = _killed(ops, strike)
        groups = _led_by(leads, machines, strike.t_ns)
        pauses = [
            _longest_ms([send for send in sends if send.group == group], strike.t_ns, until_ns)
            for group in groups
        ]
        pause_ms = _longest_ms(sends, strike.t_ns, until_ns)
        found.append(
            KillCost(strike.t_ns, machines, groups, pause_ms, max(pauses) if pauses else None)
        )
    return found


def _killed(ops: Sequence[Op], strike: Op) -> tuple[str, ...]:
    """Return the machines that a strike has killed, as the fault says when it is done."""
    for op in ops[strike.index + 1 :]:
        done = strike_of(op)
        if op.f == strike.f and done is not None and "done" in done:
            return tuple(done["done"].removeprefix(KILLED).split(", "))
    return ()


def _led_by(leads: Sequence[Leadership], machines: Sequence[str], t_ns: int) -> tuple[str, ...]:
    """Return the groups that these machines led at a moment, as far as was seen."""
    return tuple(
        sorted(
            lead.group
            for lead in leads
            if lead.node in machines and lead.start_ns <= t_ns < lead.end_ns
        )
    )


def _longest_ms(sends: Sequence[AckedSend], start_ns: int, end_ns: int) -> float:
    """Return the longest time without one of these acknowledgements, both ends of the time included."""
    inside = [send.t_ns for send in sends if start_ns < send.t_ns < end_ns]
    moments = [start_ns, *inside, max(end_ns, start_ns)]
    return max(after - before for before, after in pairwise(moments)) / 1e6


def writes_by_machine(ops: Sequence[Op]) -> Counter[str]:
    """Count acknowledged sends by the machine that led their group then, as far as both are known."""
    leads: dict[str, list[Leadership]] = defaultdict(list)
    for lead in leaderships(ops):
        leads[lead.group].append(lead)
    found: Counter[str] = Counter()
    for send in acked_sends(ops):
        for lead in leads[send.group]:
            if lead.start_ns <= send.t_ns < lead.end_ns:
                found[lead.node] += 1
                break
    return found


def group_tallies(checks: Sequence[CheckResult]) -> dict[str, GroupTally]:
    """Return the counts of the groups checker, by group; empty where there is one group."""
    check = next((check for check in checks if check.name == GROUPS), None)
    counted = check.counts.get("by_group", {}) if check else {}
    return msgspec.convert(counted, dict[str, GroupTally])


def groups_table(ops: Sequence[Op], tallies: dict[str, GroupTally]) -> Table:
    """Return a row for each group: who led it in turn, and what it took."""
    table = Table(title="Groups", title_justify="left")
    table.add_column("")
    table.add_column("led by, in turn")
    for name in ("acknowledged", "of all", "lost"):
        table.add_column(name, justify="right")
    leads = leaderships(ops)
    total = sum(tally.acknowledged for tally in tallies.values())
    for group, tally in tallies.items():
        nodes = [lead.node for lead in leads if lead.group == group]
        in_turn = [node for at, node in enumerate(nodes) if at == 0 or nodes[at - 1] != node]
        share = f"{100 * tally.acknowledged / total:.0f} %" if total else ""
        counts = (str(tally.acknowledged), share, str(tally.lost))
        table.add_row(group, " ".join(in_turn), *counts)
    return table


def group_lines(ops: Sequence[Op]) -> list[str]:
    """Return how writes spread over the machines, and what the kills cost."""
    written = writes_by_machine(ops)
    lines = []
    if written:
        shares = [
            f"{name} {100 * n / written.total():.0f} %" for name, n in sorted(written.items())
        ]
        lines.append(f"writes by the machine that led: {', '.join(shares)}")
    costs = kill_costs(ops)
    if costs:
        pauses = [cost.pause_ms for cost in costs]
        own = [cost.group_pause_ms for cost in costs if cost.group_pause_ms is not None]
        kills = f"{len(costs)} kill{'s' if len(costs) > 1 else ''}"
        lines.append(f"{kills}; longest time without an acknowledged send: {_spread(pauses)}")
        if own:
            lines.append(f"the same within a group that lost its leader: {_spread(own)}")
    return lines


def _spread(times_ms: Sequence[float]) -> str:
    return f"p50 {percentile(times_ms, 50):.0f} ms, max {max(times_ms):.0f} ms"
