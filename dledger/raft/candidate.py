"""Asking for votes: first whether (pre-vote, the term stays), then for them (the term is new)."""

from __future__ import annotations

from dledger.raft.core import Core
from dledger.raft.ids import NodeId, Term
from dledger.raft.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse
from dledger.raft.quorum import majority


class Campaign:
    """One election, or the pre-vote before it, from the side of who asks.

    Invariant: `supporters` holds each voter once, this node first.
    """

    __slots__ = ("_core", "supporters")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.supporters: list[NodeId] = [core.node_id]

    @property
    def is_won(self) -> bool:
        """Whether a majority supports this node."""
        return len(self.supporters) >= majority(self._core.voter_count)

    def ask_whether(self) -> None:
        """Begin a pre-vote: would they vote for this node in the next term (thesis 9.6)?

        Asking disturbs nobody, so it is repeated sooner than an election: those who are bound now
        may be free a moment later.
        """
        core = self._core
        core.leader_id = None
        core.draw_election_timeout(core.config.lease_ms, core.config.election_timeout_min_ms)
        last = core.log.last_id
        request = PreVoteRequest(Term(core.term + 1), core.node_id, last.index, last.term)
        for peer in core.peers:
            core.send(peer, request)

    def ask(self, *, is_transfer: bool) -> None:
        """Begin an election: a new term, and the first vote for oneself (paper 5.2)."""
        core = self._core
        core.adopt_term(Term(core.term + 1))
        core.vote_for(core.node_id)
        config = core.config
        core.draw_election_timeout(config.election_timeout_min_ms, config.election_timeout_max_ms)
        last = core.log.last_id
        request = VoteRequest(core.term, core.node_id, last.index, last.term, is_transfer)
        for peer in core.peers:
            core.send(peer, request)

    def count(self, response: PreVoteResponse | VoteResponse) -> None:
        """Count an answer; duplicates and refusals change nothing."""
        if response.granted and response.source not in self.supporters:
            self.supporters.append(response.source)
