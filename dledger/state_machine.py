"""The interface that a user of the log implements: a fold over committed entries (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from dledger.raft.entry import Entry
from dledger.raft.ids import Index


class SnapshotOvertakenError(Exception):
    """Part of what a snapshot still had to read is gone (a topic was deleted meanwhile); take another one."""


class SnapshotRefusedError(ValueError):
    """The bytes are no state that this machine can take in; it is empty now."""


class StateMachine(Protocol):
    """Derived state. After a restart it is fed the log again from `applied_index + 1`."""

    @property
    def applied_index(self) -> Index:
        """The last entry that the state contains."""
        ...

    def apply(self, entries: Sequence[Entry]) -> None:
        """Fold committed entries, in order, without gaps, on every member alike.

        Entries of every kind are given, no-ops too. An exception stops the node: an entry is never
        skipped.
        """
        ...


@runtime_checkable
class SnapshotMachine(StateMachine, Protocol):
    """A machine whose state can be written down, so that a restart reads only the rest of the log."""

    def digest(self) -> int:
        """Return 32 bits over the whole state; equal on all members at the same applied index."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """Return the state as it is at this call, in chunks of at most some 256 KiB.

        The call and each step are short, and entries may be applied between the steps: what they
        change does not show.

        Raises:
            SnapshotOvertakenError: from a step; the state at the call cannot be had any more.
        """
        ...

    def restore(self, chunks: Iterator[bytes]) -> None:
        """Replace the state by that of a snapshot, with its applied index.

        Raises:
            SnapshotRefusedError: the bytes are no such state. The machine is empty, as when it was
                made. An exception of `chunks` leaves it empty too and goes up.
        """
        ...


@runtime_checkable
class PreparingMachine(SnapshotMachine, Protocol):
    """A machine that is too large for `digest` and `snapshot` to be short, unless they are prepared."""

    def prepare_snapshot(self) -> Iterator[bool]:
        """Gather in short steps what the next `digest` and `snapshot` are to give.

        False: entries may be applied before the next step. True, from then on to the end: none may be applied before
        `snapshot` was called. Where one is applied all the same, `snapshot` gathers anew, at once.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as snapshots name it: where a member keeps some bytes of the state, durably and under checksums.

    Attributes:
        number: its file is called by it.
        size_bytes: of the file.
        state_bytes: bytes of the state in it.
        crc: with which the file ends; it covers all that is in it.
    """

    number: int
    size_bytes: int
    state_bytes: int
    crc: int


class KeptPart(Protocol):
    """A part that is kept already, and from which a machine may serve its state as long as it holds it.

    Whatever is read is what was written, or an error. The first read of a part may take as long as all of it.
    """

    @property
    def stored(self) -> StoredPart:
        """The place where it is kept."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield all of its bytes; as `read`."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of it, on the thread to which the machine belongs.

        Raises:
            EntryDamagedError: it cannot be read now.
        """
        ...

    def read_resident(self, offset: int, size: int) -> bytes | None:
        """Return what `read` does, if that need not wait for the disk; None if it would, or nobody can tell."""
        ...

    def read_beside(self, offset: int, size: int) -> bytes:
        """Return what `read` does, in any thread.

        Raises:
            OSError: it cannot be read.
        """
        ...


class SealedPart:
    """Bytes of a state that will never change, so that they are written once and named by each later snapshot.

    The machine keeps the object as long as the bytes belong to its state, and gives it out at the same place each time.

    Attributes:
        chunks: gives the bytes, in chunks of at most some 256 KiB; called where they have to be written.
        stored: where they are kept, once a snapshot with them is durable; set by whoever writes snapshots.
    """

    __slots__ = ("chunks", "stored")

    def __init__(
        self, chunks: Callable[[], Iterator[bytes]], stored: StoredPart | None = None
    ) -> None:
        self.chunks = chunks
        self.stored = stored


@runtime_checkable
class SealingMachine(SnapshotMachine, Protocol):
    """A machine large parts of whose state never change any more: its snapshots do not repeat them."""

    def sealed_snapshot(self) -> Iterator[bytes | SealedPart]:
        """Return what `snapshot` returns, with the parts that never change given as such.

        Raises:
            SnapshotOvertakenError: from a step; as in `snapshot`.
        """
        ...

    def restore_sealed(self, chunks: Iterator[bytes | KeptPart]) -> None:
        """Replace the state, as `restore`; in place of the bytes of a part that is kept stands the part.

        Raises:
            SnapshotRefusedError: the bytes are no such state.
        """
        ...


@runtime_checkable
class SwappingMachine(SnapshotMachine, Protocol):
    """A machine so large that another state is taken in beside the one that it shows, in short steps."""

    def beside(self) -> Self:
        """Return an empty machine of the same kind, which nobody sees."""
        ...

    def load_steps(self, chunks: Iterator[bytes | KeptPart]) -> Iterator[None]:
        """Take in a snapshot, as `restore` or `restore_sealed` does, in short steps; this machine is empty.

        After the last step `digest` is short, too. What fails halfway is no state, and of no use.

        Raises:
            SnapshotRefusedError: from a step; the bytes are no such state.
        """
        ...

    def swap(self, other: Self) -> None:
        """Be what the other machine is, and the other way round, at once.

        Raises:
            OSError: it failed; both are what they were.
        """
        ...

    def giving_up(self) -> Iterator[None]:
        """Forget everything, in short steps; nobody sees this machine any more."""
        ...


@runtime_checkable
class ForgettingMachine(SnapshotMachine, Protocol):
    """A machine that says which beginning of the log nobody needs any more, so that its bytes may be given back.

    Its snapshots contain `keep_from`.
    """

    @property
    def keep_from(self) -> Index:
        """The first entry that the state still needs or shows; the group has forgotten those before it.

        Decided by the fold alone, so it is equal on all members at the same applied index. It never
        decreases and is at most `applied_index + 1`. 1: nothing is forgotten.
        """
        ...
