"""The events that a node is stepped with. The time comes with each of them, in milliseconds."""

from __future__ import annotations

import msgspec

from dledger.raft.configuration import MemberChange
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.raft.messages import Message


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed; due at the latest at `RaftNode.next_deadline_ms()`.

    `obstacles`: what is known at this moment to keep members from answering, in words. Whoever loses an entry because
    no majority answered is told.
    """

    obstacles: str = ""


class StoodStill(msgspec.Struct, frozen=True, gc=False):
    """The node's process stood still for so long: messages that came meanwhile are not read yet.

    Given before what came, and before the next `Tick`.
    """

    length_ms: int


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message came from a member; the transport has checked who it came from."""

    message: Message


class Propose(msgspec.Struct, frozen=True, gc=False):
    """Append these bodies, in order, one entry each. Resolved once, when the last is decided.

    `token` is the caller's own; it comes back in `Resolve` exactly once.
    """

    bodies: tuple[bytes, ...]
    token: int


class Persisted(msgspec.Struct, frozen=True, gc=False):
    """Everything that was saved up to and with this entry is durable.

    The term distinguishes it from an entry that stood there before a truncation.
    """

    last: EntryId


class EntriesLoaded(msgspec.Struct, frozen=True, gc=False):
    """The entries first..end-1, or some of them, can be sent to a member at once, or could not be read beside the loop.

    The answer to `LoadEntries`: with its term, its first entry, and no later end. If that end is the first, they
    cannot be read now: they are asked for again with the next answer, or entry, for that member.
    """

    peer: NodeId
    term: Term
    first: Index
    end: Index


class ReadRequested(msgspec.Struct, frozen=True, gc=False):
    """Find an index at which a read is linearizable (thesis 6.4)."""

    token: int


class TransferRequested(msgspec.Struct, frozen=True, gc=False):
    """Hand over leadership, to `target`, or to the best follower when None."""

    target: NodeId | None
    token: int


class MembersRequested(msgspec.Struct, frozen=True, gc=False):
    """Change the members by one. Resolved as committed when the group is as asked, also if it was before."""

    change: MemberChange
    token: int


class PeerUnreachable(msgspec.Struct, frozen=True, gc=False):
    """The connection to a member broke, or what was sent to it is known to be lost."""

    peer: NodeId


class StepDown(msgspec.Struct, frozen=True, gc=False):
    """The node must not lead any longer (its disk failed or is full, or it shuts down)."""

    reason: str


class GiveUpVote(msgspec.Struct, frozen=True, gc=False):
    """The member's store turned out to be an older copy: what it promised since is forgotten, so it must not vote.

    It is as good as lost (docs/adr/0061, 0103), though what it holds need not be sent again.
    """


Event = (
    Tick
    | StoodStill
    | Received
    | Propose
    | Persisted
    | EntriesLoaded
    | ReadRequested
    | TransferRequested
    | MembersRequested
    | PeerUnreachable
    | StepDown
    | GiveUpVote
)
