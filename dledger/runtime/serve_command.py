"""`dledger server`: a member of a plain log group, until a signal stops it."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

from dledger.codec.entry import chain_crc
from dledger.config import LogConfig
from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, Index
from dledger.runtime.commands import EXIT_DONE
from dledger.runtime.crew import open_crew
from dledger.runtime.events_log import log_event
from dledger.runtime.server import LogServer

STOP_TIMEOUT_S: Final = 2.0
"""A stop takes no longer: the hand-over is given up then."""


class CountingMachine:
    """The smallest fold: how far, and the log's own digest of everything before."""

    def __init__(self) -> None:
        self.applied_index: Index = NO_INDEX
        self.digest = 0

    def apply(self, entries: Sequence[Entry]) -> None:
        """Note the last entry; its chain CRC covers the whole log before it."""
        self.applied_index = entries[-1].index
        self.digest = chain_crc(entries[-1])


async def serve(config: LogConfig) -> int:
    """Run until SIGTERM or SIGINT; then hand over and stop. A second signal stops at once.

    Raises:
        DLedgerError: the member cannot start, or its disk has failed.
    """
    server = LogServer(config, CountingMachine())
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_crew() as crew:
            crew.start(server.run, name="log server")
            await _wait_for_signal(server, signals)
            with trio.move_on_after(STOP_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_on_signal, signals, nursery.cancel_scope)
                    await server.drain()
                    nursery.cancel_scope.cancel()
            crew.stop()
    return EXIT_DONE


async def _wait_for_signal(server: LogServer, signals: AsyncIterator[int]) -> None:
    number = await anext(signals)
    log_event(
        logging.INFO,
        "stopping",
        node=server.node_id,
        term=server.term,
        signal=signal.Signals(number).name,
    )


async def _cancel_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()
