"""The vocabulary of the interaction scripts: logs written as terms, and forged messages.

How a script is read, and what its commands have in common, is in `datadriven`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dledger.raft.configuration import Configuration
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, NodeId, Position, Term
from dledger.raft.membership import encode_membership
from dledger.raft.messages import AppendRequest, AppendResponse, Message, TimeoutNow, VoteRequest
from dledger.testing.datadriven import Arguments, ScriptError


def seeded_entries(terms: str) -> list[Entry]:
    """Make a log from the term of each entry, as in `1,1,2`; the bodies name index and term."""
    return entries_from(terms, first=1, position=0)


def entries_from(terms: str, *, first: int, position: int) -> list[Entry]:
    """Make such a log from an index and a byte position on."""
    entries = []
    for place, text in enumerate(part for part in terms.split(",") if part):
        index, term = Index(first + place), Term(int(text))
        body = f"e{index}t{term}".encode()
        entry = Entry(index, term, Position(position), EntryKind.NORMAL, body)
        entries.append(entry)
        position = entry.end_position
    return entries


def _entry_id(given: Arguments, name: str) -> EntryId:
    """Return a named index@term."""
    index, _, term = given.need(name).partition("@")
    return EntryId(Term(int(term)), Index(int(index)))


def make_message(given: Arguments, entries: Sequence[Entry]) -> Message:
    """Forge a message; its kind is the second word of the command.

    `vote-request term=1 last=0@0 [transfer]`, `timeout-now term=1`, `append term=1 round=1 match=1 [store=0]`,
    `append-request term=1 prev=0@0 [terms=1,1] [members=n0,n1] [position=0] [commit=0] [round=1]`; with members,
    the first of the terms is that of a membership entry.

    Args:
        given: the command's arguments, `from=` among them.
        entries: the receiver's log, from which the position of new entries follows.
    """
    if len(given.words) < 2:
        raise ScriptError("receive NODE MESSAGE from=NODE")
    source = NodeId(given.need("from"))
    term = Term(given.number("term"))
    match given.words[1]:
        case "vote-request":
            last = _entry_id(given, "last")
            return VoteRequest(term, source, last.index, last.term, "transfer" in given.words)
        case "timeout-now":
            return TimeoutNow(term, source)
        case "append":
            match_index = Index(given.number("match"))
            round_ = given.number("round")
            return AppendResponse(
                term=term,
                source=source,
                round=round_,
                success=True,
                match_index=match_index,
                conflict_index=NO_INDEX,
                conflict_term=NO_TERM,
                last_index=match_index,
                store=given.number_or("store", 0),
            )
        case "append-request":
            return _append_request(given, entries, term, source)
        case kind:
            raise ScriptError(f"cannot make a {kind}")


def _append_request(
    given: Arguments, entries: Sequence[Entry], term: Term, source: NodeId
) -> AppendRequest:
    """Build an append request; its position follows from the sender's log unless the script names another one."""
    prev = _entry_id(given, "prev")
    before = entries[: prev.index]
    position = before[-1].end_position if before else Position(0)
    new = entries_from(
        given.named.get("terms", ""),
        first=prev.index + 1,
        position=int(given.named.get("position", position)),
    )
    if "members" in given.named and new:
        names = [NodeId(name) for name in given.need("members").split(",") if name]
        # Also nobody, which no member would write.
        body = encode_membership(Configuration(tuple(names)))
        new[0] = replace(new[0], kind=EntryKind.CONFIGURATION, body=body)
    commit_index = Index(int(given.named.get("commit", 0)))
    round_ = int(given.named.get("round", 1))
    return AppendRequest(term, source, prev.index, prev.term, tuple(new), commit_index, round_)
