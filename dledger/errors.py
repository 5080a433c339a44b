"""Every error of the log, and what a caller may conclude from it.

The class answers the question that matters: did it happen? `RefusedError` is definite (it did not
happen and never will), `OutcomeUnknownError` is indefinite (it may have happened, or may yet).
`REGISTRY` lists the codes that travel between nodes and clients; docs/errors.md is made from it.
"""

from __future__ import annotations

from typing import ClassVar


class DLedgerError(Exception):
    """Root of all errors of the log.

    Attributes:
        code: short stable name that travels on the wire.
        definite: whether the caller knows that nothing happened.
        retriable: whether trying again, perhaps at another node, can help.
    """

    code: ClassVar[str] = "internal"
    definite: ClassVar[bool] = False
    retriable: ClassVar[bool] = False


class UsageError(DLedgerError):
    """The caller broke the contract; nothing happened."""

    code = "usage"
    definite = True


class ConfigError(DLedgerError):
    """The node refuses to start with this configuration; the message names the values."""

    code = "config"
    definite = True


class RefusedError(DLedgerError):
    """It did not happen and never will."""

    code = "refused"
    definite = True
    retriable = True


class NotLeaderError(RefusedError):
    """This node does not lead; `leader_id` names who does, and `leader_address` where, as far as it knows."""

    code = "not_leader"

    def __init__(
        self,
        leader_id: str | None = None,
        term: int = 0,
        detail: str = "",
        *,
        leader_address: str = "",
    ) -> None:
        self.leader_id = leader_id
        self.leader_address = leader_address
        self.term = term
        known = (
            f"the leader of term {term} is {leader_id}"
            if leader_id
            else f"no leader is known in term {term}"
        )
        super().__init__(f"not the leader: {known}{'; ' + detail if detail else ''}")


class LeaderNotReadyError(RefusedError):
    """This node was elected but has not yet applied the first entry of its term."""

    code = "leader_not_ready"


class StoppingError(RefusedError):
    """This node is about to stop, or has stopped, and takes nothing more; another may lead."""

    code = "stopping"


class TransferringError(RefusedError):
    """The leader is handing over and takes no proposals meanwhile."""

    code = "transferring"


class TooManyPendingError(RefusedError):
    """A bound on pending work is reached; try again a little later."""

    code = "too_many_pending"


class ReadTimeoutError(RefusedError):
    """The leader could not confirm in time that it still leads; nothing was read."""

    code = "read_timeout"


class DeadlineError(RefusedError):
    """The caller's time was over before anything was asked."""

    code = "deadline"


class TooLargeError(RefusedError):
    """The entry is larger than the configured maximum."""

    code = "too_large"
    retriable = False


class DiskFullError(RefusedError):
    """The store has no room; nothing was written."""

    code = "disk_full"


class TransferFailedError(RefusedError):
    """Leadership was not handed over; the old leader goes on."""

    code = "transfer_failed"


class MembersUnchangedError(RefusedError):
    """The members cannot be changed so now; nothing was changed."""

    code = "members_unchanged"


class UnsupportedError(RefusedError):
    """This group does not offer that operation."""

    code = "unsupported"
    retriable = False


class UnreachableError(RefusedError):
    """No connection to that member; nothing was asked."""

    code = "unreachable"


class HandshakeRefusedError(RefusedError):
    """One side turned the other away before anything was asked: group, member, secret or version.

    Attributes:
        kind: version, group, member, stranger, secret, duplicate or busy.
    """

    code = "handshake_refused"

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        super().__init__(reason)


class CompactedError(RefusedError):
    """The entry is no longer kept; the log starts at `first_index`."""

    code = "compacted"
    retriable = False

    def __init__(self, index: int, first_index: int) -> None:
        self.index = index
        self.first_index = first_index
        super().__init__(f"entry {index} is no longer kept: the log starts at entry {first_index}")


class OutOfRangeError(RefusedError):
    """The entry is not there (yet); the log holds first_index..last_index."""

    code = "out_of_range"
    retriable = False

    def __init__(self, index: int, first_index: int, last_index: int) -> None:
        self.index = index
        self.first_index = first_index
        self.last_index = last_index
        super().__init__(f"no entry {index}: the log holds entries {first_index} to {last_index}")


class EntryDamagedError(RefusedError):
    """The entry is damaged here, has yet to come, or cannot be read now, and was not read. Try again, or elsewhere."""

    code = "entry_damaged"


class OutcomeUnknownError(DLedgerError):
    """It may have happened, or may yet. Retrying may do it twice."""

    code = "unknown"
    definite = False
    retriable = True


class LeadershipLostError(OutcomeUnknownError):
    """The leader lost its term while the proposal was pending."""

    code = "leadership_lost"


class AckTimeoutError(OutcomeUnknownError):
    """No majority answered in time; the entry may still be committed."""

    code = "ack_timeout"


class MembersPendingError(OutcomeUnknownError):
    """A change of the members has begun, and what it is to lead to has yet to happen; asking again changes nothing."""

    code = "members_pending"


class ShutdownError(OutcomeUnknownError):
    """The node stopped while the operation was pending."""

    code = "shutdown"


class ConnectionLostError(OutcomeUnknownError):
    """The connection broke after the request was sent."""

    code = "connection_lost"


class CorruptionError(DLedgerError):
    """The disk lied: bytes that were durable are no longer what was written. Never skipped.

    Attributes:
        path: the damaged file.
        byte_offset: where in the file.
    """

    code = "corruption"

    def __init__(self, path: str, byte_offset: int, problem: str) -> None:
        self.path = path
        self.byte_offset = byte_offset
        self.problem = problem
        super().__init__(f"{path}, byte {byte_offset}: {problem}")


class DiskFailedError(DLedgerError):
    """A write or fsync failed: the node stops acknowledging and must be restarted."""

    code = "disk_failed"


class StoreLockedError(DLedgerError):
    """Another process holds this store directory."""

    code = "store_locked"
    definite = True


class ListenError(DLedgerError):
    """The node's address cannot be listened on; it does not start."""

    code = "cannot_listen"
    definite = True


class PeerProtocolError(DLedgerError):
    """The other side broke the protocol; its connection is closed."""

    code = "peer_protocol"
    definite = True


class ForkedError(PeerProtocolError):
    """Two members have committed different entries: their stores were run apart from each other."""

    code = "forked"


def registry() -> dict[str, type[DLedgerError]]:
    """Return all error classes by code, for the wire and for docs/errors.md."""
    found: dict[str, type[DLedgerError]] = {}
    waiting: list[type[DLedgerError]] = [DLedgerError]
    while waiting:
        kind = waiting.pop()
        assert kind.code not in found, f"two errors share the code {kind.code!r}"
        found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return found
