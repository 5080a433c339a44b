"""The promises that a member must remember over a crash before it answers anybody (Raft paper, figure 2)."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.ids import NO_TERM, NodeId, Term


@dataclass(frozen=True, slots=True)
class HardState:
    """Term and vote. A member that has never run has term 0 and no vote.

    Attributes:
        term: the highest term that the member has seen; never decreases.
        vote: whom it voted for in that term; None: nobody yet.
        is_voter: False for a member whose store began empty, until it is known that it has promised
            nothing that it does not know of (docs/adr/0061).
        notes: which entries of the log have changed the members, as far as they may matter (docs/adr/0182).
    """

    term: Term = NO_TERM
    vote: NodeId | None = None
    is_voter: bool = True
    notes: tuple[ConfigurationNote, ...] = ()

    def may_follow(self, before: HardState) -> bool:
        """Return whether this state may replace `before`: terms never decrease, and each has one vote (paper 5.2)."""
        if self.term != before.term:
            return self.term > before.term
        return before.vote is None or self.vote == before.vote
