"""The outages of a system, which excuse late messages. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from jepsen.checkers.messages import operations
from jepsen.history.ops import NEMESIS, Op, Pair
from jepsen.history.values import BEGINS_INJECTION

Outage = tuple[int, int]  # ns since the start of the run, both ends

STALL_NS: Final = 500_000_000
SETTLE_NS: Final = 1_000_000_000
"""After the first answer of a new leader: clients find it, and what fell due meanwhile is worked off."""


def outages(ops: Sequence[Op], *, f: str = "send", stall_ns: int = STALL_NS) -> list[Outage]:
    """Return the disjoint spans, in order, in which no operation `f` was answered.

    An operation that is not answered `ok`, or only after more than `stall_ns`, shows an outage as long as itself; one
    that never ends lasts to the end of the history. A fault that strikes makes one, too, that lasts until an operation
    of any kind succeeds that began after it.
    """
    end_ns = ops[-1].t_ns if ops else 0
    strikes = [op for op in ops if op.process == NEMESIS and op.value == BEGINS_INJECTION]
    found = until_success(operations(ops), strikes, end_ns)
    for pair in operations(ops):
        if pair.invoke.f != f:
            continue
        ended_ns = end_ns if pair.completion is None else pair.completion.t_ns
        if pair.type != "ok" or ended_ns - pair.invoke.t_ns > stall_ns:
            found.append((pair.invoke.t_ns, ended_ns))
    return joined(sorted(found))


def until_success(pairs: Iterable[Pair], marks: Iterable[Op], end_ns: int) -> list[Outage]:
    """Return the times from each mark to the first success of what began after it; to the end without any.

    Args:
        pairs: whose success counts, in order of invocation.
        marks: where a time begins.
        end_ns: of the history.
    """
    done = [pair for pair in pairs if pair.type == "ok" and pair.completion is not None]
    begun = [pair.invoke.index for pair in done]
    # For each success: the first moment at which it, or one that began later, was over.
    over = [end_ns] * (len(done) + 1)
    for at in reversed(range(len(done))):
        completion = done[at].completion
        over[at] = min(over[at + 1], completion.t_ns if completion is not None else end_ns)
    return [(mark.t_ns, over[bisect_right(begun, mark.index)]) for mark in marks]


def joined(spans: Iterable[Outage]) -> list[Outage]:
    """Join sorted spans that touch."""
    found: list[Outage] = []
    for began, ended in spans:
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def overdue_ns(due_ns: int, came_ns: int, spans: Iterable[Outage], *, late_ns: int) -> int:
    """Return how late something came, not counting the time in which nobody could deliver it."""
    for began, ended in spans:
        if began < came_ns and began <= due_ns + late_ns and ended + SETTLE_NS > due_ns:
            due_ns = ended + SETTLE_NS
    return came_ns - due_ns


def meets(due_ns: int, came_ns: int, spans: Iterable[Outage]) -> bool:
    """Return whether an outage lies between due time and arrival."""
    return any(began < came_ns and ended + SETTLE_NS > due_ns for began, ended in spans)
