"""A network that loses, delays, duplicates, replays, clogs and cuts, by one seeded stream of chance.

It decides only when a message arrives and whether a link is open; the cluster carries the messages.
A link is directed, so a cut may hold in one direction only. A message in flight when its link is cut
is lost too: it is asked about again on arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from dledger.codec.rpc import decode_message, encode_entries, encode_message
from dledger.raft.ids import NodeId
from dledger.raft.messages import AppendRequest, PeerMessage, RepairAnswer
from dledger.testing.sim_settings import SimSettings


def through_wire(message: PeerMessage) -> PeerMessage:
    """Return a message as its receiver decodes it from the bytes of the peer protocol."""
    entries = message.entries if isinstance(message, AppendRequest | RepairAnswer) else ()
    return decode_message(encode_message(message), encode_entries(entries))


class SimNetwork:
    """Links between the members of one group.

    Invariant: a cut link is in `_cut`; everything else is open.

    Attributes:
        calm: members between which nothing is lost, duplicated or late any more.
        counts: how often each thing happened to a message.
    """

    __slots__ = ("_clogged", "_cut", "_late_ms", "_rng", "_settings", "calm", "counts")

    def __init__(self, settings: SimSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._clogged: dict[tuple[NodeId, NodeId], int] = {}
        self._late_ms: dict[tuple[NodeId, NodeId], int] = {}
        self.calm: frozenset[NodeId] = frozenset()
        self.counts: Counter[str] = Counter()

    def arrivals(self, source: NodeId, target: NodeId, now_ms: int) -> tuple[int, ...]:
        """Draw when a message sent now arrives: never when it is lost, several times when it comes again."""
        if (source, target) in self._cut:
            self.counts["cut"] += 1
            return ()
        if source in self.calm and target in self.calm:
            return (now_ms + 1,)
        settings = self._settings
        chance = self._rng.random
        if settings.loss_permille and chance() * 1000 < settings.loss_permille:
            self.counts["lost"] += 1
            return ()
        late_ms = self._late_ms.get((source, target), 0)
        first = max(now_ms + self._delay() + late_ms, self._clogged.get((source, target), 0))
        again: tuple[int, ...] = ()
        if settings.duplicate_permille and chance() * 1000 < settings.duplicate_permille:
            self.counts["duplicated"] += 1
            again = (first + self._delay(),)
        if settings.replay_permille and chance() * 1000 < settings.replay_permille:
            self.counts["replayed"] += 1
            again = (*again, first + 1 + int(chance() * settings.replay_ms_max))
        return (first, *again)

    def clog(self, source: NodeId, target: NodeId, until_ms: int) -> None:
        """Hold back what one member sends to another until a moment."""
        self._clogged[source, target] = until_ms

    def delay(self, source: NodeId, target: NodeId, late_ms: int) -> None:
        """Delay one member's messages to another by so much, until the links are healed."""
        self._late_ms[source, target] = late_ms

    def is_open(self, source: NodeId, target: NodeId) -> bool:
        """Return whether the link from one member to another is open now."""
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
        """Open every link; none is slow any more."""
        self._cut.clear()
        self._late_ms.clear()

    def calm_down(self, members: Iterable[NodeId]) -> None:
        """Open every link between these members, and let no message be lost, doubled or slow any more.

        A leader outside that heard them late would go on leading, and could be slower than clients wait.
        """
        self.calm = frozenset(members)
        within = {(source, target) for source in self.calm for target in self.calm}
        self._cut -= within
        for link in within:
            self._clogged.pop(link, None)
        self._late_ms.clear()

    def describe(self) -> str:
        """Return the cut links, for a trace."""
        return " ".join(f"{source}-x->{target}" for source, target in sorted(self._cut)) or "whole"

    def _delay(self) -> int:
        """Draw how long one message takes."""
        settings = self._settings
        chance = self._rng.random
        if settings.spike_permille and chance() * 1000 < settings.spike_permille:
            self.counts["late"] += 1
            return settings.delay_min_ms + int(chance() * settings.spike_ms_max)
        span = settings.delay_max_ms - settings.delay_min_ms + 1
        return settings.delay_min_ms + int(chance() * span)
