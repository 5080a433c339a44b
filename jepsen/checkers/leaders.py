"""Judges that a term has one leader, and counts changes of leader while faults were in force.

The model, Raft's: in each group, a term has one leader at most. The onlooker notes "leader" with the term, and the
group where there are several, whenever somebody begins to serve as leader. What was over before it looked again, the
difference of the terms shows. Changes of leader are counted only: a fault may justify them.

    two-leaders  two nodes were seen to lead a group in one term

Where no leader was seen in one of several groups, nothing was judged there and the verdict is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dledger.raft.ids import Term
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import OBSERVER, Op
from jepsen.history.phases import span_of
from jepsen.history.values import LeaderSeen, shaped

NAME: Final = "leaders"
LEADER: Final = "leader"


class _Lead(NamedTuple):
    """A leader that was seen, and the operation that says so."""

    op: Op
    term: Term


def check_leaders(ops: Sequence[Op], *, groups: int = 1) -> CheckResult:
    """Count, from the first fault to the last cure, the new leaders seen and the terms that went by, of all groups.

    Args:
        ops: the history.
        groups: how many there are.
    """
    span = span_of(ops, "breaking")
    by_group: dict[str, list[_Lead]] = defaultdict(list)
    for op in ops:
        if op.process == OBSERVER and op.f == LEADER:
            seen = shaped(op.value, LeaderSeen)
            by_group[seen.get("group", "")].append(_Lead(op, seen["term"]))
    anomalies = [
        one for group, leads in sorted(by_group.items()) for one in _two_leaders(group, leads)
    ]
    spans = [_terms_within(leads, *span) for leads in by_group.values()]
    counts = {
        "changes": sum(max(0, len(set(terms)) - 1) for terms in spans),
        "terms": sum(max(terms) - min(terms) for terms in spans if terms),
    }
    found = len(by_group)
    is_missing = groups > 1 and found < groups
    why = f"a leader was seen in {found} of {groups} groups" if is_missing else ""
    return judged(NAME, anomalies, counts, why)


def _terms_within(leads: Sequence[_Lead], start_ns: int, end_ns: int) -> list[Term]:
    """Return the terms of the leaders seen in a time, after the one that led when it began."""
    before = [lead.term for lead in leads if lead.op.t_ns < start_ns]
    return [*before[-1:], *(lead.term for lead in leads if start_ns <= lead.op.t_ns <= end_ns)]


def _two_leaders(group: str, leads: Sequence[_Lead]) -> Iterator[Anomaly]:
    first: dict[Term, Op] = {}
    for lead in leads:
        other = first.setdefault(lead.term, lead.op)
        if other.node != lead.op.node:
            which = f" of {group}" if group else ""
            text = f"term {lead.term}{which} was led by {other.node} and by {lead.op.node}"
            yield Anomaly("two-leaders", text, (other.index, lead.op.index))
