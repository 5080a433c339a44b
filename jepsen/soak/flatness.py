"""Judges that memory, disk and handles stay level, from samples that were taken again and again.

The model: after the time in which messages became due for the first time, what a process needs is level. Of each figure
the median of an early window is compared with that of the last one. Who was killed or replaced began anew, so only
processes that lived through both windows count for memory, handles and threads. Of the stores, which are replaced with
their members, the largest at each time counts.

    grows  a figure's late median is above what its early one allows

It reads samples, and takes none (samples.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec

from jepsen.checkers.results import Anomaly, CheckResult, judged

NAME: Final = "flatness"

EARLY: Final = (0.0, 0.25)
LATE: Final = (0.75, 1.0)
"""Windows, as shares of the time after the warm-up."""

WINDOW_S_MIN: Final = 120.0
"""A shorter window says nothing: turns come every minute or so, and segments and snapshots come and go."""


class Sample(msgspec.Struct, frozen=True):
    """The figures of one process at one time.

    Attributes:
        at_s: since the load began.
        name: of the process.
        pid: of this life of it.
        rss_bytes: memory that it has.
        disk_bytes: that its store takes; 0: it has none.
        handles: open files and sockets.
        threads: of it.
    """

    at_s: float
    name: str
    pid: int
    rss_bytes: int
    disk_bytes: int
    handles: int
    threads: int


class Allowance(NamedTuple):
    """The growth that a figure may have: a share of the early median, and so much more."""

    share: float
    more: float


class Change(NamedTuple):
    """The medians of a figure in both windows."""

    early: float
    late: float

    def __str__(self) -> str:
        return f"{self.early:.0f} -> {self.late:.0f}"


OF_A_LIFE: Final = {
    "rss_bytes": Allowance(0.10, 16 * 1024 * 1024),
    "handles": Allowance(0.10, 16),
    "threads": Allowance(0.0, 8),
}
"""The figures of each life that spans both windows."""

DISK: Final = Allowance(0.15, 32 * 1024 * 1024)
"""Of the largest store of a member; a few segments more or less say nothing."""


def check_flatness(samples: Sequence[Sample], *, warm_up_s: float) -> CheckResult:
    """Compare the late window with the early one.

    Args:
        samples: in their order.
        warm_up_s: before the windows begin: until messages were due and deleted.
    """
    end_s = samples[-1].at_s if samples else 0.0
    counts: dict[str, object] = {"samples": len(samples)}
    if (end_s - warm_up_s) * (EARLY[1] - EARLY[0]) < WINDOW_S_MIN:
        why = f"{end_s:.0f} s are too short for a comparison after a warm-up of {warm_up_s:.0f} s"
        return judged(NAME, (), counts, why)
    early, late = (_window(samples, warm_up_s, end_s, shares) for shares in (EARLY, LATE))
    lives = sorted(set(map(_life, early)) & set(map(_life, late)))
    if not lives:
        return judged(NAME, (), counts, "no process lived through both windows")
    anomalies: list[Anomaly] = []
    for life in lives:
        windows = [[one for one in window if _life(one) == life] for window in (early, late)]
        name, _ = life
        for figure, allowance in OF_A_LIFE.items():
            change = Change(*(median(getattr(one, figure) for one in each) for each in windows))
            counts[f"{name} {figure}"] = str(change)
            anomalies += _growth(f"{figure} of {name}", change, allowance)
    change = Change(*(median(_largest_stores(window)) for window in (early, late)))
    counts["largest store"] = str(change)
    anomalies += _growth("bytes of the largest store", change, DISK)
    return judged(NAME, anomalies, counts)


def _life(one: Sample) -> tuple[str, int]:
    """Return what tells one life of a process from the next."""
    return one.name, one.pid


def _window(
    samples: Sequence[Sample], warm_up_s: float, end_s: float, shares: tuple[float, float]
) -> list[Sample]:
    """Return the samples of a share of the time after the warm-up."""
    first_s, last_s = (warm_up_s + share * (end_s - warm_up_s) for share in shares)
    return [one for one in samples if first_s <= one.at_s <= last_s]


def _largest_stores(window: Sequence[Sample]) -> Iterator[int]:
    """Yield the bytes of the largest store at each time."""
    largest: dict[float, int] = {}
    for one in window:
        if one.disk_bytes:
            largest[one.at_s] = max(largest.get(one.at_s, 0), one.disk_bytes)
    yield from largest.values() or (0,)


def _growth(what: str, change: Change, allowance: Allowance) -> Iterator[Anomaly]:
    bound = change.early * (1 + allowance.share) + allowance.more
    if change.late > bound:
        yield Anomaly("grows", f"{what}: {change}, at most {bound:.0f}")
