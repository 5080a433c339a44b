"""Messages between members as headers and blobs (docs/formats/rpc.md, members).

A message is a msgpack array; the entries of an append request (and of a repair's answer) travel as its
blob: the sealed entries back to back, as they stand in the log. Bodies are never packed. What is decoded here is
consistent in itself: a request's entries follow each other without gaps, their terms do not
decrease, and every checksum is right. Whether they fit the receiver's log is for the log to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from dledger.codec import entry as entry_codec
from dledger.codec.entry import EntryFormatError
from dledger.codec.frame import Buffer
from dledger.codec.wire_types import (
    Header,
    Name,
    Number,
    decode_with,
    encode_header,
)
from dledger.errors import PeerProtocolError
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import Index, NodeId, Term
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


class PreVoteCall(Header, frozen=True, tag="pre-vote"):
    """PreVoteRequest."""

    term: Number
    source: Name
    last_index: Number
    last_term: Number
    campaign: Number = 0


class PreVoteAnswer(Header, frozen=True, tag="pre-vote-answer"):
    """PreVoteResponse."""

    term: Number
    source: Name
    granted: bool
    new_store: Number = 0
    campaign: Number = 0


class VoteCall(Header, frozen=True, tag="vote"):
    """VoteRequest."""

    term: Number
    source: Name
    last_index: Number
    last_term: Number
    is_transfer: bool
    new_store: Number = 0


class VoteAnswer(Header, frozen=True, tag="vote-answer"):
    """VoteResponse."""

    term: Number
    source: Name
    granted: bool


class OrdinaryAppendCall(Header, frozen=True, tag="append"):
    """AppendRequest that admits nobody, as members of every version read it; the blob is `count` entries."""

    term: Number
    source: Name
    prev_index: Number
    prev_term: Number
    commit_index: Number
    round: Number
    count: Number
    admits: bool = False


class AppendCall(OrdinaryAppendCall, frozen=True, tag="append"):
    """AppendRequest. A member of version 0.1.0 refuses the last field, so it is sent only when it says something."""

    admits_store: Number = 0


class AppendAnswer(Header, frozen=True, tag="append-answer"):
    """AppendResponse."""

    term: Number
    source: Name
    round: Number
    success: bool
    match_index: Number
    conflict_index: Number
    conflict_term: Number
    last_index: Number
    store: Number = 0


class TimeoutNowCall(Header, frozen=True, tag="timeout-now"):
    """TimeoutNow."""

    term: Number
    source: Name


class RepairCall(Header, frozen=True, tag="repair"):
    """RepairRequest."""

    source: Name
    number: Number
    first_index: Number
    last_index: Number
    last_chain_crc: Number


class RepairReply(Header, frozen=True, tag="repair-answer"):
    """RepairAnswer; the blob is `count` entries."""

    source: Name
    number: Number
    count: Number
    lacks: bool


_DECODER = msgspec.msgpack.Decoder(
    PreVoteCall
    | PreVoteAnswer
    | VoteCall
    | VoteAnswer
    | AppendCall
    | AppendAnswer
    | TimeoutNowCall
    | RepairCall
    | RepairReply
)


def _header_of_append(m: AppendRequest) -> Header:
    ordinary = (
        m.term,
        m.source,
        m.prev_index,
        m.prev_term,
        m.commit_index,
        m.round,
        len(m.entries),
    )
    if not m.admits:
        return OrdinaryAppendCall(*ordinary)
    return AppendCall(*ordinary, True, m.admits)


def _header_of_append_answer(m: AppendResponse) -> Header:
    return AppendAnswer(
        m.term,
        m.source,
        m.round,
        m.success,
        m.match_index,
        m.conflict_index,
        m.conflict_term,
        m.last_index,
        m.store,
    )


_HEADER_OF: dict[type[PeerMessage], Callable[[Any], Header]] = {
    AppendRequest: _header_of_append,
    AppendResponse: _header_of_append_answer,
    PreVoteRequest: lambda m: PreVoteCall(m.term, m.source, m.last_index, m.last_term, m.campaign),
    PreVoteResponse: lambda m: PreVoteAnswer(m.term, m.source, m.granted, m.new_store, m.campaign),
    VoteRequest: lambda m: VoteCall(
        m.term, m.source, m.last_index, m.last_term, m.is_transfer, m.new_store
    ),
    VoteResponse: lambda m: VoteAnswer(m.term, m.source, m.granted),
    TimeoutNow: lambda m: TimeoutNowCall(m.term, m.source),
    RepairRequest: lambda m: RepairCall(
        m.source, m.number, m.first_index, m.last_index, m.last_chain_crc
    ),
    RepairAnswer: lambda m: RepairReply(m.source, m.number, len(m.entries), m.lacks),
}


def encode_message(message: PeerMessage) -> bytes:
    """Encode the header of a message; the blob of one with entries is `encode_entries(its entries)`."""
    return encode_header(_HEADER_OF[type(message)](message))


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Sealed entries back to back."""
    parts: list[bytes] = []
    for entry in entries:
        assert len(entry.header) == ENTRY_HEADER_BYTES, f"entry {entry.id} is not sealed"
        parts.append(entry.header)
        parts.append(entry.body)
    return b"".join(parts)


def decode_entries(blob: Buffer, count: int) -> tuple[Entry, ...]:
    """Exactly `count` whole entries that follow each other.

    Raises:
        PeerProtocolError: a checksum, a length, the order or the count is wrong.
    """
    # The entry codec only slices and unpacks, which a view can do as well: no copy of the blob.
    data = cast("bytes", blob)
    try:
        entries = entry_codec.decode_entries(data)
    except EntryFormatError as error:
        raise PeerProtocolError(f"entries: {error}") from error
    if len(entries) != count:
        raise PeerProtocolError(f"{len(entries)} entries came, {count} were announced")
    return entries


def decode_message(header: bytes, blob: Buffer) -> PeerMessage:
    """Decode a message, with every field and every entry checked.

    Raises:
        PeerProtocolError: with the reason.
    """
    call = decode_with(_DECODER, header, "message")
    if type(call) is AppendCall:
        return _append_request(call, blob)
    if type(call) is RepairReply:
        entries = decode_entries(blob, call.count)
        return RepairAnswer(NodeId(call.source), call.number, entries, call.lacks)
    if len(blob):
        raise PeerProtocolError(f"{len(blob)} bytes behind a message that has no blob")
    source = NodeId(call.source)
    if type(call) is RepairCall:
        return _repair_request(call)
    term = Term(call.term)
    match call:
        case AppendAnswer():
            return AppendResponse(
                term,
                source,
                call.round,
                call.success,
                Index(call.match_index),
                Index(call.conflict_index),
                Term(call.conflict_term),
                Index(call.last_index),
                call.store,
            )
        case PreVoteCall():
            return PreVoteRequest(
                term, source, Index(call.last_index), Term(call.last_term), call.campaign
            )
        case PreVoteAnswer():
            return PreVoteResponse(term, source, call.granted, call.new_store, call.campaign)
        case VoteCall():
            return VoteRequest(
                term,
                source,
                Index(call.last_index),
                Term(call.last_term),
                call.is_transfer,
                call.new_store,
            )
        case VoteAnswer():
            return VoteResponse(term, source, call.granted)
        case _:
            return TimeoutNow(term, source)


def _repair_request(call: RepairCall) -> RepairRequest:
    """Check that something is asked for, by a name."""
    if not 0 < call.first_index <= call.last_index or call.last_chain_crc >= 1 << 32:
        raise PeerProtocolError(
            f"entries {call.first_index} to {call.last_index} with chain crc {call.last_chain_crc}"
        )
    return RepairRequest(
        NodeId(call.source),
        call.number,
        Index(call.first_index),
        Index(call.last_index),
        call.last_chain_crc,
    )


def _append_request(call: AppendCall, blob: Buffer) -> AppendRequest:
    """Check that the entries begin behind `prev_index` and belong to terms up to the sender's."""
    entries = decode_entries(blob, call.count)
    if call.prev_term > call.term:
        raise PeerProtocolError(f"previous term {call.prev_term} in a request of term {call.term}")
    if entries:
        first, last = entries[0], entries[-1]
        if first.index != call.prev_index + 1 or first.term < call.prev_term:
            raise PeerProtocolError(
                f"entry {first.id} cannot follow entry {call.prev_index}@{call.prev_term}"
            )
        if last.term > call.term:
            raise PeerProtocolError(f"entry {last.id} in a request of term {call.term}")
    return AppendRequest(
        Term(call.term),
        NodeId(call.source),
        Index(call.prev_index),
        Term(call.prev_term),
        entries,
        Index(call.commit_index),
        call.round,
        call.admits_store,
    )
