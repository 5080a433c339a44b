"""The repair of a damaged log over sockets, after a member opened its port and before it takes part.

Nothing else runs meanwhile: votes and entries that come are dropped, clients get the answer that nobody leads
here. The same connections serve the member afterwards.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from dledger.errors import DiskFailedError
from dledger.raft.messages import PeerMessage, RepairAnswer, RepairRequest
from dledger.repair.store_repair import StoreRepair
from dledger.runtime.clock import now_ms, now_s
from dledger.runtime.events_log import log_event
from dledger.runtime.peer_links import PeerLinks

REPEAT_LINE_S: Final = 10.0
"""Somebody should see that a member waits; the line comes again after this."""


async def repair_on(links: PeerLinks, repair: StoreRepair, node_id: str) -> None:
    """Repair until the log can be opened again; for as long as it takes.

    Raises:
        DiskFailedError: the disk failed.
        CorruptionError: nobody can bring back what is missing, and what to do about it.
    """
    log_event(logging.ERROR, "log-damaged", node=node_id, reason=repair.problem)

    def deliver(message: PeerMessage) -> None:
        if isinstance(message, RepairRequest | RepairAnswer):
            repair.receive(message, now_ms())

    line_s = now_s()
    while True:
        try:
            links.receive(deliver)
            repair.tick(now_ms())
        except OSError as error:
            raise DiskFailedError(f"the damaged log cannot be mended: {error}") from error
        for to, message in repair.take_outbox():
            links.post(to, message)
        links.flush()
        links.take_lost()
        _log_notes(repair, node_id)
        if repair.hopeless is not None:
            raise repair.hopeless
        if repair.is_done:
            log_event(logging.WARNING, "log-repaired", node=node_id, entries=repair.repaired_count)
            return
        if now_s() - line_s >= REPEAT_LINE_S:
            line_s = now_s()
            log_event(logging.ERROR, "repair-waits", node=node_id, state=repair.describe())
        with trio.move_on_after(max(0, min(repair.next_deadline_ms() - now_ms(), 1000)) / 1000):
            await links.wait_ready()


def _log_notes(repair: StoreRepair, node_id: str) -> None:
    for note in repair.notes:
        log_event(logging.WARNING, "repair", node=node_id, note=note)
    repair.notes.clear()
