"""Elections from the candidate's side: a pre-vote, which keeps the term, and then the vote in a new term."""

from __future__ import annotations

from dledger.raft.core import Core
from dledger.raft.ids import NodeId, Term
from dledger.raft.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse
from dledger.raft.quorum import majority


class Campaign:
    """One election, or the pre-vote before it, from the candidate's side.

    A group is founded by a candidate to which *every* other member has shown, in one and the same pre-vote,
    that its log is empty: by granting the pre-vote (its log is not ahead of an empty one), or by the number
    of its new store. Those numbers must be known from an earlier pre-vote, so that each answer is younger
    than each new store: whatever a lost store helped to elect is then known to the members that answer.

    Invariant: `supporters` holds each voter that supports it once; this node first, if it is a voter itself.

    Attributes:
        number: of this pre-vote among those of this node; answers repeat it.
        new_stores: numbers of the members' new stores, as answers to this pre-vote say.
        known_stores: the same from the pre-vote before.
    """

    __slots__ = ("_core", "_empty", "known_stores", "new_stores", "number", "supporters")

    def __init__(self, core: Core, before: Campaign | None = None) -> None:
        self._core = core
        self._empty: set[NodeId] = set()
        self.supporters: list[NodeId] = [core.node_id] if core.is_counted else []
        self.new_stores: dict[NodeId, int] = {}
        self.known_stores = before.new_stores if before is not None else {}
        self.number: int = max(before.number + 1 if before is not None else 0, core.now_ms)

    @property
    def is_won(self) -> bool:
        """True if a majority supports this node."""
        return self._core.is_voter and len(self.supporters) >= majority(self._core.voter_count)

    @property
    def founds_group(self) -> bool:
        """True if every store of the group is empty, so that no vote or entry can have been lost."""
        return self.shows_all_empty and self.known_stores == self.new_stores

    @property
    def shows_all_empty(self) -> bool:
        """True if every other member has answered this pre-vote, and none has an entry."""
        core = self._core
        others = core.other_voters
        return not core.log.last_index and core.is_counted and self._empty == set(others) != set()

    def take_answer(self, response: PreVoteResponse) -> None:
        """Note what an answer to this very pre-vote shows of the member's log."""
        if response.campaign != self.number or response.source not in self._core.other_voters:
            return
        if response.new_store:
            self.new_stores[response.source] = response.new_store
        if response.new_store or response.granted:
            self._empty.add(response.source)

    def ask_whether(self) -> None:
        """Begin a pre-vote: ask the others if they would vote for this node in the next term (thesis 9.6).

        Asking disturbs nobody, so it is repeated sooner than an election: those who are bound now
        may be free a moment later.
        """
        core = self._core
        core.leader_id = None
        core.draw_election_timeout(core.config.lease_ms, core.config.election_timeout_min_ms)
        last = core.log.last_id
        request = PreVoteRequest(
            term=Term(core.term + 1),
            source=core.node_id,
            last_index=last.index,
            last_term=last.term,
            campaign=self.number,
        )
        for peer in core.other_voters:
            core.send(peer, request)

    def ask(self, *, is_transfer: bool) -> None:
        """Begin an election: a new term, and the first vote for oneself (paper 5.2)."""
        core = self._core
        core.adopt_term(Term(core.term + 1))
        core.vote_for(core.node_id)
        config = core.config
        core.draw_election_timeout(config.election_timeout_min_ms, config.election_timeout_max_ms)
        last = core.log.last_id
        for peer in core.other_voters:
            request = VoteRequest(
                term=core.term,
                source=core.node_id,
                last_index=last.index,
                last_term=last.term,
                is_transfer=is_transfer,
                new_store=self.known_stores.get(peer, 0),
            )
            core.send(peer, request)

    def count(self, response: PreVoteResponse | VoteResponse) -> None:
        """Count a voter's answer; duplicates, refusals, and what others say change nothing."""
        is_voter = response.source in self._core.other_voters
        if response.granted and is_voter and response.source not in self.supporters:
            self.supporters.append(response.source)
            assert len(self.supporters) <= self._core.voter_count, (
                f"{len(self.supporters)} of {self._core.voter_count} voters support {self._core.node_id}"
            )
