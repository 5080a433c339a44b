"""The words of the interaction scripts: arguments, logs written as terms, messages out of nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import NO_INDEX, NO_TERM, EntryId, Index, NodeId, Position, Term
from dledger.raft.messages import AppendRequest, AppendResponse, Message, TimeoutNow, VoteRequest
from dledger.testing.datadriven import ScriptError


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line: words without `=` in order, the others by name."""

    words: tuple[str, ...]
    named: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Arguments:
        """Split a command's arguments."""
        parts = line.split()
        words = tuple(part for part in parts if "=" not in part)
        return cls(words, dict(part.split("=", 1) for part in parts if "=" in part))

    def need(self, name: str) -> str:
        """A named argument that must be there."""
        if name not in self.named:
            raise ScriptError(f"{name}=... is missing")
        return self.named[name]

    def number(self, name: str) -> int:
        """A named number that must be there."""
        return int(self.need(name))

    def entry_id(self, name: str) -> EntryId:
        """A named index@term."""
        index, _, term = self.need(name).partition("@")
        return EntryId(Term(int(term)), Index(int(index)))


def seeded_entries(terms: str) -> list[Entry]:
    """A log from the term of each entry, as in `1,1,2`; the bodies name index and term."""
    return entries_from(terms, first=1, position=0)


def entries_from(terms: str, *, first: int, position: int) -> list[Entry]:
    """The same, from some index and byte position on."""
    entries = []
    for place, text in enumerate(part for part in terms.split(",") if part):
        index, term = Index(first + place), Term(int(text))
        body = f"e{index}t{term}".encode()
        entry = Entry(index, term, Position(position), EntryKind.NORMAL, body)
        entries.append(entry)
        position = entry.end_position
    return entries


def make_message(given: Arguments, entries: Sequence[Entry]) -> Message:
    """A message that nobody sent; its kind is the second word.

    `vote-request term=1 last=0@0 [transfer]`, `timeout-now term=1`, `append term=1 round=1 match=1`,
    `append-request term=1 prev=0@0 [terms=1,1] [position=0] [commit=0] [round=1]`.

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
            last = given.entry_id("last")
            return VoteRequest(term, source, last.index, last.term, "transfer" in given.words)
        case "timeout-now":
            return TimeoutNow(term, source)
        case "append":
            match_index = Index(given.number("match"))
            round_ = given.number("round")
            return AppendResponse(
                term, source, round_, True, match_index, NO_INDEX, NO_TERM, match_index
            )
        case "append-request":
            return _append_request(given, entries, term, source)
        case kind:
            raise ScriptError(f"cannot make a {kind}")


def _append_request(
    given: Arguments, entries: Sequence[Entry], term: Term, source: NodeId
) -> AppendRequest:
    prev = given.entry_id("prev")
    before = entries[: prev.index]
    position = before[-1].end_position if before else Position(0)
    new = entries_from(
        given.named.get("terms", ""),
        first=prev.index + 1,
        position=int(given.named.get("position", position)),
    )
    commit_index = Index(int(given.named.get("commit", 0)))
    round_ = int(given.named.get("round", 1))
    return AppendRequest(term, source, prev.index, prev.term, tuple(new), commit_index, round_)
