"""A Raft-replicated commit log: entries in, the same fold on every member, as a library.

What stands in `__all__` is the public API; everything else may change. A member of a group is a
`LogServer` with a `StateMachine` (docs/embedding.md); a program that only uses a group takes `Client` (trio) or
`SyncClient` (blocking).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dledger.config import LogConfig, Peer, RaftConfig, parse_peers
from dledger.errors import (
    AckTimeoutError,
    CompactedError,
    ConfigError,
    ConnectionLostError,
    CorruptionError,
    DeadlineError,
    DiskFailedError,
    DiskFullError,
    DLedgerError,
    EntryDamagedError,
    HandshakeRefusedError,
    LeaderNotReadyError,
    LeadershipLostError,
    ListenError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfRangeError,
    PeerProtocolError,
    ReadTimeoutError,
    RefusedError,
    ShutdownError,
    StoppingError,
    StoreLockedError,
    TooLargeError,
    TooManyPendingError,
    TransferFailedError,
    TransferringError,
    UnreachableError,
    UnsupportedError,
    UsageError,
)
from dledger.group_secret import GroupSecret
from dledger.member_tls import MemberTls
from dledger.raft.effects import Committed, Failed, Role
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import NO_INDEX, EntryId, Index, NodeId, Position, Term
from dledger.state_machine import (
    ForgettingMachine,
    KeptPart,
    PreparingMachine,
    SealedPart,
    SealingMachine,
    SnapshotMachine,
    SnapshotOvertakenError,
    SnapshotRefusedError,
    StateMachine,
    StoredPart,
)
from dledger.version import __version__

if TYPE_CHECKING:
    from dledger.codec.client_rpc import StatusAnswer
    from dledger.runtime.announcer import RoleView
    from dledger.runtime.client import Client
    from dledger.runtime.log_appender import LogAppender
    from dledger.runtime.log_forwarder import LogForwarder
    from dledger.runtime.log_reader import LogReader
    from dledger.runtime.member_status import MemberStatus
    from dledger.runtime.peer_clocks import ClockReading
    from dledger.runtime.server import LogServer
    from dledger.runtime.statistics import Statistics
    from dledger.runtime.sync_client import SyncClient

# Loaded when they are first asked for: the pure core must be importable without trio and sockets.
_RUNTIME_NAMES = {
    "Client": "dledger.runtime.client",
    "ClockReading": "dledger.runtime.peer_clocks",
    "LogAppender": "dledger.runtime.log_appender",
    "LogForwarder": "dledger.runtime.log_forwarder",
    "LogReader": "dledger.runtime.log_reader",
    "LogServer": "dledger.runtime.server",
    "MemberStatus": "dledger.runtime.member_status",
    "RoleView": "dledger.runtime.announcer",
    "Statistics": "dledger.runtime.statistics",
    "StatusAnswer": "dledger.codec.client_rpc",
    "SyncClient": "dledger.runtime.sync_client",
}


def __getattr__(name: str) -> object:
    """Load a public name of the runtime."""
    module = _RUNTIME_NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'dledger' has no attribute {name!r}")
    return getattr(import_module(module), name)


__all__ = [
    "ENTRY_HEADER_BYTES",
    "NO_INDEX",
    "AckTimeoutError",
    "Committed",
    "Client",
    "ClockReading",
    "CompactedError",
    "ConfigError",
    "ConnectionLostError",
    "CorruptionError",
    "DLedgerError",
    "DeadlineError",
    "DiskFailedError",
    "DiskFullError",
    "Entry",
    "EntryDamagedError",
    "EntryId",
    "EntryKind",
    "Failed",
    "ForgettingMachine",
    "KeptPart",
    "PreparingMachine",
    "SealedPart",
    "SealingMachine",
    "StoredPart",
    "GroupSecret",
    "HandshakeRefusedError",
    "Index",
    "LeaderNotReadyError",
    "LeadershipLostError",
    "ListenError",
    "LogAppender",
    "LogConfig",
    "LogForwarder",
    "LogReader",
    "LogServer",
    "MemberStatus",
    "MemberTls",
    "NodeId",
    "NotLeaderError",
    "OutOfRangeError",
    "OutcomeUnknownError",
    "Peer",
    "PeerProtocolError",
    "Position",
    "RaftConfig",
    "ReadTimeoutError",
    "RefusedError",
    "Role",
    "RoleView",
    "ShutdownError",
    "SnapshotMachine",
    "SnapshotOvertakenError",
    "SnapshotRefusedError",
    "StateMachine",
    "Statistics",
    "StatusAnswer",
    "StoppingError",
    "StoreLockedError",
    "SyncClient",
    "Term",
    "TooLargeError",
    "TooManyPendingError",
    "TransferFailedError",
    "TransferringError",
    "UnreachableError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "parse_peers",
]
