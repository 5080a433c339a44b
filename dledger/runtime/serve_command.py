"""`dledger server`: a member of a plain log group, until a signal stops it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import Final

import trio

from dledger.codec.entry import chain_crc
from dledger.config import LogConfig
from dledger.raft.entry import Entry
from dledger.raft.ids import NO_INDEX, Index
from dledger.runtime.allocator import tune_allocator
from dledger.runtime.commands import EXIT_DONE
from dledger.runtime.descriptors import raise_limit
from dledger.runtime.events_log import log_event
from dledger.runtime.secret_file import SecretFile
from dledger.runtime.server import LogServer
from dledger.runtime.stop_signals import handle_stop_signals
from dledger.runtime.task_group import open_task_group

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


async def serve(config: LogConfig, *, secret_file: SecretFile | None = None) -> int:
    """Run until SIGTERM or SIGINT; then hand over and stop. A second signal stops at once.

    Args:
        config: of the member.
        secret_file: what holds `config.secret`, and is looked after; None: it never changes.

    Raises:
        DLedgerError: the member cannot start, or its disk has failed.
    """
    raise_limit()
    tune_allocator()
    server = LogServer(config, CountingMachine())
    asked = trio.Event()
    hand_over = trio.CancelScope()

    def stop(number: signal.Signals) -> None:
        if asked.is_set():
            hand_over.cancel()
            return
        asked.set()
        log_event(
            logging.INFO, "stopping", node=server.node_id, term=server.term, signal=number.name
        )

    handle_stop_signals(stop)
    async with open_task_group() as tasks:
        tasks.start(server.run, name="log server")
        if secret_file is not None:
            tasks.start(secret_file.run, name="secret file")
        await asked.wait()
        hand_over.deadline = trio.current_time() + STOP_TIMEOUT_S
        with hand_over:
            await server.drain()
        tasks.stop()
    return EXIT_DONE
