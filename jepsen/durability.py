"""Judges whether anything is promised before it is durable, from what members wrote, synced and sent, in order.

`nemeses/native/trace.c` records the calls of each member: bytes written to the store, syncs, renames, and what went
out over sockets. Here they become facts, and the facts are held against three rules:

- a member that confirms an append has synced its log up to there;
- a member that grants a vote has its term durable: written aside, synced, renamed, the folder synced;
- a client gets the answer to an entry once a majority has synced it.

Pure but for `traced`, which lets a process record. It knows the log's files and frames from their codecs, and
nothing of groups, engines or threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from dledger.codec.client_rpc import AppendAnswer, decode_answer
from dledger.codec.entry import EntryFormatError, decode_header
from dledger.codec.frame import FrameDecoder
from dledger.codec.hard_state import HardStateFormatError, decode_hard_state
from dledger.codec.rpc import decode_message
from dledger.raft.entry import ENTRY_HEADER_BYTES
from dledger.raft.messages import AppendResponse, VoteResponse
from dledger.raft.quorum import majority
from dledger.storage.hard_state import HARD_STATE_NAME
from jepsen.nemeses.preload import library
from jepsen.processes import Process

SOURCE: Final = Path(__file__).with_name("nemeses") / "native" / "trace.c"
BLOB_BYTES_MAX: Final = 1 << 30
_RECORD: Final = Struct("=IIIIq")
_KINDS: Final = {1: "written", 2: "synced", 3: "renamed", 4: "sent"}
_PEER_ANSWERS: Final = frozenset({"append-answer", "vote-answer"})


@dataclass(frozen=True, slots=True)
class SystemCall:
    """One call of a member.

    Attributes:
        who: the member.
        kind: "written", "synced", "renamed", "sent".
        path: of the file below the store, "" for the store itself; of a send the number of the socket.
        offset: where it was written.
        data: what was written or sent; the new path of a rename.
    """

    who: str
    kind: str
    path: str
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Wrote:
    """Entries were written to a file, the last of them with this index."""

    who: str
    path: str
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class Term:
    """A term was written aside."""

    who: str
    path: str
    term: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file has a new name, as soon as its folder is synced."""

    who: str
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Synced:
    """A file or a folder was synced."""

    who: str
    path: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A member's message to another one that it has the log up to there."""

    who: str
    index: int


@dataclass(frozen=True, slots=True)
class Voted:
    """A member granted its vote."""

    who: str
    term: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An answer to a client that its entry is safe."""

    who: str
    index: int


Fact = Wrote | Term | Renamed | Synced | Confirmed | Voted | Acknowledged


def traced(process: Process, store: Path, trace: Path) -> None:
    """Preload a process with the library that records its calls on files and sockets, from its next start on.

    Raises:
        PreloadError: the library cannot be compiled.
    """
    store = store.absolute().parent.resolve() / store.name
    process.environment |= {
        "LD_PRELOAD": str(library(SOURCE)),
        "JEPSEN_TRACE": str(trace.absolute()),
        "JEPSEN_TRACE_NAME": process.name,
        "JEPSEN_TRACE_ROOT": str(store),
    }


def read_calls(data: bytes) -> Iterator[SystemCall]:
    """Yield the calls of a trace; a record that a kill cut short is left out."""
    at = 0
    while at + _RECORD.size <= len(data):
        kind, who_bytes, path_bytes, data_bytes, offset = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        end = at + who_bytes + path_bytes + data_bytes
        if end > len(data):
            return
        path_at, data_at = at + who_bytes, at + who_bytes + path_bytes
        who, path = data[at:path_at].decode(), data[path_at:data_at].decode()
        yield SystemCall(who, _KINDS[kind], path, offset, data[data_at:end])
        at = end


def facts_of(calls: Iterable[SystemCall]) -> Iterator[Fact]:
    """Translate calls into facts about the log, in their order."""
    streams: dict[tuple[str, str], FrameDecoder] = {}
    for call in calls:
        match call.kind:
            case "written" if call.path.startswith("data/"):
                indexes = list(_indexes(call.data))
                if indexes:
                    yield Wrote(call.who, call.path, indexes[0], indexes[-1])
            case "written" if call.path.startswith(HARD_STATE_NAME):
                try:
                    yield Term(call.who, call.path, int(decode_hard_state(call.data).term))
                except HardStateFormatError:
                    continue
            case "synced":
                yield Synced(call.who, call.path)
            case "renamed":
                yield Renamed(call.who, call.path, call.data.decode())
            case "sent":
                stream = streams.setdefault(
                    (call.who, call.path), FrameDecoder(blob_bytes_max=BLOB_BYTES_MAX)
                )
                for frame in stream.feed(call.data):
                    yield from _facts_of_frame(call.who, frame.header, bytes(frame.blob))
            case _:
                continue


def _indexes(data: bytes) -> Iterator[int]:
    """Yield the indexes of entries that stand one after the other in what was written."""
    at = 0
    while at + ENTRY_HEADER_BYTES <= len(data):
        try:
            header = decode_header(data, at)
        except EntryFormatError:
            return
        yield int(header.index)
        at += header.size_bytes


def _facts_of_frame(who: str, header: bytes, blob: bytes) -> Iterator[Fact]:
    """Yield the promises that a frame makes; most make none."""
    message = msgspec.msgpack.decode(header)
    tag = message[0] if isinstance(message, list) and message else None
    if tag in _PEER_ANSWERS:
        message = decode_message(header, blob)
        if isinstance(message, AppendResponse) and message.success:
            yield Confirmed(who, int(message.match_index))
        elif isinstance(message, VoteResponse) and message.granted:
            yield Voted(who, int(message.term))
    elif tag == "appended":
        answer = decode_answer(header)
        assert isinstance(answer, AppendAnswer), answer
        yield Acknowledged(who, int(answer.index))


@dataclass(slots=True)
class _Member:
    """The known state of one member's disk.

    Attributes:
        unsynced: indexes that were written and not synced since, by file.
        last_index: of what was written.
        terms: by file, as written; synced ones; the one under its name; the durable one.
    """

    unsynced: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    last_index: int = 0
    written: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    named: int = 0
    durable_term: int = 0

    def durable_index(self) -> int:
        """Return the index up to which everything is durable."""
        waiting = [min(indexes) for indexes in self.unsynced.values() if indexes]
        return min(waiting) - 1 if waiting else self.last_index

    def take(self, fact: Wrote | Term | Renamed | Synced) -> None:
        """Update the state of the disk by one fact."""
        match fact:
            case Wrote():
                # What is written again, after a cut, is as new.
                self.unsynced[fact.path].update(range(fact.first_index, fact.last_index + 1))
                self.last_index = fact.last_index
            case Term():
                self.written[fact.path] = fact.term
            case Renamed():
                self.named = self.synced.pop(fact.path, self.named)
            case Synced(path=""):
                self.durable_term = self.named
            case Synced():
                self.unsynced.pop(fact.path, None)
                if fact.path in self.written:
                    self.synced[fact.path] = self.written.pop(fact.path)


def promised_too_early(facts: Iterable[Fact], *, members: int) -> list[str]:
    """Return every promise that was made before what it promises was durable."""
    disks: dict[str, _Member] = defaultdict(_Member)
    found: list[str] = []
    for fact in facts:
        match fact:
            case Confirmed():
                index = disks[fact.who].durable_index()
                if fact.index > index:
                    found.append(
                        f"{fact.who} confirmed entry {fact.index}, durable is entry {index}"
                    )
            case Voted():
                term = disks[fact.who].durable_term
                if fact.term > term:
                    found.append(f"{fact.who} voted in term {fact.term}, durable is term {term}")
            case Acknowledged():
                having = sum(disk.durable_index() >= fact.index for disk in disks.values())
                if having < majority(members):
                    found.append(
                        f"{fact.who} acknowledged entry {fact.index}, "
                        f"durable on {having} of {members}"
                    )
            case _:
                disks[fact.who].take(fact)
    return found
