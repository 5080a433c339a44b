"""The furthest committed place in the log of each broker group, as registrations named it. Pure.

Nothing that was committed is ever undone. So a group that has less, or something else at that place, has lost
acknowledged messages: most likely all its stores were put back from backups of one moment, which agree with
one another. The name server lives on meanwhile and remembers. It judges nothing: what it hears may be late, or
from a leader that is none any more. It returns what it remembers to whoever registers, and the leader judges.

A lie would stay. So only what comes from brokers that were shown to be of one group is taken in (`registrants.py`), and
it is returned to brokers at the addresses of that group alone: another group of the same name has a memory of its own.

A lower place never replaces a higher one of the same incarnation, so a group hears of it until it has passed it.
It is memory only; a name server that was restarted begins anew.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from broker.namesrv.routes import BROKER_NAMES_MAX
from dledger_mq.remoting.log_point import LogPoint

INCARNATIONS_MAX: Final = 16
"""Restorings of one group whose places are kept; the oldest goes first."""

LINES_MAX: Final = 16
"""Groups that had one name one after another; the one that was heard least recently goes first."""

ADDRESSES_MAX: Final = 64
"""Of one group; beyond that only those that are heard now are kept."""


@dataclass(slots=True)
class GroupPlaces:
    """The memory of one group.

    Attributes:
        cluster: as its brokers name it.
        addresses: of brokers that were in it.
        points: the furthest place of each incarnation, by its name, the first one first. Invariant: the index
            of an incarnation never falls.
    """

    cluster: str
    addresses: Set[str]
    points: dict[str, LogPoint] = field(default_factory=dict)

    def take(self, point: LogPoint) -> LogPoint | None:
        """Add a place up to which a node knows the log to be committed.

        Returns:
            The furthest place that was known before in this incarnation; None: none, or this one.
        """
        known = self.points.get(point.restoration)
        if known is None or point.index > known.index:
            self.points[point.restoration] = point
        kept = self.points[point.restoration].index
        assert kept >= point.index, (
            f"index {kept} is kept, {point.index} is known: the memory fell back"
        )
        if len(self.points) > INCARNATIONS_MAX:
            del self.points[next(iter(self.points))]
        return None if known == point else known


class CommittedPlaces:
    """The furthest places of all groups that were heard of; of too many names that which was heard least recently goes.

    A broker may change the cluster that it names with each registration, so that counts within its name only.
    """

    def __init__(self, groups_max: int = BROKER_NAMES_MAX) -> None:
        self._groups_max = groups_max
        self._lines: dict[str, list[GroupPlaces]] = {}
        """By broker name, the one that was heard least recently first."""

    def line(self, cluster: str, broker_name: str, addresses: Set[str]) -> GroupPlaces:
        """Return the memory of the group of a name that has, or had, one of these addresses; begin it if need be."""
        lines = self._lines[broker_name] = self._lines.pop(broker_name, [])
        found = next(
            (line for line in lines if line.cluster == cluster and line.addresses & addresses), None
        )
        if found is None:
            found = GroupPlaces(cluster, frozenset())
        else:
            lines.remove(found)
        lines.append(found)
        joined = found.addresses | addresses
        found.addresses = joined if len(joined) <= ADDRESSES_MAX else addresses
        del lines[:-LINES_MAX]
        if len(self._lines) > self._groups_max:
            del self._lines[next(iter(self._lines))]
        return found
