"""A send of the ordinary way, from its frame to its answer."""

from __future__ import annotations

from typing import Protocol

from broker.server.handlers.known_sends import SendInFlight
from broker.store.staging import StagedEntry
from dledger import DLedgerError


class SendService(Protocol):
    """The service that decides on sends, and answers them."""

    def committed(self, send: SendOperation, staged: StagedEntry, place: int) -> None:
        """Answer a send of which the staged part is committed."""
        ...

    def joined_committed(self, first: SendOperation, staged: StagedEntry, place: int) -> None:
        """Pass on to the sends that joined `first` where their parts stand."""
        ...

    def failed(self, send: SendOperation, error: DLedgerError) -> None:
        """Conclude what follows for a send of which the staged part is not confirmed."""
        ...

    def decided(self, send: SendInFlight, error: DLedgerError | None = None) -> None:
        """Count one of the entries that a send waits for as decided."""
        ...


class SendOperation(SendInFlight, eq=False):
    """A send; it is the waiter of what was staged of it.

    Attributes:
        service: the service that decided on it; set before anything of it is staged.
    """

    service: SendService | None = None

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""
        service = self.service
        assert service is not None, f"send {self.opaque} was staged by no service"
        service.committed(self, staged, place)
        if self.joined is not None:
            service.joined_committed(self, staged, place)

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`."""
        service, joined = self.service, self.joined
        assert service is not None, f"send {self.opaque} was staged by no service"
        self.joined = self.steps = None  # it may be staged again
        service.failed(self, error)
        for other in joined or ():
            service.decided(other, error)
