"""Digest marks: replicas compare their derived state by themselves (house rule 1).

Now and then the leader writes a mark. Every replica that folds it keeps its own digests as they are
after that entry, and compares what the leader says it had at the mark before. So the comparison is
at equal applied index, whoever led and however far apart the replicas are, and costs nothing between
the marks. A difference means that a replica's state is not what follows from the log: a fault of ours,
of its memory or of its disk. It is an alarm and not an end (docs/adr/0063).

Nothing here knows what a component is, or who is warned of a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from dledger.raft.ids import NO_INDEX, Index

MARKS_KEPT_MAX: Final = 16
DIVERGENCES_KEPT_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Divergence:
    """A component that differs here from the leader's at the same applied index."""

    index: Index
    component: str
    own: int
    leaders: int


class DigestMarks:
    """The digests of this replica at the newest marks. `mark` and `compare` are for the fold.

    Attributes:
        divergences: differences seen by this process, oldest first; of this replica, not of the state.
        compared_index: the latest mark at which this process compared; 0 for none.
    """

    def __init__(self) -> None:
        self.divergences: list[Divergence] = []
        self.compared_index: Index = NO_INDEX
        self._kept: dict[Index, dict[str, int]] = {}

    def latest(self) -> tuple[Index, Mapping[str, int]]:
        """Return the newest mark and the digests there; 0 and nothing before the first."""
        if not self._kept:
            return NO_INDEX, {}
        index = next(reversed(self._kept))
        return index, self._kept[index]

    def kept(self) -> Mapping[Index, Mapping[str, int]]:
        """Return the digests by applied index, of the newest marks, oldest first."""
        return self._kept

    def mark(self, index: Index, digests: dict[str, int]) -> None:
        """Keep the digests as they are after the entry `index`, which was a mark."""
        latest, _ = self.latest()
        assert index >= latest, f"entry {index} is marked after entry {latest}"
        self._kept[index] = digests
        if len(self._kept) > MARKS_KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def compare(self, index: Index, leaders: Mapping[str, int]) -> None:
        """Compare with what the leader had at an earlier mark, in the components that both know."""
        own = self._kept.get(index)
        if own is None:
            return
        self.compared_index = index
        for component in sorted(own.keys() & leaders.keys()):
            if own[component] != leaders[component] and (
                len(self.divergences) < DIVERGENCES_KEPT_MAX
            ):
                self.divergences.append(
                    Divergence(index, component, own[component], leaders[component])
                )

    def dump(self) -> bytes:
        """Return the marks as a snapshot keeps them."""
        return msgspec.msgpack.encode(list(self._kept.items()))

    def load(self, data: bytes) -> None:
        """Replace the marks by dumped ones.

        Raises:
            msgspec.DecodeError: they are none; nothing has changed.
        """
        kept = msgspec.msgpack.decode(data, type=list[tuple[Index, dict[str, int]]])
        self._kept = dict(kept)
