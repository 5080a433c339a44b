"""Linearizable reads: an act that runs when this node is confirmed as the leader and has applied enough."""

from __future__ import annotations

from collections.abc import Callable

import trio

from broker.server.gate import Errand, Gate
from broker.server.origin import Outputs
from dledger import DLedgerError, EntryDamagedError, LogServer

_CONFIRM_S = 2.0


class LinearReads:
    """Runs reads at once while the lease is held, else after a round to a majority (thesis 6.4)."""

    def __init__(self, log: LogServer, gate: Gate, outputs: Outputs, nursery: trio.Nursery) -> None:
        self._log = log
        self._gate = gate
        self._outputs = outputs
        self._nursery = nursery
        self._waiting: list[tuple[Errand, Callable[[], None]]] = []
        self._is_confirming = False

    def read(self, errand: Errand, act: Callable[[], None]) -> None:
        """Run `act`, which answers the errand; without a leader's confirmation it is held instead.

        So it is when an entry that it reads is damaged and has yet to come back. The confirmation is one that
        began after this call: what was committed or proposed before proves nothing about who leads now.
        """
        if self._log.reader.is_current:
            self._act(errand, act)
            return
        self._waiting.append((errand, act))
        if not self._is_confirming:
            self._is_confirming = True
            self._nursery.start_soon(self._confirm)

    async def _confirm(self) -> None:
        """One round for all reads that came before it began."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._log.reader.barrier(timeout_s=_CONFIRM_S)
            except DLedgerError as error:
                for errand, _ in batch:
                    errand.cause = str(error)
                    self._gate.hold(errand)
            else:
                for errand, act in batch:
                    self._act(errand, act)
            self._outputs.flush()
        self._is_confirming = False

    def _act(self, errand: Errand, act: Callable[[], None]) -> None:
        if errand.is_abandoned:
            return
        try:
            act()
        except EntryDamagedError as error:
            errand.cause = str(error)
            self._gate.hold(errand)
