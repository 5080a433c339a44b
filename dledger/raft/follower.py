"""A follower's work with the leader's entries: compare, cut, append, commit, answer.

`plan_append` only looks, so a request that breaks the protocol changes nothing; `carry_out` only
does. Source: Raft paper 5.3, figure 2 (AppendEntries).

Entries are confirmed when they are durable. A heartbeat is answered at once, whatever the disk does: it
confirms as much of what agrees as is durable already, and so never makes the leader doubt who only writes.
"""

from __future__ import annotations

import msgspec

from dledger.errors import ForkedError, PeerProtocolError
from dledger.raft.configuration import Configuration
from dledger.raft.core import Core
from dledger.raft.effects import AppendEntries, Effect, Role, TruncateLog, Waits
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.membership import MembershipFormatError, configuration_in, decode_membership
from dledger.raft.messages import AppendRequest, AppendResponse

FIRST_TERM = Term(1)
"""No leader is elected before, so no entry has an earlier term."""


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The logs do not agree at the request's prev_index.

    Attributes:
        index: where the leader should try next.
        term: the follower's term at prev_index; 0 when it has no entry there.
    """

    index: Index
    term: Term


class AppendPlan(msgspec.Struct, frozen=True, gc=False):
    """The logs agree at prev_index.

    Attributes:
        match_index: last index that is equal to the leader's log afterwards.
        truncate_from: first own entry that contradicts the leader's; None when there is none.
        new: the entries that are not held yet.
    """

    match_index: Index
    truncate_from: Index | None
    new: tuple[Entry, ...]


def plan_append(
    log: LogLayout, commit_index: Index, request: AppendRequest
) -> AppendPlan | Conflict:
    """Plan the answer to an append request of the current or a later term; nothing changes here.

    Entries that are held already are neither written again nor do they shorten the log: a delayed,
    shorter request must not remove what a later one brought (figure 2, rule 3: only on conflict).

    Raises:
        PeerProtocolError: it contradicts a committed entry, or is malformed.
    """
    conflict = _conflict_at_prev(log, commit_index, request)
    if conflict is not None:
        return conflict
    entries = request.entries
    held = 0
    for entry in entries:
        if entry.index != request.prev_index + held + 1 or entry.index > log.last_index:
            break
        # Before the log's first entry everything is committed, hence equal.
        if log.has(entry.index) and log.term_of(entry.index) != entry.term:
            break
        held += 1
    new = entries[held:] if held else entries
    _check_entries(log, request, new, first=Index(request.prev_index + held + 1))
    truncate_from = None
    if new and new[0].index <= log.last_index:
        truncate_from = new[0].index
        if truncate_from <= commit_index:
            raise ForkedError(
                f"leader {request.source} of term {request.term} would replace entry "
                f"{truncate_from}, but entries up to {commit_index} are committed",
            )
    return AppendPlan(Index(request.prev_index + len(entries)), truncate_from, new)


def _conflict_at_prev(
    log: LogLayout, commit_index: Index, request: AppendRequest
) -> Conflict | None:
    """Compare the logs at `prev_index`; raises ForkedError if they differ where this member has committed."""
    prev_index = request.prev_index
    if prev_index < log.first_index - 1:
        return None  # before the log's first entry: committed, hence equal
    term = log.term_of(prev_index)
    if term is None:
        return Conflict(Index(log.last_index + 1), NO_TERM)
    if term == request.prev_term:
        return None
    if prev_index <= commit_index:
        raise ForkedError(
            f"leader {request.source} of term {request.term} has term {request.prev_term} at "
            f"entry {prev_index}, but term {term} is committed there",
        )
    # What is committed surely agrees, so there is no need to look further back.
    first = max(log.first_index_of_term_at(prev_index), commit_index + 1)
    return Conflict(Index(first), term)


def _check_entries(
    log: LogLayout, request: AppendRequest, new: tuple[Entry, ...], *, first: Index
) -> None:
    """Check that the new entries continue the log without a gap in index, term and position."""
    if not new:
        return
    index: int = first
    term = max(request.prev_term, FIRST_TERM)
    position = log.position_of(first) if first <= log.last_index + 1 else None
    for entry in new:
        if entry.index != index or not term <= entry.term <= request.term:
            raise PeerProtocolError(
                f"leader {request.source} of term {request.term} sent entry {entry.id} where "
                f"entry {index} of term {term} or later was due"
            )
        if entry.position != position:
            raise PeerProtocolError(
                f"leader {request.source} of term {request.term} sent entry {entry.id} for "
                f"position {entry.position}, but it stands at {position}"
            )
        index += 1
        term = entry.term
        position = entry.end_position


def check_writers(
    source: NodeId, entries: tuple[Entry, ...], before: Configuration | None, prev_term: Term
) -> None:
    """Refuse entries of a log that other members than this group's have written.

    A term begins with an entry that repeats the members; within a term each may change one.

    Args:
        source: who sends them.
        entries: those that are not held yet.
        before: the configuration that the first of them follows; None: this store does not know any yet.
        prev_term: of the entry before the first of them.

    Raises:
        ForkedError: an entry names others.
        PeerProtocolError: an entry should name members, and does not.
    """
    for entry in entries:
        begins_term = entry.term > prev_term
        prev_term = entry.term
        if entry.kind is not EntryKind.CONFIGURATION:
            continue
        try:
            named = configuration_in(entry)
        except MembershipFormatError as error:
            raise PeerProtocolError(f"entry {entry.id} of {source}: {error}") from error
        if named is None or before is None:
            before = named
            continue
        if not (before.names_same_members(named) if begins_term else before.may_precede(named)):
            raise ForkedError(
                f"entry {entry.id} of {source} was written by a group of {named}, this one is of {before}",
            )
        before = named


def carry_out(core: Core, request: AppendRequest, plan: AppendPlan | Conflict) -> None:
    """Carry out the plan and answer. The node follows the request's leader already."""
    log = core.log
    if request.first_kept:
        core.announced_members = (request.commit_index, request.members)
    if isinstance(plan, Conflict):
        _answer(core, request.source, round_=request.round, conflict=plan)
        return
    if plan.truncate_from is not None:
        assert plan.truncate_from > core.commit_index, (
            f"entry {plan.truncate_from} would be removed, committed is {core.commit_index}"
        )
        core.truncate_from(plan.truncate_from)
        core.emit(TruncateLog(plan.truncate_from))
    if plan.new:
        assert plan.new[0].index == log.last_index + 1, (
            f"entry {plan.new[0].index} would follow entry {log.last_index}"
        )
        for entry in plan.new:
            log.append(entry.term, entry.size_bytes)
        core.emit(AppendEntries(plan.new))
        for entry in plan.new:
            if entry.kind is EntryKind.CONFIGURATION:
                core.configured(entry.id, decode_membership(entry.body))
    match_index = plan.match_index
    assert match_index <= log.last_index, (
        f"entry {match_index} is confirmed, {log.last_index} is the last"
    )
    if not request.entries:
        match_index = min(match_index, core.durable_index)
    _answer(core, request.source, round_=request.round, match_index=match_index)
    # Beyond match_index the own log may still differ from the leader's.
    commit_index = min(request.commit_index, plan.match_index)
    if commit_index > core.commit_index:
        core.commit(Index(commit_index))


def append_next(core: Core, request: AppendRequest, now_ms: int) -> list[Effect] | None:
    """Take the one entry that follows this log directly, from the leader that is followed; None: it is another case.

    This is what a follower does all day while somebody sends one message after the other. All that `RaftNode.step` does
    for such a request is done here, with the same effects; in any other case nothing is changed.
    """
    entries, log, term = request.entries, core.log, core.term
    if (
        len(entries) != 1
        or request.term != term
        or request.source != core.leader_id
        or core.role is not Role.FOLLOWER
        or request.admits
        or request.first_kept
    ):
        return None
    (entry,) = entries
    index = entry.index
    if (
        entry.kind is not EntryKind.NORMAL
        or request.prev_index != log.last_index
        or index != log.last_index + 1
        or entry.position != log.end_position
        or entry.term != term
        or request.prev_term != log.last_term
    ):
        return None
    if now_ms > core.now_ms:
        core.now_ms = now_ms
    core.contact_ms = core.now_ms
    core.restart_election_timer()
    log.append(term, entry.size_bytes)
    core.emit(AppendEntries(entries))
    response = AppendResponse(
        term=term,
        source=core.node_id,
        round=request.round,
        success=True,
        match_index=index,
        conflict_index=NO_INDEX,
        conflict_term=NO_TERM,
        last_index=index,
        store=core.store,
        may_lead=core.may_lead,
    )
    core.send(request.source, response)
    commit_index = min(request.commit_index, index)
    if commit_index > core.commit_index:
        core.commit(commit_index)
    return core.take_effects()


def refuse_old_leader(core: Core, request: AppendRequest) -> None:
    """Answer the leader of an earlier term with this node's own (paper 5.1).

    Round 0 answers no request: should the old leader lead again in this node's term, it must not
    take this for an answer to a round of that term.
    """
    nowhere = Conflict(NO_INDEX, NO_TERM)
    _answer(core, request.source, round_=0, conflict=nowhere)


def _answer(
    core: Core,
    leader: NodeId,
    *,
    round_: int,
    match_index: Index = NO_INDEX,
    conflict: Conflict | None = None,
) -> None:
    """Answer a request; only what confirms entries that are not durable waits for the log."""
    response = AppendResponse(
        term=core.term,
        source=core.node_id,
        round=round_,
        success=conflict is None,
        match_index=match_index,
        conflict_index=NO_INDEX if conflict is None else conflict.index,
        conflict_term=NO_TERM if conflict is None else conflict.term,
        last_index=core.log.last_index,
        store=core.store,
        may_lead=core.may_lead,
    )
    is_durable = match_index <= core.durable_index
    core.send(leader, response, Waits.TERM if is_durable else Waits.ALL)
