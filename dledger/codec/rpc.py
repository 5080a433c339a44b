"""Messages between members as headers and blobs (docs/formats/rpc.md, members).

A message is a msgpack array; the entries of an append request (and of a repair's answer) travel as its
blob: the sealed entries back to back, as they stand in the log. Bodies are never packed. What is decoded here is
consistent in itself: a request's entries follow each other without gaps, their terms do not
decrease, and every checksum is right. Whether they fit the receiver's log is for the log to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

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
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry
from dledger.raft.ids import EntryId, Index, NodeId, Position, Term
from dledger.raft.membership import MembershipFormatError, decode_membership, encode_membership
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

_PIECE_BYTES_MIN: Final = 16 * 1024
"""To copy fewer costs less than to send them as a piece of their own."""


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


class BasicAppendEntriesCall(Header, frozen=True, tag="append"):
    """AppendRequest that admits nobody, as members of every version read it; the blob is `count` entries."""

    term: Number
    source: Name
    prev_index: Number
    prev_term: Number
    commit_index: Number
    round: Number
    count: Number
    admits: bool = False


class AdmittingAppendEntriesCall(BasicAppendEntriesCall, frozen=True, tag="append"):
    """AppendRequest that admits a store. Version 0.1.0 refuses the last field, so it is left out of others."""

    admits_store: Number = 0


class AppendEntriesCall(AdmittingAppendEntriesCall, frozen=True, tag="append"):
    """AppendRequest. The last fields are sent only to members that are behind the leader's start."""

    first_kept: Number = 0
    first_position: Number = 0
    before_chain_crc: Number = 0


class MembersAppendEntriesCall(AppendEntriesCall, frozen=True, tag="append"):
    """AppendRequest of a group whose members were changed, to a member behind its leader's start."""

    members_index: Number = 0
    members_term: Number = 0
    members: bytes = b""


class AppendEntriesAnswer(Header, frozen=True, tag="append-answer"):
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


class StatelessAppendEntriesAnswer(AppendEntriesAnswer, frozen=True, tag="append-answer"):
    """AppendResponse. The last field is sent only by members that may not lead, since older ones refuse it."""

    may_lead: bool = True


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


class BasicRepairReply(Header, frozen=True, tag="repair-answer"):
    """RepairAnswer of a member that has forgotten nothing; the blob is `count` entries."""

    source: Name
    number: Number
    count: Number
    lacks: bool


class RepairReply(BasicRepairReply, frozen=True, tag="repair-answer"):
    """RepairAnswer; the last field is sent only when it says something."""

    has_forgotten: bool = False


PeerHeader = (
    PreVoteCall
    | PreVoteAnswer
    | VoteCall
    | VoteAnswer
    | MembersAppendEntriesCall
    | StatelessAppendEntriesAnswer
    | TimeoutNowCall
    | RepairCall
    | RepairReply
)

_DECODER: msgspec.msgpack.Decoder[PeerHeader] = msgspec.msgpack.Decoder(PeerHeader)


def _header_of_answer(message: AppendResponse) -> Header:
    """Encode without the last field unless it says something."""
    ordinary = AppendEntriesAnswer(
        term=message.term,
        source=message.source,
        round=message.round,
        success=message.success,
        match_index=message.match_index,
        conflict_index=message.conflict_index,
        conflict_term=message.conflict_term,
        last_index=message.last_index,
        store=message.store,
    )
    if message.may_lead:
        return ordinary
    return StatelessAppendEntriesAnswer(**msgspec.structs.asdict(ordinary), may_lead=False)


def _header_of_append(message: AppendRequest) -> Header:
    """Encode without the last fields unless they say something: members of version 0.1.0 refuse unknown fields."""
    ordinary = BasicAppendEntriesCall(
        term=message.term,
        source=message.source,
        prev_index=message.prev_index,
        prev_term=message.prev_term,
        commit_index=message.commit_index,
        round=message.round,
        count=len(message.entries),
    )
    if not message.admits and not message.first_kept:
        return ordinary
    fields = {
        **msgspec.structs.asdict(ordinary),
        "admits": bool(message.admits),
        "admits_store": message.admits,
    }
    if not message.first_kept:
        return AdmittingAppendEntriesCall(**fields)
    fields |= {
        "first_kept": message.first_kept,
        "first_position": message.first_position,
        "before_chain_crc": message.before_chain_crc,
    }
    if message.members is None:
        return AppendEntriesCall(**fields)
    return MembersAppendEntriesCall(
        **fields,
        members_index=message.members.entry_id.index,
        members_term=message.members.entry_id.term,
        members=encode_membership(message.members.configuration),
    )


def _header_of_election(
    message: PreVoteRequest | PreVoteResponse | VoteRequest | VoteResponse,
) -> Header:
    """Map a message of an election or a pre-vote to its wire header; none has entries."""
    match message:
        case PreVoteRequest():
            return PreVoteCall(
                term=message.term,
                source=message.source,
                last_index=message.last_index,
                last_term=message.last_term,
                campaign=message.campaign,
            )
        case PreVoteResponse():
            return PreVoteAnswer(
                term=message.term,
                source=message.source,
                granted=message.granted,
                new_store=message.new_store,
                campaign=message.campaign,
            )
        case VoteRequest():
            return VoteCall(
                term=message.term,
                source=message.source,
                last_index=message.last_index,
                last_term=message.last_term,
                is_transfer=message.is_transfer,
                new_store=message.new_store,
            )
        case VoteResponse():
            return VoteAnswer(term=message.term, source=message.source, granted=message.granted)
        case _:
            assert_never(message)


def _header_of(message: PeerMessage) -> Header:
    """Map a message to its wire header; the types are separate, so that the core can change and the wire stays."""
    match message:
        case AppendRequest():
            return _header_of_append(message)
        case AppendResponse():
            return _header_of_answer(message)
        case PreVoteRequest() | PreVoteResponse() | VoteRequest() | VoteResponse():
            return _header_of_election(message)
        case TimeoutNow():
            return TimeoutNowCall(term=message.term, source=message.source)
        case RepairRequest():
            return RepairCall(
                source=message.source,
                number=message.number,
                first_index=message.first_index,
                last_index=message.last_index,
                last_chain_crc=message.last_chain_crc,
            )
        case RepairAnswer():
            return _header_of_repair(message)
        case _:
            assert_never(message)


def _header_of_repair(message: RepairAnswer) -> Header:
    """Encode without the last field unless it says something, as for an append request."""
    ordinary = BasicRepairReply(
        source=message.source,
        number=message.number,
        count=len(message.entries),
        lacks=message.lacks,
    )
    if not message.has_forgotten:
        return ordinary
    return RepairReply(**msgspec.structs.asdict(ordinary), has_forgotten=True)


def encode_message(message: PeerMessage) -> bytes:
    """Encode the header of a message; the blob of one with entries is `encode_entries(its entries)`."""
    return encode_header(_header_of(message))


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Return sealed entries back to back."""
    return b"".join(entries_in_pieces(entries))


def entries_in_pieces(entries: Sequence[Entry]) -> list[bytes]:
    """Return sealed entries back to back in pieces: large bodies as they are, what stands between them joined."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for entry in entries:
        assert len(entry.header) == ENTRY_HEADER_BYTES, f"entry {entry.id} is not sealed"
        small.append(entry.header)
        if len(entry.body) < _PIECE_BYTES_MIN:
            small.append(entry.body)
        else:
            pieces += (b"".join(small), entry.body)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces


def decode_entries(blob: Sequence[Buffer], count: int) -> tuple[Entry, ...]:
    """Decode exactly `count` whole entries that follow each other, in pieces of any sizes.

    Raises:
        PeerProtocolError: a checksum, a length, the order or the count is wrong.
    """
    if count == 1 and len(blob) == 1:
        lone = entry_codec.decode_lone(blob[0])
        if lone is not None:
            return (lone,)
    try:
        entries = entry_codec.decode_pieces(blob)
    except EntryFormatError as error:
        raise PeerProtocolError(f"entries: {error}") from error
    if len(entries) != count:
        raise PeerProtocolError(f"{len(entries)} entries came, {count} were announced")
    return entries


def decode_message(header: bytes, *blob: Buffer) -> PeerMessage:
    """Decode a message with its blob, in one or more pieces; every field and every entry is checked.

    Raises:
        PeerProtocolError: with the reason.
    """
    call = decode_with(_DECODER, header, "message")
    if isinstance(call, MembersAppendEntriesCall):
        return _append_request(call, blob)
    if isinstance(call, RepairReply):
        entries = decode_entries(blob, call.count)
        return RepairAnswer(
            NodeId(call.source),
            call.number,
            entries,
            lacks=call.lacks,
            has_forgotten=call.has_forgotten,
        )
    if any(map(len, blob)):
        raise PeerProtocolError(f"{sum(map(len, blob))} bytes after a message that has no blob")
    return _without_blob(call)


def _election_message(call: PreVoteCall | PreVoteAnswer | VoteCall | VoteAnswer) -> PeerMessage:
    """Map a header of an election or a pre-vote to the message of the core."""
    term, source = Term(call.term), NodeId(call.source)
    match call:
        case PreVoteCall():
            return PreVoteRequest(
                term=term,
                source=source,
                last_index=Index(call.last_index),
                last_term=Term(call.last_term),
                campaign=call.campaign,
            )
        case PreVoteAnswer():
            return PreVoteResponse(
                term=term,
                source=source,
                granted=call.granted,
                new_store=call.new_store,
                campaign=call.campaign,
            )
        case VoteCall():
            return VoteRequest(
                term=term,
                source=source,
                last_index=Index(call.last_index),
                last_term=Term(call.last_term),
                is_transfer=call.is_transfer,
                new_store=call.new_store,
            )
        case VoteAnswer():
            return VoteResponse(term=term, source=source, granted=call.granted)
        case _:
            assert_never(call)


def _without_blob(
    call: PreVoteCall
    | PreVoteAnswer
    | VoteCall
    | VoteAnswer
    | StatelessAppendEntriesAnswer
    | TimeoutNowCall
    | RepairCall,
) -> PeerMessage:
    """Map a header to the message of the core; numbers get their types (`Term`, `Index`) here and nowhere else."""
    source = NodeId(call.source)
    if isinstance(call, RepairCall):
        return _repair_request(call)
    term = Term(call.term)
    match call:
        case StatelessAppendEntriesAnswer():
            return AppendResponse(
                term=term,
                source=source,
                round=call.round,
                success=call.success,
                match_index=Index(call.match_index),
                conflict_index=Index(call.conflict_index),
                conflict_term=Term(call.conflict_term),
                last_index=Index(call.last_index),
                store=call.store,
                may_lead=call.may_lead,
            )
        case PreVoteCall() | PreVoteAnswer() | VoteCall() | VoteAnswer():
            return _election_message(call)
        case TimeoutNowCall():
            return TimeoutNow(term=term, source=source)
        case _:
            assert_never(call)


def _repair_request(call: RepairCall) -> RepairRequest:
    """Decode a repair request; its range must not be empty, and its chain CRC has 32 bits."""
    if not 0 < call.first_index <= call.last_index or call.last_chain_crc >= 1 << 32:
        raise PeerProtocolError(
            f"entries {call.first_index} to {call.last_index} with chain crc {call.last_chain_crc}"
        )
    return RepairRequest(
        source=NodeId(call.source),
        number=call.number,
        first_index=Index(call.first_index),
        last_index=Index(call.last_index),
        last_chain_crc=call.last_chain_crc,
    )


def _members(call: MembersAppendEntriesCall) -> ConfigurationNote | None:
    """Decode the change of the members that a request tells of; None: of none."""
    if not call.members:
        return None
    try:
        configuration = decode_membership(call.members)
    except MembershipFormatError as error:
        raise PeerProtocolError(f"members: {error}") from error
    entry_id = EntryId(Term(call.members_term), Index(call.members_index))
    return ConfigurationNote(entry_id, configuration, is_settled=True)


def _append_request(call: MembersAppendEntriesCall, blob: Sequence[Buffer]) -> AppendRequest:
    """Check that the entries begin after `prev_index` and belong to terms up to the sender's."""
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
    request = AppendRequest(
        term=Term(call.term),
        source=NodeId(call.source),
        prev_index=Index(call.prev_index),
        prev_term=Term(call.prev_term),
        entries=entries,
        commit_index=Index(call.commit_index),
        round=call.round,
        admits=call.admits_store,
    )
    return _with_start(request, call) if call.first_kept else request


def _with_start(request: AppendRequest, call: MembersAppendEntriesCall) -> AppendRequest:
    """Add where the leader's log begins: a heartbeat from just before there says it."""
    if (
        request.entries
        or call.first_kept != call.prev_index + 1
        or call.before_chain_crc >= 1 << 32
    ):
        raise PeerProtocolError(
            f"a log that begins with entry {call.first_kept}, in a request after entry {call.prev_index}"
        )
    return msgspec.structs.replace(
        request,
        first_kept=Index(call.first_kept),
        first_position=Position(call.first_position),
        before_chain_crc=call.before_chain_crc,
        members=_members(call),
    )
