"""Linearizable reads: an act that runs when this node is confirmed as the leader and has applied enough.

How many may wait is for those who read to bound (router.py, read_points.py): they know what each keeps, and what
becomes of one for which there is no room.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from broker.server.requests.origin import Outputs
from dledger import DLedgerError, LogServer

_CONFIRM_S = 2.0


class LinearReads:
    """Runs reads at once while the lease is held, else after a round to a majority (thesis 6.4)."""

    def __init__(self, log: LogServer, outputs: Outputs, nursery: trio.Nursery) -> None:
        self._log = log
        self._outputs = outputs
        self._nursery = nursery
        self._waiting: list[tuple[Callable[[], None], Callable[[DLedgerError], None]]] = []
        self._is_confirming = False

    def read(self, act: Callable[[], None], failed: Callable[[DLedgerError], None]) -> None:
        """Run `act`; or `failed`, without a leader's confirmation.

        The confirmation is one that began after this call: what was committed or proposed before proves nothing about
        who leads now.
        """
        if self._log.reader.is_current:
            act()
            return
        self._waiting.append((act, failed))
        if not self._is_confirming:
            self._is_confirming = True
            self._nursery.start_soon(self._confirm)

    async def _confirm(self) -> None:
        """Run one round for all reads that came before it began, and again for those that came since."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._log.reader.barrier(timeout_s=_CONFIRM_S)
            except DLedgerError as error:
                for _, failed in batch:
                    failed(error)
            else:
                for act, _ in batch:
                    act()
            self._outputs.flush()
        self._is_confirming = False
