"""The rules of pre-vote and vote, as the voter applies them.

A voter is *bound* while the promise that it gave a leader with its last answer holds (`lease_ms`): it
then supports no other candidate, and does not even adopt a candidate's term, so a member that was
cut off cannot disturb a working leader (thesis 4.2.3 and 9.6). An election that the leader itself
asked for (hand-over) is exempt; the leader has given up its lease before it asks.

A member whose store began empty may have voted and confirmed entries before, with a store that was
lost. It supports nobody, except for the founding of a group, when *no* member has an entry; the
candidate then quotes the number of this very store (candidate.py, docs/adr/0061).
"""

from __future__ import annotations

from dledger.raft.core import Core
from dledger.raft.ids import Index, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.messages import PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse


def is_up_to_date(log: LogLayout, *, last_term: Term, last_index: Index) -> bool:
    """Return whether a log that ends there is at least as up to date as `log` (paper 5.4.1)."""
    return (last_term, last_index) >= (log.last_term, log.last_index)


def answer_pre_vote(core: Core, request: PreVoteRequest, *, is_bound: bool) -> None:
    """Answer whether this node would vote; nothing changes here (thesis 9.6)."""
    granted = (
        core.is_voter
        and not is_bound
        and request.term > core.term
        and is_up_to_date(core.log, last_term=request.last_term, last_index=request.last_index)
    )
    term = request.term if granted else core.term
    new_store = 0 if is_bound else core.new_store
    response = PreVoteResponse(
        term=term,
        source=core.node_id,
        granted=granted,
        new_store=new_store,
        campaign=request.campaign,
    )
    core.send(request.source, response)


def answer_vote(core: Core, request: VoteRequest, *, is_bound: bool) -> None:
    """Vote, or not, in the node's own term; the caller has adopted a higher term before."""
    if request.new_store and request.new_store == core.new_store and not request.last_index:
        core.is_voter = True  # the group is being founded: all stores were empty
    granted = (
        core.is_voter
        and request.term == core.term
        and (request.is_transfer or not is_bound)
        and (core.vote is None or core.vote == request.source)
        and is_up_to_date(core.log, last_term=request.last_term, last_index=request.last_index)
    )
    if granted:
        core.vote_for(request.source)
        core.restart_election_timer()
    core.send(request.source, VoteResponse(core.term, core.node_id, granted))
