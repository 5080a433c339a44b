"""The effects that a node returns for its driver to carry out, and the promise about their order.

Effects are carried out in list order. A `Send` leaves only when every save before it (in this list
or an earlier one) is durable, unless it says for what it `waits`; saves may be joined in one sync.
`SendEntries` waits for nothing: the leader may send entries before its own disk has them (thesis 10.2.1).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from dledger.errors import DLedgerError
from dledger.raft.configuration import Configuration
from dledger.raft.configuration_log import ConfigurationNote
from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, EntryId, Index, NodeId, Term
from dledger.raft.messages import Message


class Role(Enum):
    """The role of a node at the moment."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class SaveHardState(msgspec.Struct, frozen=True, gc=False):
    """Make the hard state durable."""

    term: Term
    vote: NodeId | None
    is_voter: bool = True
    notes: tuple[ConfigurationNote, ...] = ()


class AppendEntries(msgspec.Struct, frozen=True, gc=False):
    """Write these entries after the log's end. They are contiguous and never empty."""

    entries: tuple[Entry, ...]


class TruncateLog(msgspec.Struct, frozen=True, gc=False):
    """Remove `first` and everything after it (never a committed entry)."""

    first: Index


class Waits(Enum):
    """The condition on which a message is sent: which of the saves before it must be durable."""

    ALL = "term, vote and log"
    TERM = "term and vote: it confirms nothing of the log that is not durable"
    NOTHING = "nothing: it confirms nothing that was saved since this node leads"


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a message once what it `waits` for is durable."""

    to: NodeId
    message: Message
    waits: Waits = Waits.ALL


class SendEntries(msgspec.Struct, frozen=True, gc=False):
    """Send an AppendRequest with the entries first..end-1 (none: a heartbeat); need not be durable."""

    to: NodeId
    term: Term
    prev_index: Index
    prev_term: Term
    first: Index
    end: Index
    commit_index: Index
    round: int
    admits: int = 0
    first_kept: Index = NO_INDEX
    members: ConfigurationNote | None = None


class LoadEntries(msgspec.Struct, frozen=True, gc=False):
    """Read the entries first..end-1, which are not in memory, for a member that lacks them; then give `EntriesLoaded`.

    Nothing waits for it but that member, and there is one at a time for each. Whether it may be held down to a rate is
    asked while it waits (`RaftNode.is_waited_for`): the answer changes meanwhile.
    """

    to: NodeId
    term: Term
    first: Index
    end: Index


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Apply everything up to and with `index`: it is committed."""

    index: Index


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Outcome: the proposal's entries are committed; `last` is the last of them."""

    first: EntryId
    last: EntryId


class ReadAt(msgspec.Struct, frozen=True, gc=False):
    """Outcome: a read is linearizable once `index` is applied here."""

    index: Index


class TransferDone(msgspec.Struct, frozen=True, gc=False):
    """Outcome: this node no longer leads; `target` was asked to campaign and a new term was seen."""

    target: NodeId


class Failed(msgspec.Struct, frozen=True):
    """Outcome: the error says whether it surely did not happen or is unknown."""

    error: DLedgerError


Outcome = Committed | ReadAt | TransferDone | Failed


class Resolve(msgspec.Struct, frozen=True):
    """The answer to a token; each token gets exactly one."""

    token: int
    outcome: Outcome


class RoleChanged(msgspec.Struct, frozen=True, gc=False):
    """Role, term or known leader changed."""

    role: Role
    term: Term
    leader_id: NodeId | None


class MembersChanged(msgspec.Struct, frozen=True, gc=False):
    """Another configuration is in force: connections, and whoever else knows the members, follow it.

    Attributes:
        index: of the entry that named it, which need not be committed; 0: that entry was cut, and the first one of
            the store is in force again.
    """

    configuration: Configuration
    index: Index


class MembersCommitted(msgspec.Struct, frozen=True, gc=False):
    """The configuration in force is known to be committed: it is not undone any more."""

    configuration: Configuration
    index: Index


class HandsOver(msgspec.Struct, frozen=True, gc=False):
    """The leader has begun to hand over to `target`, because its own disk is too slow.

    Attributes:
        own_ms: how long it takes to make an entry durable.
        others_ms: how long the fastest majority of the others takes.
    """

    target: NodeId
    own_ms: int
    others_ms: int


class EntriesCut(msgspec.Struct, frozen=True, gc=False):
    """Entries that no majority is known to have had were replaced by the leader's.

    Attributes:
        first, last: of what was cut.
        writers: the members of another group that has written of it; empty: as far as is known, it was this one.
    """

    first: Index
    last: EntryId
    writers: frozenset[NodeId] = frozenset()


News = RoleChanged | MembersChanged | MembersCommitted | HandsOver | EntriesCut
"""Facts for people, and for what stands around the log."""

Effect = (
    SaveHardState
    | AppendEntries
    | TruncateLog
    | Send
    | SendEntries
    | LoadEntries
    | Commit
    | Resolve
    | RoleChanged
    | MembersChanged
    | HandsOver
)
