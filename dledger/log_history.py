"""What a log says of how it came about: whether entries go on from it, and who led its last term. It changes nothing.

It must not know what becomes of a log of another history.
"""

from __future__ import annotations

from typing import Final

from dledger.codec.chain import expected_chain_crc
from dledger.codec.entry import chain_crc
from dledger.errors import CorruptionError, ForkedError
from dledger.raft.configuration import Configuration
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.membership import MembershipFormatError, configuration_in
from dledger.raft.messages import AppendRequest
from dledger.storage.read_errors import is_shortage
from dledger.storage.segmented_log import SegmentedLog

_RUNS_MAX: Final = 64
"""The newest terms whose first entries are looked at."""


def check_history(
    log: SegmentedLog, request: AppendRequest, node_id: NodeId, *, term: Term
) -> None:
    """Refuse entries of another history: in one group those of one index and term have one chain CRC.

    Stores that were run apart may both have led a term, and then index and term say nothing.

    Args:
        log: of this node.
        request: from whoever leads.
        node_id: of this node, for the error.
        term: of this node.

    Raises:
        ForkedError: they are of another history.
        OSError: what stands before them cannot be read now.
    """
    entries = request.entries
    if not entries or (len(entries) == 1 and log.is_next(entries[0])):
        return
    layout, held = log.layout, _last_held(log.layout, request)
    prev = request.prev_index
    if held is not None and held.index >= layout.first_index - 1:
        if held.index < layout.first_index and request.term < term:
            return  # of a leader who was deposed: others may have been committed there, and forgotten, since
        place, is_same = held.index, log.chain_crc_of(held.index) == chain_crc(held)
    elif held is None and prev >= layout.first_index - 1:
        if layout.term_of(prev) != request.prev_term:
            return
        first = request.entries[0]
        follows = expected_chain_crc(first.header, log.chain_crc_of(prev))
        place, is_same = prev, follows == chain_crc(first)
    else:
        return
    if not is_same:
        raise ForkedError(
            f"{request.source} leads term {request.term} with another history: its entries up to {place} are not "
            f"those of {node_id}, though the last one is of the same term"
        )


def _last_held(layout: LogLayout, request: AppendRequest) -> Entry | None:
    """Return the last entry of a request that this log holds by index and term, or has forgotten; None: it has none.

    What is new follows that one, and histories may part between it and the first.
    """
    held = None
    for entry in request.entries:
        if entry.index >= layout.first_index and layout.term_of(entry.index) != entry.term:
            break
        held = entry
    return held


def other_writers(
    log: SegmentedLog, first: Index, before: Configuration | None
) -> frozenset[NodeId]:
    """Return the voters that a term from `first` on was begun with, if they are not this group's; empty: none is known.

    An older version's terms name nobody.

    Args:
        log: of this node.
        first: the first entry that is looked at.
        before: the members that the group had until there; None: nobody knows.
    """
    for term, begin in log.layout.term_runs(_RUNS_MAX):
        named = _named(log, begin, term) if begin >= first else None
        if named is None:
            continue
        if before is not None and not before.may_precede(named):
            return frozenset(named.voters)
        before = named
    return frozenset()


def _named(log: SegmentedLog, index: Index, term: Term) -> Configuration | None:
    """Return what an entry names; None: nothing, or it is unreadable, which is not reported from here."""
    try:
        (entry,) = log.entries(index, Index(index + 1))
        assert entry.term == term, f"entry {entry.id} begins term {term}"
        return configuration_in(entry)
    except (OSError, CorruptionError, MembershipFormatError):
        return None


def last_membership(log: SegmentedLog) -> tuple[EntryId, frozenset[NodeId]] | None:
    """Return the members that the first entry of a log's last term names; None: none, or it is unreadable.

    Raises:
        OSError: a shortage; nobody knows now.
    """
    runs = log.layout.runs()
    if not runs:
        return None
    first, term = runs[-1]
    try:
        (entry,) = log.entries(first, Index(first + 1))
        named = configuration_in(entry)
    except (OSError, CorruptionError, MembershipFormatError) as error:
        if is_shortage(error):
            raise
        return None
    return None if named is None else (EntryId(term, first), frozenset(named.voters))
