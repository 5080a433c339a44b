"""What a user of the log implements: a fold over committed entries (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dledger.raft.entry import Entry
from dledger.raft.ids import Index


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
