"""A network that loses, delays, duplicates, reorders and cuts, all by one seeded stream of chance.

It decides only when a message arrives and whether a link is open; the cluster carries the messages.
A link is directed, so a cut may hold in one direction only. A message in flight when its link is cut
is lost too: it is asked about again on arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from dledger.raft.ids import NodeId
from dledger.testing.sim_settings import SimSettings


class SimNetwork:
    """Links between the members of one group.

    Invariant: a cut link is in `_cut`; everything else is open.
    """

    __slots__ = ("_cut", "_rng", "_settings", "is_calm")

    def __init__(self, settings: SimSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self.is_calm = False
        """Set for the second phase: nothing is lost, duplicated or late any more."""

    def arrivals(self, source: NodeId, target: NodeId, now_ms: int) -> tuple[int, ...]:
        """When a message sent now arrives; empty when it is lost, two times when it is duplicated."""
        if (source, target) in self._cut:
            return ()
        if self.is_calm:
            return (now_ms + 1,)
        settings = self._settings
        chance = self._rng.random
        if settings.loss_permille and chance() * 1000 < settings.loss_permille:
            return ()
        first = now_ms + self._delay()
        if settings.duplicate_permille and chance() * 1000 < settings.duplicate_permille:
            return (first, first + self._delay())
        return (first,)

    def is_open(self, source: NodeId, target: NodeId) -> bool:
        """Whether a message that arrives now gets through."""
        return (source, target) not in self._cut

    def cut(self, sources: Iterable[NodeId], targets: Iterable[NodeId]) -> None:
        """Cut the links from each source to each target, in this direction."""
        ends = tuple(targets)
        self._cut.update((source, target) for source in sources for target in ends)

    def cut_both(self, side: Iterable[NodeId], other: Iterable[NodeId]) -> None:
        """Cut the links between two sides in both directions."""
        left, right = tuple(side), tuple(other)
        self.cut(left, right)
        self.cut(right, left)

    def heal(self) -> None:
        """Open every link."""
        self._cut.clear()

    def describe(self) -> str:
        """The cut links, for a trace."""
        return " ".join(f"{source}-x->{target}" for source, target in sorted(self._cut)) or "whole"

    def _delay(self) -> int:
        """How long one message takes."""
        settings = self._settings
        chance = self._rng.random
        if settings.spike_permille and chance() * 1000 < settings.spike_permille:
            return settings.delay_min_ms + int(chance() * settings.spike_ms_max)
        span = settings.delay_max_ms - settings.delay_min_ms + 1
        return settings.delay_min_ms + int(chance() * span)
