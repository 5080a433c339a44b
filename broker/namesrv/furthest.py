"""How far the log of each broker group was ever told to be committed. Pure: registrations come in.

Nothing that was committed is ever undone. So a group that has less, or something else at that place, has lost
acknowledged messages: most likely all its stores were put back from backups of one moment, which agree with
one another. The name server lives on meanwhile and remembers. It judges nothing: what it hears may be late, or
from a leader that is none any more. It tells what it remembers to whoever registers, and the leader judges.

A lower place never replaces a higher one of the same incarnation, so a group hears of it until it has passed it.
It is memory only; a name server that was restarted begins anew.
"""

from __future__ import annotations

from typing import Final

from broker.namesrv.routes import BROKER_NAMES_MAX
from broker.remoting.log_point import LogPoint

INCARNATIONS_MAX: Final = 16
"""Restorings of one group whose places are kept; the oldest goes first."""


class FurthestPoints:
    """The furthest place of each incarnation of each group that was heard of."""

    def __init__(self, groups_max: int = BROKER_NAMES_MAX) -> None:
        self._groups_max = groups_max
        self._groups: dict[tuple[str, str], dict[str, LogPoint]] = {}

    def known_restorations(self, cluster: str, broker_name: str) -> tuple[str, ...]:
        """The incarnations of a group that were heard of, the first one first."""
        return tuple(self._groups.get((cluster, broker_name), ()))

    def take(self, cluster: str, broker_name: str, point: LogPoint) -> LogPoint | None:
        """Take in how far a node knows the log to be committed.

        Returns:
            The furthest place that was told before in this incarnation; None: none, or this one.
        """
        points = self._groups.setdefault((cluster, broker_name), {})
        known = points.get(point.restoration)
        if known is None or point.index > known.index:
            points[point.restoration] = point
        if len(points) > INCARNATIONS_MAX:
            del points[next(iter(points))]
        if len(self._groups) > self._groups_max:
            del self._groups[next(iter(self._groups))]
        return None if known == point else known
