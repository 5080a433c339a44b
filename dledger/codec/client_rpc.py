"""What a log client asks and what it is answered (docs/formats/rpc.md, clients).

Requests and answers carry a `token` that the client chose; answers may come in any order. A
member answers every call: what it cannot decide ends with its leadership. Blobs: the body of
`AppendCall`, the raw sealed entries of `EntriesAnswer`, the bytes of `SnapshotAnswer`; nothing else has one.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dledger.codec.wire_types import (
    Header,
    Name,
    Number,
    OptionalName,
    Text,
    decode_with,
)
from dledger.errors import (
    CompactedError,
    DLedgerError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfRangeError,
    registry,
)


class AppendCall(Header, frozen=True, tag="append"):
    """Append the blob as one entry; answered when it is committed and applied at the leader."""

    token: Number


class GetCall(Header, frozen=True, tag="get"):
    """Committed entries from `index`.

    `local`: answer from what this member has; else only the leader answers, after a read point.
    """

    token: Number
    index: Number
    count: Number
    bytes_max: Number
    local: bool


class StatusCall(Header, frozen=True, tag="status"):
    """A member's view of itself."""

    token: Number


class TransferCall(Header, frozen=True, tag="transfer"):
    """Hand leadership over, to `target` or to the best follower when empty."""

    token: Number
    target: OptionalName


class SnapshotCall(Header, frozen=True, tag="snapshot"):
    """A part of this member's snapshot of the state with that index; 0: of its newest, from the start."""

    token: Number
    index: Number
    offset: Number


class AppendAnswer(Header, frozen=True, tag="appended"):
    """The entry is committed."""

    token: Number
    term: Number
    index: Number
    position: Number


class EntriesAnswer(Header, frozen=True, tag="entries"):
    """At least one entry, in order and without gaps; fewer than asked for when they are large."""

    token: Number
    count: Number


class StatusAnswer(Header, frozen=True, tag="status"):
    """The member's statistics."""

    token: Number
    node_id: str
    role: str
    term: Number
    leader_id: OptionalName
    first_index: Number
    last_index: Number
    commit_index: Number
    applied_index: Number
    durable_index: Number
    is_serving: bool
    peers_connected: list[str]
    match_indexes: dict[str, int]
    sync_latency_us: Number
    pending_count: Number
    attributes: dict[str, str]
    first_position: Number = 0


class MembersCall(Header, frozen=True, tag="members"):
    """Change the members by one, and answer who they are once that is committed; without `kind` nothing is changed.

    Only the leader answers, after a read point. `joins`: of who is added, that it becomes a voter by itself.
    """

    token: Number
    kind: Literal["", "add", "promote", "remove"] = ""
    node_id: OptionalName = ""
    address: Annotated[str, msgspec.Meta(max_length=300)] = ""
    joins: bool = False


class MembersAnswer(Header, frozen=True, tag="members"):
    """The configuration in force at the leader, by the entry `index`, and how far each other member is."""

    token: Number
    leader_id: Name
    term: Number
    index: Number
    is_committed: bool
    voters: list[str]
    learners: list[str]
    joining: list[str]
    addresses: dict[str, str]
    last_index: Number
    match_indexes: dict[str, int]
    silent: list[str]


class TransferAnswer(Header, frozen=True, tag="transferred"):
    """This member no longer leads."""

    token: Number
    target: OptionalName


class SnapshotAnswer(Header, frozen=True, tag="snapshot-part"):
    """The blob stands at `offset` of the file, which has `size_bytes`; index 0: there is no snapshot.

    When the wanted one is gone, it is the newest from its start.
    """

    token: Number
    index: Number
    offset: Number
    size_bytes: Number


class Failure(Header, frozen=True, tag="failed"):
    """The error of a call. `code` names the class (dledger.errors.registry)."""

    token: Number
    code: str
    reason: Text
    leader_id: OptionalName = ""
    leader_address: Text = ""
    term: Number = 0
    index: Number = 0
    first_index: Number = 0
    last_index: Number = 0


Call = AppendCall | GetCall | StatusCall | TransferCall | SnapshotCall | MembersCall
Answer = (
    AppendAnswer
    | EntriesAnswer
    | StatusAnswer
    | TransferAnswer
    | SnapshotAnswer
    | MembersAnswer
    | Failure
)

_CALLS: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def decode_call(header: bytes) -> Call:
    """Decode a request of a client.

    Raises:
        PeerProtocolError: it is something else.
    """
    return decode_with(_CALLS, header, "call")


def decode_answer(header: bytes) -> Answer:
    """Decode an answer of a member.

    Raises:
        PeerProtocolError: it is something else.
    """
    return decode_with(_ANSWERS, header, "answer")


def failure_of(token: int, error: DLedgerError, *, leader_address: str = "") -> Failure:
    """Return an error as it travels. What the caller may conclude is kept by its code."""
    match error:
        case NotLeaderError(leader_id=leader_id, term=term):
            return Failure(
                token,
                error.code,
                str(error)[:4096],
                leader_id=leader_id or "",
                leader_address=leader_address,
                term=term,
            )
        case CompactedError(index=index, first_index=first_index):
            return Failure(token, error.code, str(error), index=index, first_index=first_index)
        case OutOfRangeError(index=index, first_index=first_index, last_index=last_index):
            return Failure(
                token,
                error.code,
                str(error),
                index=index,
                first_index=first_index,
                last_index=last_index,
            )
        case _:
            return Failure(token, error.code, str(error)[:4096])


_REGISTRY = registry()


def error_of(failure: Failure) -> DLedgerError:
    """Return the error that a `Failure` stands for; an unknown code is an unknown outcome."""
    kind = _REGISTRY.get(failure.code, OutcomeUnknownError)
    if kind is NotLeaderError:
        # What stands after the known part is for people.
        detail = failure.reason.partition("; ")[2]
        return NotLeaderError(
            failure.leader_id or None,
            failure.term,
            detail,
            leader_address=failure.leader_address,
        )
    if kind is CompactedError:
        return CompactedError(failure.index, failure.first_index)
    if kind is OutOfRangeError:
        return OutOfRangeError(failure.index, failure.first_index, failure.last_index)
    if kind.__init__ is not DLedgerError.__init__:
        return OutcomeUnknownError(f"{failure.code}: {failure.reason}")
    return kind(failure.reason)
