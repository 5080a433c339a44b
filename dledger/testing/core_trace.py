"""Effects, messages and outcomes as short lines, for people: in interaction scripts and in traces of runs.

Pure: it neither prints nor remembers anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.effects import (
    AppendEntries,
    Commit,
    Committed,
    Effect,
    EntriesCut,
    Failed,
    HandsOver,
    LoadEntries,
    MembersChanged,
    MembersCommitted,
    News,
    Outcome,
    ReadAt,
    Resolve,
    RoleChanged,
    SaveHardState,
    Send,
    SendEntries,
    TransferDone,
    TruncateLog,
)
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    PeerMessage,
    PreVoteRequest,
    PreVoteResponse,
    RepairAnswer,
    RepairRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)


def entry_line(entry: Entry) -> str:
    """Word an entry: `index@term body`, or the kind where it has no body."""
    what = entry.body.decode(errors="backslashreplace")
    if entry.kind is not EntryKind.NORMAL:
        what = entry.kind.name.lower()
    return f"{entry.id} {what}"


def entries_line(entries: tuple[Entry, ...]) -> str:
    """Word a row of entries, in brackets."""
    return "[" + ", ".join(entry_line(entry) for entry in entries) + "]"


def span_line(entries: tuple[Entry, ...]) -> str:
    """Word a row of entries by its ends, where there are too many to read: `[3@2..7@2]`."""
    if len(entries) < 2:
        return f"[{entries[0].id if entries else ''}]"
    return f"[{entries[0].id}..{entries[-1].id}]"


def message_line(
    message: PeerMessage, entries: Callable[[tuple[Entry, ...]], str] = entries_line
) -> str:
    """Word a message without its sender; `entries` words those that it carries."""
    match message:
        case PreVoteRequest():
            return f"pre-vote-request term={message.term} last={message.last_index}@{message.last_term}"
        case VoteRequest():
            transfer = " transfer" if message.is_transfer else ""
            last = f"{message.last_index}@{message.last_term}"
            founds = f" founds-with={message.new_store}" if message.new_store else ""
            return f"vote-request term={message.term} last={last}{transfer}{founds}"
        case PreVoteResponse():
            granted = "granted" if message.granted else "refused"
            return f"pre-vote term={message.term} {granted}{_store(message.new_store)}"
        case VoteResponse():
            return f"vote term={message.term} {'granted' if message.granted else 'refused'}"
        case AppendRequest():
            return (
                f"append-request term={message.term} round={message.round} "
                f"prev={message.prev_index}@{message.prev_term} "
                f"{entries(message.entries)} commit={message.commit_index}{_admits(message.admits)}"
                f"{_first_kept(message.first_kept)}"
            )
        case AppendResponse(success=True):
            return (
                f"append term={message.term} round={message.round} match={message.match_index}"
                f"{_store(message.store)}{_may_lead(message)}"
            )
        case AppendResponse():
            return (
                f"append term={message.term} round={message.round} rejected "
                f"conflict={message.conflict_index}@{message.conflict_term} "
                f"last={message.last_index}{_store(message.store)}{_may_lead(message)}"
            )
        case TimeoutNow():
            return f"timeout-now term={message.term}"
        case RepairRequest():
            span = f"{message.first_index}..{message.last_index}"
            return f"repair-request number={message.number} {span}"
        case RepairAnswer():
            lacks = " lacks it" if message.lacks else ""
            lacks = " has forgotten it" if message.has_forgotten else lacks
            return f"repair number={message.number} {entries(message.entries)}{lacks}"
        case _:
            assert_never(message)


def _noted(notes: tuple[ConfigurationNote, ...]) -> str:
    """Word the entries that changed the members, a settled one in brackets; nothing where there are none."""
    names = [f"({note.entry_id})" if note.is_settled else str(note.entry_id) for note in notes]
    return f" members-at={','.join(names)}" if names else ""


def _may_lead(answer: AppendResponse) -> str:
    return "" if answer.may_lead else " may-not-lead"


def _store(number: int) -> str:
    """Word the number of a store that may not vote; nothing for a voter's."""
    return f" store={number}" if number else ""


def _first_kept(index: int) -> str:
    """Word what a request says to a member that is behind the leader's start."""
    return f" kept-from={index}" if index else ""


def _admits(number: int) -> str:
    """Word the store that a request admits; nothing for nobody's."""
    return f" admits={number}" if number else ""


def outcome_line(outcome: Outcome) -> str:
    """Word the answer to a token."""
    match outcome:
        case Committed():
            return f"committed {outcome.first}..{outcome.last}"
        case ReadAt():
            return f"read at {outcome.index}"
        case TransferDone():
            return f"transferred to {outcome.target}"
        case Failed():
            certainty = "surely not" if outcome.error.definite else "unknown"
            return f"{outcome.error.code} ({certainty}): {outcome.error}"


def _news_line(news: News) -> str:
    """Word what is a fact for people only, or for what stands around the log."""
    match news:
        case RoleChanged():
            return f"{news.role.value} term={news.term} leader={news.leader_id or '-'}"
        case MembersCommitted():
            return f"members of {news.index} are committed"
        case MembersChanged():
            return f"members from {news.index} on: {news.configuration}"
        case EntriesCut():
            return f"cut {news.first}..{news.last}"
        case HandsOver():
            return f"hands over to {news.target}: {news.own_ms} ms, others {news.others_ms} ms"


def effect_line(effect: Effect | News) -> str:
    """Word an effect or a piece of news, without the node that it belongs to."""
    match effect:
        case SaveHardState():
            voter = "" if effect.is_voter else " non-voter"
            return f"save term={effect.term} vote={effect.vote or '-'}{voter}{_noted(effect.notes)}"
        case AppendEntries():
            return f"append {entries_line(effect.entries)}"
        case TruncateLog():
            return f"truncate from {effect.first}"
        case Send():
            return f"-> {effect.to} {message_line(effect.message)}"
        case SendEntries():
            what = "heartbeat"
            if effect.first < effect.end:
                what = f"entries {effect.first}..{effect.end - 1}"
            return (
                f"-> {effect.to} {what} term={effect.term} round={effect.round} "
                f"prev={effect.prev_index}@{effect.prev_term} commit={effect.commit_index}"
                f"{_admits(effect.admits)}{_first_kept(effect.first_kept)}"
            )
        case LoadEntries():
            return f"load {effect.first}..{effect.end - 1} for {effect.to}"
        case Commit():
            return f"commit {effect.index}"
        case Resolve():
            return f"token {effect.token}: {outcome_line(effect.outcome)}"
        case RoleChanged() | MembersChanged() | MembersCommitted() | EntriesCut() | HandsOver():
            return _news_line(effect)
